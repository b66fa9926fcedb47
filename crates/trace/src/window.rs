//! The figures of the last minute: finished calls, second by second, in atomics. Counting a call takes no lock and
//! allocates nothing. Must not know who reads the figures.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use headrace_domain::{EngineTrace, NanoDollars, TraceRecord, UnixNanos};

use crate::call::CallEndKind;

/// Number of seconds kept: a minute, the current second, and a few for a clock that is behind.
const SECONDS: usize = 64;
/// Number of whole seconds in the figures, before the current second.
pub(crate) const MINUTE: u64 = 60;
/// Buckets per octave of time. A percentile is at most a ninth too high.
const BUCKETS_PER_OCTAVE: u32 = 8;
/// Number of octaves: from 1 µs to more than a quarter of an hour.
const OCTAVES: u32 = 30;
const BUCKETS: usize = (BUCKETS_PER_OCTAVE * OCTAVES) as usize;
const MICROSECOND_NS: u64 = 1_000;

/// The last minute of finished calls.
pub(crate) struct MinuteWindow {
    seconds: Box<[WindowSecond]>,
}

/// The figures of one second.
struct WindowSecond {
    /// The second's number since 1970.
    at: AtomicU64,
    ended: [AtomicU32; 4],
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    charged: AtomicU64,
    /// Sum of the sequences over all steps, and the number of steps.
    batch_sum: AtomicU64,
    steps: AtomicU64,
    batch_max: AtomicU32,
    first_token: TimeBuckets,
    queue: TimeBuckets,
}

/// A histogram of durations, with buckets that widen with the duration.
struct TimeBuckets([AtomicU32; BUCKETS]);

impl MinuteWindow {
    pub(crate) fn new() -> Self {
        Self { seconds: (0..SECONDS).map(|_| WindowSecond::new()).collect() }
    }

    /// Counts a call at the time when it ended. Skips calls that ended before the seconds that are kept.
    pub(crate) fn count(&self, record: &TraceRecord) {
        let end = record.started.get().saturating_add(record.duration_ns);
        let Some(second) = self.second(UnixNanos::new(end).seconds()) else { return };
        add32(second.ended.get(index(CallEndKind::of(&record.outcome))), 1);
        let usage = &record.usage;
        second.prompt_tokens.fetch_add(usage.prompt_tokens(), Relaxed);
        second.cached_tokens.fetch_add(usage.cached_input, Relaxed);
        second.completion_tokens.fetch_add(usage.completion_tokens(), Relaxed);
        second.charged.fetch_add(u64::try_from(record.cost.get()).unwrap_or(0), Relaxed);
        if let Some(nanos) = record.time_to_first_token_ns() {
            second.first_token.observe(nanos);
        }
        if let Some(EngineTrace { queue_ns, batch_sum, steps, batch_max, .. }) = &record.engine {
            second.queue.observe(*queue_ns);
            second.batch_sum.fetch_add(*batch_sum, Relaxed);
            second.steps.fetch_add(u64::from(*steps), Relaxed);
            second.batch_max.fetch_max(*batch_max, Relaxed);
        }
    }

    /// The slot of a second, cleared if it held an older second. A call that is counted during the clearing may be
    /// missing from the figures.
    fn second(&self, at: u64) -> Option<&WindowSecond> {
        let place = usize::try_from(at % SECONDS as u64).ok()?;
        let second = self.seconds.get(place)?;
        let held = second.at.load(Relaxed);
        if held == at {
            return Some(second);
        }
        if held > at {
            return None;
        }
        if second.at.compare_exchange(held, at, Relaxed, Relaxed).is_ok() {
            second.clear();
        }
        Some(second)
    }

    /// The figures of the minute before `now`'s second.
    pub(crate) fn minute(&self, now: UnixNanos) -> MinuteStats {
        let until = now.seconds();
        let from = until.saturating_sub(MINUTE);
        let mut minute = MinuteStats::default();
        let (mut first_token, mut queue) = ([0_u64; BUCKETS], [0_u64; BUCKETS]);
        let mut steps = (0_u64, 0_u64);
        for second in &self.seconds {
            let at = second.at.load(Relaxed);
            if at < from || at >= until {
                continue;
            }
            for (sum, count) in minute.ended.iter_mut().zip(&second.ended) {
                *sum += u64::from(count.load(Relaxed));
            }
            minute.prompt_tokens += second.prompt_tokens.load(Relaxed);
            minute.cached_tokens += second.cached_tokens.load(Relaxed);
            minute.completion_tokens += second.completion_tokens.load(Relaxed);
            let charged = i64::try_from(second.charged.load(Relaxed)).unwrap_or(i64::MAX);
            minute.charged = NanoDollars::new(minute.charged.get().saturating_add(charged));
            steps.0 += second.batch_sum.load(Relaxed);
            steps.1 += second.steps.load(Relaxed);
            minute.batch_max = minute.batch_max.max(second.batch_max.load(Relaxed));
            second.first_token.add_to(&mut first_token);
            second.queue.add_to(&mut queue);
        }
        minute.batch_mean = (steps.1 > 0).then(|| steps.0 as f64 / steps.1 as f64);
        minute.first_token = Percentiles::of(&first_token);
        minute.queue = Percentiles::of(&queue);
        minute
    }
}

