//! A hash for values that are already random: block keys, which are keyed hashes. No client can choose them.

use std::hash::{BuildHasherDefault, Hash, Hasher};

pub(crate) type Plain = BuildHasherDefault<FoldHasher>;

/// Folds its input into 64 bits.
#[derive(Debug, Default)]
pub(crate) struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let word = piece.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
            self.write_u64(word);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

/// A key reduced to 64 bits, which is enough for a hint.
pub(crate) fn mark(key: &impl Hash) -> u64 {
    let mut fold = FoldHasher::default();
    key.hash(&mut fold);
    fold.finish()
}
