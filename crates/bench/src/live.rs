//! What can be seen of a run while it lasts. Knows only counters.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::quantiles::Spread;

/// Looks on while a run lasts.
pub trait Watch: Send {
    /// Called several times a second.
    fn show(&mut self, snapshot: &Snapshot);
}

/// Nobody looks on.
impl Watch for () {
    fn show(&mut self, _snapshot: &Snapshot) {}
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Since its beginning.
    pub elapsed: Duration,
    /// Calls that have ended, well or not, with the warm-up's.
    pub ended: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Calls in all, where that is known.
    pub total: Option<u64>,
    /// How long it lasts without what is in flight at the end, where that is known.
    pub length: Option<Duration>,
    /// Calls sent and not ended.
    pub in_flight: usize,
    /// Calls that are due and wait for a place in flight.
    pub waiting: usize,
    /// Events with content so far; most servers send one per token.
    pub events: u64,
}

/// Counters of a run, touched from its tasks.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) events: AtomicU64,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) in_flight_max: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
    /// How late the generator's own timers were, in microseconds.
    wake_lag: Mutex<Spread>,
}

/// One more in flight, or waiting, until this is dropped: also when its task is.
#[derive(Debug)]
pub(crate) struct Counted<'l>(&'l AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Live {
    pub(crate) fn fly(&self) -> Counted<'_> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.in_flight_max.fetch_max(before.saturating_add(1), Ordering::Relaxed);
        Counted(&self.in_flight)
    }

    pub(crate) fn wait(&self) -> Counted<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Counted(&self.waiting)
    }

    pub(crate) fn woke_late(&self, by: Duration) {
        self.wake_lag().record_time(by);
    }

    pub(crate) fn wake_lag(&self) -> std::sync::MutexGuard<'_, Spread> {
        // Nothing in here can panic half way.
        self.wake_lag.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
