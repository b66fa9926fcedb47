//! The bounds of the copies that one name's calls are made: so many at work, so many waiting, so much money in a period. What is
//! beyond them is left out and counted. Must not know what a copy is, or how one is made.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{NanoDollars, UnixNanos};
use parking_lot::Mutex;

/// Money for copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowBudget {
    /// The most that copies may cost in a period, at list prices.
    pub amount: NanoDollars,
    /// How long a period is; they begin at its multiples since 1970, UTC: at midnight, or on the hour.
    pub period: Duration,
}

/// What became of calls that a copy was drawn for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShadowFigures {
    /// A copy was made.
    pub copied: u64,
    /// As many copies as may were waiting, or the memory for them was full.
    pub full: u64,
    /// The budget was used.
    pub unpaid: u64,
    /// The call itself came to nothing, or the server was stopping.
    pub unserved: u64,
    /// What copies have cost in the period at hand.
    pub spent: NanoDollars,
}

/// Why a copy is not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skipped {
    Full,
    Unpaid,
    Unserved,
}

/// See the top of the file. It outlives the configuration that it comes from.
pub(crate) struct Lane<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    at_work: u32,
    waiting: VecDeque<T>,
    period: u64,
    spent: i64,
    /// The most that copies at work may cost still.
    held: i64,
    /// In that period a copy cost more than was left.
    dry: Option<u64>,
    figures: ShadowFigures,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        let (figures, waiting) = (ShadowFigures::default(), VecDeque::new());
        let state = State { at_work: 0, waiting, period: 0, spent: 0, held: 0, dry: None, figures };
        Self { state: Mutex::new(state) }
    }
}

impl<T> Lane<T> {
    /// A copy for one who has a place to work now: it is given back. Otherwise it waits, if there is room.
    pub(super) fn enter(&self, copy: T, at_work: u32, waiting: usize) -> Option<T> {
        let mut state = self.state.lock();
        if state.at_work < at_work {
            state.at_work += 1;
            return Some(copy);
        }
        if state.waiting.len() < waiting {
            state.waiting.push_back(copy);
        } else {
            state.figures.full += 1;
        }
        None
    }

    /// The next copy for one who has finished with another; `None`: it is to stop.
    pub(crate) fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.at_work = state.at_work.saturating_sub(1);
        }
        next
    }

    /// One more that is not made.
    pub(super) fn skip(&self, why: Skipped) {
        let figures = &mut self.state.lock().figures;
        match why {
            Skipped::Full => figures.full += 1,
            Skipped::Unpaid => figures.unpaid += 1,
            Skipped::Unserved => figures.unserved += 1,
        }
    }

    /// One more that is not made, as the server is stopping.
    pub(crate) fn leave_out(&self) {
        self.skip(Skipped::Unserved);
    }

    /// Whether a copy could be paid for, as far as it is known.
    pub(super) fn could_pay(&self, budget: &ShadowBudget, now: UnixNanos) -> bool {
        let mut state = self.state.lock();
        state.roll(budget, now);
        state.dry != Some(state.period) && state.spent + state.held <= budget.amount.get()
    }

    /// Takes the most that a copy may cost. `None`: the budget does not cover it.
    pub(super) fn take(
        self: &Arc<Self>,
        budget: &ShadowBudget,
        amount: NanoDollars,
        now: UnixNanos,
    ) -> Option<Taken<T>> {
        let mut state = self.state.lock();
        state.roll(budget, now);
        let needed = state.spent.saturating_add(state.held).saturating_add(amount.get());
        if needed > budget.amount.get() {
            // What others hold may come back.
            if state.held == 0 {
                state.dry = Some(state.period);
            }
            state.figures.unpaid += 1;
            return None;
        }
        state.held += amount.get();
        state.figures.copied += 1;
        Some(Taken { lane: Arc::clone(self), amount: amount.get(), spent: 0 })
    }

    /// As it stands.
    pub(super) fn figures(&self) -> ShadowFigures {
        let state = self.state.lock();
        ShadowFigures { spent: NanoDollars::new(state.spent), ..state.figures }
    }
}

impl<T> State<T> {
    fn roll(&mut self, budget: &ShadowBudget, now: UnixNanos) {
        let period = now.seconds() / budget.period.as_secs().max(1);
        if self.period != period {
            (self.period, self.spent) = (period, 0);
        }
    }
}

/// What a copy may cost. What it did not cost goes back when this is dropped.
pub(super) struct Taken<T> {
    lane: Arc<Lane<T>>,
    amount: i64,
    spent: i64,
}

impl<T> Taken<T> {
    /// It has cost so much.
    pub(super) fn spend(&mut self, cost: NanoDollars) {
        self.spent = cost.get();
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        let mut state = self.lane.state.lock();
        state.held -= self.amount;
        state.spent = state.spent.saturating_add(self.spent);
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
        let lane = Lane::default();
        let entered: Vec<_> = (0..5).map(|copy| lane.enter(copy, 2, 2)).collect();
        assert_eq!(entered, [Some(0), Some(1), None, None, None]);
        assert_eq!(lane.figures().full, 1);
        assert_eq!((lane.next(), lane.next(), lane.next()), (Some(2), Some(3), None));
        assert_eq!((lane.enter(5, 2, 2), lane.enter(6, 2, 0)), (Some(5), None), "one is at work still");
        assert_eq!((lane.next(), lane.next(), lane.enter(7, 1, 0)), (None, None, Some(7)));
    }

    #[test]
    fn a_budget_is_never_passed_and_begins_anew_with_its_period() {
        let lane = Arc::new(Lane::<()>::default());
        let budget = ShadowBudget { amount: NanoDollars::new(100), period: Duration::from_secs(3600) };
        let take = |amount, hour| lane.take(&budget, NanoDollars::new(amount), at(hour));
        let (mut first, second) = (take(60, 1).unwrap(), take(40, 1).unwrap());
        assert!(take(1, 1).is_none() && lane.could_pay(&budget, at(1)), "what is held may come back");
        first.spend(NanoDollars::new(50));
        drop((first, second));
        assert_eq!(lane.figures().spent, NanoDollars::new(50));
        assert!(take(51, 1).is_none());
        assert!(!lane.could_pay(&budget, at(1)), "one that did not fit with nobody else at work");
        assert!(lane.could_pay(&budget, at(2)) && take(100, 2).is_some());
        assert_eq!(lane.figures(), ShadowFigures { copied: 3, unpaid: 2, ..ShadowFigures::default() });
    }
}
