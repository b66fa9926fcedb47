//! The state that callers' threads and the engine's thread share: the lock around the scheduler, the inbox, and the
//! wake-up of an idle engine. All costly work for a new job (checks, matchers, decoders, hashes) happens here before
//! the lock is taken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_domain::{PrefixKeys, RequestId, Sampling};
use headrace_engine_api::{
    Capabilities, EngineHealth, GrammarFailed, GroupBlocks, Job, JobTicket, LoadReport, Priority, ReportAge,
    ResumeSupport, SubmitRefusal, channel,
};
use headrace_kernels::forward::{Forward, ForwardShape};
use headrace_scheduler::{AddRefusal, BlockCounts, Class, Scheduler, SeqId, SequenceSpec, Work};
use parking_lot::{Condvar, Mutex};

use crate::config::{EngineConfig, EngineError, MAX_LOGPROBS};
use crate::job::{JobState, Rules};
use crate::masks::Wake;
use crate::text::TextOf;
use crate::times::Times;

/// Whether the engine accepts jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    Open,
    /// Running jobs continue. New ones are refused.
    Draining,
    /// Running jobs are cut off at the next step.
    CutOff,
    /// The loop broke and is restarting.
    Restarting {
        why: String,
    },
    /// The loop broke too often.
    Dead {
        why: String,
    },
}

/// The state behind the lock. Both sides hold the lock only briefly, and never while a step computes.
pub(crate) struct SharedState {
    pub(crate) scheduler: Scheduler,
    pub(crate) inbox: Vec<JobState>,
    /// Set if a job was cancelled, or if the reader of a paused job has caught up. The loop then checks all jobs.
    pub(crate) attention: bool,
    /// Set if the grammar of a paused sequence may have an answer.
    pub(crate) masks_ready: bool,
    pub(crate) mode: Mode,
    /// Jobs without a terminal event.
    pub(crate) alive: usize,
    /// How often the loop has restarted.
    pub(crate) restarts: u32,
    /// How the time of the steps was spent.
    pub(crate) times: Times,
}

/// The locked state, the condition variables that signal it, and data that both sides only read.
pub(crate) struct Intake {
    pub(crate) shared: Mutex<SharedState>,
    /// Signalled when the loop has work.
    pub(crate) work: Condvar,
    /// Signalled when the last job has ended.
    pub(crate) quiet: Condvar,
    pub(crate) capabilities: Capabilities,
    /// The model's capacity and sizes.
    shape: ForwardShape,
    pub(crate) text: Arc<dyn TextOf>,
    pub(crate) config: EngineConfig,
}

impl SharedState {
    pub(crate) fn has_work(&self) -> bool {
        let must_cut = self.mode == Mode::CutOff && self.alive > 0;
        self.attention || self.masks_ready || must_cut || !self.inbox.is_empty() || !self.scheduler.is_idle()
    }

    fn health(&self) -> EngineHealth {
        match &self.mode {
            Mode::Open => EngineHealth::Up,
            Mode::Draining | Mode::CutOff => EngineHealth::Draining,
            Mode::Restarting { why } => EngineHealth::Restarting { why: why.clone() },
            Mode::Dead { why } => EngineHealth::Dead { why: why.clone() },
        }
    }
}

impl Intake {
    pub(crate) fn new(
        forward: &dyn Forward,
        text: Arc<dyn TextOf>,
        config: EngineConfig,
    ) -> Result<Arc<Self>, EngineError> {
        let shape = forward.shape();
        config.check(shape)?;
        let scheduler = config.scheduler_for(shape)?;
        let capabilities = Capabilities {
            model: config.model.clone(),
            compute_mode: config.compute_mode.clone(),
            numerics: forward.numerics().to_owned(),
            vocab: to_u32(shape.vocab),
            context_window: to_u32(scheduler.config().context_window),
            max_logprobs: MAX_LOGPROBS,
            kv_tokens: shape.kv.pool_tokens(scheduler.config().context_window) as u64,
            continues: ResumeSupport::Exactly,
            grammars: true,
            thought_caps: true,
            forms: headrace_engine_api::FormKinds::NONE,
            short_context: shape.short_positions.map(to_u32),
        };
        let (inbox, times) = (Vec::new(), Times::default());
        let (mode, attention) = (Mode::Open, false);
        let shared = SharedState {
            scheduler,
            inbox,
            attention,
            masks_ready: false,
            mode,
            alive: 0,
            restarts: 0,
            times,
        };
        let (work, quiet, shape) = (Condvar::new(), Condvar::new(), shape.clone());
        Ok(Arc::new(Self { shared: Mutex::new(shared), work, quiet, capabilities, shape, text, config }))
    }

