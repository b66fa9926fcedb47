//! An upstream: the server behind several workers, one for each of its models. Where it is gone, all of them are.
//! Knows neither its address nor its key.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use headrace_domain::PrefixKeys;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::breaker::{Fault, Leave};
use crate::door::{Door, Verdict};
use crate::outcome::Outcome;
use crate::prefix_index::{Held, PrefixIndex};
use crate::status::{BreakerStatus, SiteStatus};

/// See the top of the file. Shared by its workers; it outlives fleets.
pub struct Site {
    name: Arc<str>,
    door: Door,
    drained: AtomicBool,
    in_flight: AtomicU32,
    last_error: Mutex<Option<Arc<str>>>,
    /// What it tells of its cache by events, as long as none was missed.
    cache: RwLock<Option<PrefixIndex>>,
}

/// What an upstream tells of a prompt.
pub(crate) struct Told {
    pub(crate) held: Held,
    /// It tells of everything that it has.
    pub(crate) whole: bool,
}

impl Site {
    /// An upstream of this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            door: Door::new(),
            drained: AtomicBool::new(false),
            in_flight: AtomicU32::new(0),
            last_error: Mutex::new(None),
            cache: RwLock::new(None),
        }
    }

    /// By which operators know it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Nothing new goes to any of its workers. What runs goes on.
    pub fn drain(&self) {
        self.drained.store(true, Ordering::Relaxed);
    }

    /// It takes calls again.
    pub fn resume(&self) {
        self.drained.store(false, Ordering::Relaxed);
    }

    /// Whether an operator drained it.
    pub fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed)
    }

    /// What it tells of its cache goes here; `None`: it tells nothing, or something was missed, and what was sent to it has to do.
    /// Whoever places a call waits for as long as this is held: short work.
    pub fn cache(&self) -> RwLockWriteGuard<'_, Option<PrefixIndex>> {
        self.cache.write()
    }

    /// What it tells of a prompt; `None`: nothing.
    pub(crate) fn cached(&self, keys: &PrefixKeys) -> Option<Told> {
        self.cache.read().as_ref().map(|index| Told { held: index.held(keys), whole: index.is_whole() })
    }

    /// How many blocks it tells of; `None`: it tells nothing.
    pub(crate) fn cached_blocks(&self) -> Option<usize> {
        self.cache.read().as_ref().map(PrefixIndex::len)
    }

    /// How it stands at a time of the fleet's clock.
    pub(crate) fn status(&self, now_ns: u64) -> SiteStatus {
        SiteStatus {
            name: Arc::clone(&self.name),
            breaker: BreakerStatus::of(self.door.state(), now_ns),
            drained: self.is_drained(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            last_error: self.last_error.lock().clone(),
        }
    }

    pub(crate) fn leave(&self, now_ns: u64) -> Leave {
        self.door.leave(now_ns)
    }

    pub(crate) fn enter(&self, now_ns: u64) -> Leave {
        self.door.enter(now_ns)
    }

    pub(crate) fn count(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn let_go(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// The first thing of the call that tries has come.
    pub(crate) fn shows_life(&self, now_ns: u64) {
        self.door.told(now_ns, Verdict::Good, true, Fault::NONE);
    }

    /// A call of one of its workers ended. An error that it gave itself shows that it is there.
    pub(crate) fn told(&self, now_ns: u64, outcome: &Outcome, trial: bool, fault: Fault) {
        let verdict = match outcome {
            Outcome::Failed { failure, why } if failure.is_of_the_site() => {
                *self.last_error.lock() = Some(format!("{failure}: {why}").into());
                Verdict::Bad
            }
            Outcome::Answered | Outcome::Refused { .. } | Outcome::Failed { .. } => Verdict::Good,
            Outcome::CallersFault | Outcome::Cancelled => Verdict::Nothing,
        };
        self.door.told(now_ns, verdict, trial, fault);
    }

    /// It answers when asked how it is. `false`: that is no news.
    pub(crate) fn answers(&self) -> bool {
        self.door.need_not_wait()
    }

    /// It was asked how it is, in vain.
    pub(crate) fn is_silent(&self, now_ns: u64, why: &str, random: u64) {
        *self.last_error.lock() = Some(why.into());
        // While the breaker is open a probe adds nothing: it is no call that tries.
        self.door.told(now_ns, Verdict::Bad, false, Fault { caller: None, random });
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("name", &self.name).finish_non_exhaustive()
    }
}
