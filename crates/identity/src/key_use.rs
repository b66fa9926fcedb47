//! When keys were last used. A request records it in memory; the directory writes many at a time. Must not know
//! requests.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use headrace_domain::{KeyId, UnixNanos};

/// A use of a key is written at most once in this time.
pub(crate) const WRITE_EVERY: Duration = Duration::from_secs(60);
/// A use is recorded in memory at most once in this time, so that requests of one key seldom write to the same cache
/// line.
const RECORD_EVERY_NS: u64 = 1_000_000_000;

/// The last use of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUse {
    /// The key.
    pub key: KeyId,
    /// When it was used.
    pub at: UnixNanos,
}

/// The last use of one key in memory, in Unix nanoseconds. 0 if there was none.
#[derive(Debug, Default)]
pub(crate) struct KeyUseClock {
    used: AtomicU64,
    /// The last use that the store has.
    written: AtomicU64,
}

impl KeyUseClock {
    /// Records a use.
    pub(crate) fn record(&self, now: UnixNanos) {
        if now.get() >= self.used.load(Relaxed).saturating_add(RECORD_EVERY_NS) {
            self.used.fetch_max(now.get(), Relaxed);
        }
    }

    /// Records a use that the store has.
    pub(crate) fn record_written(&self, at: UnixNanos) {
        self.used.fetch_max(at.get(), Relaxed);
        self.written.fetch_max(at.get(), Relaxed);
    }

    /// Returns the last use. `None` if there was none.
    pub(crate) fn last(&self) -> Option<UnixNanos> {
        Some(self.used.load(Relaxed)).filter(|used| *used > 0).map(UnixNanos::new)
    }

    /// Returns the last use if the store does not have it, and what the store has is at least `older_than` older.
    pub(crate) fn unwritten(&self, older_than: Duration) -> Option<UnixNanos> {
        let (used, written) = (self.used.load(Relaxed), self.written.load(Relaxed));
        let least = written.saturating_add(u64::try_from(older_than.as_nanos()).unwrap_or(u64::MAX));
        (used > written && used >= least).then(|| UnixNanos::new(used))
    }
}
