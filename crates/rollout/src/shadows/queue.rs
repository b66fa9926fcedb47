//! The queue of shadow copies for one name and one model, with its bounds: copies that run, copies that wait, and
//! money per period. Copies beyond these bounds are dropped and counted. Must not know what a copy is or how one is
//! made.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{NanoDollars, UnixNanos};
use parking_lot::Mutex;

/// The budget for copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowBudget {
    /// The most that copies may cost in a period, at list prices.
    pub amount: NanoDollars,
    /// The length of a period. Periods start at multiples of it since 1970, in UTC: at midnight, or on the hour.
    pub period: Duration,
}

/// The cost of copies in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowSpend {
    /// The length of the period in seconds.
    pub period_s: u64,
    /// Index of the period, counted from 1970.
    pub period: u64,
    /// Nano-dollars. At least the amount that was spent.
    pub amount: i64,
}

/// The divisor of a budget that gives the amount written down ahead of spending.
const WRITTEN_AHEAD: i64 = 64;

/// The outcomes of calls that were sampled for a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShadowFigures {
    /// Copies that were made.
    pub copied: u64,
    /// Copies dropped because the queue or the memory for copies was full.
    pub full: u64,
    /// Copies dropped because the budget was used up.
    pub unpaid: u64,
    /// Copies dropped because the call itself failed or the server was stopping.
    pub unserved: u64,
    /// The cost of copies in the current period.
    pub spent: NanoDollars,
}

/// Why a copy is not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SkipReason {
    Full,
    Unpaid,
    Unserved,
}

/// The queue and its budget. Outlives the configuration that it comes from.
pub struct CopyQueue<T> {
    state: Mutex<QueueState<T>>,
}

struct QueueState<T> {
    at_work: u32,
    /// The last copy that ended cost no more than was held for it, so several copies may run.
    kept_within: bool,
    /// A copy has cost more than was held for it. Running copies finish until one is left.
    one_at_a_time: bool,
    /// The factor on a copy's list-price estimate that is held for it. Grows with the costs that servers report.
    times: i64,
    /// The amount that counts as spent after a restart: what is written down.
    written: i64,
    /// The waiting copies, each with its organisation as a number.
    waiting: VecDeque<(u64, T)>,
    /// The organisation whose copy left the queue last.
    last_org: u64,
    period: u64,
    spent: i64,
    /// The most that running copies may still cost.
    held: i64,
    /// The period in which the rest of the budget did not cover a copy.
    dry: Option<u64>,
    figures: ShadowFigures,
}

impl<T> Default for CopyQueue<T> {
    fn default() -> Self {
        let (figures, waiting) = (ShadowFigures::default(), VecDeque::new());
        let state = QueueState {
            at_work: 0,
            kept_within: false,
            one_at_a_time: false,
            times: 1,
            written: 0,
            last_org: 0,
            waiting,
            period: 0,
            spent: 0,
            held: 0,
            dry: None,
            figures,
        };
        Self { state: Mutex::new(state) }
    }
}

impl<T> CopyQueue<T> {
    /// Starts a copy if a slot is free, and returns it. Otherwise queues it, if the queue has space. If the queue is
    /// full, a copy of the organisation with the most waiting copies is dropped, if the new copy's organisation has
    /// at least two fewer.
    pub(super) fn enter(&self, (org, copy): (u64, T), at_work: u32, waiting: usize) -> Option<T> {
        let mut state = self.state.lock();
        if state.at_work < at_work {
            state.at_work += 1;
            return Some(copy);
        }
        if state.waiting.len() >= waiting {
            state.figures.full += 1;
            let at = state.one_too_many(org)?;
            state.waiting.remove(at);
        }
        state.waiting.push_back((org, copy));
        None
    }

