//! When a canary is worse than the stable models: tests that stay valid however often they are evaluated. Must not
//! know what is counted or what follows.
//!
//! Two samples are compared by Fisher's exact test (R. A. Fisher, "The logic of inductive inference", 1935). If both
//! were alike, the canary's bad calls would be distributed like draws from an urn. The test is evaluated repeatedly,
//! so each evaluation gets its own, decreasing error probability: `6 / (π · look)²` of the whole. These parts add up
//! to one over all evaluations (Bonferroni).
//!
//! The test assumes independent calls, but the calls of one key are not independent. If several keys call, no single
//! key may decide. A signal must therefore also be worse without the key that has most of the bad calls, at the
//! lenient level of [`corroborates`]. The test is also repeated without the key that calls the canary most, so that
//! good calls of one key hide nothing. Each of the two tests gets half of the level.

use std::sync::LazyLock;

/// Upper bound of the probability that one signal of an equally good canary is ever taken for worse.
pub(super) const FALSE_ALARM: f64 = 0.01 / 3.0;
/// Upper bound of the probability, over all evaluations, that chance alone corroborates what one key's calls show.
const CORROBORATION: f64 = 0.05;
/// The most calls in a sample.
pub(super) const MOST_CALLS: usize = 4096;
/// The percentile of times that is compared, in hundredths.
const PERCENTILE: usize = 95;

/// A number of bad calls out of all calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BadCallRate {
    /// The bad calls.
    pub(super) bad: usize,
    /// All calls.
    pub(super) of: usize,
}

impl BadCallRate {
    /// The share of bad calls, from 0 to 1.
    pub(super) fn share(self) -> f64 {
        self.bad as f64 / self.of.max(1) as f64
    }
}

/// Tests whether the canary's rate exceeds the stable one by more than `tolerated`, and chance explains the
/// difference with a probability of at most `level`. Returns the probability of such a difference, or a greater one,
/// between two equal models.
pub(super) fn worse(canary: BadCallRate, stable: BadCallRate, tolerated: f64, level: f64) -> Option<f64> {
    if canary.share() - stable.share() <= tolerated {
        return None;
    }
    let likely = by_chance(canary, stable);
    (likely <= level).then_some(likely)
}

/// Expresses the times of two samples as rates of slow calls: those that took longer than the 95th percentile of both
/// samples together. The stable times are multiplied by `tolerated` first, so a canary within that factor does not
/// have more slow calls. Also returns the time beyond which a call of the canary counts as slow.
pub(super) fn slow(canary: &[u32], stable: &[u32], tolerated: f64) -> Option<([BadCallRate; 2], u32)> {
    let stretched = |time: &u32| (f64::from(*time) * tolerated).min(f64::from(u32::MAX)) as u32;
    let mut all: Vec<u32> = canary.iter().copied().chain(stable.iter().map(stretched)).collect();
    let (_, limit, _) = all.select_nth_unstable(percentile(canary.len() + stable.len())?);
    let limit = *limit;
    let beyond = |bad: usize, of: usize| BadCallRate { bad, of };
    let rates = [
        beyond(canary.iter().filter(|time| **time > limit).count(), canary.len()),
        beyond(stable.iter().filter(|time| stretched(time) > limit).count(), stable.len()),
    ];
    Some((rates, limit))
}

/// The 95th percentile of times.
pub(super) fn p95(times: &mut [u32]) -> Option<u32> {
    let (_, time, _) = times.select_nth_unstable(percentile(times.len())?);
    Some(*time)
}

/// The index of the percentile among `count` sorted values, by the nearest-rank method.
fn percentile(count: usize) -> Option<usize> {
    (count * PERCENTILE).div_ceil(100).checked_sub(1)
}

/// The error probability of this evaluation.
pub(super) fn at_look(look: u64) -> f64 {
    FALSE_ALARM * part_of_look(look)
}

/// The probability at this evaluation that chance may corroborate what one key's calls show.
pub(super) fn corroborates(look: u64) -> f64 {
    CORROBORATION * part_of_look(look)
}

