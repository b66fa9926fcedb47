//! The step loop on its own thread, behind the `Engine` trait. An idle engine sleeps until a new job or a
//! cancellation wakes it. If the loop breaks, it restarts with the same model, a bounded number of times.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headrace_domain::{PrefixKeys, RequestId};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, Job, JobError, JobTicket, LoadReport, SubmitRefusal,
};
use headrace_kernels::forward::Forward;
use headrace_tokenizer::Tokenizer;
use parking_lot::Mutex;

use crate::config::{EngineConfig, EngineError};
use crate::intake::{Intake, Mode};
use crate::masks::pool::MaskPool;
use crate::restarts::Restarts;
use crate::stepper::{Progress, Stepper, panic_message};
use crate::text::{TextOf, TokenizerText};

/// How long the loop sleeps if, against its invariants, it can plan nothing although a sequence waits.
const STUCK_PAUSE: Duration = Duration::from_millis(1);

/// An engine in this process. Dropping it cuts off running jobs.
pub struct EmbeddedEngine {
    intake: Arc<Intake>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedEngine {
    /// Warms the model up and starts the loop on a thread named `engine-MODEL`.
    ///
    /// # Errors
    /// [`EngineError`] if the configuration does not fit the model, or if the system cannot start a thread.
    pub fn start(
        forward: Box<dyn Forward>,
        tokenizer: Arc<Tokenizer>,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        let text = TokenizerText::new(tokenizer, config.skip_special);
        Self::start_with(forward, Arc::new(text), config)
    }

    /// As [`Self::start`], with a vocabulary that need not come from a tokenizer.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        forward: Box<dyn Forward>,
        text: Arc<dyn TextOf>,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        let name = format!("engine-{}", config.model);
        let mut stepper = Stepper::new(forward, text, config)?.with_masks(Box::new(MaskPool::new()));
        if let Err(error) = stepper.warm_up() {
            // The first call shows whether the failure persists, and then reports the reason.
            tracing::warn!(?error, "the model failed while it was warmed up");
        }
        let intake = Arc::clone(&stepper.intake);
        // The system rejects names with a zero byte.
        let builder = std::thread::Builder::new().name(name.replace('\0', ""));
        let thread = builder.spawn(move || run(stepper)).map_err(|source| EngineError::Thread { source })?;
        Ok(Self { intake, thread: Mutex::new(Some(thread)) })
    }

    /// Stops accepting jobs and lets running jobs finish for at most `grace`. Then cuts off the rest
    /// ([`JobError::ShuttingDown`]) and joins the thread, which takes at most one more step. Blocks. Safe to call
    /// twice.
    pub fn shutdown(&self, grace: Duration) {
        let until = Instant::now() + grace;
        {
            let mut shared = self.intake.shared.lock();
            if matches!(shared.mode, Mode::Open | Mode::Restarting { .. }) {
                shared.mode = Mode::Draining;
            }
            while shared.alive > 0 && shared.mode == Mode::Draining {
                if self.intake.quiet.wait_until(&mut shared, until).timed_out() {
                    break;
                }
            }
            if !matches!(shared.mode, Mode::Dead { .. }) {
                shared.mode = Mode::CutOff;
            }
        }
        self.intake.work.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The thread catches the loop's panics, so the result carries no information.
            let _ = thread.join();
        }
    }
}

impl Engine for EmbeddedEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.intake.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.intake.submit(job)
    }

    fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        self.intake.cached_prefix(keys)
    }

    fn release_pins(&self, owner: RequestId) {
        self.intake.release_pins(owner);
    }

    fn load(&self) -> LoadReport {
        self.intake.load()
    }

    fn health(&self) -> EngineHealth {
        self.intake.health()
    }
}

impl Drop for EmbeddedEngine {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// The thread's main function: runs the loop until the cut-off, and restarts it if the loop itself breaks.
fn run(mut stepper: Stepper) {
    let mut restarts = Restarts::default();
    while let Err(panic) = catch_unwind(AssertUnwindSafe(|| turn(&mut stepper))) {
        if !begin_again(&mut stepper, &mut restarts, panic_message(&*panic)) {
            return;
        }
    }
}

/// Runs steps while there is work, and sleeps otherwise. Returns after the cut-off.
fn turn(stepper: &mut Stepper) {
    let intake = Arc::clone(&stepper.intake);
    loop {
        {
            let mut shared = intake.shared.lock();
            while !shared.has_work() {
                if shared.mode == Mode::CutOff {
                    return;
                }
                intake.work.wait(&mut shared);
            }
        }
        if stepper.step() == Progress::Idle {
            let mut shared = intake.shared.lock();
            if shared.has_work() && shared.inbox.is_empty() && !shared.attention {
                intake.work.wait_for(&mut shared, STUCK_PAUSE);
            }
        }
    }
}

/// Restarts after a panic of the loop itself (panics of a single sequence are caught further inside). Ends every job,
/// waits, checks that the model still computes, and accepts jobs again. Returns `false` if the engine is permanently
/// dead or was cut off.
fn begin_again(stepper: &mut Stepper, restarts: &mut Restarts, mut why: String) -> bool {
    let intake = Arc::clone(&stepper.intake);
    let model = &intake.config.model;
    intake.broke(&why);
    let error = JobError::Panicked { detail: why.clone() };
    let begun = catch_unwind(AssertUnwindSafe(|| stepper.restart(&error)));
    if let Some(problem) = problem(begun) {
        // Even the reset of the state failed. The readers notice that the engine is gone.
        tracing::error!(model, why, problem, "the engine's loop broke and cannot begin again");
        intake.died(why);
        return false;
    }
    loop {
        let Some(rest) = restarts.next(Instant::now()) else {
            tracing::error!(model, why, "the engine's loop broke again and again, and is dead");
            intake.died(why);
            return false;
        };
        tracing::error!(model, why, rest_ms = rest.as_millis(), "the engine's loop broke; it begins again");
        if !intake.rest(rest) {
            return false;
        }
        match problem(catch_unwind(AssertUnwindSafe(|| stepper.warm_up()))) {
            None => {
                intake.reopen();
                return true;
            }
            Some(problem) => why = problem,
        }
    }
}

/// Returns the error or panic message of a failed attempt.
fn problem<E: std::fmt::Display>(outcome: std::thread::Result<Result<(), E>>) -> Option<String> {
    match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(panic) => Some(panic_message(&*panic)),
    }
}
