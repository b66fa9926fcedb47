//! A worker chosen for a prompt or a call, for as long as the call is there; and the list of workers tried. Must not
//! know why a worker was chosen.

use std::fmt;
use std::sync::Arc;

use headrace_domain::Clock;
use headrace_engine_api::{Capabilities, Job, JobTicket, SharedEngine, SharedRelay, SubmitRefusal};

use crate::breaker::BreakerFault;
use crate::outcome::WorkerOutcome;
use crate::random::AtomicSplitMix;
use crate::worker::{TrialCall, Worker, WorkerBackend};

/// The clock and the random numbers of a fleet.
pub(crate) struct FleetContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: AtomicSplitMix,
}

impl fmt::Debug for FleetContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chance").field("random", &self.random).finish_non_exhaustive()
    }
}

/// A worker chosen for a prompt, or for a call to a messages backend. Counts as dispatched until dropped. The caller
/// reports how the call goes ([`Self::began`], [`Self::ended`]). A drop without a report says nothing about the worker.
#[derive(Debug)]
pub struct Placement {
    worker: Arc<Worker>,
    chance: Arc<FleetContext>,
    placed_ns: u64,
    /// Prompt blocks to compute before the first output.
    blocks: u64,
    trials: TrialCall,
    /// Number of the organisation that makes the call. `None` if it is unknown.
    caller: Option<u64>,
    began: bool,
    ended: bool,
}

impl Placement {
    pub(crate) fn new(
        worker: &Arc<Worker>,
        chance: &Arc<FleetContext>,
        placed_ns: u64,
        blocks: u64,
        trials: TrialCall,
    ) -> Self {
        let (worker, chance) = (Arc::clone(worker), Arc::clone(chance));
        Self { worker, chance, placed_ns, blocks, trials, caller: None, began: false, ended: false }
    }

    /// Sets the number of the organisation that makes the call. Failed calls of one organisation alone do not take a
    /// worker away from the others.
    #[must_use]
    pub fn called_by(mut self, caller: u64) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Submits the job to the worker's engine.
    ///
    /// # Errors
    /// [`SubmitRefusal`] if the engine does not take the job. Nothing was computed then.
    pub fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        match &self.worker.backend {
            WorkerBackend::Engine(engine) => engine.submit(job),
            WorkerBackend::Relay(_) => {
                Err(SubmitRefusal::Unavailable { why: "it takes messages, not tokens".to_owned() })
            }
        }
    }

    /// The engine. `None` if the worker takes messages.
    pub fn engine(&self) -> Option<&SharedEngine> {
        match &self.worker.backend {
            WorkerBackend::Engine(engine) => Some(engine),
            WorkerBackend::Relay(_) => None,
        }
    }

    /// The capabilities of its engine. `None` if it takes messages.
    pub fn capabilities(&self) -> Option<&Capabilities> {
        match &self.worker.backend {
            WorkerBackend::Engine(engine) => Some(engine.capabilities()),
            WorkerBackend::Relay(_) => None,
        }
    }

    /// The relay. `None` if the worker takes tokens.
    pub fn relay(&self) -> Option<&SharedRelay> {
        self.worker.backend.relay()
    }

    /// The worker's id, as operators see it.
    pub fn worker_id(&self) -> &Arc<str> {
        self.worker.id()
    }

    /// The worker's upstream, and the model's name there. `None` for an engine in this process.
    pub fn target(&self) -> Option<(&str, &str)> {
        self.worker.target()
    }

    /// Reports the first output of the answer. Further calls have no effect.
    pub fn began(&mut self) {
        if self.began || self.ended {
            return;
        }
        self.began = true;
        let now_ns = self.chance.clock.monotonic_nanos();
        let after_ns = now_ns.saturating_sub(self.placed_ns);
        let (blocks, trials) = (std::mem::take(&mut self.blocks), std::mem::take(&mut self.trials));
        self.worker.began(now_ns, after_ns, blocks, trials);
    }

    /// Reports how the call ended. Further calls have no effect. It still counts as dispatched until dropped.
    pub fn ended(&mut self, outcome: &WorkerOutcome) {
        if self.ended {
            return;
        }
        if *outcome == WorkerOutcome::Answered {
            self.began();
        }
        self.ended = true;
        let now_ns = self.chance.clock.monotonic_nanos();
        // Only a failure needs jitter, for the breaker's open time.
        let random = match outcome {
            WorkerOutcome::Failed { .. } => self.chance.random.next(),
            _ => 0,
        };
        let took_ns = now_ns.saturating_sub(self.placed_ns);
        let fault = BreakerFault { caller: self.caller.filter(|_| outcome.may_be_of_the_body()), random };
        self.worker.ended(now_ns, took_ns, outcome, std::mem::take(&mut self.trials), fault);
    }

    /// Reports that another worker was faster with the first output. This attempt ends without having failed.
    pub fn outrun(&mut self) {
        if !self.began && !self.ended {
            let now_ns = self.chance.clock.monotonic_nanos();
            self.worker.outrun(now_ns, now_ns.saturating_sub(self.placed_ns));
        }
        self.ended(&WorkerOutcome::Cancelled);
    }

    /// Whether this is the trial call of the worker's or the upstream's breaker.
    pub fn is_trial(&self) -> bool {
        self.trials.any()
    }

    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    fn release(&mut self) {
        if !self.ended && self.trials.any() {
            self.ended(&WorkerOutcome::Cancelled);
        }
        let now_ns = if self.worker.is_judged() { self.chance.clock.monotonic_nanos() } else { 0 };
        self.worker.release(now_ns, self.blocks);
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.release();
    }
}

/// The workers already tried for a prompt. It does not go to any of them again.
#[derive(Debug, Clone, Default)]
pub struct TriedWorkers {
    workers: Vec<Arc<Worker>>,
}

impl TriedWorkers {
    /// Excludes a worker from now on. The call no longer counts as dispatched to it.
    pub fn add(&mut self, placement: Placement) {
        self.workers.push(Arc::clone(&placement.worker));
    }

    /// Excludes the worker of a call that is in flight.
    pub fn add_busy(&mut self, placement: &Placement) {
        self.workers.push(Arc::clone(&placement.worker));
    }

    /// Whether no worker was tried.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    pub(crate) fn has(&self, worker: &Arc<Worker>) -> bool {
        self.workers.iter().any(|tried| Arc::ptr_eq(tried, worker))
    }
}
