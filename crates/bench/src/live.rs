//! The state of a run while it lasts. Knows only counters.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::quantiles::QuantileRecorder;

/// Observes a run while it lasts.
pub trait RunWatcher: Send {
    /// Called several times per second.
    fn show(&mut self, snapshot: &RunSnapshot);
}

/// An observer that does nothing.
impl RunWatcher for () {
    fn show(&mut self, _snapshot: &RunSnapshot) {}
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunSnapshot {
    /// Time since the start.
    pub elapsed: Duration,
    /// Calls that have ended, successfully or not, including the warm-up.
    pub ended: u64,
    /// Calls that have failed.
    pub failed: u64,
    /// Total number of calls, if it is known.
    pub total: Option<u64>,
    /// Length of the run, if it is known. Excludes the wait for calls in flight at the end.
    pub length: Option<Duration>,
    /// Calls that are sent and have not ended.
    pub in_flight: usize,
    /// Calls that are due and wait for a slot.
    pub waiting: usize,
    /// Events with content so far. Most servers send one per token.
    pub events: u64,
}

/// Counters of a run, shared by its tasks.
#[derive(Debug, Default)]
pub(crate) struct RunCounters {
    pub(crate) events: AtomicU64,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) in_flight_max: AtomicUsize,
    pub(crate) waiting: AtomicUsize,
    /// How late the generator's own timers were, in microseconds.
    wake_lag: Mutex<QuantileRecorder>,
}

/// Counts one call as in flight or waiting until it is dropped, also if its task is dropped.
#[derive(Debug)]
pub(crate) struct CountGuard<'l>(&'l AtomicUsize);

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RunCounters {
    pub(crate) fn fly(&self) -> CountGuard<'_> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.in_flight_max.fetch_max(before.saturating_add(1), Ordering::Relaxed);
        CountGuard(&self.in_flight)
    }

    pub(crate) fn wait(&self) -> CountGuard<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        CountGuard(&self.waiting)
    }

    pub(crate) fn woke_late(&self, by: Duration) {
        self.wake_lag().record_time(by);
    }

    pub(crate) fn wake_lag(&self) -> std::sync::MutexGuard<'_, QuantileRecorder> {
        // Nothing in here can panic halfway.
        self.wake_lag.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
