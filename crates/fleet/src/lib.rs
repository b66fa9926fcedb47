//! Workers: who serves a model (engines, and servers of others), how busy they are, and which one takes a call.
//! Knows them only through `engine-api`; knows nothing of kernels, KV blocks, keys or money.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headrace_domain::{BLOCK_TOKENS, ModelName, PrefixKeys};
use headrace_engine_api::{Health, Job, LoadReport, SharedEngine, SharedRelay, SubmitRefusal, Ticket};

/// Blocks' worth of work that one sequence ahead counts for: about what a step of one sequence costs.
const BLOCKS_PER_SEQUENCE_AHEAD: u64 = 4;

/// Who computes, behind a worker.
enum Backend {
    /// It takes tokens.
    Engine(SharedEngine),
    /// It takes messages.
    Relay(SharedRelay),
}

impl Backend {
    fn load(&self) -> LoadReport {
        match self {
            Self::Engine(engine) => engine.load(),
            Self::Relay(relay) => relay.load(),
        }
    }

    fn health(&self) -> Health {
        match self {
            Self::Engine(engine) => engine.health(),
            Self::Relay(relay) => relay.health(),
        }
    }

    /// How many tokens of a prompt it is known to have in its cache.
    fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        match self {
            Self::Engine(engine) => engine.cached_prefix(keys),
            Self::Relay(_) => 0,
        }
    }
}

/// One engine, or one server of others, that serves one model.
pub struct Worker {
    /// By which operators are told of it.
    id: Arc<str>,
    model: ModelName,
    backend: Backend,
    /// Calls dispatched and not yet ended: fresher than the engine's own report, which may be a step old.
    dispatched: AtomicU32,
}

impl Worker {
    /// A worker of the given id that takes tokens.
    pub fn new(id: &str, model: ModelName, engine: SharedEngine) -> Self {
        Self { id: id.into(), model, backend: Backend::Engine(engine), dispatched: AtomicU32::new(0) }
    }

    /// A worker of the given id that takes messages.
    pub fn relay(id: &str, model: ModelName, relay: SharedRelay) -> Self {
        Self { id: id.into(), model, backend: Backend::Relay(relay), dispatched: AtomicU32::new(0) }
    }

    /// The cost of sending it a prompt of which it has `cached` tokens: blocks to compute and work ahead.
    fn cost(&self, prompt_tokens: usize, cached: usize) -> u64 {
        let load = self.backend.load();
        let reported = u64::from(load.running) + u64::from(load.waiting);
        let ahead = reported.max(u64::from(self.dispatched.load(Ordering::Relaxed)));
        let blocks = prompt_tokens.saturating_sub(cached).div_ceil(BLOCK_TOKENS) as u64;
        let queued = load.waiting_tokens.div_ceil(BLOCK_TOKENS as u64);
        blocks.saturating_add(queued).saturating_add(ahead.saturating_mul(BLOCKS_PER_SEQUENCE_AHEAD))
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("id", &self.id).field("model", &self.model).finish_non_exhaustive()
    }
}

/// A worker chosen for a prompt, or for a call of messages. Counts as dispatched until dropped.
#[derive(Debug)]
pub struct Placement {
    worker: Arc<Worker>,
}

impl Placement {
    /// Hands it the job.
    ///
    /// # Errors
    /// It does not take it; nothing was computed.
    pub fn submit(&self, job: Job) -> Result<Ticket, SubmitRefusal> {
        match &self.worker.backend {
            Backend::Engine(engine) => engine.submit(job),
            Backend::Relay(_) => {
                Err(SubmitRefusal::Unavailable { why: "it takes messages, not tokens".to_owned() })
            }
        }
    }

    /// Who takes messages; `None`: it takes tokens.
    pub fn relay(&self) -> Option<&SharedRelay> {
        match &self.worker.backend {
            Backend::Engine(_) => None,
            Backend::Relay(relay) => Some(relay),
        }
    }