    /// The next copy for a caller that has finished one. Prefers another organisation than the last one. `None` means
    /// that the caller must stop.
    pub fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        let is_one_too_many = state.one_at_a_time && state.at_work > 1;
        let of_another = state.waiting.iter().position(|(org, _)| *org != state.last_org).unwrap_or(0);
        let next = if is_one_too_many { None } else { state.waiting.remove(of_another) };
        match next {
            Some((org, copy)) => {
                state.last_org = org;
                Some(copy)
            }
            None => {
                state.at_work = state.at_work.saturating_sub(1);
                None
            }
        }
    }

    /// The number of copies that may run. It is one until a copy has shown that servers report no more than is held.
    pub(super) fn most_at_work(&self, most: u32) -> u32 {
        if self.state.lock().kept_within { most } else { most.min(1) }
    }

    /// Counts a copy that is not made.
    pub(super) fn skip(&self, why: SkipReason) {
        let figures = &mut self.state.lock().figures;
        match why {
            SkipReason::Full => figures.full += 1,
            SkipReason::Unpaid => figures.unpaid += 1,
            SkipReason::Unserved => figures.unserved += 1,
        }
    }

    /// Counts a copy that is not made because the server is stopping.
    pub fn leave_out(&self) {
        self.skip(SkipReason::Unserved);
    }

    /// Whether the budget could cover a copy, as far as is known.
    pub(super) fn could_pay(&self, budget: &ShadowBudget, now: UnixNanos) -> bool {
        let mut state = self.state.lock();
        state.roll(budget, now);
        state.dry != Some(state.period) && state.spent + state.held <= budget.amount.get()
    }

    /// Holds the most that a copy may cost. `None` if the budget does not cover it.
    pub(super) fn take(
        self: &Arc<Self>,
        budget: &ShadowBudget,
        amount: NanoDollars,
        now: UnixNanos,
    ) -> Option<SpendReservation<T>> {
        let mut state = self.state.lock();
        state.roll(budget, now);
        // A server may repeat the excess that it reported once.
        let (least, amount) = (amount.get(), amount.get().saturating_mul(state.times));
        let needed = state.spent.saturating_add(state.held).saturating_add(amount);
        if needed > budget.amount.get() {
            // Amounts that others hold may be released again.
            if state.held == 0 {
                state.dry = Some(state.period);
            }
            state.figures.unpaid += 1;
            return None;
        }
        state.held += amount;
        state.figures.copied += 1;
        Some(SpendReservation { queue: Arc::clone(self), amount, least, spent: None })
    }

    /// The amount to write down before more is spent, because a restart would spend any unwritten amount again.
    /// `None` if enough is written. Includes a part of the budget in advance, so that few copies wait for the disk.
    pub(super) fn unwritten(&self, budget: &ShadowBudget) -> Option<ShadowSpend> {
        let state = self.state.lock();
        let needed = state.spent.saturating_add(state.held);
        if needed <= state.written {
            return None;
        }
        let ahead = needed.saturating_add(budget.amount.get() / WRITTEN_AHEAD).min(budget.amount.get());
        Some(ShadowSpend {
            period_s: budget.period.as_secs(),
            period: state.period,
            amount: ahead.max(needed),
        })
    }

    /// Records that this amount is written down.
    pub(super) fn wrote(&self, spent: ShadowSpend) {
        let mut state = self.state.lock();
        if state.period == spent.period {
            state.written = state.written.max(spent.amount);
        }
    }

    /// Restores the spending of an earlier process. It counts only within its own period.
    pub(super) fn resume(&self, spent: ShadowSpend) {
        let mut state = self.state.lock();
        (state.period, state.spent, state.written) = (spent.period, spent.amount, spent.amount);
    }

    /// The current figures.
    pub(super) fn figures(&self) -> ShadowFigures {
        let state = self.state.lock();
        ShadowFigures { spent: NanoDollars::new(state.spent), ..state.figures }
    }
}

impl<T> QueueState<T> {
    /// Index of the last waiting copy of the organisation with the most. `None` unless that organisation has at least
    /// two more copies than this one.
    fn one_too_many(&self, org: u64) -> Option<usize> {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for (org, _) in &self.waiting {
            *counts.entry(*org).or_default() += 1;
        }
        let own = counts.get(&org).copied().unwrap_or(0);
        let (most, count) = counts.into_iter().max_by_key(|(org, count)| (*count, *org))?;
        if count <= own + 1 {
            return None;
        }
        self.waiting.iter().rposition(|(org, _)| *org == most)
    }

    fn roll(&mut self, budget: &ShadowBudget, now: UnixNanos) {
        let period = now.seconds() / budget.period.as_secs().max(1);
        if self.period != period {
            (self.period, self.spent, self.written, self.times) = (period, 0, 0, 1);
        }
    }
}

/// The amount held for a copy. Dropping it releases what the copy did not cost.
pub(super) struct SpendReservation<T> {
    queue: Arc<CopyQueue<T>>,
    amount: i64,
    /// The copy's cost by list prices.
    least: i64,
    /// The copy's actual cost. `None` until it has ended.
    spent: Option<i64>,
}

impl<T> SpendReservation<T> {
    /// Records the actual cost.
    pub(super) fn spend(&mut self, cost: NanoDollars) {
        self.spent = Some(cost.get());
    }
}

