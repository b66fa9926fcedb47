//! What the admission check of a gateway knows of its shares: until when it may use them, and its part of limits that
//! have no share of their own. Knows no scope.

use std::sync::atomic::{AtomicU64, Ordering};

use headrace_domain::UnixNanos;
use parking_lot::Mutex;

/// Read at each admission, written once a second.
#[derive(Debug)]
pub(crate) struct ShareState {
    /// In nanoseconds since the epoch. Zero before the first exchange.
    usable_until: AtomicU64,
    base: Mutex<BaseShare>,
}

/// The part of each limit that has no share of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BaseShare {
    /// In 720,720ths.
    pub(crate) units: u32,
    /// The part that a bucket had all the time. The rest was empty at `grown`.
    pub(crate) full_units: u32,
    /// When the part last grew.
    pub(crate) grown: UnixNanos,
}

impl ShareState {
    /// Creates the state of a gateway without shares.
    pub(crate) fn new() -> Self {
        let base = BaseShare { units: 0, full_units: 0, grown: UnixNanos::new(0) };
        Self { usable_until: AtomicU64::new(0), base: Mutex::new(base) }
    }

    pub(crate) fn is_usable(&self, now: UnixNanos) -> bool {
        now.get() < self.usable_until.load(Ordering::Acquire)
    }

    pub(crate) fn set_usable_until(&self, until: UnixNanos) {
        self.usable_until.store(until.get(), Ordering::Release);
    }

    pub(crate) fn base(&self) -> BaseShare {
        *self.base.lock()
    }

    /// Changes the part for buckets that are created from now on. What is added was empty at `empty_at`.
    pub(crate) fn set_base(&self, units: u32, empty_at: UnixNanos) {
        let mut base = self.base.lock();
        if units > base.units {
            // A bucket that was refilled since the last growth has all of the former part.
            if empty_at.since(base.grown).as_secs() >= 60 {
                base.full_units = base.units;
            }
            base.grown = base.grown.max(empty_at);
        }
        base.units = units;
        base.full_units = base.full_units.min(units);
    }
}
