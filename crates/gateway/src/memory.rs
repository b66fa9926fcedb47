//! What calls may take of the machine's memory: one call, all calls of one key, all calls together. A call takes its
//! estimate before the work that it is for, and gives it back when the last byte of its answer has gone.
//! Must not know what a call is.

use std::collections::HashMap;
use std::sync::Arc;

use headrace_domain::KeyId;
use parking_lot::Mutex;

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
    shared: Arc<Shared>,
}

struct Shared {
    bounds: MemoryBounds,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: u64,
    /// Keys with calls in flight.
    keys: HashMap<KeyId, u64>,
}

/// What one call has taken: given back when dropped.
pub(crate) struct Reserved {
    shared: Arc<Shared>,
    key: KeyId,
    bytes: Mutex<u64>,
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
        Self { shared: Arc::new(Shared { bounds, taken: Mutex::default() }) }
    }

    pub(crate) fn bounds(&self) -> MemoryBounds {
        self.shared.bounds
    }

    /// Bytes that calls have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.shared.taken.lock().all
    }

    /// Takes `bytes` for a call of `key`, or nothing.
    pub(crate) fn reserve(&self, key: &KeyId, bytes: u64) -> Result<Reserved, NoMemory> {
        self.shared.change(key, 0, bytes)?;
        Ok(Reserved { shared: Arc::clone(&self.shared), key: key.clone(), bytes: Mutex::new(bytes) })
    }
}

impl Reserved {
    /// Takes `bytes` instead of what it has, or leaves it as it is.
    pub(crate) fn resize(&self, bytes: u64) -> Result<(), NoMemory> {
        let mut own = self.bytes.lock();
        self.shared.change(&self.key, *own, bytes)?;
        *own = bytes;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // To take less is never refused.
        let _ = self.resize(0);
    }
}

impl Shared {
    fn change(&self, key: &KeyId, from: u64, to: u64) -> Result<(), NoMemory> {
        let MemoryBounds { key: of_key, all: of_all, .. } = self.bounds;
        let mut taken = self.taken.lock();
        let (others, all_others) =
            (taken.keys.get(key).copied().unwrap_or(0).saturating_sub(from), taken.all.saturating_sub(from));
        if to > from {
            if to > of_key.min(of_all) {
                return Err(NoMemory::Never { needed: to, bound: of_key.min(of_all) });
            }
            if others.saturating_add(to) > of_key {
                return Err(NoMemory::Key { key: key.clone(), needed: to, taken: others, bound: of_key });
            }
            if all_others.saturating_add(to) > of_all {
                return Err(NoMemory::All { needed: to, taken: all_others, bound: of_all });
            }
        }
        taken.all = all_others.saturating_add(to);
        match others.saturating_add(to) {
            0 => drop(taken.keys.remove(key)),
            sum => match taken.keys.get_mut(key) {
                Some(slot) => *slot = sum,
                None => drop(taken.keys.insert(key.clone(), sum)),
            },
        }
        Ok(())
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
    fn what_is_taken_is_bounded_by_key_and_over_all_and_given_back_once() {
        let memory = Memory::new(MemoryBounds { call: 100, key: 100, all: 150 });
        let (a, b) = (KeyId::new("a").unwrap(), KeyId::new("b").unwrap());
        let first = memory.reserve(&a, 60).unwrap();
        let refused = |reserved: Result<Reserved, NoMemory>| reserved.map(drop).unwrap_err();
        assert_eq!(refused(memory.reserve(&a, 101)), NoMemory::Never { needed: 101, bound: 100 });
        let full = NoMemory::Key { key: a.clone(), needed: 41, taken: 60, bound: 100 };
        assert_eq!(refused(memory.reserve(&a, 41)), full);
        let second = memory.reserve(&b, 80).unwrap();
        let full = NoMemory::All { needed: 20, taken: 140, bound: 150 };
        assert_eq!(refused(memory.reserve(&a, 20)), full);
        assert_eq!(second.resize(91), Err(NoMemory::All { needed: 91, taken: 60, bound: 150 }));
        second.resize(90).unwrap();
        first.resize(10).unwrap();
        assert_eq!(memory.taken(), 100);
        drop(second);
        let third = memory.reserve(&a, 90).unwrap();
        drop((first, third));
        assert_eq!(memory.taken(), 0);
        assert!(memory.shared.taken.lock().keys.is_empty(), "nothing is kept of keys without calls");
    }
}
