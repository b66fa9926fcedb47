//! Hash tables by block key and by tenant. Neither key needs a strong hash here. Knows nothing of the values.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use headrace_domain::BlockKey;

/// A table by block key. Keys are outputs of a keyed hash with a secret that callers do not know, so their own bits
/// serve as the hash.
pub(crate) type ByKey<V> = HashMap<BlockKey, V, BuildHasherDefault<KeyHasher>>;

/// A table by tenant.
pub(crate) type ByTenant<V> = HashMap<u64, V, BuildHasherDefault<KeyHasher>>;

/// Uses the first eight bytes of a block key as its hash, and mixes tenant numbers.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    /// Ignores the length prefix of an array, which is the same for all keys.
    fn write_usize(&mut self, _length: usize) {}

    /// Mixes a tenant's number, which an operator chooses, so that adjacent numbers do not collide.
    fn write_u64(&mut self, number: u64) {
        let mixed = (number ^ (number >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
