//! Seeded random numbers for several threads, without a lock. A single thread gets the same sequence in every run.

use std::sync::atomic::{AtomicU64, Ordering};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug)]
pub(crate) struct AtomicSplitMix {
    state: AtomicU64,
}

impl AtomicSplitMix {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }

    /// The next number.
    pub(crate) fn next(&self) -> u64 {
        let z = self.state.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [0, 1).
    pub(crate) fn unit(&self) -> f64 {
        unit(self.next())
    }
}

/// Converts a random number to [0, 1), with 53 bits.
pub(crate) fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}
