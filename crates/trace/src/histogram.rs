//! A histogram of atomics with fixed buckets: one addition per bucket and one per sum, and nothing is waited for. An example of each
//! bucket is kept where nobody else is writing one just now. Knows no metric's name; values are integers of the caller's unit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::family::{Buckets, Exemplar};

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
    /// The last call that each bucket counted, as many as there are buckets.
    exemplars: Mutex<Box<[Option<Exemplar>]>>,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        let exemplars = Mutex::new((0..=bounds.len()).map(|_| None).collect());
        Self { bounds, buckets, sum: AtomicU64::new(0), exemplars }
    }

    /// Counts a value of a call.
    pub(crate) fn observe_of(&self, exemplar: Exemplar) {
        let index = self.observe(exemplar.value);
        // An example is as good as another: whoever would have to wait leaves it.
        if let Some(mut exemplars) = self.exemplars.try_lock()
            && let Some(last) = exemplars.get_mut(index)
        {
            *last = Some(exemplar);
        }
    }

    /// Counts a value; which bucket it fell into.
    pub(crate) fn observe(&self, value: u64) -> usize {
        // A bound is inclusive: `le` means less than or equal.
        let index = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
        index
    }

    /// What it counted, its values being integers of 10⁻`digits` of a unit.
    pub(crate) fn read(&self, digits: u32) -> Buckets {
        Buckets {
            bounds: self.bounds,
            digits,
            counts: self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect(),
            sum: self.sum.load(Relaxed),
            exemplars: self.exemplars.lock().to_vec(),
        }
    }
}
