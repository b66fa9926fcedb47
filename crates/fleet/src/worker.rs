//! A worker: one engine, or one model on another server, with everything known about it. A worker outlives fleets: a
//! new catalogue takes over the existing workers. Must not know how workers are chosen.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use headrace_domain::{ModelName, PrefixKeys, Region};
use headrace_engine_api::{EngineHealth, LoadReport, SharedEngine, SharedRelay};
use parking_lot::{Mutex, MutexGuard};

use crate::breaker::{BreakerFault, CallPermission};
use crate::breaker_gate::{BreakerGate, CallJudgement};
use crate::hedge::RaceBudget;
use crate::outcome::WorkerOutcome;
use crate::prefix_index::CachedTokens;
use crate::remembered::{PrefixMarks, RememberedMarks, USUAL_MARKS};
use crate::retry_budget::RetryBudget;
use crate::site::{ReportedCache, WorkerSite};
use crate::status::{BreakerStatus, WorkerStanding, WorkerStatus};
use crate::worker_stats::{MINUTE_NS, WorkerStats};

/// Pause after a refusal that names no retry time.
const DEFAULT_COOLING: Duration = Duration::from_secs(1);
/// Longest pause after a refusal.
const COOLING_MOST: Duration = Duration::from_mins(10);

/// The engine or server behind a worker.
pub(crate) enum WorkerBackend {
    /// Takes tokens.
    Engine(SharedEngine),
    /// Takes messages.
    Relay(SharedRelay),
}

impl WorkerBackend {
    pub(crate) fn load(&self) -> LoadReport {
        match self {
            Self::Engine(engine) => engine.load(),
            Self::Relay(relay) => relay.load(),
        }
    }

    /// The relay, if it takes messages.
    pub(crate) fn relay(&self) -> Option<&SharedRelay> {
        match self {
            Self::Engine(_) => None,
            Self::Relay(relay) => Some(relay),
        }
    }

    pub(crate) fn health(&self) -> EngineHealth {
        match self {
            Self::Engine(engine) => engine.health(),
            Self::Relay(relay) => relay.health(),
        }
    }

    /// Number of leading prompt tokens that the engine reports as cached.
    fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        match self {
            Self::Engine(engine) => engine.cached_prefix(keys),
            Self::Relay(_) => 0,
        }
    }
}

/// One engine, or another operator's server, that serves one model.
pub struct Worker {
    id: Arc<str>,
    model: ModelName,
    pub(crate) backend: WorkerBackend,
    site: Option<Arc<WorkerSite>>,
    /// The region where it runs.
    region: Option<Region>,
    weight: AtomicU32,
    /// Calls dispatched and not yet ended. More current than the engine's own report, which may be a step old.
    dispatched: AtomicU32,
    drained: AtomicBool,
    breaker: BreakerGate,
    /// End of the pause after a refusal, by the fleet's clock.
    cooling_until_ns: AtomicU64,
    pub(crate) ejected_until_ns: AtomicU64,
    /// Number of consecutive ejections.
    pub(crate) ejections: AtomicU32,
    /// Retries of its model, if it is listed first.
    pub(crate) retries: RetryBudget,
    pub(crate) races: RaceBudget,
    figures: Mutex<WorkerStats>,
    remembered: Mutex<RememberedMarks>,
}

/// Whether a call is the trial call of the worker's or the upstream's breaker.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TrialCall {
    own: bool,
    site: bool,
}

impl TrialCall {
    pub(crate) fn any(self) -> bool {
        self.own || self.site
    }
}

impl Worker {
    /// Creates a worker that takes tokens. Unless it gets a [`WorkerSite`] it is in this process and reports its own state.
    /// It then has no breaker, and its cache is not guessed.
    pub fn new(id: &str, model: ModelName, engine: SharedEngine) -> Self {
        let tokens = engine.capabilities().kv_tokens;
        Self::of(id, model, WorkerBackend::Engine(engine), RememberedMarks::of_tokens(tokens))
    }