    /// Queues a job, or returns why it was refused.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.check(&job)?;
        let (own, generated) = job.parts();
        let now_ns = self.config.clock.monotonic_nanos();
        let window = self.capabilities.context_window as usize;
        let rules = Rules::new(job.sampling.clone(), &self.config.eos, window.saturating_sub(own.len()));
        // The frequencies of a long context hold for the whole sequence, and are part of what its keys stand for.
        let long_context = self.capabilities.is_long_context(own.len(), job.sampling.max_tokens);
        let salt = self.capabilities.block_salt(&job.salt, own.len(), job.sampling.max_tokens);
        // Hashing is costly. If the caller has not done it, it happens here on the caller's thread, outside the lock.
        let given = job.keys.clone().filter(|keys| keys.are_of(&salt, &job.prompt));
        let hash = || self.config.scheduler.prefix_cache.then(|| PrefixKeys::of(&salt, &job.prompt));
        let spec = SequenceSpec {
            prompt: Arc::clone(&job.prompt),
            max_new: job.sampling.max_tokens.saturating_sub(job.generated),
            salt,
            keys: given.or_else(hash),
            tenant: job.tenant.0,
            weight: job.weight,
            class: match job.priority {
                Priority::Idle => Class::Idle,
                Priority::Normal => Class::Normal,
            },
            start_deadline_ns: job.start_deadline_ns,
            score_prompt: job.sampling.prompt_logprobs.is_some(),
            pins: Arc::clone(&job.pins),
            held: job.held,
            long_context,
        };
        let waker = Arc::clone(self);
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(move || waker.look()));
        let words = (&*self.text, self.capabilities.vocab);
        let wake = job.grammar.is_some().then(|| self.masks_waker());
        let mut state = JobState::new(&job, rules, words, (sender, wake), now_ns);
        state.trace.prompt_blocks = self.shape.kv.cacheable_blocks(job.prompt.len()) as u32;
        let invalid = |failed: GrammarFailed| SubmitRefusal::Invalid { what: failed.to_string() };
        if let Some(reason) = state.take_up(generated).map_err(invalid)? {
            // The answer was complete already. Only its end is missing.
            state.end(0, reason);
            state.close(Times::default(), now_ns, Work::default());
            return Ok(ticket);
        }
        let mut ids: Vec<SeqId> = Vec::with_capacity(state.choices.len());

        let mut shared = self.shared.lock();
        let health = shared.health();
        if !health.is_up() {
            return Err(SubmitRefusal::Unavailable { why: health.to_string() });
        }
        state.arrive(&shared.scheduler);
        shared.scheduler.add_group(&spec, state.choices.len(), now_ns, &mut ids).map_err(refusal)?;
        for (choice, id) in state.choices.iter_mut().zip(ids) {
            choice.seq = Some(id);
        }
        shared.inbox.push(state);
        shared.alive += 1;
        drop(shared);
        self.work.notify_one();
        Ok(ticket)
    }

    /// Makes the loop check for cancelled jobs and for readers that have caught up.
    fn look(&self) {
        self.shared.lock().attention = true;
        self.work.notify_one();
    }

    /// Returns a function that wakes the engine when the grammar of a paused sequence has an answer.
    fn masks_waker(self: &Arc<Self>) -> Wake {
        let waker = Arc::downgrade(self);
        Arc::new(move || {
            if let Some(intake) = waker.upgrade() {
                intake.shared.lock().masks_ready = true;
                intake.work.notify_one();
            }
        })
    }

    pub(crate) fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        self.shared.lock().scheduler.cached_prefix(keys)
    }

    /// Releases what a call holds in the prefix cache.
    pub(crate) fn release_pins(&self, owner: RequestId) {
        self.shared.lock().scheduler.release_pins(owner);
    }

    pub(crate) fn load(&self) -> LoadReport {
        let (load, times, restarts) = {
            let shared = self.shared.lock();
            (shared.scheduler.load(), shared.times, shared.restarts)
        };
        let counted = |counts: &BlockCounts| GroupBlocks {
            total: to_u32(counts.total),
            free: to_u32(counts.free),
            cached: to_u32(counts.cached),
        };
        // The first group that has layers is reported as the engine's blocks, the others by name.
        let [full, window, states] = [load.blocks.full(), load.blocks.window(), load.blocks.state()]
            .map(|counts| (counts.total > 0).then(|| counted(counts)));
        let (first, window, states) = match (full, window, states) {
            (Some(full), window, states) => (full, window, states),
            (None, Some(window), states) => (window, None, states),
            (None, None, states) => (states.unwrap_or_default(), None, None),
        };
        LoadReport {
            reported: ReportAge::Now,
            running: to_u32(load.running),
            paused: to_u32(load.paused),
            waiting: to_u32(load.waiting),
            waiting_tokens: load.waiting_tokens,
            blocks_total: first.total,
            blocks_free: first.free,
            blocks_cached: first.cached,
            window,
            states,
            cache_used_permille: None,
            tokens_per_second: load.tokens_per_second,
            prefill_tokens_per_second: load.prefill_tokens_per_second,
            decode_tokens_per_second: load.decode_tokens_per_second,
            restarts,
            step_ns: times.step_ns,
            forward_ns: times.forward_ns,
            sample_ns: times.sample_ns,
        }
    }

    pub(crate) fn health(&self) -> EngineHealth {
        self.shared.lock().health()
    }

    /// Stops accepting jobs because the loop broke.
    pub(crate) fn broke(&self, why: &str) {
        let mut shared = self.shared.lock();
        if shared.mode == Mode::Open {
            shared.mode = Mode::Restarting { why: why.to_owned() };
        }
    }

    /// Waits for `rest`. Returns `false` if the engine was cut off meanwhile.
    pub(crate) fn rest(&self, rest: Duration) -> bool {
        let until = Instant::now() + rest;
        let mut shared = self.shared.lock();
        while shared.mode != Mode::CutOff {
            if self.work.wait_until(&mut shared, until).timed_out() {
                break;
            }
        }
        shared.mode != Mode::CutOff
    }

    /// Records a successful restart and accepts jobs again.
    pub(crate) fn reopen(&self) {
        let mut shared = self.shared.lock();
        shared.restarts = shared.restarts.saturating_add(1);
        if matches!(shared.mode, Mode::Restarting { .. }) {
            shared.mode = Mode::Open;
        }
    }

    /// Records that the loop will not restart.
    pub(crate) fn died(&self, why: String) {
        self.shared.lock().mode = Mode::Dead { why };
        self.quiet.notify_all();
    }

    /// Rejects jobs that the gateway should have refused already, so that they never reach the sampler.
    fn check(&self, job: &Job) -> Result<(), SubmitRefusal> {
        let vocab = self.capabilities.vocab;
        let s = &job.sampling;
        let bad = |what: String| Err(SubmitRefusal::Invalid { what });
        if let Some(id) = job.prompt.iter().find(|&&id| id >= vocab) {
            return bad(format!("prompt id {id} is outside the vocabulary of {vocab}"));
        }
        if s.n == 0 || s.n > self.config.max_choices || job.first_choice.checked_add(s.n).is_none() {
            return bad(format!("n = {}; at most {} answers", s.n, self.config.max_choices));
        }
        let one = s.n == 1 && s.prompt_logprobs.is_none() && !job.parts().0.is_empty();
        if job.generated > 0 && !one {
            let (generated, all) = (job.generated, job.prompt.len());
            return bad(format!("{generated} of {all} ids generated before, for n = {} or with scores", s.n));
        }
        for (what, logprobs) in [("logprobs", s.logprobs), ("prompt_logprobs", s.prompt_logprobs)] {
            if logprobs.is_some_and(|n| n > MAX_LOGPROBS) {
                return bad(format!("{what} beyond {MAX_LOGPROBS}"));
            }
        }
        if let Some(&(id, bias)) = s.logit_bias.iter().find(|(id, bias)| *id >= vocab || !bias.is_finite()) {
            return bad(format!("logit_bias {bias} for id {id}; ids are below {vocab}, biases finite"));
        }
        if s.stop.iter().any(String::is_empty) {
            return bad("an empty stop string".to_owned());
        }
        if let Some(why) = job.thought.as_ref().and_then(|thought| thought.check(vocab).err()) {
            return bad(why);
        }
        match out_of_range(s) {
            Some((name, value)) => bad(format!("{name} = {value}")),
            None => Ok(()),
        }
    }
}

