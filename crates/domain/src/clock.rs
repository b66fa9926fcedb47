//! Time as an argument: rooms take a [`Clock`], so that simulations and tests run in virtual time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970-01-01 00:00 UTC. Ledger time, trace time and expiry times are all of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixNanos(u64);

impl UnixNanos {
    /// From nanoseconds since the epoch.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch, as the OpenAI field `created` wants them.
    pub const fn seconds(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// This time and `duration` more, at most the end of time.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long since `earlier`; zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Where a room gets its time from.
pub trait Clock: Send + Sync {
    /// Wall time.
    fn now(&self) -> UnixNanos;

    /// Nanoseconds that never go backwards, from an arbitrary start: for durations.
    fn monotonic_nanos(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time begins now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one place where the machine's wall clock is read")]
    fn now(&self) -> UnixNanos {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        UnixNanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn monotonic_nanos(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves only when told to: for tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `now`.
    pub fn at(now: UnixNanos) -> Self {
        Self { nanos: AtomicU64::new(now.0) }
    }

    /// Moves time forward.
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixNanos {
        UnixNanos(self.nanos.load(Ordering::SeqCst))
    }

    fn monotonic_nanos(&self) -> u64 {
        self.nanos.load(Ordering::SeqCst)
    }
}