/// The part of the total error probability that this evaluation may use. The parts add up to one.
fn part_of_look(look: u64) -> f64 {
    let times = std::f64::consts::PI * look.max(1) as f64;
    6.0 / (times * times)
}

/// The probability that at least `canary.bad` of all bad calls fall to the canary by chance alone.
fn by_chance(canary: BadCallRate, stable: BadCallRate) -> f64 {
    let (bad, all) = (canary.bad + stable.bad, canary.of + stable.of);
    let whole = ln_choose(all, bad);
    let most = bad.min(canary.of);
    let sum: f64 = (canary.bad..=most)
        .filter(|of_canary| bad - of_canary <= stable.of)
        .map(|of_canary| {
            (ln_choose(canary.of, of_canary) + ln_choose(stable.of, bad - of_canary) - whole).exp()
        })
        .sum();
    sum.min(1.0)
}

/// The logarithm of the number of ways to choose `k` of `n`.
fn ln_choose(n: usize, k: usize) -> f64 {
    static LN_FACTORIALS: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let mut sum = 0.0;
        let logs = (1..=2 * MOST_CALLS).map(|n| {
            sum += (n as f64).ln();
            sum
        });
        std::iter::once(0.0).chain(logs).collect()
    });
    let of = |n: usize| LN_FACTORIALS.get(n).copied().unwrap_or(f64::INFINITY);
    of(n) - of(k) - of(n.saturating_sub(k))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bad: usize, of: usize) -> BadCallRate {
        BadCallRate { bad, of }
    }

    #[test]
    fn chance_is_what_drawing_from_an_urn_makes_it() {
        // By hand: C(a, k) C(b, m) / C(a + b, k + m), summed over the canary's bad calls from `k` upward.
        for (canary, stable, expected) in [
            (rate(1, 2), rate(0, 2), 0.5),
            (rate(2, 2), rate(0, 2), 1.0 / 6.0),
            (rate(3, 4), rate(1, 4), 17.0 / 70.0),
            (rate(0, 5), rate(3, 5), 1.0),
            (rate(5, 5), rate(5, 5), 1.0),
        ] {
            let found = by_chance(canary, stable);
            assert!((found - expected).abs() < 1e-9, "{canary:?} {stable:?}: {found}");
        }
        let tiny = by_chance(rate(MOST_CALLS, MOST_CALLS), rate(0, MOST_CALLS));
        assert!(tiny.is_finite() && tiny < 1e-300, "{tiny}");
    }

    #[test]
    fn all_looks_together_are_wrong_no_more_often_than_is_said() {
        let sum: f64 = (1..2_000_000).map(at_look).sum();
        assert!(sum <= FALSE_ALARM && sum > 0.999 * FALSE_ALARM, "{sum}");
    }

    #[test]
    fn what_is_tolerated_is_no_breach_however_sure_it_is() {
        let (canary, stable) = (rate(400, 4000), rate(200, 4000));
        assert!(worse(canary, stable, 0.049, at_look(1)).is_some());
        assert!(worse(canary, stable, 0.05, at_look(1)).is_none());
        assert!(worse(stable, canary, 0.0, at_look(1)).is_none(), "a better one is not worse");
        // The same figures at the millionth evaluation.
        assert!(worse(rate(10, 100), rate(20, 1000), 0.0, at_look(1)).is_some());
        assert!(worse(rate(10, 100), rate(20, 1000), 0.0, at_look(1_000_000)).is_none());
    }

    #[test]
    fn a_slow_canary_has_more_slow_calls_and_one_within_what_is_tolerated_has_not() {
        let times = |factor: u32| (1..=1000_u32).map(|n| n * factor).collect::<Vec<_>>();
        let ([canary, stable], _) = slow(&times(4), &times(1), 1.5).unwrap();
        assert!(canary.bad > 80 && stable.bad == 0, "{canary:?} {stable:?}");
        let ([canary, stable], _) = slow(&times(1), &times(1), 1.5).unwrap();
        assert!(canary.bad == 0 && stable.bad > 80, "{canary:?} {stable:?}");
        assert_eq!(slow(&[], &[], 1.5), None);
        assert_eq!(p95(&mut times(1)), Some(950));
        assert_eq!(p95(&mut [7]), Some(7));
    }
}
