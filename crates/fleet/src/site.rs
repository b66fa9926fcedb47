//! An upstream: the server behind several workers, one per model. If it is down, all of them are. Knows neither its
//! address nor its key.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use headrace_domain::PrefixKeys;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::breaker::{BreakerFault, CallPermission};
use crate::breaker_gate::{BreakerGate, CallJudgement};
use crate::outcome::WorkerOutcome;
use crate::prefix_index::{CachedTokens, PrefixIndex};
use crate::status::{BreakerStatus, SiteStatus};

/// The shared state of an upstream's workers. It outlives fleets.
pub struct WorkerSite {
    name: Arc<str>,
    breaker: BreakerGate,
    drained: AtomicBool,
    in_flight: AtomicU32,
    last_error: Mutex<Option<Arc<str>>>,
    /// Its cached blocks by its events, as long as no event was missed.
    cache: RwLock<Option<PrefixIndex>>,
}

/// What an upstream's events say about a prompt.
pub(crate) struct ReportedCache {
    pub(crate) held: CachedTokens,
    /// Whether the events cover its whole cache.
    pub(crate) whole: bool,
}

impl WorkerSite {
    /// Creates an upstream with this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            breaker: BreakerGate::new(),
            drained: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            last_error: Mutex::new(None),
            cache: RwLock::new(None),
        }
    }

    /// Its name, as operators see it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Sends no new calls to any of its workers. Running calls continue.
    pub fn drain(&self) {
        self.drained.store(true, Ordering::Relaxed);
    }

    /// Sends it calls again.
    pub fn resume(&self) {
        self.drained.store(false, Ordering::Relaxed);
    }

    /// Whether an operator has drained it.
    pub fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed)
    }

    /// The index that its cache events update. `None` if it sends no events or some were missed, so that its cache is
    /// guessed from what was sent to it. Placing calls waits while this lock is held, so hold it briefly.
    pub fn cache(&self) -> RwLockWriteGuard<'_, Option<PrefixIndex>> {
        self.cache.write()
    }

    /// What its events say about a prompt. `None` if it sends no events.
    pub(crate) fn cached(&self, keys: &PrefixKeys) -> Option<ReportedCache> {
        self.cache
            .read()
            .as_ref()
            .map(|index| ReportedCache { held: index.held(keys), whole: index.is_whole() })
    }

    /// Number of blocks in its cache by its events. `None` if it sends no events.
    pub(crate) fn cached_blocks(&self) -> Option<usize> {
        self.cache.read().as_ref().map(PrefixIndex::len)
    }

    /// Its status at a time of the fleet's clock.
    pub(crate) fn status(&self, now_ns: u64) -> SiteStatus {
        SiteStatus {
            name: Arc::clone(&self.name),
            breaker: BreakerStatus::of(self.breaker.state(), now_ns),
            drained: self.is_drained(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            last_error: self.last_error.lock().clone(),
        }
    }

    pub(crate) fn leave(&self, now_ns: u64) -> CallPermission {
        self.breaker.leave(now_ns)
    }

    pub(crate) fn enter(&self, now_ns: u64) -> CallPermission {
        self.breaker.enter(now_ns)
    }

    pub(crate) fn count(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that the trial call has produced its first output.
    pub(crate) fn shows_life(&self, now_ns: u64) {
        self.breaker.record(now_ns, CallJudgement::Good, true, BreakerFault::NONE);
    }

    /// Records how a call of one of its workers ended. An error response shows that the server is alive.
    pub(crate) fn record(&self, now_ns: u64, outcome: &WorkerOutcome, trial: bool, fault: BreakerFault) {
        let verdict = match outcome {
            WorkerOutcome::Failed { failure, why } if failure.is_of_the_site() => {
                *self.last_error.lock() = Some(format!("{failure}: {why}").into());
                CallJudgement::Bad
            }
            WorkerOutcome::Answered | WorkerOutcome::Refused { .. } | WorkerOutcome::Failed { .. } => {
                CallJudgement::Good
            }
            WorkerOutcome::CallersFault | WorkerOutcome::Cancelled => CallJudgement::Nothing,
        };
        self.breaker.record(now_ns, verdict, trial, fault);
    }

    /// Records an answer to a health probe. Returns `false` if the breaker is closed, so that the answer is no news.
    pub(crate) fn answers(&self) -> bool {
        self.breaker.need_not_wait()
    }

    /// Records that a health probe got no answer.
    pub(crate) fn is_silent(&self, now_ns: u64, why: &str, random: u64) {
        *self.last_error.lock() = Some(why.into());
        // While the breaker is open a failed probe changes nothing, because it is not the trial call.
        self.breaker.record(now_ns, CallJudgement::Bad, false, BreakerFault { caller: None, random });
    }
}

impl fmt::Debug for WorkerSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("name", &self.name).finish_non_exhaustive()
    }
}
