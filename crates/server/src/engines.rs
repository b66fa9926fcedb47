//! The running models: those that new calls reach, and those that end with their last routed call. Reports what is in
//! memory, and ends models. Must not know how a configuration is read, nor how a call is served.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use headrace_catalog::{Backend, TokenBackend};
use headrace_config::ServerSettings;
use headrace_domain::Clock;
use headrace_engine_api::{SharedEngine, SharedGrammar, SubmitRefusal};
use headrace_fleet::Worker;
use headrace_grammar::{FormCompiler, FormLimits, FormOwner, GrammarFault};
use headrace_kernels::pool::Workers;
use headrace_trace::Metrics;
use headrace_worker::{HeldTo, OfferedModel};

use crate::gauges;
use crate::local_engine::LocalEngine;
use crate::models::{self, ModelFaults, ServingPlan};
use crate::running_model::{InMemory, LoadedModel, RunningModel};
use crate::worker_offers::WorkerOffer;

/// Interval at which ending models are checked for remaining calls.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The models in this process. One per server.
pub(crate) struct LocalEngines {
    workers: Arc<Workers>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    table: Mutex<EngineTable>,
    /// Number of ending models. Readable without locking `table`, because its reader may hold a lock that the owner of
    /// `table` waits for.
    ending: AtomicUsize,
}

struct EngineTable {
    running: Vec<RunningModel>,
    ending: Vec<EndingEngine>,
    /// Set at shutdown. No new model may start afterwards.
    closed: bool,
}

/// A model that no new call reaches.
struct EndingEngine {
    loaded: LoadedModel,
    engine: Arc<dyn LocalEngine>,
    /// The catalogues hold the worker, and each call holds the catalogue that routed it. The worker is dropped with the
    /// last of these calls.
    worker: Weak<Worker>,
}

/// Compiles the grammar that a remote job's answers must match, for the vocabulary of this model.
fn compile(grammars: &FormCompiler, held_to: HeldTo) -> Result<SharedGrammar, SubmitRefusal> {
    let HeldTo { form, thought } = held_to;
    let owner = FormOwner::default();
    grammars.compile_behind(thought, &owner, &Arc::new(form), &FormLimits::default()).map_err(|fault| {
        match fault {
            GrammarFault::Busy | GrammarFault::NoMemory { .. } | GrammarFault::Broke { .. } => {
                SubmitRefusal::Unavailable { why: format!("a form: {fault}") }
            }
            fault => SubmitRefusal::Invalid { what: format!("a form: {fault}") },
        }
    })
}

impl LocalEngines {
    /// A server that starts with these models.
    pub(crate) fn new(
        running: Vec<RunningModel>,
        workers: Arc<Workers>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        for model in &running {
            gauges::register_engine(&metrics, model.loaded.config.name.as_str(), &model.engine);
        }
        let table = Mutex::new(EngineTable { running, ending: Vec::new(), closed: false });
        Self { workers, clock, metrics, table, ending: AtomicUsize::new(0) }
    }

    fn table(&self) -> MutexGuard<'_, EngineTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The models that new calls reach.
    pub(crate) fn running(&self) -> Vec<RunningModel> {
        self.table().running.clone()
    }

    /// The models that other gateways may use.
    pub(crate) fn offers(&self) -> Vec<OfferedModel> {
        let offer = |model: &RunningModel| {
            let WorkerOffer { bits, words } = model.offered.clone()?;
            let Backend::Tokens(TokenBackend { grammars, .. }) = &model.served.backend else { return None };
            let grammars = Arc::clone(grammars);
            Some(OfferedModel {
                engine: Arc::clone(&model.engine) as SharedEngine,
                bits,
                compile: Arc::new(move |held_to| compile(&grammars, held_to)),
                words,
                created_unix_s: model.served.created_unix_s,
                default_max_tokens: model.served.default_max_tokens,
                in_use: Arc::clone(&model.worker) as Arc<_>,
            })
        };
        self.table().running.iter().filter_map(offer).collect()
    }

