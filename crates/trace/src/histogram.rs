//! A histogram of atomics with fixed buckets. Counting a value takes two additions and never waits. Each bucket also
//! keeps a recent exemplar, unless another thread is just writing one. Knows no metric's name. Values are integers in
//! the caller's unit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::family::{Exemplar, HistogramBuckets};

/// Bucket bounds for durations, in nanoseconds: 1 – 2.5 – 5 from 1 µs to 100 s. The range separates a 3 µs parse from a
/// 40 s generation, so one scale serves every stage.
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

/// A bucket takes at most one exemplar per 2²⁶ nanoseconds (67 ms) of its calls' time. Scrapes are far less frequent,
/// and each call is counted in more than a dozen histograms.
const EXAMPLE_EVERY_LOG2_NS: u32 = 26;

pub(crate) struct Histogram {
    bounds: &'static [u64],
    /// One bucket per bound, and one for values above the last bound.
    buckets: Box<[HistogramBucket]>,
    sum: AtomicU64,
    /// The latest exemplar of each bucket, in the order of `buckets`.
    exemplars: Mutex<Box<[Option<Exemplar>]>>,
}

/// A count, and the time of the bucket's exemplar. They are side by side, since each call reads both.
#[derive(Default)]
struct HistogramBucket {
    count: AtomicU64,
    /// Time of the exemplar in units of 2^[`EXAMPLE_EVERY_LOG2_NS`] nanoseconds, plus one. 0 means that there is none.
    example_at: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| HistogramBucket::default()).collect();
        let exemplars = Mutex::new((0..=bounds.len()).map(|_| None).collect());
        Self { bounds, buckets, sum: AtomicU64::new(0), exemplars }
    }

    /// Counts a value and offers its call as an exemplar.
    pub(crate) fn observe_of(&self, value: u64, call: &Exemplar) {
        let index = self.observe(value);
        let Some(bucket) = self.buckets.get(index) else { return };
        let at = (call.at.get() >> EXAMPLE_EVERY_LOG2_NS) + 1;
        if bucket.example_at.load(Relaxed) == at {
            return;
        }
        // Any exemplar will do, so a thread that would have to wait skips it.
        if let Some(mut exemplars) = self.exemplars.try_lock()
            && let Some(last) = exemplars.get_mut(index)
        {
            *last = Some(call.with(value));
            bucket.example_at.store(at, Relaxed);
        }
    }

    /// Counts a value. Returns the index of its bucket.
    pub(crate) fn observe(&self, value: u64) -> usize {
        // Bounds are inclusive: `le` means less than or equal.
        let index = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.count.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
        index
    }

    /// A snapshot of the counts. The values are integers in units of 10⁻`digits`.
    pub(crate) fn read(&self, digits: u32) -> HistogramBuckets {
        HistogramBuckets {
            bounds: self.bounds,
            digits,
            counts: self.buckets.iter().map(|bucket| bucket.count.load(Relaxed)).collect(),
            sum: self.sum.load(Relaxed),
            exemplars: self.exemplars.lock().to_vec(),
        }
    }
}