impl<T> Drop for SpendReservation<T> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.held -= self.amount;
        let Some(spent) = self.spent else { return };
        state.spent = state.spent.saturating_add(spent);
        state.kept_within = spent <= self.amount;
        state.one_at_a_time = !state.kept_within;
        let times = spent.saturating_add(self.least.max(1) - 1) / self.least.max(1);
        state.times = state.times.max(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: u64) -> UnixNanos {
        UnixNanos::new(hour * 3600 * 1_000_000_000)
    }

    #[test]
    fn so_many_are_at_work_so_many_wait_and_the_rest_is_counted() {
        let queue = CopyQueue::default();
        let entered: Vec<_> = (0..5).map(|copy| queue.enter((7, copy), 2, 2)).collect();
        assert_eq!(entered, [Some(0), Some(1), None, None, None]);
        assert_eq!(queue.figures().full, 1);
        assert_eq!((queue.next(), queue.next(), queue.next()), (Some(2), Some(3), None));
        assert_eq!(
            (queue.enter((7, 5), 2, 2), queue.enter((7, 6), 2, 0)),
            (Some(5), None),
            "one is at work still"
        );
        assert_eq!((queue.next(), queue.next(), queue.enter((7, 7), 1, 0)), (None, None, Some(7)));
    }

    #[test]
    fn a_budget_is_never_passed_and_begins_anew_with_its_period() {
        let queue = Arc::new(CopyQueue::<()>::default());
        let budget = ShadowBudget { amount: NanoDollars::new(100), period: Duration::from_secs(3600) };
        let take = |amount, hour| queue.take(&budget, NanoDollars::new(amount), at(hour));
        let (mut first, second) = (take(60, 1).unwrap(), take(40, 1).unwrap());
        assert!(take(1, 1).is_none() && queue.could_pay(&budget, at(1)), "what is held may come back");
        first.spend(NanoDollars::new(50));
        drop((first, second));
        assert_eq!(queue.figures().spent, NanoDollars::new(50));
        assert!(take(51, 1).is_none());
        assert!(!queue.could_pay(&budget, at(1)), "no copy is open, so none of the budget can come back");
        assert!(queue.could_pay(&budget, at(2)) && take(100, 2).is_some());
        assert_eq!(queue.figures(), ShadowFigures { copied: 3, unpaid: 2, ..ShadowFigures::default() });
    }

    #[test]
    fn a_server_that_reports_more_than_is_held_passes_a_budget_by_one_copy() {
        let queue = Arc::new(CopyQueue::<u32>::default());
        let budget = ShadowBudget { amount: NanoDollars::new(10_000), period: Duration::from_secs(3600) };
        let take = |amount| queue.take(&budget, NanoDollars::new(amount), at(1));
        assert_eq!(queue.most_at_work(4), 1, "nothing is known of who answers");
        let mut first = take(100).unwrap();
        first.spend(NanoDollars::new(90));
        drop(first);
        assert_eq!(queue.most_at_work(4), 4);
        assert_eq!((queue.enter((7, 0), 4, 9), queue.enter((7, 1), 4, 9)), (Some(0), Some(1)));
        assert_eq!(queue.enter((7, 2), 2, 9), None);
        // From here on, every copy is reported to be fifty times as long.
        let mut second = take(100).unwrap();
        second.spend(NanoDollars::new(5_000));
        drop(second);
        assert_eq!((queue.most_at_work(4), queue.next()), (1, None), "one of the two at work ends");
        assert_eq!(queue.next(), Some(2));
        assert!(take(100).is_none(), "as much as that is held for the next: 5,000 of 4,910");
        assert!(!queue.could_pay(&budget, at(1)));
        assert_eq!(queue.figures().spent, NanoDollars::new(5_090));
    }

    #[test]
    fn what_is_written_down_covers_what_is_spent_and_a_restart_begins_there() {
        let budget = ShadowBudget { amount: NanoDollars::new(6_400), period: Duration::from_secs(3600) };
        let queue = Arc::new(CopyQueue::<()>::default());
        assert_eq!(queue.unwritten(&budget), None);
        let (mut spent, mut writes, mut written) = (0, 0, 0);
        while let Some(mut taken) = queue.take(&budget, NanoDollars::new(10), at(7)) {
            if let Some(more) = queue.unwritten(&budget) {
                assert_eq!((more.period_s, more.period), (3600, 7));
                queue.wrote(more);
                (writes, written) = (writes + 1, more.amount);
            }
            spent += 10;
            assert!(written >= spent && written <= 6_400);
            taken.spend(NanoDollars::new(10));
            drop(taken);
        }
        assert_eq!((spent, queue.unwritten(&budget)), (6_400, None));
        assert!(writes <= 64, "{writes}");
        let next = Arc::new(CopyQueue::<()>::default());
        next.resume(ShadowSpend { period_s: 3600, period: 7, amount: written });
        assert!(next.take(&budget, NanoDollars::new(1), at(7)).is_none());
        assert!(next.take(&budget, NanoDollars::new(6_400), at(8)).is_some(), "the next hour is another");
    }

    #[test]
    fn the_copies_of_one_organisation_leave_room_to_those_of_another() {
        let queue = CopyQueue::default();
        assert_eq!(queue.enter((1, "a0"), 1, 4), Some("a0"));
        for copy in ["a1", "a2", "a3", "a4", "a5"] {
            assert_eq!(queue.enter((1, copy), 1, 4), None);
        }
        for copy in ["b1", "b2", "b3"] {
            assert_eq!(queue.enter((2, copy), 1, 4), None);
        }
        assert_eq!(queue.figures().full, 4, "a5, the two that made room, and b3");
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(order, ["a1", "b1", "a2", "b2"]);
    }
}
