//! A worker chosen for a prompt or a call, until the call is over there; and who was tried in vain.
//! Must not know why it was chosen.

use std::fmt;
use std::sync::Arc;

use headrace_domain::Clock;
use headrace_engine_api::{Capabilities, Job, SharedRelay, SubmitRefusal, Ticket};

use crate::breaker::Fault;
use crate::outcome::Outcome;
use crate::random::Random;
use crate::worker::{Backend, Trials, Worker};

/// What a fleet decides by, beside its workers.
pub(crate) struct Chance {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Random,
}

impl fmt::Debug for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chance").field("random", &self.random).finish_non_exhaustive()
    }
}

/// A worker chosen for a prompt, or for a call of messages. Counts as dispatched until dropped. Whoever learns how the call
/// goes says so ([`Self::began`], [`Self::ended`]); dropped without a word it says nothing about the worker.
#[derive(Debug)]
pub struct Placement {
    worker: Arc<Worker>,
    chance: Arc<Chance>,
    placed_ns: u64,
    /// Of its prompt, to be computed before the first thing comes.
    blocks: u64,
    trials: Trials,
    /// The number of the organisation whose call it is. `None` if it is unknown.
    caller: Option<u64>,
    began: bool,
    ended: bool,
}

impl Placement {
    pub(crate) fn new(
        worker: &Arc<Worker>,
        chance: &Arc<Chance>,
        placed_ns: u64,
        blocks: u64,
        trials: Trials,
    ) -> Self {
        let (worker, chance) = (Arc::clone(worker), Arc::clone(chance));
        Self { worker, chance, placed_ns, blocks, trials, caller: None, began: false, ended: false }
    }

    /// Notes the number of the organisation whose call it is. Failures of one organisation's calls alone do not take a worker away
    /// from others.
    #[must_use]
    pub fn called_by(mut self, caller: u64) -> Self {
        self.caller = Some(caller);
        self
    }

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

    /// What its engine can do; `None`: it takes messages.
    pub fn capabilities(&self) -> Option<&Capabilities> {
        match &self.worker.backend {
            Backend::Engine(engine) => Some(engine.capabilities()),
            Backend::Relay(_) => None,
        }
    }

    /// Who takes messages; `None`: it takes tokens.
    pub fn relay(&self) -> Option<&SharedRelay> {
        self.worker.backend.relay()
    }

    /// By which operators are told of the worker.
    pub fn worker_id(&self) -> &Arc<str> {
        self.worker.id()
    }

    /// Which upstream it is at, and the model's name there; `None`: it is an engine of this process.
    pub fn target(&self) -> Option<(&str, &str)> {
        self.worker.target()
    }

    /// The first thing of the answer is here. What is said of it again does not count.
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

    /// The call is over, and how. What is said of it again does not count. It still counts as dispatched until dropped.
    pub fn ended(&mut self, outcome: &Outcome) {
        if self.ended {
            return;
        }
        if *outcome == Outcome::Answered {
            self.began();
        }
        self.ended = true;
        let now_ns = self.chance.clock.monotonic_nanos();
        // Only a failure has a time that needs jitter.
        let random = match outcome {
            Outcome::Failed { .. } => self.chance.random.next(),
            _ => 0,
        };
        let took_ns = now_ns.saturating_sub(self.placed_ns);
        let fault = Fault { caller: self.caller.filter(|_| outcome.may_be_of_the_body()), random };
        self.worker.ended(now_ns, took_ns, outcome, std::mem::take(&mut self.trials), fault);
    }

    /// Another worker was faster with the first thing. This one is let go of, and has not failed.
    pub fn outrun(&mut self) {
        if !self.began && !self.ended {
            let now_ns = self.chance.clock.monotonic_nanos();
            self.worker.outrun(now_ns, now_ns.saturating_sub(self.placed_ns));
        }
        self.ended(&Outcome::Cancelled);
    }

    /// Whether it is the one call that tries whether the worker, or its upstream, works again.
    pub fn is_trial(&self) -> bool {
        self.trials.any()
    }

    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    fn let_go(&mut self) {
        if !self.ended && self.trials.any() {
            self.ended(&Outcome::Cancelled);
        }
        let now_ns = if self.worker.is_judged() { self.chance.clock.monotonic_nanos() } else { 0 };
        self.worker.let_go(now_ns, self.blocks);
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// The workers that a prompt was tried with in vain: it does not go to one of them again.
#[derive(Debug, Clone, Default)]
pub struct Tried {
    workers: Vec<Arc<Worker>>,
}

impl Tried {
    /// Passes a worker over from now on. It counts as dispatched to no longer.
    pub fn add(&mut self, placement: Placement) {
        self.workers.push(Arc::clone(&placement.worker));
    }

    /// Passes over the worker of a call that is under way.
    pub fn add_busy(&mut self, placement: &Placement) {
        self.workers.push(Arc::clone(&placement.worker));
    }

    /// Whether nobody was.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    pub(crate) fn has(&self, worker: &Arc<Worker>) -> bool {
        self.workers.iter().any(|tried| Arc::ptr_eq(tried, worker))
    }
}
