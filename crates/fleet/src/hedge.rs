//! Hedging policy: how long a call waits for its first output before a second worker is tried, and how many calls may
//! race. Must not know which workers are tried, or how a race ends.

use std::time::Duration;

use parking_lot::Mutex;

/// When a call is sent to a second worker, and how many calls are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HedgePolicy {
    /// Percentile, 1 to 99, of the first-output times of the model's other workers. A call that waits longer may race.
    pub after_percent: u8,
    /// Most races per thousand calls, beyond a small saved balance.
    pub most_permille: u16,
}

/// Cost of one race, in budget units. Each call earns its policy's `most_permille`.
const RACE: u32 = 1000;
/// Highest balance.
const SAVED: u32 = 10 * RACE;

/// Balance for races, earned by calls. It starts at zero.
#[derive(Debug)]
pub(crate) struct RaceBudget(Mutex<u32>);

impl RaceBudget {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(0))
    }

    /// Credits the balance for a call.
    pub(crate) fn pay_in(&self, hedge: &HedgePolicy) {
        let mut units = self.0.lock();
        *units = units.saturating_add(hedge.most_permille.into()).min(SAVED);
    }

    /// Takes one race from the balance. Returns `false` if the balance is too low.
    pub(crate) fn take(&self) -> bool {
        let mut units = self.0.lock();
        let left = units.checked_sub(RACE);
        *units = left.unwrap_or(*units);
        left.is_some()
    }
}

/// Steps per doubling. A step is 9 % wide.
const STEPS: f64 = 8.0;
/// The first step covers everything up to 2^14 ns, which is 16 µs.
const LEAST_LOG2: f64 = 14.0;
/// The last step begins at 2^40 ns, which is 18 minutes.
const COUNTS: usize = 26 * 8 + 1;
/// About the number of samples that count. When this many are reached, all counts are halved.
const KEPT: u32 = 512;
/// Fewest samples for a conclusion.
const LEAST_TIMES: u32 = 20;

/// A histogram of recent durations, in logarithmic steps.
#[derive(Debug, Clone)]
pub(crate) struct LatencyHistogram {
    counts: [u32; COUNTS],
    total: u32,
}

impl LatencyHistogram {
    /// No samples yet.
    pub(crate) const NONE: Self = Self { counts: [0; COUNTS], total: 0 };

    /// Adds a sample.
    pub(crate) fn add(&mut self, took_ns: u64) {
        let steps = ((took_ns.max(1) as f64).log2() - LEAST_LOG2).max(0.0) * STEPS;
        if let Some(count) = self.counts.get_mut((steps.ceil() as usize).min(COUNTS - 1)) {
            *count += 1;
            self.total += 1;
        }
        if self.total >= KEPT {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    /// Adds the samples of another histogram.
    pub(crate) fn with(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.total += other.total;
    }

    /// The duration that `percent` of the samples do not exceed, rounded up to a step. `None` if there are too few
    /// samples.
    pub(crate) fn percentile(&self, percent: u8) -> Option<Duration> {
        if self.total < LEAST_TIMES {
            return None;
        }
        let rank = (u64::from(self.total) * u64::from(percent)).div_ceil(100);
        let mut seen = 0;
        let step = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        })?;
        Some(Duration::from_nanos((LEAST_LOG2 + step as f64 / STEPS).exp2() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_met_from_above_and_within_a_step() {
        let mut spread = LatencyHistogram::NONE;
        for took in 1..LEAST_TIMES {
            spread.add(u64::from(took) * 1_000_000);
        }
        assert_eq!(spread.percentile(50), None, "too few");
        spread.add(20_000_000);
        for (percent, expected_ms) in [(1, 1.0), (50, 10.0), (95, 19.0), (99, 20.0)] {
            let delay_ms = spread.percentile(percent).unwrap().as_secs_f64() * 1e3;
            assert!(delay_ms >= expected_ms && delay_ms <= expected_ms * 1.1, "{percent}: {delay_ms}");
        }
        // Values far out of range are in the first or the last step.
        let mut ends = LatencyHistogram::NONE;
        (0..30).for_each(|at| ends.add(if at < 15 { 0 } else { u64::MAX }));
        assert_eq!(ends.percentile(50), Some(Duration::from_nanos(1 << 14)));
        assert_eq!(ends.percentile(51), Some(Duration::from_nanos(1 << 40)));
    }

    #[test]
    fn what_was_long_ago_is_outweighed() {
        let mut spread = LatencyHistogram::NONE;
        (0..1_000).for_each(|_| spread.add(1 << 30));
        (0..2_000).for_each(|_| spread.add(1 << 20));
        assert_eq!(spread.percentile(90), Some(Duration::from_nanos(1 << 20)));
        let mut both = spread.clone();
        let mut slow = LatencyHistogram::NONE;
        (0..500).for_each(|_| slow.add(1 << 30));
        both.with(&slow);
        assert_eq!(both.percentile(90), Some(Duration::from_nanos(1 << 30)));
    }

    #[test]
    fn races_are_the_share_of_calls_and_a_few_that_are_saved_up() {
        let hedge = HedgePolicy { after_percent: 95, most_permille: 50 };
        let purse = RaceBudget::new();
        let takes = || (0..1_000).take_while(|_| purse.take()).count();
        assert_eq!(takes(), 0);
        (0..19).for_each(|_| purse.pay_in(&hedge));
        assert_eq!(takes(), 0);
        purse.pay_in(&hedge);
        assert_eq!(takes(), 1);
        (0..10_000).for_each(|_| purse.pay_in(&hedge));
        assert_eq!(takes(), 10);
    }
}
