//! The step loop on a thread of its own, behind the engine seam. An idle engine sleeps; a new job or a cancel wakes it. A
//! loop that breaks begins again over the same model, a bounded number of times.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headrace_domain::PrefixKeys;
use headrace_engine_api::{Capabilities, Engine, Health, Job, JobError, LoadReport, SubmitRefusal, Ticket};
use headrace_kernels::forward::Forward;
use headrace_tokenizer::Tokenizer;
use parking_lot::Mutex;

use crate::config::{EngineConfig, EngineError};
use crate::intake::{Intake, Mode};
use crate::masks::pool::MaskPool;
use crate::restarts::Restarts;
use crate::stepper::{Progress, Stepper, panic_message};
use crate::text::{TextOf, TokenizerText};

/// How long the loop rests if, against its invariants, nothing can be planned while something waits.
const STUCK_PAUSE: Duration = Duration::from_millis(1);

/// An engine in this process. Dropping it cuts off what runs.
pub struct EmbeddedEngine {
    intake: Arc<Intake>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedEngine {
    /// Warms the model up and starts the loop on a thread named `engine-MODEL`.
    ///
    /// # Errors
    /// [`EngineError`] if the configuration does not fit the model, or no thread is to be had.
    pub fn start(
        forward: Box<dyn Forward>,
        tokenizer: Arc<Tokenizer>,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        let text = TokenizerText::new(tokenizer, config.skip_special);
        Self::start_with(forward, Arc::new(text), config)
    }

    /// [`Self::start`] with another vocabulary than a tokenizer's.
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
            // The first call will show whether that lasts; it then ends with the reason.
            tracing::warn!(?error, "the model failed while it was warmed up");
        }
        let intake = Arc::clone(&stepper.intake);
        // A name with a zero byte in it is refused by the system.
        let builder = std::thread::Builder::new().name(name.replace('\0', ""));
        let thread = builder.spawn(move || run(stepper)).map_err(|source| EngineError::Thread { source })?;
        Ok(Self { intake, thread: Mutex::new(Some(thread)) })
    }

    /// Takes no new jobs, lets what runs end for at most `grace`, cuts off the rest ([`JobError::ShuttingDown`]) and
    /// waits for the thread to end: at most a step longer. Blocks; safe to call twice.
    pub fn shutdown(&self, grace: Duration) {
        let until = Instant::now() + grace;
        {
            let mut desk = self.intake.desk.lock();
            if matches!(desk.mode, Mode::Open | Mode::Restarting { .. }) {
                desk.mode = Mode::Draining;
            }
            while desk.alive > 0 && desk.mode == Mode::Draining {
                if self.intake.quiet.wait_until(&mut desk, until).timed_out() {
                    break;
                }
            }
            if !matches!(desk.mode, Mode::Dead { .. }) {
                desk.mode = Mode::CutOff;
            }
        }
        self.intake.work.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The thread catches the loop's panics; there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}

impl Engine for EmbeddedEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.intake.capabilities
    }

    fn submit(&self, job: Job) -> Result<Ticket, SubmitRefusal> {
        self.intake.submit(job)
    }

    fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        self.intake.cached_prefix(keys)
    }

    fn load(&self) -> LoadReport {
        self.intake.load()
    }

    fn health(&self) -> Health {
        self.intake.health()
    }
}

impl Drop for EmbeddedEngine {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// The thread: turns the loop until it is told to end, and begins again where the loop itself broke.
fn run(mut stepper: Stepper) {
    let mut restarts = Restarts::default();
    while let Err(panic) = catch_unwind(AssertUnwindSafe(|| turn(&mut stepper))) {
        if !begin_again(&mut stepper, &mut restarts, panic_message(&*panic)) {
            return;
        }
    }
}

/// Steps as long as there is work, sleeps while there is none; returns after the cut-off.
fn turn(stepper: &mut Stepper) {
    let intake = Arc::clone(&stepper.intake);
    loop {
        {
            let mut desk = intake.desk.lock();
            while !desk.has_work() {
                if desk.mode == Mode::CutOff {
                    return;
                }
                intake.work.wait(&mut desk);
            }
        }
        if stepper.step() == Progress::Idle {
            let mut desk = intake.desk.lock();
            if desk.has_work() && desk.inbox.is_empty() && !desk.attention {
                intake.work.wait_for(&mut desk, STUCK_PAUSE);
            }
        }
    }
}

/// After a panic that was no sequence's fault (the others are caught further in): ends every job, rests, lets the model
/// show that it still computes, and takes jobs again. `false`: the engine is dead for good, or was told to end.
fn begin_again(stepper: &mut Stepper, restarts: &mut Restarts, mut why: String) -> bool {
    let intake = Arc::clone(&stepper.intake);
    let model = &intake.config.model;
    intake.broke(&why);
    let error = JobError::Panicked { detail: why.clone() };
    let begun = catch_unwind(AssertUnwindSafe(|| stepper.start_over(&error)));
    if let Some(problem) = problem(begun) {
        // What the books hold cannot even be thrown away. The readers see that the engine is gone.
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

/// What went wrong, in words.
fn problem<E: std::fmt::Display>(outcome: std::thread::Result<Result<(), E>>) -> Option<String> {
    match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(panic) => Some(panic_message(&*panic)),
    }
}