/// Returns the first parameter that the sampler cannot use. NaN is in no range.
fn out_of_range(s: &Sampling) -> Option<(&'static str, f32)> {
    let ranges = [
        ("temperature", s.temperature, 0.0..=f32::MAX),
        ("top_p", s.top_p, f32::MIN_POSITIVE..=1.0),
        ("min_p", s.min_p, 0.0..=1.0),
        ("frequency_penalty", s.frequency_penalty, -1e3..=1e3),
        ("presence_penalty", s.presence_penalty, -1e3..=1e3),
        ("repetition_penalty", s.repetition_penalty, 1e-3..=1e3),
    ];
    ranges.into_iter().find(|(_, value, range)| !range.contains(value)).map(|(name, value, _)| (name, value))
}

fn refusal(refused: AddRefusal) -> SubmitRefusal {
    match refused {
        AddRefusal::QueueFull { what, limit, retry_after_ns } => {
            SubmitRefusal::QueueFull { what, limit, retry_after: Duration::from_nanos(retry_after_ns) }
        }
        AddRefusal::DoesNotFit { needed, limit } => SubmitRefusal::DoesNotFit { needed, limit },
        AddRefusal::TooLate { wait_ns, prefill_ns, retry_after_ns } => SubmitRefusal::TooLate {
            wait: Duration::from_nanos(wait_ns),
            prefill: Duration::from_nanos(prefill_ns),
            retry_after: retry_after_ns.map(Duration::from_nanos),
        },
        AddRefusal::Invalid { what } => SubmitRefusal::Invalid { what },
    }
}

/// Converts a count of things in memory, which stays far below 2^32.
fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
