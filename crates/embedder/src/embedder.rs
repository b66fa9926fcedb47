//! The engine loop, on its own thread: takes a batch from the queue, runs the model once, and answers each text. It
//! sleeps when the queue is empty. Must not know: which text is next (`queue` decides).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headrace_domain::{EngineTrace, FinishReason, PrefixKeys, Usage};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, Job, JobError, JobEvent, JobReport, JobTicket, LoadReport,
    SubmitRefusal,
};
use headrace_kernels::encode::{Encode, Sequence, Vectors};
use headrace_kernels::forward::ForwardError;
use headrace_kernels::pool::panic_message;
use parking_lot::Mutex;

use crate::config::{EmbedderConfig, EmbedderError};
use crate::intake::{Intake, Mode, Text};

/// An encoder engine in this process. Dropping it waits for the current batch, then fails the waiting
/// texts ([`JobError::ShuttingDown`]).
pub struct Embedder {
    intake: Arc<Intake>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Embedder {
    /// Starts the loop on a thread named `embedder-MODEL`.
    ///
    /// # Errors
    /// [`EmbedderError`] if the system cannot start a thread.
    pub fn start(model: Box<dyn Encode>, config: EmbedderConfig) -> Result<Self, EmbedderError> {
        // The system rejects names with a zero byte.
        let name = format!("embedder-{}", config.model).replace('\0', "");
        let intake = Arc::new(Intake::new(config, model.shape().clone(), model.numerics().to_owned()));
        let looped = Arc::clone(&intake);
        let run = move || run(&looped, model);
        let thread = std::thread::Builder::new().name(name).spawn(run);
        let thread = thread.map_err(|source| EmbedderError::Thread { source })?;
        Ok(Self { intake, thread: Mutex::new(Some(thread)) })
    }

    /// Stops accepting jobs and lets waiting and running texts finish for at most `grace`. Then fails the texts that
    /// still wait ([`JobError::ShuttingDown`]) and joins the thread, which takes at most one more batch. Blocks. Safe
    /// to call twice.
    pub fn shutdown(&self, grace: Duration) {
        let until = Instant::now() + grace;
        {
            let mut state = self.intake.state.lock();
            if state.mode == Mode::Open {
                state.mode = Mode::Draining;
            }
            while state.mode == Mode::Draining
                && state.dead.is_none()
                && state.queue.texts() + state.running > 0
                && !self.intake.quiet.wait_until(&mut state, until).timed_out()
            {}
            state.mode = Mode::CutOff;
        }
        self.intake.work.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The thread catches panics, so the result carries no information.
            let _ = thread.join();
        }
    }
}

impl Engine for Embedder {
    fn capabilities(&self) -> &Capabilities {
        &self.intake.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.intake.submit(job)
    }

    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        self.intake.load()
    }

    fn health(&self) -> EngineHealth {
        self.intake.health()
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}

/// The thread's main function. `EncodeLoop::encode` catches panics of the model. A panic of the loop itself ends the
/// engine and all its texts.
fn run(intake: &Intake, model: Box<dyn Encode>) {
    let mut encode_loop = EncodeLoop { intake, model, vectors: Vectors::default() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| encode_loop.turn())) {
        let why = panic_message(&*panic);
        tracing::error!(model = intake.config.model, why, "the encoder's loop broke, and the engine is dead");
        let mut state = intake.state.lock();
        state.dead = Some(why.clone());
        state.running = 0;
        let left = state.queue.remove(|_| true);
        drop(state);
        for waiting in left {
            fail(waiting.what, JobError::Panicked { detail: why.clone() });
        }
        intake.quiet.notify_all();
    }
}

struct EncodeLoop<'d> {
    intake: &'d Intake,
    model: Box<dyn Encode>,
    vectors: Vectors,
}

