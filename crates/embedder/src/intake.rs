//! The state that callers and the engine loop share: the queue, the mode and the statistics. Must not know: how a
//! batch is computed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use headrace_engine_api::{
    Capabilities, EngineHealth, EventSender, Job, JobTicket, LoadReport, ReportAge, ResumeSupport,
    SubmitRefusal, channel,
};
use headrace_kernels::encode::EncodeShape;
use parking_lot::{Condvar, Mutex};

use crate::config::EmbedderConfig;
use crate::queue::{Queue, Waiting};

/// The longest wait that the engine reports, because it cannot predict later arrivals.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// An accepted text.
pub(crate) struct Text {
    pub(crate) job: Job,
    pub(crate) events: EventSender,
    /// Time of arrival, in nanoseconds of the clock's monotonic time.
    pub(crate) came_ns: u64,
    /// Number of texts in the queue when this text arrived.
    pub(crate) behind: u32,
}

/// Whether the engine accepts jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Open,
    Draining,
    CutOff,
}

/// The state that callers and the engine loop share.
pub(crate) struct Intake {
    pub(crate) config: EmbedderConfig,
    pub(crate) capabilities: Capabilities,
    pub(crate) shape: EncodeShape,
    pub(crate) state: Mutex<State>,
    /// Signals that a text waits or that the mode has changed.
    pub(crate) work: Condvar,
    /// Signals that no text waits or runs.
    pub(crate) quiet: Condvar,
    /// Set if a waiting text may have been cancelled.
    pub(crate) attention: AtomicBool,
    /// Tokens per second, averaged over recent batches. 0 before the first batch.
    pub(crate) pace: AtomicU64,
    pub(crate) step_ns: AtomicU64,
    pub(crate) forward_ns: AtomicU64,
}

pub(crate) struct State {
    pub(crate) queue: Queue<Text>,
    /// Texts in the current batch.
    pub(crate) running: usize,
    pub(crate) mode: Mode,
    /// Why the loop has died. `None` while it runs.
    pub(crate) dead: Option<String>,
}

