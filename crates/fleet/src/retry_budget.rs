//! Retry budget: limits retries to a tenth of the calls sent, so that retries cannot multiply an overload.

use parking_lot::Mutex;

/// Cost of one retry, in budget units. A first attempt earns [`CALL`].
const RETRY: u64 = 10;
/// Units earned by a first attempt: a tenth of a retry.
const CALL: u64 = 1;
/// Starting balance. Covers the death of one of three upstreams, when a third of the calls in flight move at once.
const BEGINNING: u64 = 100 * RETRY;
/// Highest balance.
const MOST: u64 = 1000 * RETRY;
/// Below this balance one retry is restored per second, so that a single call can still be retried.
const FLOOR: u64 = 10 * RETRY;
const REFILL_NS: u64 = 1_000_000_000;

/// A token bucket for the retries of one model.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    level: Mutex<BudgetLevel>,
}

#[derive(Debug)]
struct BudgetLevel {
    units: u64,
    refilled_ns: u64,
}

impl RetryBudget {
    pub(crate) const fn new() -> Self {
        Self { level: Mutex::new(BudgetLevel { units: BEGINNING, refilled_ns: 0 }) }
    }

    /// Credits the budget for a first attempt.
    pub(crate) fn record_call(&self) {
        let mut level = self.level.lock();
        level.units = (level.units + CALL).min(MOST);
    }

    /// Takes one retry from the budget. Returns `false` if the budget is exhausted.
    pub(crate) fn try_take_retry(&self, now_ns: u64) -> bool {
        let mut level = self.level.lock();
        let periods = now_ns.saturating_sub(level.refilled_ns) / REFILL_NS;
        if periods > 0 {
            level.refilled_ns = now_ns;
            let refilled = level.units.saturating_add(periods.saturating_mul(RETRY)).min(FLOOR);
            level.units = level.units.max(refilled);
        }
        match level.units.checked_sub(RETRY) {
            Some(left) => {
                level.units = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_tenth_of_calls_beyond_what_it_begins_with_and_a_floor() {
        let budget = RetryBudget::new();
        let take = |now_ns| (0..10_000).take_while(|_| budget.try_take_retry(now_ns)).count();
        assert_eq!(take(0), 100);
        (0..1000).for_each(|_| budget.record_call());
        assert_eq!(take(0), 100);
        assert_eq!((take(REFILL_NS - 1), take(REFILL_NS), take(REFILL_NS)), (0, 1, 0));
        assert_eq!(take(1000 * REFILL_NS), 10);
        (0..100_000).for_each(|_| budget.record_call());
        assert_eq!(take(2000 * REFILL_NS), 1000);
    }
}
