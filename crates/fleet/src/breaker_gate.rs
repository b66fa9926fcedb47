//! A breaker gate, shared by threads, for a worker or a whole upstream. While the breaker is closed, a check takes no
//! lock.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::breaker::{Breaker, BreakerFault, BreakerState, CallPermission};

/// A breaker behind a lock, with a lock-free hint for the closed state.
#[derive(Debug)]
pub(crate) struct BreakerGate {
    /// Whether the breaker is closed and every call may pass. A hint, written under the lock.
    free: AtomicBool,
    breaker: Mutex<Breaker>,
}

/// What a call says about its worker or upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallJudgement {
    /// It works.
    Good,
    /// It does not work.
    Bad,
    /// Nothing.
    Nothing,
}

impl BreakerGate {
    pub(crate) const fn new() -> Self {
        Self { free: AtomicBool::new(true), breaker: Mutex::new(Breaker::new()) }
    }

    /// Whether a call may pass now. Changes nothing.
    pub(crate) fn leave(&self, now_ns: u64) -> CallPermission {
        if self.free.load(Ordering::Relaxed) {
            CallPermission::Free
        } else {
            self.breaker.lock().leave(now_ns)
        }
    }

    /// Lets a call pass if it may, as a trial if one is due.
    pub(crate) fn enter(&self, now_ns: u64) -> CallPermission {
        if self.free.load(Ordering::Relaxed) {
            CallPermission::Free
        } else {
            self.breaker.lock().enter(now_ns)
        }
    }

    /// Records the verdict of a call that ended, or that already shows how it goes. `trial` marks the trial call.
    pub(crate) fn record(&self, now_ns: u64, verdict: CallJudgement, trial: bool, fault: BreakerFault) {
        if verdict == CallJudgement::Nothing && !trial {
            return;
        }
        let mut breaker = self.breaker.lock();
        match verdict {
            CallJudgement::Good => breaker.succeeded(now_ns, trial, fault.caller),
            CallJudgement::Bad => breaker.failed(now_ns, trial, fault),
            CallJudgement::Nothing => breaker.came_to_nothing(),
        }
        self.free.store(breaker.is_closed(), Ordering::Relaxed);
    }

    /// Lets the next call try without waiting, because there are signs of recovery. Returns `false` if the breaker was
    /// closed.
    pub(crate) fn need_not_wait(&self) -> bool {
        let mut breaker = self.breaker.lock();
        breaker.need_not_wait();
        !breaker.is_closed()
    }

    /// The breaker's state, and how often it was opened.
    pub(crate) fn state(&self) -> (BreakerState, u64) {
        let breaker = self.breaker.lock();
        (breaker.state(), breaker.trips())
    }
}
