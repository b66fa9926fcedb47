//! A breaker that many threads share, before a worker or before a whole upstream. While it is closed, asking takes no lock.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::breaker::{Breaker, Fault, Leave, State};

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Door {
    /// The breaker is closed: everybody goes through. A hint that is written under the lock.
    free: AtomicBool,
    breaker: Mutex<Breaker>,
}

/// What a call says of whom it was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It works.
    Good,
    /// It does not.
    Bad,
    /// Nothing.
    Nothing,
}

impl Door {
    pub(crate) const fn new() -> Self {
        Self { free: AtomicBool::new(true), breaker: Mutex::new(Breaker::new()) }
    }

    /// Whether a call may go through now. Takes nothing.
    pub(crate) fn leave(&self, now_ns: u64) -> Leave {
        if self.free.load(Ordering::Relaxed) { Leave::Free } else { self.breaker.lock().leave(now_ns) }
    }

    /// A call goes through, if it may.
    pub(crate) fn enter(&self, now_ns: u64) -> Leave {
        if self.free.load(Ordering::Relaxed) { Leave::Free } else { self.breaker.lock().enter(now_ns) }
    }

    /// A call of `caller` ended, or showed already how it goes. `trial`: it was the one that tried.
    pub(crate) fn told(&self, now_ns: u64, verdict: Verdict, trial: bool, fault: Fault) {
        if verdict == Verdict::Nothing && !trial {
            return;
        }
        let mut breaker = self.breaker.lock();
        match verdict {
            Verdict::Good => breaker.succeeded(now_ns, trial, fault.caller),
            Verdict::Bad => breaker.failed(now_ns, trial, fault),
            Verdict::Nothing => breaker.came_to_nothing(),
        }
        self.free.store(breaker.is_closed(), Ordering::Relaxed);
    }

    /// There is reason to believe that it works again: the next call tries. `false`: it was not open.
    pub(crate) fn need_not_wait(&self) -> bool {
        let mut breaker = self.breaker.lock();
        breaker.need_not_wait();
        !breaker.is_closed()
    }

    /// How it stands, and how often it was opened.
    pub(crate) fn state(&self) -> (State, u64) {
        let breaker = self.breaker.lock();
        (breaker.state(), breaker.trips())
    }
}
