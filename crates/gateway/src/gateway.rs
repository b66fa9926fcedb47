//! The gateway: what its calls share, and its drain.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use headrace_call_state::{
    AnswerOrigins, CallMemory, GeneratedIdCache, HoldKeeper, HoldKeeperParts, InFlightCall, InFlightTable,
    RenderGate,
};
use headrace_catalog::{Catalog, GatewayError};
use headrace_domain::{ContentSink, ModelName, RecordPolicy, RecordRules, Residency, UnixNanos};
use headrace_identity::Directory;
use headrace_jwt::{CertificateUsers, TokenAuthenticator};
use headrace_resources::{ResourceConfig, ResourceParts, SocketSession, StoredResources};
use headrace_rollout::{CanaryNews, CanaryWatch, ShadowCopies, ShadowFigures, ShadowSpending};
use headrace_wire::WireLimits;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::config::{GatewayConfig, GatewayParts};
use crate::socket_sessions::SocketSessions;

/// Trace look-ups that are answered concurrently.
const TRACE_SLOTS: usize = 256;

/// Stored answers that are written or read concurrently. Others wait.
const ANSWER_SLOTS: usize = 32;

/// Decides, dispatches, delivers and settles.
pub struct Gateway {
    parts: GatewayParts,
    config: GatewayConfig,
    /// What new calls are served by.
    catalog: ArcSwap<Catalog>,
    gate: Arc<RenderGate>,
    memory: Arc<CallMemory>,
    tasks: TaskTracker,
    shadows: ShadowCopies,
    /// Receives requests and answers. Not set if none are recorded.
    contents: OnceLock<Arc<dyn ContentSink>>,
    resources: Arc<StoredResources>,
    pasts: AnswerOrigins,
    kept_ids: Arc<GeneratedIdCache>,
    draining: CancellationToken,
    cut_off: CancellationToken,
    trace_slots: Semaphore,
    answer_slots: Semaphore,
    table: Arc<InFlightTable>,
    hold_keeper: Arc<HoldKeeper>,
    sessions: Arc<SocketSessions<SocketSession>>,
}

impl Gateway {
    /// Creates a gateway from its parts.
    ///
    /// # Errors
    /// The bounds with which nothing could be served.
    pub fn new(
        parts: GatewayParts,
        catalog: Arc<Catalog>,
        config: GatewayConfig,
    ) -> Result<Arc<Self>, GatewayError> {
        let faults: Vec<_> =
            config.faults().into_iter().map(|(name, why)| format!("`{name}` {why}")).collect();
        if !faults.is_empty() {
            return Err(GatewayError { faults });
        }
        let (draining, cut_off) = (CancellationToken::new(), CancellationToken::new());
        let keeper = HoldKeeperParts {
            period: config.period(),
            hold_lifetime: config.hold_lifetime,
            clock: Arc::clone(&parts.clock),
            ledger: Arc::clone(&parts.ledger),
            directory: Arc::clone(&parts.directory),
        };
        let hold_keeper = HoldKeeper::new(keeper, cut_off.clone());
        let gate = Arc::new(RenderGate::new(config.render_bytes_at_once));
        let memory = Arc::new(CallMemory::new(config.memory));
        let tasks = TaskTracker::new();
        let shared = ResourceParts {
            clock: Arc::clone(&parts.clock),
            directory: Arc::clone(&parts.directory),
            ledger: Arc::clone(&parts.ledger),
            owner: parts.owner,
            objects: Arc::clone(&parts.objects),
            files: parts.files.clone(),
            memory: Arc::clone(&memory),
            gate: Arc::clone(&gate),
            keeper: Arc::clone(&hold_keeper),
            draining: draining.clone(),
            tasks: tasks.clone(),
        };
        let bounds = ResourceConfig {
            retention: config.object_retention,
            hold_lifetime: config.hold_lifetime,
            keep_alive: config.keep_alive,
            inline_bytes: config.render_inline_bytes,
            wire: config.wire.clone(),
        };
        Ok(Arc::new(Self {
            hold_keeper,
            resources: Arc::new(StoredResources::new(shared, bounds)),
            pasts: AnswerOrigins::default(),
            kept_ids: Arc::default(),
            parts,
            gate,
            memory,
            config,
            catalog: ArcSwap::new(catalog),
            tasks,
            shadows: ShadowCopies::default(),
            contents: OnceLock::new(),
            draining,
            cut_off,
            trace_slots: Semaphore::new(TRACE_SLOTS),
            answer_slots: Semaphore::new(ANSWER_SLOTS),
            table: InFlightTable::new(),
            sessions: Arc::default(),
        }))
    }