    /// Creates a worker that takes messages.
    pub fn relay(id: &str, model: ModelName, relay: SharedRelay) -> Self {
        Self::of(id, model, WorkerBackend::Relay(relay), RememberedMarks::of_marks(USUAL_MARKS))
    }

    fn of(id: &str, model: ModelName, backend: WorkerBackend, remembered: RememberedMarks) -> Self {
        Self {
            id: id.into(),
            model,
            backend,
            site: None,
            region: None,
            weight: AtomicU32::new(1),
            dispatched: AtomicU32::new(0),
            drained: AtomicBool::new(false),
            breaker: BreakerGate::new(),
            cooling_until_ns: AtomicU64::new(0),
            ejected_until_ns: AtomicU64::new(0),
            ejections: AtomicU32::new(0),
            retries: RetryBudget::new(),
            races: RaceBudget::new(),
            figures: Mutex::new(WorkerStats::new()),
            remembered: Mutex::new(remembered),
        }
    }

    /// Makes it one of the models of this upstream.
    #[must_use]
    pub fn at(mut self, site: &Arc<WorkerSite>) -> Self {
        self.site = Some(Arc::clone(site));
        self
    }

    /// Sets the region where it runs. `None` if it is not configured.
    #[must_use]
    pub fn within(mut self, region: Option<Region>) -> Self {
        self.region = region;
        self
    }

    /// The region where it runs. `None` if it is not configured.
    pub fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Sets its share of the calls, relative to other workers, whose default is 1. At least 1.
    #[must_use]
    pub fn weighted(self, weight: u32) -> Self {
        self.weigh(weight);
        self
    }

    /// Changes its share of the calls. A reload keeps the worker and everything known about it.
    pub fn weigh(&self, weight: u32) {
        self.weight.store(weight.max(1), Ordering::Relaxed);
    }

    /// Its id, as operators see it.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The model that it serves.
    pub fn model(&self) -> &ModelName {
        &self.model
    }

    /// The upstream behind it.
    pub fn site(&self) -> Option<&Arc<WorkerSite>> {
        self.site.as_ref()
    }

    /// Its upstream, and the model's name there. `None` for an engine in this process.
    pub fn target(&self) -> Option<(&str, &str)> {
        match &self.backend {
            WorkerBackend::Relay(relay) => Some((&relay.facts().upstream, &relay.facts().model)),
            WorkerBackend::Engine(_) => {
                let site = self.site.as_ref()?.name();
                Some((site, self.id.strip_prefix(&**site)?.strip_prefix('/')?))
            }
        }
    }

    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Sends it no new calls. Running calls continue.
    pub fn drain(&self) {
        self.drained.store(true, Ordering::Relaxed);
    }

    /// Sends it calls again.
    pub fn resume(&self) {
        self.drained.store(false, Ordering::Relaxed);
    }

