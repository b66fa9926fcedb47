//! The gateway: its rooms, its calls and its drain.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use headrace_domain::{ModelName, Residency};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::beat::Beats;
use crate::board::{Board, InFlightCall};
use crate::canary::{CanaryNews, Watch};
use crate::catalog::{Catalog, GatewayError};
use crate::config::{GatewayConfig, GatewayParts};
use crate::kept_ids::KeptIds;
use crate::memory::Memory;
use crate::pasts::Pasts;
use crate::shadows::{ShadowFigures, ShadowSpending, Shadows};
use crate::shelf::Objects;
use crate::turns::Turns;

/// Questions for traces that are answered at once.
const TRACE_SEATS: usize = 256;

/// Decides, dispatches, delivers and settles.
pub struct Gateway {
    parts: GatewayParts,
    config: GatewayConfig,
    /// What new calls are served by.
    catalog: ArcSwap<Catalog>,
    turns: Turns,
    memory: Memory,
    tasks: TaskTracker,
    shadows: Shadows,
    objects: Objects,
    pasts: Pasts,
    kept_ids: Arc<KeptIds>,
    draining: CancellationToken,
    cut_off: CancellationToken,
    trace_seats: Semaphore,
    board: Arc<Board>,
    beats: Arc<Beats>,
}

impl Gateway {
    /// Puts the rooms together.
    ///
    /// # Errors
    /// Bounds that nothing could be served with.
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
        let objects = Objects::new(Arc::clone(&parts.objects), parts.files.clone(), config.object_retention);
        let cut_off = CancellationToken::new();
        Ok(Arc::new(Self {
            beats: Beats::new(&config, &parts, cut_off.clone()),
            objects,
            pasts: Pasts::default(),
            kept_ids: Arc::default(),
            parts,
            turns: Turns::new(config.render_bytes_at_once),
            memory: Memory::new(config.memory),
            config,
            catalog: ArcSwap::new(catalog),
            tasks: TaskTracker::new(),
            shadows: Shadows::new(),
            draining: CancellationToken::new(),
            cut_off,
            trace_seats: Semaphore::new(TRACE_SEATS),
            board: Board::new(),
        }))
    }

    /// What calls that come now are served by. Who needs more than one thing of it asks once.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Serves calls that come from now on by another catalogue, and returns the former one: calls that it has routed keep it,
    /// and what it offers must work until they are done.
    pub fn swap(&self, catalog: Arc<Catalog>) -> Arc<Catalog> {
        catalog.go_on_from(&self.catalog());
        self.catalog.swap(catalog)
    }

    /// Models on trial that were taken out of their routes and of which nobody was told yet.
    pub fn canary_news(&self) -> Vec<CanaryNews> {
        let catalog = self.catalog();
        catalog.watches().filter_map(|watch| watch.news()).collect()
    }

    /// Takes a model out of a route as it had been taken out before, if its entry is still the same.
    pub fn roll_back(&self, news: CanaryNews) {
        let catalog = self.catalog();
        let same = |watch: &&Arc<Watch>| watch.is_of(&news);
        if let Some(watch) = catalog.watches().find(same) {
            watch.roll_back(news.rolled_back.clone());
        }
    }

    /// Puts the models of a route on trial again that were taken out; which those are.
    pub fn resume_canaries(&self, route: &ModelName) -> Vec<ModelName> {
        let catalog = self.catalog();
        let out = catalog.watches().filter(|watch| watch.route == *route && watch.resume());
        out.map(|watch| watch.model.clone()).collect()
    }

    /// Why calls would not be served, or those for a model of ours not; empty: all would. Upstreams come and go, each with its
    /// models: they count only where nobody else is left.
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

    /// Why calls for a model would not be served.
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
        if let Some(down) = self.parts.books.health().down {
            why.push(format!("the ledger cannot be written: {down}"));
        }
        why
    }

    /// What a drain waits for until it is dropped.
    pub(crate) fn counted(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// Calls that have come in and are not settled yet.
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// Where calls are that are under way, oldest first: as many as can be watched at once, without copies of calls.
    pub fn in_flight_calls(&self) -> Vec<InFlightCall> {
        self.board.look(self.parts.clock.monotonic_nanos())
    }

    /// Bytes of memory that calls in flight may take, by estimate.
    pub fn memory_taken(&self) -> u64 {
        self.memory.taken()
    }

    /// Returns the most bytes that calls took at once since this was last called.
    pub fn take_memory_peak(&self) -> u64 {
        self.memory.take_peak()
    }

    /// Takes no new calls, waits for those in flight, cuts off what is left after `within` and waits until everything
    /// is settled. Returns how many were cut off.
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

    /// Where calls are seen.
    pub(crate) const fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// The calls that are looked after.
    pub(crate) const fn beats(&self) -> &Arc<Beats> {
        &self.beats
    }

    pub(crate) fn parts(&self) -> &GatewayParts {
        &self.parts
    }

    /// The length of an answer whose caller names none, for models without one of their own.
    pub fn default_max_tokens(&self) -> u32 {
        self.config.default_max_tokens
    }

    pub(crate) fn config(&self) -> &GatewayConfig {
        &self.config
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when no new calls are taken any more.
    pub(crate) fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// What clients store.
    pub(crate) const fn objects(&self) -> &Objects {
        &self.objects
    }

    /// What former answers were asked with.
    pub(crate) const fn pasts(&self) -> &Pasts {
        &self.pasts
    }

    /// The copies of its calls.
    pub(crate) const fn shadows(&self) -> &Shadows {
        &self.shadows
    }

    /// Resumes the budgets of copies where a process before this one left them, and keeps what is spent from now on. Call it once,
    /// before calls are served.
    pub fn keep_shadow_spending(&self, spending: Arc<dyn ShadowSpending>) {
        self.shadows.keep_spending(spending);
    }

    /// What became of the copies of calls for a name.
    pub fn shadow_figures(&self, name: &ModelName, to: &ModelName) -> ShadowFigures {
        self.shadows.figures(name, to)
    }

    pub(crate) fn cut_off(&self) -> &CancellationToken {
        &self.cut_off
    }

    /// The ids of former answers.
    pub(crate) fn kept_ids(&self) -> &Arc<KeptIds> {
        &self.kept_ids
    }

    /// Where long bodies wait for their turn to be read and rendered.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// What calls take of the machine's memory.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How many questions for a trace may wait for it at once.
    pub(crate) const fn trace_seats(&self) -> &Semaphore {
        &self.trace_seats
    }
}
