//! Hash tables by block key and by tenant, which need no strong hash of their own. Knows nothing of what they hold.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use headrace_domain::BlockKey;

/// A table by block key. Keys are outputs of a keyed hash whose secret callers do not know, so their own bits serve.
pub(crate) type ByKey<V> = HashMap<BlockKey, V, BuildHasherDefault<KeyHasher>>;

/// A table by tenant.
pub(crate) type ByTenant<V> = HashMap<u64, V, BuildHasherDefault<KeyHasher>>;

/// Takes the first eight bytes of a key as its hash.
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    /// The length of an array: the same for all keys.
    fn write_usize(&mut self, _length: usize) {}

    /// A tenant's number: an operator's choice, which is spread so that neighbours do not collide.
    fn write_u64(&mut self, number: u64) {
        let mixed = (number ^ (number >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
