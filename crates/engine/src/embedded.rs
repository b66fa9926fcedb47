//! The step loop on a thread of its own, behind the engine seam. An idle engine sleeps; a new job or a cancel wakes it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headrace_domain::PrefixKeys;
use headrace_engine_api::{Capabilities, Engine, Job, JobError, LoadReport, SubmitRefusal, Ticket};
use headrace_kernels::forward::Forward;
use headrace_tokenizer::Tokenizer;
use parking_lot::Mutex;

use crate::config::{EngineConfig, EngineError};
use crate::intake::{Mode, Shared};
use crate::stepper::{Progress, Stepper, panic_message};
use crate::text::{TextOf, TokenizerText};

/// How long the loop rests if, against its invariants, nothing can be planned while something waits.
const STUCK_PAUSE: Duration = Duration::from_millis(1);

/// An engine in this process. Dropping it cuts off what runs.
pub struct EmbeddedEngine {
    shared: Arc<Shared>,
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
        let mut stepper = Stepper::new(forward, text, config)?;
        if let Err(error) = stepper.warm_up() {
            // The first call will show whether that lasts; it then ends with the reason.
            tracing::warn!(?error, "the model failed while it was warmed up");
        }
        let shared = Arc::clone(&stepper.shared);
        // A name with a zero byte in it is refused by the system.
        let builder = std::thread::Builder::new().name(name.replace('\0', ""));
        let thread = builder.spawn(move || run(stepper)).map_err(|source| EngineError::Thread { source })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Takes no new jobs, lets what runs end for at most `grace`, cuts off the rest ([`JobError::ShuttingDown`]) and
    /// waits for the thread to end: at most a step longer. Blocks; safe to call twice.
    pub fn shutdown(&self, grace: Duration) {
        let until = Instant::now() + grace;
        {
            let mut front = self.shared.front.lock();
            if front.mode == Mode::Open {
                front.mode = Mode::Draining;
            }
            while front.alive > 0 && front.mode == Mode::Draining {
                if self.shared.quiet.wait_until(&mut front, until).timed_out() {
                    break;
                }
            }
            if front.mode != Mode::Dead {
                front.mode = Mode::CutOff;
            }
        }
        self.shared.work.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The loop catches its own panics; there is nothing to learn from the result.
            let _ = thread.join();
        }
    }
}

impl Engine for EmbeddedEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn submit(&self, job: Job) -> Result<Ticket, SubmitRefusal> {
        self.shared.submit(job)
    }

    fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        self.shared.cached_prefix(keys)
    }

    fn load(&self) -> LoadReport {
        self.shared.load()
    }

    fn drain(&self) {
        self.shared.drain();
    }
}

impl Drop for EmbeddedEngine {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// The thread.
fn run(mut stepper: Stepper) {
    let shared = Arc::clone(&stepper.shared);
    loop {
        {
            let mut front = shared.front.lock();
            while !front.has_work() {
                if front.mode == Mode::CutOff {
                    return;
                }
                shared.work.wait(&mut front);
            }
        }
        match catch_unwind(AssertUnwindSafe(|| stepper.step())) {
            Ok(Progress::Stepped { .. }) => {}
            Ok(Progress::Idle) => {
                let mut front = shared.front.lock();
                if front.has_work() && front.inbox.is_empty() && !front.attention {
                    shared.work.wait_for(&mut front, STUCK_PAUSE);
                }
            }
            Err(panic) => {
                // Not a sequence's fault, which would have been caught further in: the loop itself is broken.
                let detail = panic_message(&*panic);
                tracing::error!(detail, "the engine's loop panicked and is gone");
                shared.front.lock().mode = Mode::Dead;
                let last = AssertUnwindSafe(|| stepper.fail_all(&JobError::Panicked { detail }));
                // If even that fails, the readers see their senders dropped.
                let _ = catch_unwind(last);
                shared.quiet.notify_all();
                return;
            }
        }
    }
}
