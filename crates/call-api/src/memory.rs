//! Memory accounting in bytes, by key: a limit over all keys and a share for each, so that one key's calls cannot keep
//! out other keys' calls. Must not know what the bytes are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use headrace_domain::KeyId;
use parking_lot::Mutex;

/// The memory in use and its limits.
#[derive(Debug)]
pub struct MemoryAccount {
    shared: Arc<AccountShared>,
}

#[derive(Debug)]
struct AccountShared {
    most: u64,
    most_of_key: u64,
    taken: Mutex<TakenMemory>,
}

#[derive(Debug, Default)]
struct TakenMemory {
    all: u64,
    /// The largest value of `all` since the last [`MemoryAccount::take_peak`].
    peak: u64,
    /// Holds only keys with reserved bytes.
    of_key: HashMap<KeyId, u64, RandomState>,
}

/// The bytes that one call has reserved. Released when dropped.
#[derive(Debug)]
pub struct MemoryReservation {
    shared: Arc<AccountShared>,
    key: KeyId,
    /// Changed only while `AccountShared::taken` is locked.
    bytes: AtomicU64,
}

/// The limit that would be exceeded, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoRoom {
    /// The limit of one key.
    OfKey {
        /// Bytes that the call would hold.
        needed: u64,
        /// Bytes that the key's other calls hold.
        taken: u64,
        /// The limit.
        bound: u64,
    },
    /// The limit of all keys together.
    OfAll {
        /// Bytes that the call would hold.
        needed: u64,
        /// Bytes that all other calls hold.
        taken: u64,
        /// The limit.
        bound: u64,
    },
}

impl MemoryAccount {
    /// Creates an account with `most` bytes in total. One key may hold at most `most_of_key`.
    pub fn new(most: u64, most_of_key: u64) -> Self {
        Self { shared: Arc::new(AccountShared { most, most_of_key, taken: Mutex::default() }) }
    }

    /// Returns the reserved bytes.
    pub fn taken(&self) -> u64 {
        self.shared.taken.lock().all
    }

    /// Returns the largest number of reserved bytes since the last call of this function, and starts a new measurement.
    pub fn take_peak(&self) -> u64 {
        let mut taken = self.shared.taken.lock();
        let all = taken.all;
        std::mem::replace(&mut taken.peak, all)
    }

    /// Creates an empty reservation for a call of `key`.
    pub fn for_call_of(&self, key: KeyId) -> MemoryReservation {
        MemoryReservation { shared: Arc::clone(&self.shared), key, bytes: AtomicU64::new(0) }
    }
}

impl MemoryReservation {
    /// Reserves `bytes` more, or leaves the reservation unchanged.
    ///
    /// # Errors
    /// [`NoRoom`] if a limit would be exceeded.
    pub fn add(&self, bytes: u64) -> Result<(), NoRoom> {
        self.change(|own| own.saturating_add(bytes))
    }

    /// Changes the reservation to `bytes`, or leaves it unchanged. Shrinking always succeeds.
    ///
    /// # Errors
    /// [`NoRoom`] if a limit would be exceeded.
    pub fn resize(&self, bytes: u64) -> Result<(), NoRoom> {
        self.change(|_| bytes)
    }

    /// Releases `bytes`, or everything if the reservation is smaller.
    pub fn give_back(&self, bytes: u64) {
        // Shrinking always succeeds.
        let _ = self.change(|own| own.saturating_sub(bytes));
    }

    /// Returns the key that holds the bytes.
    pub const fn key(&self) -> &KeyId {
        &self.key
    }

    fn change(&self, to: impl FnOnce(u64) -> u64) -> Result<(), NoRoom> {
        let AccountShared { most, most_of_key, .. } = *self.shared;
        let mut taken = self.shared.taken.lock();
        let TakenMemory { all, peak, of_key } = &mut *taken;
        let from = self.bytes.load(Ordering::Relaxed);
        let to = to(from);
        let slot = of_key.get_mut(&self.key);
        let others_of_key = slot.as_ref().map_or(0, |slot| **slot).saturating_sub(from);
        let others = all.saturating_sub(from);
        if to > from {
            if others_of_key.saturating_add(to) > most_of_key {
                return Err(NoRoom::OfKey { needed: to, taken: others_of_key, bound: most_of_key });
            }
            if others.saturating_add(to) > most {
                return Err(NoRoom::OfAll { needed: to, taken: others, bound: most });
            }
        }
        self.bytes.store(to, Ordering::Relaxed);
        *all = others.saturating_add(to);
        *peak = (*peak).max(*all);
        match (others_of_key.saturating_add(to), slot) {
            (0, _) => drop(of_key.remove(&self.key)),
            (sum, None) => drop(of_key.insert(self.key.clone(), sum)),
            (sum, Some(slot)) => *slot = sum,
        }
        Ok(())
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        if *self.bytes.get_mut() > 0 {
            // Shrinking always succeeds.
            let _ = self.resize(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_bounded_by_key_and_over_all_and_given_back_once() {
        let memory = MemoryAccount::new(150, 100);
        let of = |key| memory.for_call_of(KeyId::new(key).unwrap());
        let (first, twin, other) = (of("a"), of("a"), of("b"));
        assert_eq!(first.resize(101), Err(NoRoom::OfKey { needed: 101, taken: 0, bound: 100 }));
        first.resize(60).unwrap();
        assert_eq!(twin.resize(41), Err(NoRoom::OfKey { needed: 41, taken: 60, bound: 100 }));
        other.add(50).unwrap();
        other.add(30).unwrap();
        assert_eq!(twin.resize(20), Err(NoRoom::OfAll { needed: 20, taken: 140, bound: 150 }));
        assert_eq!(other.add(11), Err(NoRoom::OfAll { needed: 91, taken: 60, bound: 150 }));
        assert_eq!(memory.taken(), 140, "a refusal takes nothing");
        other.give_back(10);
        other.add(20).unwrap();
        first.resize(10).unwrap();
        assert_eq!(memory.taken(), 100);
        first.add(5).unwrap();
        first.give_back(5);
        assert_eq!(memory.taken(), 100);
        drop(other);
        twin.resize(90).unwrap();
        assert_eq!(
            (memory.take_peak(), memory.take_peak()),
            (150, 100),
            "the second counts from the first on"
        );
        drop((first, twin));
        assert_eq!(memory.taken(), 0);
        assert!(memory.shared.taken.lock().of_key.is_empty(), "nothing is kept of keys without calls");
    }
}