impl WindowSecond {
    fn new() -> Self {
        Self {
            at: AtomicU64::new(0),
            ended: Default::default(),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            completion_tokens: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            batch_sum: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            batch_max: AtomicU32::new(0),
            first_token: TimeBuckets::new(),
            queue: TimeBuckets::new(),
        }
    }

    fn clear(&self) {
        let counts = [&self.prompt_tokens, &self.cached_tokens, &self.completion_tokens, &self.charged];
        counts.into_iter().chain([&self.batch_sum, &self.steps]).for_each(|count| count.store(0, Relaxed));
        let small = self.ended.iter().chain([&self.batch_max]);
        small.chain(&self.first_token.0).chain(&self.queue.0).for_each(|count| count.store(0, Relaxed));
    }
}

impl TimeBuckets {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    fn observe(&self, nanos: u64) {
        add32(self.0.get(bucket(nanos)), 1);
    }

    fn add_to(&self, sums: &mut [u64; BUCKETS]) {
        for (sum, count) in sums.iter_mut().zip(&self.0) {
            *sum += u64::from(count.load(Relaxed));
        }
    }
}

/// The figures of the calls that ended in a minute.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MinuteStats {
    ended: [u64; 4],
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub completion_tokens: u64,
    /// The amount charged.
    pub charged: NanoDollars,
    /// Mean sequences per step in the steps of these calls. `None` if there were no steps.
    pub batch_mean: Option<f64>,
    /// Maximum sequences in one of these steps.
    pub batch_max: u32,
    /// Time from the complete request to its first token.
    pub first_token: Percentiles,
    /// Time in an engine's queue.
    pub queue: Percentiles,
}

impl MinuteStats {
    /// Number of calls that ended in this way.
    pub fn ended(&self, how: CallEndKind) -> u64 {
        self.ended.get(index(how)).copied().unwrap_or(0)
    }

    /// Number of calls that ended.
    pub fn calls(&self) -> u64 {
        self.ended.iter().sum()
    }
}

/// The median and the 95th percentile of some durations, in nanoseconds. Each is at most a ninth too high.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Percentiles {
    /// Number of calls.
    pub calls: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 95th percentile.
    pub p95_ns: u64,
}

impl Percentiles {
    fn of(counts: &[u64; BUCKETS]) -> Self {
        let calls: u64 = counts.iter().sum();
        let at = |percent: u64| {
            let rank = calls.saturating_mul(percent).div_ceil(100);
            let mut seen = 0;
            let reached = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            if calls == 0 { 0 } else { reached.map_or(0, upper_ns) }
        };
        Self { calls, p50_ns: at(50), p95_ns: at(95) }
    }
}

const fn index(ended: CallEndKind) -> usize {
    match ended {
        CallEndKind::Completed => 0,
        CallEndKind::Refused => 1,
        CallEndKind::Cancelled => 2,
        CallEndKind::Failed => 3,
    }
}

fn add32(count: Option<&AtomicU32>, by: u32) {
    if let Some(count) = count {
        count.fetch_add(by, Relaxed);
    }
}

/// The bucket of a duration. Each octave of microseconds is cut into equal parts.
fn bucket(nanos: u64) -> usize {
    let octave = (nanos / MICROSECOND_NS).max(1).ilog2();
    let begin = MICROSECOND_NS << octave.min(OCTAVES);
    let part = nanos.saturating_sub(begin).saturating_mul(BUCKETS_PER_OCTAVE.into()) / begin;
    let part = u32::try_from(part).unwrap_or(u32::MAX).min(BUCKETS_PER_OCTAVE - 1);
    let place = octave.saturating_mul(BUCKETS_PER_OCTAVE).saturating_add(part);
    usize::try_from(place).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The upper end of a bucket in nanoseconds.
fn upper_ns(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(0);
    let parts = u64::from(BUCKETS_PER_OCTAVE);
    let begin = MICROSECOND_NS << (bucket / parts);
    begin + begin * (bucket % parts + 1) / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_a_bucket_that_ends_at_most_an_eighth_above_it() {
        let mut nanos = 1_000;
        while nanos < 1_000_000_000_000 {
            let upper = upper_ns(bucket(nanos));
            assert!(upper >= nanos && upper - nanos <= nanos / 8 + 1, "{nanos} ends at {upper}");
            nanos += nanos / 37 + 1;
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_of_the_rank_that_they_are_named_after() {
        let times = TimeBuckets::new();
        for n in 1..=100_u64 {
            times.observe(n * 1_000_000);
        }
        let mut counts = [0; BUCKETS];
        times.add_to(&mut counts);
        let found = Percentiles::of(&counts);
        assert_eq!(found.calls, 100);
        for (exact, found) in [(50_000_000, found.p50_ns), (95_000_000, found.p95_ns)] {
            assert!(found >= exact && found <= exact + exact / 8, "{exact}: {found}");
        }
        assert_eq!(Percentiles::of(&[0; BUCKETS]), Percentiles::default());
    }
}
