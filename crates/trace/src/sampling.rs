//! Limits how many records of unknown callers are kept per second, however many requests arrive. Reads no clock: the
//! records carry their time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use headrace_domain::UnixNanos;

/// Bits of the count in the packed state.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Counts the kept records per second.
pub(crate) struct SampleRate {
    per_second: u64,
    /// The newest second seen. The low bits count the records kept in it.
    state: AtomicU64,
}

impl SampleRate {
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second: u64::from(per_second).min(COUNT_MASK), state: AtomicU64::new(0) }
    }

    /// Returns `true` if a record with this time is kept. A record of an earlier second counts towards the newest
    /// second.
    pub(crate) fn keeps(&self, at: UnixNanos) -> bool {
        let second = at.seconds();
        let step = |state: u64| {
            let (newest, count) = (state >> COUNT_BITS, state & COUNT_MASK);
            match (second > newest, count < self.per_second) {
                (true, _) if self.per_second > 0 => Some(second << COUNT_BITS | 1),
                (false, true) => Some(state + 1),
                _ => None,
            }
        };
        self.state.fetch_update(Relaxed, Relaxed, step).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_a_second_are_kept() {
        const SECOND: u64 = 1_000_000_000;
        let kept = |per_second, times: &[u64]| {
            let sampling = SampleRate::new(per_second);
            times.iter().filter(|at| sampling.keeps(UnixNanos::new(**at))).count()
        };
        let one_second = [5 * SECOND; 1_000];
        assert_eq!(kept(10, &one_second), 10);
        assert_eq!(kept(0, &one_second), 0);
        let five: Vec<u64> = (0..5_000).map(|n| n * SECOND / 1_000).collect();
        assert_eq!(kept(10, &five), 50);
        assert_eq!(kept(10, &[9 * SECOND, 8 * SECOND, 7 * SECOND].repeat(100)), 10, "a clock that goes back");
    }
}
