//! Memory for requests that are being read or answered: a bound over all of them, and a share of it for each key, so that
//! one key's uploads cannot keep out those of others. Knows of a key its id only.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use headrace_domain::KeyId;

/// See the top of the file.
pub(crate) struct Memory {
    most_bytes: u64,
    most_bytes_per_key: u64,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: u64,
    /// Only keys that have something in memory.
    by_key: HashMap<KeyId, u64>,
}

/// Which bound would be passed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    OfKey { limit_bytes: u64, observed_bytes: u64 },
    Of { limit_bytes: u64, observed_bytes: u64 },
}

/// What one request takes up; given back when it is dropped.
pub(crate) struct Share<'m> {
    memory: &'m Memory,
    key: KeyId,
    bytes: u64,
}

impl Memory {
    pub(crate) fn new(most_bytes: u64, most_bytes_per_key: u64) -> Self {
        Self { most_bytes, most_bytes_per_key, taken: Mutex::default() }
    }

    /// Nothing yet, for a request of this key.
    pub(crate) const fn share(&self, key: KeyId) -> Share<'_> {
        Share { memory: self, key, bytes: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share<'_> {
    /// Takes room for so many more bytes, or none.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let Memory { most_bytes, most_bytes_per_key, .. } = *self.memory;
        let mut taken = self.memory.taken();
        let of_key = taken.by_key.get(&self.key).copied().unwrap_or_default().saturating_add(bytes);
        if of_key > most_bytes_per_key {
            return Err(NoRoom::OfKey { limit_bytes: most_bytes_per_key, observed_bytes: of_key });
        }
        let all = taken.all.saturating_add(bytes);
        if all > most_bytes {
            return Err(NoRoom::Of { limit_bytes: most_bytes, observed_bytes: all });
        }
        taken.all = all;
        taken.by_key.insert(self.key.clone(), of_key);
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut taken = self.memory.taken();
        taken.all = taken.all.saturating_sub(self.bytes);
        let Some(of_key) = taken.by_key.get_mut(&self.key) else { return };
        *of_key = of_key.saturating_sub(self.bytes);
        if *of_key == 0 {
            taken.by_key.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_shared_bounded_for_each_key_and_given_back() {
        let memory = Memory::new(10, 6);
        let key = |name| KeyId::new(name).unwrap();
        let mut first = memory.share(key("a"));
        assert_eq!(first.take(5), Ok(()));
        let mut second = memory.share(key("a"));
        assert_eq!(second.take(2), Err(NoRoom::OfKey { limit_bytes: 6, observed_bytes: 7 }));
        assert_eq!(second.take(1), Ok(()));
        let mut other = memory.share(key("b"));
        assert_eq!(other.take(5), Err(NoRoom::Of { limit_bytes: 10, observed_bytes: 11 }));
        assert_eq!(other.take(4), Ok(()), "a refusal takes nothing");
        drop(first);
        assert_eq!(other.take(2), Ok(()));
        assert_eq!(second.take(3), Ok(()));
        drop((second, other));
        let taken = memory.taken();
        assert!(taken.all == 0 && taken.by_key.is_empty());
    }
}