    /// Whether an operator has drained it or its upstream.
    pub fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed) || self.site.as_ref().is_some_and(|site| site.is_drained())
    }

    /// Whether it is judged by how its calls end. An engine in this process is not, because it reports its own state.
    pub(crate) fn is_judged(&self) -> bool {
        self.site.is_some() || matches!(self.backend, WorkerBackend::Relay(_))
    }

    /// Calls sent to it that have not ended.
    pub(crate) fn in_flight(&self) -> u32 {
        self.dispatched.load(Ordering::Relaxed)
    }

    pub(crate) fn figures(&self) -> MutexGuard<'_, WorkerStats> {
        self.figures.lock()
    }

    /// Estimated number of the prompt's tokens in its cache.
    pub(crate) fn cached(&self, marks: PrefixMarks<'_>, prompt_tokens: usize) -> usize {
        let said = match marks {
            PrefixMarks::Keys(keys) => self.backend.cached_prefix(keys),
            PrefixMarks::Trail(_) => 0,
        };
        if !self.is_judged() {
            return said;
        }
        let sent = || marks.tokens(self.remembered.lock().held(marks), prompt_tokens);
        let reported = match (marks, &self.site) {
            (PrefixMarks::Keys(keys), Some(site)) => site.cached(keys),
            _ => None,
        };
        let likely = match reported {
            None => sent(),
            Some(ReportedCache { held, whole: false }) => held.own.max(sent()),
            Some(ReportedCache { held: CachedTokens { own, anyones: 0 }, whole: true }) => own,
            // These blocks may belong to another tenant. They count only as far as this tenant sent the same prefix
            // there.
            Some(ReportedCache { held: CachedTokens { own, anyones }, whole: true }) => {
                own.max(anyones.min(sent()))
            }
        };
        said.max(likely).min(prompt_tokens)
    }

    /// Whether it gets calls now, and why not.
    pub(crate) fn standing(&self, now_ns: u64) -> WorkerStanding {
        if self.is_drained() {
            return WorkerStanding::Drained;
        }
        let health = self.backend.health();
        if !health.is_up() {
            return WorkerStanding::Down(health);
        }
        if !self.is_judged() {
            return WorkerStanding::Ready;
        }
        let left =
            |until: &AtomicU64| until.load(Ordering::Relaxed).checked_sub(now_ns).filter(|&left| left > 0);
        let site = self.site.as_ref().map_or(CallPermission::Free, |site| site.leave(now_ns));
        let open =
            |until_ns: u64| WorkerStanding::Open(Duration::from_nanos(until_ns.saturating_sub(now_ns)));
        match (self.breaker.leave(now_ns), site) {
            (CallPermission::NotBefore(own_ns), CallPermission::NotBefore(site_ns)) => {
                return open(own_ns.max(site_ns));
            }
            (CallPermission::NotBefore(until_ns), _) | (_, CallPermission::NotBefore(until_ns)) => {
                return open(until_ns);
            }
            (CallPermission::TrialIsOut, _) | (_, CallPermission::TrialIsOut) => {
                return WorkerStanding::TrialIsOut;
            }
            (own, site) => {
                if let Some(left) = left(&self.cooling_until_ns) {
                    return WorkerStanding::Cooling(Duration::from_nanos(left));
                }
                if own == CallPermission::Trial || site == CallPermission::Trial {
                    return WorkerStanding::Trial;
                }
            }
        }
        match left(&self.ejected_until_ns) {
            Some(left) => WorkerStanding::Ejected(Duration::from_nanos(left)),
            None => WorkerStanding::Ready,
        }
    }

    /// Sends a call to it. `None` if the breaker allows one trial call and another call was faster.
    pub(crate) fn enter(&self, now_ns: u64) -> Option<TrialCall> {
        if !self.is_judged() {
            self.dispatched.fetch_add(1, Ordering::Relaxed);
            return Some(TrialCall::default());
        }
        let lets_in = |leave| matches!(leave, CallPermission::Free | CallPermission::Trial);
        let own = self.breaker.enter(now_ns);
        if !lets_in(own) {
            return None;
        }
        let site = self.site.as_ref().map_or(CallPermission::Free, |site| site.enter(now_ns));
        if !lets_in(site) {
            self.breaker.record(
                now_ns,
                CallJudgement::Nothing,
                own == CallPermission::Trial,
                BreakerFault::NONE,
            );
            return None;
        }
        self.dispatched.fetch_add(1, Ordering::Relaxed);
        if let Some(site) = &self.site {
            site.count();
        }
        Some(TrialCall { own: own == CallPermission::Trial, site: site == CallPermission::Trial })
    }

    /// Records that a prompt was sent to it, with `blocks` blocks to compute.
    pub(crate) fn sent(&self, now_ns: u64, marks: PrefixMarks<'_>, blocks: u64) {
        if self.is_judged() {
            self.figures.lock().start(now_ns, blocks);
            if marks.len() > 0 {
                self.remembered.lock().sent(marks);
            }
        }
    }

    /// Records the first output of a call. A trial call thereby shows that the worker works.
    pub(crate) fn began(&self, now_ns: u64, after_ns: u64, blocks: u64, trials: TrialCall) {
        self.figures.lock().began(now_ns, after_ns, blocks);
        if trials.own {
            self.breaker.record(now_ns, CallJudgement::Good, true, BreakerFault::NONE);
        }
        if let Some(site) = self.site.as_ref().filter(|_| trials.site) {
            site.shows_life(now_ns);
        }
    }

    /// Records that another worker was faster with one of its calls. The elapsed time is a lower bound, and still
    /// counts.
    pub(crate) fn outrun(&self, now_ns: u64, after_ns: u64) {
        self.figures.lock().outrun(now_ns, after_ns);
    }

    /// Records how a call ended.
    pub(crate) fn ended(
        &self,
        now_ns: u64,
        took_ns: u64,
        outcome: &WorkerOutcome,
        trials: TrialCall,
        fault: BreakerFault,
    ) {
        self.figures.lock().end(now_ns, took_ns, outcome);
        if !self.is_judged() {
            return;
        }
        let verdict = match outcome {
            // An overloaded worker is alive.
            WorkerOutcome::Answered | WorkerOutcome::Refused { .. } => CallJudgement::Good,
            WorkerOutcome::Failed { .. } => CallJudgement::Bad,
            WorkerOutcome::CallersFault | WorkerOutcome::Cancelled => CallJudgement::Nothing,
        };
        if let WorkerOutcome::Refused { retry_after } = outcome {
            let cooling = retry_after.unwrap_or(DEFAULT_COOLING).min(COOLING_MOST);
            let until_ns = now_ns.saturating_add(u64::try_from(cooling.as_nanos()).unwrap_or(u64::MAX));
            self.cooling_until_ns.fetch_max(until_ns, Ordering::Relaxed);
        }
        self.breaker.record(now_ns, verdict, trials.own, fault);
        if let Some(site) = &self.site {
            site.record(now_ns, outcome, trials.site, fault);
        }
    }

    /// Stops counting a call as sent to it, with the `blocks` blocks that were still waiting.
    pub(crate) fn release(&self, now_ns: u64, blocks: u64) {
        self.dispatched.fetch_sub(1, Ordering::Relaxed);
        if !self.is_judged() {
            return;
        }
        self.figures.lock().release(now_ns, blocks);
        if let Some(site) = &self.site {
            site.release();
        }
    }

    /// Lets the next call try the worker, because there are signs of recovery.
    pub(crate) fn need_not_wait(&self) {
        self.breaker.need_not_wait();
    }

    /// Its status, for operators.
    pub(crate) fn status(&self, now_ns: u64) -> WorkerStatus {
        let reported = self.site.as_ref().and_then(|site| site.cached_blocks());
        let remembered = reported.unwrap_or_else(|| self.remembered.lock().blocks());
        let nanos = |nanos: f64| Duration::from_nanos(nanos as u64);
        let (standing, load) = (self.standing(now_ns), self.backend.load());
        let figures = self.figures.lock();
        WorkerStatus {
            id: Arc::clone(&self.id),
            model: self.model.clone(),
            site: self.site.as_ref().map(|site| Arc::clone(site.name())),
            standing,
            breaker: BreakerStatus::of(self.breaker.state(), now_ns),
            health: self.backend.health(),
            load,
            weight: self.weight(),
            in_flight: self.in_flight(),
            totals: figures.totals,
            failed_last_minute: figures.failed_share(now_ns, MINUTE_NS),
            failed_last_5_minutes: figures.failed_share(now_ns, 5 * MINUTE_NS),
            first: figures.first.last_ns().map(nanos),
            whole: figures.whole.last_ns().map(nanos),
            last_error: figures.last_error.clone(),
            remembered,
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("id", &self.id).field("model", &self.model).finish_non_exhaustive()
    }
}