    /// Organisations, projects and keys.
    pub fn directory(&self) -> &Directory {
        &self.parts.directory
    }

    /// Verifies JWTs. `None` if this gateway takes none.
    pub fn tokens(&self) -> Option<&TokenAuthenticator> {
        self.parts.tokens.as_deref()
    }

    /// The clients that authenticate with a certificate. `None` if this gateway takes none.
    pub fn certificates(&self) -> Option<&CertificateUsers> {
        self.parts.certificates.as_deref()
    }

    /// The catalogue for new calls. A caller that needs several things from it should ask once.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Replaces the catalogue for new calls and returns the former one. Calls that were routed by the former one keep
    /// it, so what it offers must work until they end.
    pub fn swap(&self, catalog: Arc<Catalog>) -> Arc<Catalog> {
        catalog.continue_watches_of(&self.catalog());
        self.catalog.swap(catalog)
    }

    /// Canaries that were rolled back and have not been reported yet.
    pub fn canary_news(&self) -> Vec<CanaryNews> {
        let catalog = self.catalog();
        catalog.watches().filter_map(|watch| watch.news()).collect()
    }

    /// Restores a rollback of a canary, if its entry is still the same.
    pub fn roll_back(&self, news: CanaryNews) {
        let catalog = self.catalog();
        let same = |watch: &&Arc<CanaryWatch>| watch.is_of(&news);
        if let Some(watch) = catalog.watches().find(same) {
            watch.roll_back(news.rolled_back.clone());
        }
    }

    /// Puts the rolled-back canaries of a route on trial again. Returns their names.
    pub fn resume_canaries(&self, route: &ModelName) -> Vec<ModelName> {
        let catalog = self.catalog();
        let out = catalog.watches().filter(|watch| watch.route == *route && watch.resume());
        out.map(|watch| watch.model.clone()).collect()
    }

    /// Why the server is not ready. Empty if it is. A model that only other providers' servers offer comes and goes
    /// with them, so it counts only if every model is down.
    pub(crate) fn why_not_ready(&self) -> Vec<String> {
        let mut why = self.why_no_call();
        let catalog = self.catalog();
        let down = catalog.fleet().down();
        let all_down = down.len() == catalog.models().count();
        let counts = |model: &ModelName| all_down || !catalog.is_far(model);
        let down = down.into_iter().filter(|(model, _)| counts(model));
        why.extend(down.map(|(model, why)| format!("model `{model}`: {why}")));
        why
    }

    /// Why calls for a model would not be served. Empty if they would be.
    pub(crate) fn why_not_ready_for(&self, model: &str) -> Vec<String> {
        let mut why = self.why_no_call();
        let catalog = self.catalog();
        let served = ModelName::new(model).ok().and_then(|name| catalog.resolve(&name).cloned());
        match served.as_ref().and_then(|model| catalog.fleet().readiness(&model.name, &Residency::Anywhere)) {
            None => why.push(format!("no model `{model}` is served")),
            Some(readiness) if !readiness.ready => why.push(format!("model `{model}`: {}", readiness.words)),
            Some(_) => {}
        }
        why
    }

    /// Why no call at all would be served.
    fn why_no_call(&self) -> Vec<String> {
        let mut why = Vec::new();
        if self.is_draining() {
            why.push("the server is shutting down".to_owned());
        }
        if let Some(down) = self.parts.ledger.health().down {
            why.push(format!("the ledger cannot be written: {down}"));
        }
        why
    }

