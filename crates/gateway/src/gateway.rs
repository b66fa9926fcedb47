//! The gateway: its rooms, its calls and its drain.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headrace_domain::ModelName;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::config::{GatewayConfig, GatewayError, GatewayParts, ServedModel};
use crate::lane::Lane;
use crate::memory::Memory;

/// Questions for traces that are answered at once.
const TRACE_SEATS: usize = 256;

/// Decides, dispatches, delivers and settles.
pub struct Gateway {
    parts: GatewayParts,
    config: GatewayConfig,
    models: HashMap<ModelName, Arc<ServedModel>>,
    /// Some model costs nothing, so that an empty balance is no reason to turn a caller away early.
    free_model: bool,
    lane: Lane,
    memory: Memory,
    tasks: TaskTracker,
    draining: AtomicBool,
    cut_off: CancellationToken,
    trace_seats: Semaphore,
}

impl Gateway {
    /// Puts the rooms together. Every served model must have workers and a price, every alias a model.
    pub fn new(mut parts: GatewayParts, config: GatewayConfig) -> Result<Arc<Self>, GatewayError> {
        let now = parts.clock.now();
        let faults = config.faults().into_iter();
        let mut faults: Vec<_> = faults.map(|(name, why)| format!("`{name}` {why}")).collect();
        let mut free_model = false;
        let mut models = HashMap::new();
        for model in std::mem::take(&mut parts.models) {
            match parts.prices.quote(&model.name, now) {
                None => faults.push(format!(
                    "model `{}` has no price: nothing is free by accident; set one under [[prices]]",
                    model.name
                )),
                Some(quote) => free_model |= quote.hold_for(1000, 1000).is_ok_and(|most| most.get() == 0),
            }
            if !parts.fleet.serves(&model.name) {
                faults.push(format!("model `{}` has no worker", model.name));
            }
            if let Some(twice) = models.insert(model.name.clone(), Arc::new(model)) {
                faults.push(format!("model `{}` is served twice under one name", twice.name));
            }
        }
        for (alias, target) in &parts.aliases {
            match models.get(target) {
                None => faults.push(format!("alias `{alias}` points to `{target}`, which is not served")),
                Some(_) if models.contains_key(alias) => {
                    faults.push(format!("alias `{alias}` has the name of a served model"));
                }
                Some(_) => {}
            }
        }
        if !faults.is_empty() {
            return Err(GatewayError { faults });
        }
        Ok(Arc::new(Self {
            parts,
            lane: Lane::new(config.render_bytes_at_once),
            memory: Memory::new(config.memory),
            config,
            models,
            free_model,
            tasks: TaskTracker::new(),
            draining: AtomicBool::new(false),
            cut_off: CancellationToken::new(),
            trace_seats: Semaphore::new(TRACE_SEATS),
        }))
    }

    /// Why calls would not be served, or those for some model not; empty: all would.
    pub(crate) fn why_not_ready(&self) -> Vec<String> {
        let mut why = Vec::new();
        if self.is_draining() {
            why.push("the server is shutting down".to_owned());
        }
        if let Some(down) = self.parts.books.health().down {
            why.push(format!("the ledger cannot be written: {down}"));
        }
        why.extend(self.parts.fleet.down().into_iter().map(|(model, why)| format!("model `{model}`: {why}")));
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

    /// Bytes of memory that calls in flight may take, by estimate.
    pub fn memory_taken(&self) -> u64 {
        self.memory.taken()
    }

    /// Takes no new calls, waits for those in flight, cuts off what is left after `within` and waits until everything
    /// is settled. Returns how many were cut off.
    pub(crate) async fn drain_within(&self, within: Duration) -> usize {
        self.draining.store(true, Ordering::SeqCst);
        self.tasks.close();
        if tokio::time::timeout(within, self.tasks.wait()).await.is_ok() {
            return 0;
        }
        let left = self.tasks.len();
        self.cut_off.cancel();
        self.tasks.wait().await;
        left
    }

    pub(crate) fn parts(&self) -> &GatewayParts {
        &self.parts
    }

    pub(crate) fn config(&self) -> &GatewayConfig {
        &self.config
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    pub(crate) fn cut_off(&self) -> &CancellationToken {
        &self.cut_off
    }

    /// Where long bodies wait for their turn to be read and rendered.
    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// What calls take of the machine's memory.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn has_free_model(&self) -> bool {
        self.free_model
    }

    /// The model served under a name or alias.
    pub(crate) fn resolve(&self, name: &ModelName) -> Option<Arc<ServedModel>> {
        let target = self.parts.aliases.get(name).unwrap_or(name);
        self.models.get(target).cloned()
    }

    /// Models with all names that lead to them.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&ModelName, &Arc<ServedModel>)> {
        let aliases = self.parts.aliases.iter();
        let aliases = aliases.filter_map(|(alias, target)| Some((alias, self.models.get(target)?)));
        self.models.iter().chain(aliases)
    }

    /// How many questions for a trace may wait for it at once.
    pub(crate) const fn trace_seats(&self) -> &Semaphore {
        &self.trace_seats
    }
}