impl Intake {
    pub(crate) fn new(config: EmbedderConfig, shape: EncodeShape, numerics: String) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let capabilities = Capabilities {
            model: config.model.clone(),
            compute_mode: config.compute_mode.clone(),
            numerics,
            vocab: count(shape.vocab),
            context_window: count(shape.max_tokens),
            max_logprobs: 0,
            kv_tokens: shape.max_batch_tokens as u64,
            continues: ResumeSupport::Never,
            grammars: false,
            thought_caps: false,
            forms: headrace_engine_api::FormKinds::NONE,
            short_context: None,
        };
        let state = State { queue: Queue::default(), running: 0, mode: Mode::Open, dead: None };
        Self {
            config,
            capabilities,
            shape,
            state: Mutex::new(state),
            work: Condvar::new(),
            quiet: Condvar::new(),
            attention: AtomicBool::new(false),
            pace: AtomicU64::new(0),
            step_ns: AtomicU64::new(0),
            forward_ns: AtomicU64::new(0),
        }
    }

    /// Queues a job, or returns why it was refused.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.check(&job)?;
        let tokens = self.shape.batch_tokens(job.prompt.len());
        let now_ns = self.config.clock.monotonic_nanos();
        let mut state = self.state.lock();
        if let Some(why) = &state.dead {
            return Err(SubmitRefusal::Unavailable { why: why.clone() });
        }
        if state.mode != Mode::Open {
            return Err(SubmitRefusal::Unavailable { why: "it is shutting down".to_owned() });
        }
        self.room(&state.queue, &job, tokens)?;
        let wait = self.wait(state.queue.tokens());
        if let Some(deadline) = job.start_deadline_ns
            && now_ns.saturating_add(nanos(wait)) > deadline
        {
            return Err(SubmitRefusal::TooLate { wait, prefill: Duration::ZERO, retry_after: Some(wait) });
        }
        let intake = Arc::downgrade(self);
        let wake = move || {
            if let Some(intake) = intake.upgrade() {
                intake.attention.store(true, Ordering::Release);
                intake.work.notify_one();
            }
        };
        let (events, ticket) = channel(job.unread_bytes, Arc::new(wake));
        let behind = u32::try_from(state.queue.texts()).unwrap_or(u32::MAX);
        let (tenant, weight, priority) = (job.tenant, job.weight, job.priority);
        let what = Text { job, events, came_ns: now_ns, behind };
        state.queue.push(Waiting { what, tenant, weight, priority, tokens });
        drop(state);
        self.work.notify_one();
        Ok(ticket)
    }

    fn check(&self, job: &Job) -> Result<(), SubmitRefusal> {
        let invalid = |what: &str| Err(SubmitRefusal::Invalid { what: what.to_owned() });
        let (tokens, most) = (job.prompt.len(), self.shape.max_tokens);
        if tokens == 0 {
            return invalid("a text without tokens");
        }
        if tokens > most {
            return Err(SubmitRefusal::DoesNotFit { needed: tokens as u64, limit: most as u64 });
        }
        if job.prompt.iter().any(|id| *id as usize >= self.shape.vocab) {
            return invalid("an id that is not in the vocabulary");
        }
        let alone = job.sampling.n == 1 && job.generated == 0 && job.grammar.is_none();
        if job.sampling.max_tokens != 0 || !alone {
            return invalid("a text that is to be continued: an encoder generates nothing");
        }
        Ok(())
    }

    /// Checks that the queue has room for a job. The last eighth of the queue is reserved for tenants with few
    /// waiting texts.
    fn room(&self, queue: &Queue<Text>, job: &Job, tokens: usize) -> Result<(), SubmitRefusal> {
        let EmbedderConfig { queue_texts, queue_tokens, .. } = self.config;
        let retry_after = self.wait(queue.tokens() / 2).max(Duration::from_secs(1));
        let full = |what, limit: u64| Err(SubmitRefusal::QueueFull { what, limit, retry_after });
        let many = queue.texts_of(job.tenant) > queue_texts / 8;
        let texts = if many { queue_texts / 8 * 7 } else { queue_texts };
        if queue.texts() >= texts {
            return full("sequences", queue_texts as u64);
        }
        if queue.tokens() + tokens as u64 > queue_tokens {
            return full("tokens", queue_tokens);
        }
        Ok(())
    }

    /// Returns the expected time for `tokens` tokens. Zero before the first batch.
    pub(crate) fn wait(&self, tokens: u64) -> Duration {
        match self.pace.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            pace => Duration::from_secs_f64(tokens as f64 / pace as f64).min(LONGEST_WAIT),
        }
    }

    pub(crate) fn health(&self) -> EngineHealth {
        let state = self.state.lock();
        match (&state.dead, state.mode) {
            (Some(why), _) => EngineHealth::Dead { why: why.clone() },
            (None, Mode::Open) => EngineHealth::Up,
            (None, Mode::Draining | Mode::CutOff) => EngineHealth::Draining,
        }
    }

    pub(crate) fn load(&self) -> LoadReport {
        let state = self.state.lock();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let pace = u32::try_from(self.pace.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        LoadReport {
            reported: ReportAge::Now,
            running: count(state.running),
            waiting: count(state.queue.texts()),
            waiting_tokens: state.queue.tokens(),
            tokens_per_second: pace,
            prefill_tokens_per_second: pace,
            step_ns: self.step_ns.load(Ordering::Relaxed),
            forward_ns: self.forward_ns.load(Ordering::Relaxed),
            ..LoadReport::default()
        }
    }

    /// Records a batch: its tokens, its total time, and the part of that time spent in the model.
    pub(crate) fn note(&self, tokens: u64, step_ns: u64, forward_ns: u64) {
        self.step_ns.fetch_add(step_ns, Ordering::Relaxed);
        self.forward_ns.fetch_add(forward_ns, Ordering::Relaxed);
        let now = (tokens as f64 / (step_ns.max(1) as f64 * 1e-9)) as u64;
        let before = self.pace.load(Ordering::Relaxed);
        // A moving average in which the latest batch counts one eighth.
        let pace = if before == 0 { now } else { before - before / 8 + now / 8 };
        self.pace.store(pace.max(1), Ordering::Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
