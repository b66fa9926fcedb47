//! What the seeded tests of the scheduler share: numbers that a seed repeats.

#![allow(dead_code, reason = "each test takes what it needs")]

/// Numbers from a seed (splitmix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// One of `0..n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// One of `low..=high`.
    pub(crate) fn between(&mut self, (low, high): (u64, u64)) -> u64 {
        low + self.below(high - low + 1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Times between arrivals of a Poisson stream.
    pub(crate) fn exponential(&mut self, mean_ns: f64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - unit).ln() * mean_ns) as u64
    }
}

/// Spreads every bit over all of them.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
