//! A circuit breaker. After failures no calls are sent for a while, then one trial call is. Calls of one caller alone
//! do not open it if another caller was answered, because the fault may be in that caller's requests. Pure: time and
//! randomness are arguments. Must not know what a call is.

use crate::random::unit;
use crate::window::SlidingCounter;

const SECOND_NS: u64 = 1_000_000_000;
/// Consecutive failures that open it.
const FAILURES_IN_A_ROW: u32 = 5;
/// Fewest calls of the last ten seconds for which a failure rate is meaningful.
const LEAST_CALLS: f64 = 20.0;
/// The failure rate that opens it.
const FAILED_SHARE: f64 = 0.5;
const RATE_SPAN_NS: u64 = 10 * SECOND_NS;
/// First open time. Each failed trial doubles it.
const FIRST_OPEN_NS: u64 = SECOND_NS;
/// Longest open time, before the jitter.
const LONGEST_OPEN_NS: u64 = 30 * SECOND_NS;
/// Up to this part of an open time is subtracted at random, so that many breakers do not send trials at once.
const JITTER: f64 = 0.2;

/// A failed call, as far as the breaker judges it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BreakerFault {
    /// The caller whose request body may have caused it. `None` if no body can cause such a fault.
    pub(crate) caller: Option<u64>,
    /// Random bits for the jitter of the open time.
    pub(crate) random: u64,
}

impl BreakerFault {
    /// For an outcome that is not a failure, and no caller.
    pub(crate) const NONE: Self = Self { caller: None, random: 0 };
}

/// The two most recent distinct callers of some event, the latest first, each with the time in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct LastTwo([Option<(u64, u64)>; 2]);

impl LastTwo {
    const NONE: Self = Self([None, None]);

    fn add(&mut self, caller: u64, now_ns: u64) {
        if let [Some((last, at_ns)), _] = &mut self.0
            && *last == caller
        {
            *at_ns = now_ns;
            return;
        }
        self.0 = [Some((caller, now_ns)), self.0[0]];
    }

    /// Whether a caller other than `caller` is among them, at or after `from_ns`.
    fn has_other(&self, caller: u64, from_ns: u64) -> bool {
        self.0.iter().flatten().any(|(other, at_ns)| *other != caller && *at_ns >= from_ns)
    }
}

/// A circuit breaker. It is used behind a lock.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: BreakerState,
    in_a_row: u32,
    calls: SlidingCounter<11>,
    failures: SlidingCounter<11>,
    failed: LastTwo,
    answered: LastTwo,
    /// How often it was opened since it was last closed.
    opened: u32,
    /// How often it was opened in total.
    trips: u64,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// Calls go through.
    Closed,
    /// No calls pass until `until_ns`. After that the next one is a trial.
    Open { until_ns: u64 },
    /// One trial call decides. `out` says whether it is in flight.
    HalfOpen { out: bool },
}

/// Whether a call may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallPermission {
    /// It may.
    Free,
    /// It may, as the trial call.
    Trial,
    /// Not before this time.
    NotBefore(u64),
    /// Not before the trial call has ended.
    TrialIsOut,
}