    /// The models in memory, for a plan.
    pub(crate) fn in_memory(&self) -> InMemory {
        let table = self.table();
        InMemory {
            running: table.running.iter().map(|model| model.loaded.clone()).collect(),
            ending_bytes: table
                .ending
                .iter()
                .fold(0, |sum: u64, model| sum.saturating_add(model.loaded.bytes)),
            threads: Some(self.workers.threads()),
            no_engines: false,
        }
    }

    /// Loads the models of a plan that do not run yet, while calls continue.
    ///
    /// # Errors
    /// Returns every model that cannot be loaded. In that case, none of the newly loaded ones stays in memory.
    pub(crate) fn load(
        &self,
        config: &ServerSettings,
        plan: ServingPlan,
    ) -> Result<Vec<RunningModel>, ModelFaults> {
        models::start(config, plan, &self.workers, &self.clock)
    }

    /// Replaces the running models; `swap` routes new calls to them. Other models end with their last calls. Returns
    /// `false` and changes nothing during shutdown.
    pub(crate) fn replace(&self, running: Vec<RunningModel>, swap: impl FnOnce()) -> bool {
        let mut table = self.table();
        if table.closed {
            return false;
        }
        for model in &running {
            self.metrics.add_model(model.loaded.config.name.as_str());
            gauges::register_engine(&self.metrics, model.loaded.config.name.as_str(), &model.engine);
        }
        swap();
        let former = std::mem::replace(&mut table.running, running);
        for model in former {
            if !table.running.iter().any(|other| Arc::ptr_eq(&other.engine, &model.engine)) {
                let worker = Arc::downgrade(&model.worker);
                table.ending.push(EndingEngine { loaded: model.loaded, engine: model.engine, worker });
            }
        }
        self.ending.store(table.ending.len(), Relaxed);
        true
    }

    /// Ends each model whose last call has ended, until the future is dropped.
    pub(crate) async fn tend(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let engines = Arc::clone(&self);
            if self.table().ending.iter().any(EndingEngine::is_done) {
                // If the runtime stops first, the model stays listed and is ended at shutdown.
                let _ = tokio::task::spawn_blocking(move || engines.end_done()).await;
            }
        }
    }

    /// Ends each model whose last call has ended. Blocks for at most one step.
    fn end_done(&self) {
        let done: Vec<_> = {
            let table = self.table();
            let done = table.ending.iter().filter(|model| model.is_done());
            done.map(|model| Arc::clone(&model.engine)).collect()
        };
        for engine in done {
            engine.shutdown(Duration::ZERO);
            let mut table = self.table();
            let Some(at) = table.ending.iter().position(|model| Arc::ptr_eq(&model.engine, &engine)) else {
                continue;
            };
            let ended = table.ending.swap_remove(at);
            self.ending.store(table.ending.len(), Relaxed);
            let name = ended.loaded.config.name;
            if !table.names().any(|other| *other == name) {
                self.metrics.unregister(("model", name.as_str()));
            }
        }
    }

    /// Registers the number of ending models.
    pub(crate) fn register(self: &Arc<Self>) {
        let engines = Arc::downgrade(self);
        let read = move || engines.upgrade().map_or(0.0, |engines| engines.ending.load(Relaxed) as f64);
        let help = "Engines that no new call reaches and that end with their last calls.";
        self.metrics.register_gauge("headrace_engines_ending", help, &[], Box::new(read));
    }

    /// Ends all models and cuts off running jobs. No model can be added afterwards.
    pub(crate) fn stop(&self) {
        let engines: Vec<_> = {
            let mut table = self.table();
            table.closed = true;
            let running = table.running.iter().map(|model| &model.engine);
            running.chain(table.ending.iter().map(|model| &model.engine)).map(Arc::clone).collect()
        };
        engines.iter().for_each(|engine| engine.shutdown(Duration::ZERO));
    }
}

impl EngineTable {
    /// The names of all models in memory.
    fn names(&self) -> impl Iterator<Item = &headrace_domain::ModelName> {
        let loaded = self.running.iter().map(|model| &model.loaded);
        loaded.chain(self.ending.iter().map(|model| &model.loaded)).map(|loaded| &loaded.config.name)
    }
}

impl EndingEngine {
    fn is_done(&self) -> bool {
        self.worker.strong_count() == 0
    }
}