    /// By which operators are told of the worker.
    pub fn worker_id(&self) -> &Arc<str> {
        &self.worker.id
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.worker.dispatched.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The workers that a prompt was tried with in vain: it does not go to one of them again.
#[derive(Debug, Default)]
pub struct Tried {
    workers: Vec<Arc<Worker>>,
}

impl Tried {
    /// Passes a worker over from now on. It counts as dispatched to no longer.
    pub fn add(&mut self, placement: Placement) {
        self.workers.push(Arc::clone(&placement.worker));
    }

    fn has(&self, worker: &Arc<Worker>) -> bool {
        self.workers.iter().any(|tried| Arc::ptr_eq(tried, worker))
    }
}

/// All workers.
#[derive(Debug, Default)]
pub struct Fleet {
    by_model: HashMap<ModelName, Vec<Arc<Worker>>>,
}

impl Fleet {
    /// A fleet of these workers. One that is shared with another fleet counts what both send it.
    pub fn new(workers: impl IntoIterator<Item = impl Into<Arc<Worker>>>) -> Self {
        let mut by_model: HashMap<ModelName, Vec<Arc<Worker>>> = HashMap::new();
        for worker in workers {
            let worker = worker.into();
            by_model.entry(worker.model.clone()).or_default().push(worker);
        }
        Self { by_model }
    }

    /// Whether any worker serves `model`.
    pub fn serves(&self, model: &ModelName) -> bool {
        self.by_model.contains_key(model)
    }

    /// The models that no worker takes calls for now, by name, and why not: of each worker, by its id.
    pub fn down(&self) -> Vec<(&ModelName, String)> {
        let why = |worker: &Arc<Worker>| match worker.backend.health() {
            Health::Up => None,
            health => Some(format!("worker {}: {health}", worker.id)),
        };
        let down = self.by_model.iter().filter_map(|(model, workers)| {
            let whys: Option<Vec<_>> = workers.iter().map(why).collect();
            Some((model, whys?.join("; ")))
        });
        let mut down: Vec<_> = down.collect();
        down.sort_by_key(|&(model, _)| model);
        down
    }

    /// Picks the worker with the least work before the first token, among those that take calls: what it would have to
    /// compute of the prompt, and what waits there already. Ties go to the one listed first, and nobody gets it who was
    /// tried. `None`: nobody is left. Where a model has but one it is that one, who says itself why it takes nothing.
    pub fn place(&self, model: &ModelName, keys: &PrefixKeys, tried: &Tried) -> Option<Placement> {
        self.pick(model, tried, |worker| worker.cost(keys.ids().len(), worker.backend.cached_prefix(keys)))
    }

    /// As [`Self::place`], for a call of messages: by what waits there alone.
    pub fn place_messages(&self, model: &ModelName, tried: &Tried) -> Option<Placement> {
        self.pick(model, tried, |worker| worker.cost(0, 0))
    }

    fn pick(&self, model: &ModelName, tried: &Tried, cost: impl Fn(&Worker) -> u64) -> Option<Placement> {
        let worker = match self.by_model.get(model)?.as_slice() {
            [only] => Some(only).filter(|worker| !tried.has(worker))?,
            many => many
                .iter()
                .filter(|worker| !tried.has(worker) && worker.backend.health().is_up())
                .min_by_key(|worker| cost(worker))?,
        };
        worker.dispatched.fetch_add(1, Ordering::Relaxed);
        Some(Placement { worker: Arc::clone(worker) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrace_domain::CacheSalt;
    use headrace_engine_api::{Capabilities, LoadReport};

    /// An engine with a fixed load and cache.
    struct Fixed {
        capabilities: Capabilities,
        load: LoadReport,
        cached: usize,
        health: Health,
    }

    impl headrace_engine_api::Engine for Fixed {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }
        fn submit(&self, _job: Job) -> Result<Ticket, SubmitRefusal> {
            Err(SubmitRefusal::Unavailable { why: "a test".into() })
        }
        fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
            self.cached.min(keys.ids().len())
        }
        fn load(&self) -> LoadReport {
            self.load
        }
        fn health(&self) -> Health {
            self.health.clone()
        }
    }

    fn worker(id: &str, waiting_tokens: u64, running: u32, cached: usize) -> Worker {
        worker_that_is(Health::Up, id, waiting_tokens, running, cached)
    }

    fn worker_that_is(health: Health, id: &str, waiting_tokens: u64, running: u32, cached: usize) -> Worker {
        let capabilities = Capabilities {
            model: "m".into(),
            compute_mode: "exact".into(),
            numerics: String::new(),
            vocab: 1,
            context_window: 1,
            max_logprobs: 0,
            kv_tokens: 1,
        };
        let load = LoadReport { running, waiting_tokens, ..LoadReport::default() };
        let model = ModelName::new("m").unwrap();
        Worker::new(id, model, Arc::new(Fixed { capabilities, load, cached, health }))
    }

    fn keys(len: usize) -> PrefixKeys {
        PrefixKeys::of(&CacheSalt::derive(&[0; 32], "t", "m", None), &vec![1; len].into())
    }

    /// Whom a prompt that nobody was tried with goes to.
    fn first_of(fleet: &Fleet, model: &ModelName, prompt: usize) -> Option<Placement> {
        fleet.place(model, &keys(prompt), &Tried::default())
    }

    #[test]
    fn the_least_work_before_the_first_token_wins() {
        let model = ModelName::new("m").unwrap();
        for (workers, expected) in [
            (vec![worker("a", 0, 0, 0), worker("b", 0, 0, 160)], "b"),
            (vec![worker("a", 0, 0, 0), worker("b", 0, 3, 160)], "a"),
            (vec![worker("a", 640, 0, 0), worker("b", 0, 0, 0)], "b"),
            (vec![worker("a", 0, 0, 0), worker("b", 0, 0, 0)], "a"),
        ] {
            let fleet = Fleet::new(workers);
            assert_eq!(first_of(&fleet, &model, 320).unwrap().worker_id().as_ref(), expected);
        }
    }

    #[test]
    fn what_was_dispatched_counts_before_the_engine_reports_it() {
        let model = ModelName::new("m").unwrap();
        let fleet = Fleet::new(vec![worker("a", 0, 0, 0), worker("b", 0, 0, 0)]);
        let first = first_of(&fleet, &model, 1).unwrap();
        let second = first_of(&fleet, &model, 1).unwrap();
        assert_eq!((&first.worker.id[..], &second.worker.id[..]), ("a", "b"));
        drop(first);
        assert_eq!(first_of(&fleet, &model, 1).unwrap().worker_id().as_ref(), "a");
        assert!(first_of(&fleet, &ModelName::new("none").unwrap(), 1).is_none());
    }

    #[test]
    fn a_worker_that_takes_no_calls_is_passed_over_and_a_model_without_another_is_down() {
        let model = ModelName::new("m").unwrap();
        let dead = |id| worker_that_is(Health::Dead { why: "a test".into() }, id, 0, 0, 320);
        let fleet = Fleet::new(vec![dead("a"), worker("b", 640, 3, 0)]);
        assert_eq!(first_of(&fleet, &model, 320).unwrap().worker_id().as_ref(), "b");
        assert_eq!(fleet.down(), []);
        let fleet = Fleet::new(vec![dead("a"), worker_that_is(Health::Draining, "b", 0, 0, 0)]);
        assert!(first_of(&fleet, &model, 320).is_none());
        let [(name, why)] = &fleet.down()[..] else { panic!("one model is down") };
        assert!(
            **name == model && why.contains("worker a: it broke") && why.contains("worker b: it is shutting"),
            "{why}"
        );
    }

    #[test]
    fn who_was_tried_is_passed_over_until_nobody_is_left() {
        let model = ModelName::new("m").unwrap();
        let three = vec![worker("a", 0, 0, 0), worker("b", 0, 0, 160), worker("c", 0, 3, 0)];
        for (workers, expected) in [(three, "b a c"), (vec![worker("a", 0, 0, 0)], "a")] {
            let (fleet, mut tried, mut order) = (Fleet::new(workers), Tried::default(), Vec::new());
            while let Some(placement) = fleet.place(&model, &keys(320), &tried) {
                order.push(placement.worker_id().to_string());
                tried.add(placement);
            }
            assert_eq!(order.join(" "), expected);
            let dispatched = |worker: &Arc<Worker>| worker.dispatched.load(Ordering::Relaxed);
            assert!(fleet.by_model[&model].iter().all(|worker| dispatched(worker) == 0));
        }
    }
}
