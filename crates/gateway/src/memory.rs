//! What calls may take of the machine's memory: one call, all calls of one key, all calls together. A call takes its
//! estimate before the work that it is for, and gives it back when the last byte of its answer has gone.
//! Must not know what a call is.

use headrace_call_api::{NoRoom, Reserved};
use headrace_domain::KeyId;

/// The bounds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBounds {
    /// Of one call.
    pub call: u64,
    /// Of all calls of one key.
    pub key: u64,
    /// Of all calls.
    pub all: u64,
}

impl Default for MemoryBounds {
    /// 64 MiB, 256 MiB and 2 GiB.
    fn default() -> Self {
        Self { call: 64 << 20, key: 256 << 20, all: 2 << 30 }
    }
}

/// What is taken now.
pub(crate) struct Memory {
    bounds: MemoryBounds,
    calls: headrace_call_api::Memory,
}

/// There is no room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoMemory {
    /// However long it waits.
    Never { needed: u64, bound: u64 },
    /// While other calls of its key have what they have.
    Key { key: KeyId, needed: u64, taken: u64, bound: u64 },
    /// While everybody's calls have what they have.
    All { needed: u64, taken: u64, bound: u64 },
}

impl Memory {
    pub(crate) fn new(bounds: MemoryBounds) -> Self {
        Self { bounds, calls: headrace_call_api::Memory::new(bounds.all, bounds.key) }
    }

    pub(crate) fn bounds(&self) -> MemoryBounds {
        self.bounds
    }

    /// Bytes that calls have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.calls.taken()
    }

    /// Takes `bytes` for a call of `key`, or nothing.
    pub(crate) fn reserve(&self, key: &KeyId, bytes: u64) -> Result<Reserved, NoMemory> {
        let reserved = self.calls.for_call_of(key.clone());
        self.resize(&reserved, bytes).map(|()| reserved)
    }

    /// Takes `bytes` instead of what the call has, or leaves it as it is.
    pub(crate) fn resize(&self, reserved: &Reserved, bytes: u64) -> Result<(), NoMemory> {
        reserved.resize(bytes).map_err(|no_room| self.bounds.passed(no_room, reserved.key()))
    }
}

impl MemoryBounds {
    /// Names the bound that a call of `key` would pass.
    pub(crate) fn passed(&self, no_room: NoRoom, key: &KeyId) -> NoMemory {
        let most = self.key.min(self.all);
        match no_room {
            NoRoom::OfKey { needed, .. } | NoRoom::OfAll { needed, .. } if needed > most => {
                NoMemory::Never { needed, bound: most }
            }
            NoRoom::OfKey { needed, taken, bound } => {
                NoMemory::Key { key: key.clone(), needed, taken, bound }
            }
            NoRoom::OfAll { needed, taken, bound } => NoMemory::All { needed, taken, bound },
        }
    }
}

/// Bytes for people.
pub(crate) fn mib(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_which_bound_it_would_pass() {
        let memory = Memory::new(MemoryBounds { call: 100, key: 100, all: 150 });
        let (a, b) = (KeyId::new("a").unwrap(), KeyId::new("b").unwrap());
        let _first = memory.reserve(&a, 60).unwrap();
        let refused = |reserved: Result<Reserved, NoMemory>| reserved.map(drop).unwrap_err();
        assert_eq!(refused(memory.reserve(&a, 101)), NoMemory::Never { needed: 101, bound: 100 });
        let full = NoMemory::Key { key: a.clone(), needed: 41, taken: 60, bound: 100 };
        assert_eq!(refused(memory.reserve(&a, 41)), full);
        let second = memory.reserve(&b, 80).unwrap();
        let full = NoMemory::All { needed: 20, taken: 140, bound: 150 };
        assert_eq!(refused(memory.reserve(&a, 20)), full);
        let full = NoMemory::All { needed: 91, taken: 60, bound: 150 };
        assert_eq!(memory.resize(&second, 91), Err(full));
        memory.resize(&second, 90).unwrap();
        assert_eq!(memory.taken(), 150);
    }
}
