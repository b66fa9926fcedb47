//! A histogram of atomics with fixed buckets: one addition per bucket and one per sum, no lock.
//! Knows no metric's name; values are integers of the caller's unit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bucket bounds for durations, in nanoseconds: 1 – 2.5 – 5 from 1 µs to 100 s. Wide enough that a 3 µs parse and a
/// 40 s generation both fall into a bucket of their own, so that one scale serves every stage.
pub(crate) const DURATION_BOUNDS_NS: [u64; 25] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    25_000_000_000,
    50_000_000_000,
    100_000_000_000,
];

/// Bucket bounds for batch sizes, in thousandths of a sequence: powers of two from 1 to 256.
pub(crate) const BATCH_BOUNDS_MILLI: [u64; 9] =
    [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000];

pub(crate) struct Histogram {
    bounds: &'static [u64],
    /// One per bound, and one for what is above the last.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: u64) {
        // A bound is inclusive: `le` means less than or equal.
        let index = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
    }

    /// Cumulative counts, one per bound and the last for `+Inf` (which is the count of all), and the sum.
    pub(crate) fn read(&self) -> (Vec<(Option<u64>, u64)>, u64) {
        let mut total = 0_u64;
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        let cumulative = bounds
            .zip(&self.buckets)
            .map(|(bound, bucket)| {
                total = total.saturating_add(bucket.load(Relaxed));
                (bound, total)
            })
            .collect();
        (cumulative, self.sum.load(Relaxed))
    }
}