impl EncodeLoop<'_> {
    /// Encodes batches while there is work, and sleeps otherwise. Returns after the cut-off.
    fn turn(&mut self) {
        loop {
            let (batch, gone) = {
                let mut state = self.intake.state.lock();
                state.running = 0;
                while state.queue.texts() == 0 && state.mode != Mode::CutOff {
                    self.intake.quiet.notify_all();
                    self.intake.work.wait(&mut state);
                }
                if state.mode == Mode::CutOff {
                    let left = state.queue.remove(|_| true);
                    drop(state);
                    left.into_iter().for_each(|waiting| fail(waiting.what, JobError::ShuttingDown));
                    return;
                }
                let gone = match self.intake.attention.swap(false, Ordering::AcqRel) {
                    true => state.queue.remove(|text| text.events.is_cancelled()),
                    false => Vec::new(),
                };
                let config = &self.intake.config;
                let batch = state.queue.batch(config.batch_texts, config.batch_tokens);
                state.running = batch.len();
                (batch, gone)
            };
            gone.into_iter().for_each(|waiting| fail(waiting.what, JobError::Cancelled));
            let batch = batch.into_iter().filter_map(|waiting| self.start_text(waiting.what)).collect();
            self.answer(batch);
        }
    }

    /// Sends [`JobEvent::Started`] to the text's reader. Returns `None` if the text's deadline has passed or its reader
    /// has left.
    fn start_text(&self, text: Text) -> Option<StartedText> {
        let now_ns = self.intake.config.clock.monotonic_nanos();
        if text.job.start_deadline_ns.is_some_and(|deadline| now_ns > deadline) {
            let retry_after = self.intake.wait(self.intake.load().waiting_tokens);
            fail(text, JobError::Expired { retry_after });
            return None;
        }
        if text.events.is_cancelled() || !text.events.send(JobEvent::Started { cached_tokens: 0 }) {
            fail(text, JobError::Cancelled);
            return None;
        }
        Some(StartedText { text, began_ns: now_ns })
    }

    /// Encodes a batch and answers each text. If the batch fails, each text is tried alone, so that only the text
    /// that causes the failure fails.
    fn answer(&mut self, batch: Vec<StartedText>) {
        if batch.is_empty() {
            return;
        }
        let clock = Arc::clone(&self.intake.config.clock);
        let from_ns = clock.monotonic_nanos();
        let computed = self.encode(&batch);
        let forward_ns = clock.monotonic_nanos().saturating_sub(from_ns);
        let tokens: u64 = batch.iter().map(|started| started.text.job.prompt.len() as u64).sum();
        let size = batch.len();
        match computed {
            Ok(()) => {
                for (row, started) in batch.into_iter().enumerate() {
                    let values = self.vectors.row(row).unwrap_or_default();
                    finish(started, values, size, clock.monotonic_nanos());
                }
            }
            Err(_) if size > 1 => {
                for started in batch {
                    self.answer(vec![started]);
                }
                return;
            }
            Err(error) => {
                for started in batch {
                    fail(started.text, to_job_error(&error));
                }
            }
        }
        let step_ns = clock.monotonic_nanos().saturating_sub(from_ns);
        self.intake.note(tokens, step_ns, forward_ns);
    }

    fn encode(&mut self, batch: &[StartedText]) -> Result<(), ForwardError> {
        let separator = self.intake.config.separator;
        let sequences: Vec<Sequence<'_>> = batch
            .iter()
            .map(|started| {
                let tokens: &[u32] = &started.text.job.prompt;
                let first = separator.and_then(|id| tokens.iter().position(|token| *token == id));
                Sequence { tokens, second: first.map_or(tokens.len(), |at| at + 1) }
            })
            .collect();
        let Self { model, vectors, .. } = self;
        let computed = catch_unwind(AssertUnwindSafe(|| model.encode(&sequences, vectors)));
        computed.unwrap_or_else(|panic| Err(ForwardError::Panicked { message: panic_message(&*panic) }))
    }
}

/// A text whose reader has received [`JobEvent::Started`].
struct StartedText {
    text: Text,
    began_ns: u64,
}

fn to_job_error(error: &ForwardError) -> JobError {
    match error {
        ForwardError::Panicked { message } => JobError::Panicked { detail: message.clone() },
        ForwardError::BadBatch { .. } | ForwardError::Failed { .. } => {
            JobError::Internal { detail: error.to_string() }
        }
    }
}

fn fail(text: Text, error: JobError) {
    text.events.finish(JobEvent::Failed { error, report: Arc::default() });
}

fn finish(started: StartedText, values: &[f32], batch: usize, now_ns: u64) {
    let StartedText { text: Text { job, events, came_ns, behind }, began_ns } = started;
    let batch = u32::try_from(batch).unwrap_or(u32::MAX);
    let report = Arc::new(JobReport {
        usage: Usage { input: job.prompt.len() as u64, ..Usage::default() },
        engine: EngineTrace {
            queue_depth: behind,
            queue_ns: began_ns.saturating_sub(came_ns),
            prefill_ns: now_ns.saturating_sub(began_ns),
            steps: 1,
            prefill_chunks: 1,
            batch_min: batch,
            batch_max: batch,
            batch_sum: u64::from(batch),
            step_ns: now_ns.saturating_sub(began_ns),
            forward_ns: now_ns.saturating_sub(began_ns),
            ..EngineTrace::default()
        },
    });
    if values.iter().any(|value| !value.is_finite()) {
        return events.finish(JobEvent::Failed { error: JobError::NotFinite { position: 0 }, report });
    }
    // Send errors are ignored: they mean that the reader is gone.
    let _ = events.send(JobEvent::Encoded(Arc::from(values)));
    let _ = events.send(JobEvent::Finished { choice: job.first_choice, reason: FinishReason::Stop });
    events.finish(JobEvent::Done(report));
}
