//! A histogram of atomics with fixed buckets: one addition per bucket and one per sum, and nothing is waited for. An example of each
//! bucket is kept, of late, where nobody else is writing one just now. Knows no metric's name; values are integers of the caller's unit.

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

/// A bucket takes no more than one example in so much of its calls' time: two to the 26th nanoseconds, 67 ms. Whoever reads
/// looks far less often, and a call is counted in more than a dozen histograms.
const EXAMPLE_EVERY_LOG2_NS: u32 = 26;

pub(crate) struct Histogram {
    bounds: &'static [u64],
    /// One per bound, and one for what is above the last.
    buckets: Box<[Bucket]>,
    sum: AtomicU64,
    /// A call of late that each bucket counted, as many as there are buckets.
    exemplars: Mutex<Box<[Option<Exemplar>]>>,
}

/// A count, and when the bucket took its example: side by side, as both are looked at for each call.
#[derive(Default)]
struct Bucket {
    count: AtomicU64,
    /// In units of the time between examples, and one; 0: it has none.
    example_at: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| Bucket::default()).collect();
        let exemplars = Mutex::new((0..=bounds.len()).map(|_| None).collect());
        Self { bounds, buckets, sum: AtomicU64::new(0), exemplars }
    }

    /// Counts a value of a call.
    pub(crate) fn observe_of(&self, value: u64, call: &Exemplar) {
        let index = self.observe(value);
        let Some(bucket) = self.buckets.get(index) else { return };
        let at = (call.at.get() >> EXAMPLE_EVERY_LOG2_NS) + 1;
        if bucket.example_at.load(Relaxed) == at {
            return;
        }
        // An example is as good as another: whoever would have to wait leaves it.
        if let Some(mut exemplars) = self.exemplars.try_lock()
            && let Some(last) = exemplars.get_mut(index)
        {
            *last = Some(call.with(value));
            bucket.example_at.store(at, Relaxed);
        }
    }

    /// Counts a value; which bucket it fell into.
    pub(crate) fn observe(&self, value: u64) -> usize {
        // A bound is inclusive: `le` means less than or equal.
        let index = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.count.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
        index
    }

    /// What it counted, its values being integers of 10⁻`digits` of a unit.
    pub(crate) fn read(&self, digits: u32) -> Buckets {
        Buckets {
            bounds: self.bounds,
            digits,
            counts: self.buckets.iter().map(|bucket| bucket.count.load(Relaxed)).collect(),
            sum: self.sum.load(Relaxed),
            exemplars: self.exemplars.lock().to_vec(),
        }
    }
}