    /// A token that a drain waits for until it is dropped.
    pub(crate) fn counted(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// Calls that were admitted and are not settled yet.
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// The calls in flight and their stages, oldest first. At most as many as the in-flight table holds, without
    /// shadow copies.
    pub fn in_flight_calls(&self) -> Vec<InFlightCall> {
        self.table.look(self.parts.clock.monotonic_nanos())
    }

    /// Estimated bytes of memory that calls in flight may take.
    pub fn memory_taken(&self) -> u64 {
        self.memory.taken()
    }

    /// The peak of [`Self::memory_taken`] since the last call of this method.
    pub fn take_memory_peak(&self) -> u64 {
        self.memory.take_peak()
    }

    /// Stops accepting calls and waits for those in flight. Cuts off those that are left after `within`, and waits
    /// until everything is settled. Returns how many were cut off.
    pub(crate) async fn drain_within(&self, within: Duration) -> usize {
        self.draining.cancel();
        self.tasks.close();
        if tokio::time::timeout(within, self.tasks.wait()).await.is_ok() {
            return 0;
        }
        let left = self.tasks.len();
        self.cut_off.cancel();
        self.tasks.wait().await;
        left
    }

    /// The in-flight table.
    pub(crate) const fn table(&self) -> &Arc<InFlightTable> {
        &self.table
    }

    /// The sessions of open responses sockets.
    pub(crate) const fn sessions(&self) -> &Arc<SocketSessions<SocketSession>> {
        &self.sessions
    }

    /// The hold keeper.
    pub(crate) const fn hold_keeper(&self) -> &Arc<HoldKeeper> {
        &self.hold_keeper
    }

    pub(crate) fn parts(&self) -> &GatewayParts {
        &self.parts
    }

    /// Answer length in tokens if neither the caller nor the model sets one.
    pub fn default_max_tokens(&self) -> u32 {
        self.config.default_max_tokens
    }

    /// The limits on the content of one request.
    pub fn wire_limits(&self) -> &WireLimits {
        &self.config.wire
    }

    pub(crate) fn config(&self) -> &GatewayConfig {
        &self.config
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when the server stops accepting calls.
    pub(crate) fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// What clients store.
    pub const fn resources(&self) -> &Arc<StoredResources> {
        &self.resources
    }

    /// Resumes the batches that an earlier process left unfinished. Returns how many there are.
    ///
    /// # Errors
    /// The store's message if the batches cannot be read.
    pub async fn resume_batches(self: &Arc<Self>) -> Result<usize, String> {
        self.resources.resume_batches(self).await
    }

    /// Like [`Self::resume_batches`], but only for batches created before `before`. Lets a caller resume while this
    /// process already runs newer batches.
    ///
    /// # Errors
    /// The same as [`Self::resume_batches`].
    pub async fn resume_batches_before(self: &Arc<Self>, before: UnixNanos) -> Result<usize, String> {
        self.resources.resume_batches_before(self, before).await
    }

    /// Runs the batches that this gateway is to run and does not run yet, where several gateways share the stores. Ends
    /// those that were cancelled through another gateway, or that another one runs now. Returns how many it started.
    ///
    /// # Errors
    /// The store's message if the batches cannot be read.
    pub async fn follow_batches(self: &Arc<Self>) -> Result<usize, String> {
        self.resources.follow_batches(self).await
    }

    /// The prompts of earlier answers.
    pub(crate) const fn pasts(&self) -> &AnswerOrigins {
        &self.pasts
    }

    /// Shadow copies.
    pub(crate) const fn shadows(&self) -> &ShadowCopies {
        &self.shadows
    }

    /// Restores the shadow budgets that an earlier process left, and persists spending from now on. Call this once,
    /// before calls are served.
    pub fn keep_shadow_spending(&self, spending: Arc<dyn ShadowSpending>) {
        self.shadows.keep_spending(spending);
    }

    /// Records requests and answers of calls whose policy says so from now on. Call this once, before calls are served.
    pub fn keep_contents(&self, sink: Arc<dyn ContentSink>) {
        let _ = self.contents.set(sink);
    }

    /// The sink of requests and answers.
    pub(crate) fn contents(&self) -> Option<&Arc<dyn ContentSink>> {
        self.contents.get()
    }

    /// The record policy of calls of a project that sets `rules`.
    pub(crate) fn records_of(&self, rules: RecordRules) -> RecordPolicy {
        self.config.records.with(rules)
    }

    /// The figures of the shadow copies of calls for a name.
    pub fn shadow_figures(&self, name: &ModelName, to: &ModelName) -> ShadowFigures {
        self.shadows.figures(name, to)
    }

    pub(crate) fn cut_off(&self) -> &CancellationToken {
        &self.cut_off
    }

    /// The generated ids of earlier answers.
    pub(crate) fn kept_ids(&self) -> &Arc<GeneratedIdCache> {
        &self.kept_ids
    }

    /// The gate where long bodies wait to be parsed and rendered.
    pub(crate) fn turns(&self) -> &RenderGate {
        &self.gate
    }

    /// The memory that calls take.
    pub(crate) fn memory(&self) -> &CallMemory {
        &self.memory
    }

    /// Limits concurrent trace look-ups.
    pub(crate) const fn answer_slots(&self) -> &Semaphore {
        &self.answer_slots
    }

    pub(crate) const fn trace_slots(&self) -> &Semaphore {
        &self.trace_slots
    }
}