impl Breaker {
    pub(crate) const fn new() -> Self {
        let (calls, failures) = (SlidingCounter::new(SECOND_NS), SlidingCounter::new(SECOND_NS));
        let (failed, answered) = (LastTwo::NONE, LastTwo::NONE);
        Self {
            state: BreakerState::Closed,
            in_a_row: 0,
            calls,
            failures,
            failed,
            answered,
            opened: 0,
            trips: 0,
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == BreakerState::Closed
    }

    pub(crate) fn trips(&self) -> u64 {
        self.trips
    }

    /// Whether a call may pass now. Changes nothing.
    pub(crate) fn leave(&self, now_ns: u64) -> CallPermission {
        match self.state {
            BreakerState::Closed => CallPermission::Free,
            BreakerState::Open { until_ns } if now_ns < until_ns => CallPermission::NotBefore(until_ns),
            BreakerState::Open { .. } | BreakerState::HalfOpen { out: false } => CallPermission::Trial,
            BreakerState::HalfOpen { out: true } => CallPermission::TrialIsOut,
        }
    }

    /// Lets a call pass if it may. A caller that gets [`CallPermission::Trial`] must report how the call ended, or that it
    /// showed nothing.
    pub(crate) fn enter(&mut self, now_ns: u64) -> CallPermission {
        let leave = self.leave(now_ns);
        if leave == CallPermission::Trial {
            self.state = BreakerState::HalfOpen { out: true };
        }
        leave
    }

    /// Records that a call of `caller` was answered. After a trial all calls pass again. `caller` is `None` for a
    /// probe, which is not a call.
    pub(crate) fn succeeded(&mut self, now_ns: u64, trial: bool, caller: Option<u64>) {
        if let Some(caller) = caller {
            self.answered.add(caller, now_ns);
        }
        self.in_a_row = 0;
        self.calls.add(now_ns, 1);
        if trial {
            self.close();
        }
    }

    /// Records a failed call, and opens the breaker if there were too many. While the breaker is open, only a failed
    /// trial opens it anew.
    pub(crate) fn failed(&mut self, now_ns: u64, trial: bool, fault: BreakerFault) {
        let is_of_one_caller = fault.caller.is_some_and(|caller| {
            self.failed.add(caller, now_ns);
            let from_ns = now_ns.saturating_sub(RATE_SPAN_NS);
            !self.failed.has_other(caller, from_ns) && self.answered.has_other(caller, 0)
        });
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.calls.add(now_ns, 1);
        self.failures.add(now_ns, 1);
        if trial || (self.is_closed() && !is_of_one_caller && self.is_too_much(now_ns)) {
            self.open(now_ns, fault.random);
        }
    }

    /// Records that the trial call showed nothing. The next call is a trial.
    pub(crate) fn came_to_nothing(&mut self) {
        if self.state == (BreakerState::HalfOpen { out: true }) {
            self.state = BreakerState::HalfOpen { out: false };
        }
    }

    /// Makes the next call a trial without waiting, because there are signs of recovery.
    pub(crate) fn need_not_wait(&mut self) {
        if matches!(self.state, BreakerState::Open { .. }) {
            self.state = BreakerState::HalfOpen { out: false };
        }
    }

    fn is_too_much(&self, now_ns: u64) -> bool {
        let calls = self.calls.within(now_ns, RATE_SPAN_NS);
        let failures = self.failures.within(now_ns, RATE_SPAN_NS);
        self.in_a_row >= FAILURES_IN_A_ROW || (calls >= LEAST_CALLS && failures >= calls * FAILED_SHARE)
    }

    fn open(&mut self, now_ns: u64, random: u64) {
        let doubled = FIRST_OPEN_NS.saturating_mul(1u64.checked_shl(self.opened).unwrap_or(u64::MAX));
        let open_ns = doubled.min(LONGEST_OPEN_NS) as f64 * (1.0 - JITTER * unit(random));
        self.state = BreakerState::Open { until_ns: now_ns.saturating_add(open_ns as u64) };
        // A larger shift would exceed the longest open time anyway.
        self.opened = (self.opened + 1).min(32);
        self.trips += 1;
    }

    fn close(&mut self) {
        self.state = BreakerState::Closed;
        self.opened = 0;
        // Earlier calls say nothing about the present state.
        self.calls.clear();
        self.failures.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    const fn of(caller: Option<u64>) -> BreakerFault {
        BreakerFault { caller, random: 0 }
    }

    fn open(breaker: &mut Breaker, now_ns: u64) -> u64 {
        (0..FAILURES_IN_A_ROW).for_each(|_| breaker.failed(now_ns, false, of(None)));
        let BreakerState::Open { until_ns } = breaker.state() else { panic!("{breaker:?}") };
        until_ns
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not_let_them() {
        let mut breaker = Breaker::new();
        for at in 0..40 {
            // Four of five fail, but slowly: too few calls for a rate.
            let now_ns = at * SECOND_NS;
            match at % 5 {
                4 => breaker.succeeded(now_ns, false, None),
                _ => breaker.failed(now_ns, false, of(None)),
            }
            assert_eq!(breaker.leave(now_ns), CallPermission::Free, "{at}");
        }
        let until_ns = open(&mut breaker, 50 * SECOND_NS);
        assert_eq!((until_ns, breaker.trips()), (51 * SECOND_NS, 1));
        assert_eq!(breaker.leave(until_ns - 1), CallPermission::NotBefore(until_ns));
    }

    #[test]
    fn a_rate_opens_it_once_there_were_enough_calls() {
        let mut breaker = Breaker::new();
        let mut calls = 0;
        while breaker.is_closed() && calls < 1000 {
            match calls % 2 {
                0 => breaker.succeeded(calls * MS, false, None),
                _ => breaker.failed(calls * MS, false, of(None)),
            }
            calls += 1;
        }
        assert_eq!(calls, 20);
        let mut spread = Breaker::new();
        for at in 0..200 {
            // Never twenty within ten seconds.
            match at % 2 {
                0 => spread.succeeded(at * SECOND_NS, false, None),
                _ => spread.failed(at * SECOND_NS, false, of(None)),
            }
        }
        assert!(spread.is_closed());
    }

    #[test]
    fn one_call_tries_at_a_time_and_says_how_it_goes_on() {
        let mut breaker = Breaker::new();
        let mut until_ns = open(&mut breaker, 0);
        for seconds in [2, 4, 8, 16, 30, 30, 30] {
            assert_eq!(breaker.enter(until_ns), CallPermission::Trial);
            assert_eq!(breaker.enter(until_ns), CallPermission::TrialIsOut);
            // Calls that were in flight when it opened decide nothing.
            breaker.succeeded(until_ns, false, None);
            breaker.failed(until_ns, false, of(None));
            assert_eq!(breaker.leave(until_ns), CallPermission::TrialIsOut);
            // A trial that shows nothing passes its turn to the next call.
            breaker.came_to_nothing();
            assert_eq!(breaker.enter(until_ns), CallPermission::Trial);
            let from_ns = until_ns;
            breaker.failed(from_ns, true, of(None));
            until_ns = from_ns + seconds * SECOND_NS;
            assert_eq!(breaker.state(), BreakerState::Open { until_ns });
        }
        assert_eq!(breaker.enter(until_ns), CallPermission::Trial);
        breaker.succeeded(until_ns, true, None);
        assert_eq!(breaker.leave(until_ns), CallPermission::Free);
        assert_eq!(open(&mut breaker, until_ns), until_ns + SECOND_NS, "it begins with the first time again");
    }

    #[test]
    fn times_are_jittered_and_good_news_ends_them() {
        let mut breaker = Breaker::new();
        (0..FAILURES_IN_A_ROW)
            .for_each(|_| breaker.failed(0, false, BreakerFault { caller: None, random: u64::MAX }));
        let BreakerState::Open { until_ns } = breaker.state() else { panic!("{breaker:?}") };
        assert!((800 * MS..801 * MS).contains(&until_ns), "{until_ns}");
        breaker.need_not_wait();
        assert_eq!((breaker.enter(1), breaker.enter(1)), (CallPermission::Trial, CallPermission::TrialIsOut));
    }

    #[test]
    fn failures_of_one_caller_open_it_only_where_no_other_was_answered() {
        let many = |breaker: &mut Breaker, caller| {
            (0..100).for_each(|at| breaker.failed(at * 100 * MS, false, of(caller)));
            !breaker.is_closed()
        };
        assert!(many(&mut Breaker::new(), Some(1)), "it is the only caller");
        let answered = |callers: &[u64]| {
            let mut breaker = Breaker::new();
            callers.iter().for_each(|caller| breaker.succeeded(0, false, Some(*caller)));
            breaker
        };
        assert!(many(&mut answered(&[1, 1]), Some(1)), "it is the only caller");
        assert!(!many(&mut answered(&[2]), Some(1)));
        assert!(!many(&mut answered(&[2, 1, 1, 1]), Some(1)), "the other caller was answered before");
        assert!(many(&mut answered(&[2]), None), "no body causes such failures");
        // A second caller's failure shows that the fault is not in the first caller's requests.
        let mut breaker = answered(&[1, 2]);
        (0..100).for_each(|_| breaker.failed(SECOND_NS, false, of(Some(1))));
        assert!(breaker.is_closed());
        breaker.failed(2 * SECOND_NS, false, of(Some(2)));
        assert!(!breaker.is_closed());
    }
}
