//! Memory accounting for calls: bounds for one call, for all calls of one key, and for all calls. A call reserves its
//! estimated memory before the work, and gives it back when the last byte of its answer has gone. Must not know what
//! a call is.

use std::cell::{Cell, RefCell};

use headrace_call_api::{MemoryReservation, NoRoom};
use headrace_domain::KeyId;
use headrace_tokenizer::{Bounds, TokenizerError};

/// The bounds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBounds {
    /// For one call.
    pub call: u64,
    /// For all calls of one key.
    pub key: u64,
    /// For all calls.
    pub all: u64,
}

impl Default for MemoryBounds {
    /// The defaults: 64 MiB, 256 MiB and 2 GiB.
    fn default() -> Self {
        Self { call: 64 << 20, key: 256 << 20, all: 2 << 30 }
    }
}

/// The bounds, and the reservations in force.
pub struct CallMemory {
    bounds: MemoryBounds,
    calls: headrace_call_api::MemoryAccount,
}

/// Why a reservation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoMemory {
    /// It exceeds a bound, so that waiting cannot help.
    Never {
        /// Bytes that the call needs.
        needed: u64,
        /// The bound.
        bound: u64,
    },
    /// Other calls of the same key hold too much at present.
    Key {
        /// The key.
        key: KeyId,
        /// Bytes that the call needs.
        needed: u64,
        /// Bytes that the key's other calls hold.
        taken: u64,
        /// The bound.
        bound: u64,
    },
    /// All calls together hold too much at present.
    All {
        /// Bytes that the call needs.
        needed: u64,
        /// Bytes that other calls hold.
        taken: u64,
        /// The bound.
        bound: u64,
    },
}

impl CallMemory {
    /// Nothing is reserved at first.
    pub fn new(bounds: MemoryBounds) -> Self {
        Self { bounds, calls: headrace_call_api::MemoryAccount::new(bounds.all, bounds.key) }
    }

    /// The bounds.
    pub fn bounds(&self) -> MemoryBounds {
        self.bounds
    }

    /// Bytes reserved by calls.
    pub fn taken(&self) -> u64 {
        self.calls.taken()
    }

    /// The most bytes that were reserved at once since the last call of this method.
    pub fn take_peak(&self) -> u64 {
        self.calls.take_peak()
    }

    /// An empty reservation for a call of `key`.
    pub fn none_yet(&self, key: &KeyId) -> MemoryReservation {
        self.calls.for_call_of(key.clone())
    }

    /// Reserves `bytes` for a call of `key`, all or nothing.
    pub fn reserve(&self, key: &KeyId, bytes: u64) -> Result<MemoryReservation, NoMemory> {
        let reserved = self.none_yet(key);
        self.resize(&reserved, bytes).map(|()| reserved)
    }

    /// Changes a reservation to `bytes`. Leaves it unchanged on failure.
    pub fn resize(&self, reserved: &MemoryReservation, bytes: u64) -> Result<(), NoMemory> {
        let most = self.bounds.key.min(self.bounds.all);
        reserved.resize(bytes).map_err(|no_room| match no_room {
            _ if bytes > most => NoMemory::Never { needed: bytes, bound: most },
            no_room => NoMemory::of(reserved, no_room),
        })
    }
}

impl NoMemory {
    /// The reason why `reserved` could not grow.
    pub fn of(reserved: &MemoryReservation, no_room: NoRoom) -> Self {
        match no_room {
            NoRoom::OfKey { needed, bound, .. } | NoRoom::OfAll { needed, bound, .. } if needed > bound => {
                Self::Never { needed, bound }
            }
            NoRoom::OfKey { needed, taken, bound } => {
                Self::Key { key: reserved.key().clone(), needed, taken, bound }
            }
            NoRoom::OfAll { needed, taken, bound } => Self::All { needed, taken, bound },
        }
    }
}

/// The memory of a call, from which its tokenizer takes what it needs beyond the call's estimate.
#[derive(Clone, Copy)]
pub struct TokenizerMemory<'a>(pub &'a MemoryReservation);

/// Why a text could not be encoded.
#[derive(Debug)]
pub enum NotEncoded {
    /// It has more ids than were allowed.
    TooMany,
    /// There is no memory for it.
    NoMemory(NoMemory),
    /// The tokenizer failed.
    Failed(TokenizerError),
}

impl TokenizerMemory<'_> {
    /// Runs `encode` within this memory, for at most `most_ids` ids. The memory is given back when it returns.
    pub fn encode<T>(
        self,
        most_ids: usize,
        encode: impl FnOnce(&Bounds<'_>) -> Result<T, TokenizerError>,
    ) -> Result<T, NotEncoded> {
        let (taken, refused) = (Cell::new(0), RefCell::new(None));
        let room = |bytes: usize| match self.0.add(bytes as u64) {
            Ok(()) => {
                taken.set(taken.get() + bytes as u64);
                true
            }
            Err(no_room) => {
                refused.replace(Some(no_room));
                false
            }
        };
        let encoded = encode(&Bounds { most_ids, room: &room });
        if taken.get() > 0 {
            self.0.give_back(taken.get());
        }
        encoded.map_err(|error| match (error, refused.take()) {
            (TokenizerError::NoRoom { .. }, Some(no_room)) => {
                NotEncoded::NoMemory(NoMemory::of(self.0, no_room))
            }
            (TokenizerError::TooManyIds { .. }, _) => NotEncoded::TooMany,
            (error, _) => NotEncoded::Failed(error),
        })
    }
}

/// Formats bytes for people.
pub fn mib(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_which_bound_it_would_pass() {
        let memory = CallMemory::new(MemoryBounds { call: 100, key: 100, all: 150 });
        let (a, b) = (KeyId::new("a").unwrap(), KeyId::new("b").unwrap());
        let _first = memory.reserve(&a, 60).unwrap();
        let refused = |reserved: Result<MemoryReservation, NoMemory>| reserved.map(drop).unwrap_err();
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
