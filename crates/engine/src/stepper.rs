//! One step of the loop: accept jobs, plan, forward, sample, commit. The stepper has no thread and no clock of its
//! own.
//! Must not know: who submits jobs.
//!
//! A problem with one sequence ends only that sequence's job. A step that panics or fails is computed again sequence
//! by sequence. Nothing of the failed attempt survives. It wrote only uncommitted positions, which the new attempt
//! writes again before anything reads them. No prefix lookup could find its blocks.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_domain::{PrefixKeys, RequestId};
use headrace_engine_api::{Capabilities, Job, JobError, JobTicket, LoadReport, SubmitRefusal};
use headrace_kernels::forward::{Forward, ForwardError, Logits, LogitsWanted, SequenceChunk};
use headrace_kv_layout::{BlockTables, StateSlots};
use headrace_scheduler::{LogitsNeed, Outcome, PlannedChunk, SeqId, Work};

use crate::config::{EngineConfig, EngineError};
use crate::intake::{Intake, Mode, SharedState};
use crate::job::JobState;
use crate::masks::{InlineMasks, MaskRunner};
use crate::sampler::Sampler;
use crate::text::TextOf;
use crate::times::Times;

mod grammars;
mod restart;
mod sample;
mod warm_up;

/// Jobs per step that are checked for a reader that left without cancelling.
const READERS_CHECKED_PER_STEP: usize = 32;

/// The result of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There was nothing to compute.
    Idle,
    /// A step was computed.
    Stepped {
        /// Sequences in the step.
        sequences: usize,
        /// Tokens in the step.
        tokens: usize,
    },
}

/// The step loop, driven by its owner.
pub struct Stepper {
    pub(crate) intake: Arc<Intake>,
    forward: Box<dyn Forward>,
    sampler: Sampler,
    masks: Box<dyn MaskRunner>,
    jobs: Vec<Option<JobState>>,
    vacant: Vec<usize>,
    /// The owner of each sequence slot, as (sequence, job, choice).
    owners: Vec<Option<(SeqId, usize, usize)>>,
    batch: Batch,
    logits: Logits,
    outcomes: Vec<Outcome>,
    /// Forced ids that follow the ids in `outcomes`.
    further: Vec<u32>,
    /// The sequences of these ids, each with its range in `further`.
    followed: Vec<(SeqId, Range<usize>)>,
    /// Indices of chunks whose chosen ids their grammars have not accepted yet.
    pending: Vec<usize>,
    /// Sequences to pause from the next step on, because their grammars are late.
    late: Vec<SeqId>,
    /// Sequences that are paused because of their grammars.
    waiting_for_grammar: Vec<SeqId>,
    /// Grammar work to charge, per sequence, in units.
    form_work: Vec<(SeqId, u64)>,
    /// Deadline for waiting for masks in this step. `None` if the step has not waited yet.
    mask_until: Option<Instant>,
    /// Jobs to close after the commit.
    over: Vec<usize>,
    /// Jobs whose paused choices change after the commit.
    to_change: Vec<usize>,
    steps: u64,
    next_reader: usize,
    /// The last time read from the clock, in nanoseconds.
    seen_ns: u64,
    /// How the time of the current step is spent.
    times: Times,
    /// How the time of all steps was spent.
    all_times: Times,
    /// The work of all steps.
    all_work: Work,
}

/// A copy of the planned step, so that the scheduler's lock is not held during the computation.
#[derive(Default)]
struct Batch {
    chunks: Vec<PlannedChunk>,
    tokens: Vec<u32>,
    /// The block tables of all chunks: for each chunk, that of all positions and that of the window.
    blocks: Vec<u32>,
    /// For each chunk, where its parts end.
    ends: Vec<ChunkEnds>,
}

/// Where the parts of a chunk end in the lists of a [`Batch`], its state slots, and whether its context is long.
#[derive(Clone, Copy, Default)]
struct ChunkEnds {
    tokens: usize,
    full: usize,
    window: usize,
    states: Option<StateSlots>,
    long_context: bool,
}

impl Batch {
    fn copy_from(&mut self, shared: &SharedState) {
        self.chunks.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.ends.clear();
        for chunk in &shared.scheduler.current().chunks {
            self.chunks.push(*chunk);
            let (full, window) = (self.blocks.len(), self.blocks.len());
            let mut ends = ChunkEnds { full, window, ..ChunkEnds::default() };
            if let Some(view) = shared.scheduler.view(chunk) {
                self.tokens.extend_from_slice(view.tokens);
                self.blocks.extend_from_slice(view.tables.full);
                ends.full = self.blocks.len();
                self.blocks.extend_from_slice(view.tables.window);
                ends.window = self.blocks.len();
                ends.states = view.tables.states;
                ends.long_context = view.long_context;
            }
            ends.tokens = self.tokens.len();
            self.ends.push(ends);
        }
    }

    /// Returns one chunk in the model's format.
    fn chunk(&self, at: usize) -> Option<SequenceChunk<'_>> {
        let (planned, ends) = (self.chunks.get(at)?, self.ends.get(at)?);
        let before = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default();
        Some(SequenceChunk {
            tokens: self.tokens.get(before.tokens..ends.tokens)?,
            start: planned.start,
            tables: BlockTables {
                full: self.blocks.get(before.window..ends.full)?,
                window: self.blocks.get(ends.full..ends.window)?,
                states: ends.states,
            },
            logits: wanted(planned.logits),
            long_context: ends.long_context,
        })
    }
}

pub(crate) fn wanted(need: LogitsNeed) -> LogitsWanted {
    match need {
        LogitsNeed::None => LogitsWanted::None,
        LogitsNeed::Last => LogitsWanted::Last,
        LogitsNeed::All => LogitsWanted::All,
    }
}

impl Stepper {
    /// Creates a loop over `forward` without jobs.
    ///
    /// # Errors
    /// [`EngineError::Config`] with all values that do not fit the model.
    pub fn new(
        forward: Box<dyn Forward>,
        text: Arc<dyn TextOf>,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        let sampler = Sampler::new(config.isa);
        let intake = Intake::new(&*forward, text, config)?;
        Ok(Self {
            intake,
            forward,
            sampler,
            masks: Box::new(InlineMasks),
            jobs: Vec::new(),
            vacant: Vec::new(),
            owners: Vec::new(),
            batch: Batch::default(),
            logits: Logits::default(),
            outcomes: Vec::new(),
            further: Vec::new(),
            followed: Vec::new(),
            pending: Vec::new(),
            late: Vec::new(),
            waiting_for_grammar: Vec::new(),
            form_work: Vec::new(),
            mask_until: None,
            over: Vec::new(),
            to_change: Vec::new(),
            steps: 0,
            next_reader: 0,
            seen_ns: 0,
            times: Times::default(),
            all_times: Times::default(),
            all_work: Work::default(),
        })
    }

    /// Makes `masks` do the grammar work. Without this, each step does it itself.
    #[must_use]
    pub fn with_masks(mut self, masks: Box<dyn MaskRunner>) -> Self {
        self.masks = masks;
        self
    }

    /// Submits a job. It starts in a later [`Stepper::step`].
    ///
    /// # Errors
    /// [`SubmitRefusal`] if the job was refused. It has then consumed nothing.
    pub fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.intake.submit(job)
    }

    /// Returns what the engine can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.intake.capabilities
    }

    /// Returns the current load.
    pub fn load(&self) -> LoadReport {
        self.intake.load()
    }

    /// Returns the number of a prompt's leading tokens that are in the prefix cache.
    pub fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        self.intake.cached_prefix(keys)
    }

    /// Releases what a call holds in the prefix cache ([`Job::held`]).
    pub fn release_pins(&self, owner: RequestId) {
        self.intake.release_pins(owner);
    }

    /// Returns the number of pinned and reserved blocks over all cache groups.
    pub fn pinned_blocks(&self) -> usize {
        self.intake.shared.lock().scheduler.pinned_blocks().iter().sum()
    }

    /// Checks that the scheduler's records are consistent. For tests.
    ///
    /// # Errors
    /// A description of the inconsistency.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.intake.shared.lock().scheduler.check_invariants()
    }

    /// Runs one step.
    pub fn step(&mut self) -> Progress {
        self.steps += 1;
        let intake = Arc::clone(&self.intake);
        let now_ns = intake.config.clock.monotonic_nanos();
        self.seen_ns = now_ns;
        {
            let mut shared = intake.shared.lock();
            self.take_in(&mut shared, now_ns);
            shared.scheduler.plan(now_ns);
            self.batch.copy_from(&shared);
            self.note_plan(&mut shared, now_ns);
            self.abort_over(&mut shared);
        }
        // Readers of cancelled and expired jobs get their terminal event before the step computes.
        self.close_over();
        self.times = Times::default();
        if !self.batch.chunks.is_empty() {
            self.compute();
        }
        let done_ns = intake.config.clock.monotonic_nanos();
        self.seen_ns = done_ns;
        {
            let mut shared = intake.shared.lock();
            if !self.batch.chunks.is_empty() {
                shared.scheduler.commit(&self.outcomes, done_ns);
                self.append_further(&mut shared);
                let end_ns = intake.config.clock.monotonic_nanos();
                self.times.step_ns = end_ns.saturating_sub(now_ns);
                self.all_times.add(self.times);
                shared.times = self.all_times;
                self.all_work = shared.scheduler.work();
                self.pause_late_choices(&mut shared);
            }
            self.apply_pauses(&mut shared, done_ns);
            self.abort_over(&mut shared);
        }
        self.close_over();
        match self.batch.chunks.len() {
            0 => Progress::Idle,
            sequences => Progress::Stepped { sequences, tokens: self.batch.tokens.len() },
        }
    }

    /// Accepts new jobs, removes cancelled ones, and lets jobs resume if their readers caught up. After the cut-off
    /// removes all jobs.
    fn take_in(&mut self, shared: &mut SharedState, now_ns: u64) {
        self.adopt(shared);
        if shared.masks_ready {
            self.join_again(shared);
        }
        let cut_off = shared.mode == Mode::CutOff;
        let look_at_all = std::mem::take(&mut shared.attention) || cut_off;
        let count = self.jobs.len();
        let looks = if look_at_all { count } else { count.min(READERS_CHECKED_PER_STEP) };
        for _ in 0..looks {
            self.next_reader = if self.next_reader + 1 < count { self.next_reader + 1 } else { 0 };
            let at = self.next_reader;
            let Some(job) = self.jobs.get_mut(at).and_then(Option::as_mut) else { continue };
            if job.is_cancelled() {
                job.fail(JobError::Cancelled);
                self.over.push(at);
            } else if cut_off {
                job.fail(JobError::ShuttingDown);
                self.over.push(at);
            } else if job.is_to_change() {
                self.to_change.push(at);
            }
        }
        self.apply_pauses(shared, now_ns);
        // Runs before the plan, so that the freed blocks and slots serve this step.
        self.abort_over(shared);
    }

    /// Pauses the choices of jobs with too many unread events, and resumes those that may continue.
    fn apply_pauses(&mut self, shared: &mut SharedState, now_ns: u64) {
        for at in self.to_change.drain(..) {
            let job = self.jobs.get_mut(at).and_then(Option::as_mut);
            let Some(job) = job.filter(|job| job.is_to_change()) else { continue };
            job.update_pause(now_ns);
            for (i, seq) in job.choices.iter().enumerate().filter_map(|(i, c)| Some((i, c.seq?))) {
                if job.is_paused(i) {
                    shared.scheduler.pause(seq)
                } else {
                    shared.scheduler.resume(seq)
                };
            }
        }
    }

    fn adopt(&mut self, shared: &mut SharedState) {
        for mut job in shared.inbox.drain(..) {
            // The masks are computed while the prompt is.
            job.look_ahead(&mut *self.masks);
            let at = self.vacant.pop().unwrap_or_else(|| {
                self.jobs.push(None);
                self.jobs.len() - 1
            });
            for (choice, seq) in job.choices.iter().enumerate().filter_map(|(i, c)| c.seq.map(|seq| (i, seq)))
            {
                if self.owners.len() <= seq.slot() {
                    self.owners.resize(seq.slot() + 1, None);
                }
                if let Some(owner) = self.owners.get_mut(seq.slot()) {
                    *owner = Some((seq, at, choice));
                }
            }
            if let Some(slot) = self.jobs.get_mut(at) {
                *slot = Some(job);
            }
        }
    }

    fn owner(&self, seq: SeqId) -> Option<(usize, usize)> {
        let &(owned, job, choice) = self.owners.get(seq.slot())?.as_ref()?;
        (owned == seq).then_some((job, choice))
    }

    /// Records in each job what the plan means for it.
    fn note_plan(&mut self, shared: &mut SharedState, now_ns: u64) {
        let plan = shared.scheduler.current();
        let (batch, work) = (plan.chunks.len(), shared.scheduler.work());
        for started in &plan.started {
            if let Some((job, _)) = self.owner(started.seq)
                && let Some(job) = self.jobs.get_mut(job).and_then(Option::as_mut)
            {
                job.start(started, now_ns, self.all_times, &shared.scheduler);
            }
        }
        for chunk in &plan.chunks {
            if let Some((job, _)) = self.owner(chunk.seq)
                && let Some(job) = self.jobs.get_mut(job).and_then(Option::as_mut)
            {
                let prefills = chunk.start < job.prompt.len();
                job.note_step(self.steps, batch, prefills, work);
            }
        }
        for &seq in &plan.preempted {
            if let Some((job, _)) = self.owner(seq)
                && let Some(job) = self.jobs.get_mut(job).and_then(Option::as_mut)
            {
                job.trace.preemptions = job.trace.preemptions.saturating_add(1);
            }
        }
        for expired in &plan.expired {
            if let Some((at, _)) = self.owner(expired.seq)
                && let Some(job) = self.jobs.get_mut(at).and_then(Option::as_mut)
            {
                let retry_after = Duration::from_nanos(expired.retry_after_ns);
                job.fail(JobError::Expired { retry_after });
                self.over.push(at);
            }
        }
    }

    /// Computes the batch and fills `outcomes` with one outcome per chunk.
    fn compute(&mut self) {
        self.outcomes.clear();
        self.pending.clear();
        self.further.clear();
        self.followed.clear();
        self.mask_until = None;
        let count = self.batch.chunks.len();
        let from_ns = self.now_ns();
        let chunks: Vec<_> = (0..count).map_while(|at| self.batch.chunk(at)).collect();
        let together = run(&mut *self.forward, &chunks, &mut self.logits);
        drop(chunks);
        let computed_ns = self.now_ns();
        self.times.forward_ns = computed_ns.saturating_sub(from_ns);
        match together {
            Ok(()) => {
                let mut row = 0;
                for at in 0..count {
                    let rows = self.batch.chunk(at).map_or(0, |chunk| chunk.logits.rows(chunk.tokens.len()));
                    let outcome = self.sample_guarded(at, row);
                    self.outcomes.push(outcome);
                    row += rows;
                }
                self.accept_pending();
                self.times.sample_ns = self.now_ns().saturating_sub(computed_ns);
            }
            Err(error) if count == 1 => {
                let outcome = self.blame(0, error);
                self.outcomes.push(outcome);
            }
            Err(error) => {
                tracing::warn!(
                    model = self.intake.config.model,
                    sequences = count,
                    ?error,
                    "a step failed; computing its sequences one by one"
                );
                (0..count).for_each(|at| self.compute_alone(at));
                self.accept_pending();
                self.times.forward_ns = self.now_ns().saturating_sub(from_ns);
            }
        }
    }

    /// Computes one chunk of a failed step by itself.
    fn compute_alone(&mut self, at: usize) {
        let alone = match self.batch.chunk(at) {
            Some(chunk) => run(&mut *self.forward, &[chunk], &mut self.logits),
            None => Err(JobError::Internal { detail: "a chunk without its tokens".to_owned() }),
        };
        let outcome = match alone {
            Ok(()) => self.sample_guarded(at, 0),
            Err(error) => self.blame(at, error),
        };
        self.outcomes.push(outcome);
    }

    fn now_ns(&self) -> u64 {
        self.intake.config.clock.monotonic_nanos()
    }

    fn blame(&mut self, at: usize, error: JobError) -> Outcome {
        let seq = self.batch.chunks.get(at).map(|chunk| chunk.seq);
        if let Some((at, _)) = seq.and_then(|seq| self.owner(seq))
            && let Some(job) = self.jobs.get_mut(at).and_then(Option::as_mut)
        {
            tracing::error!(model = self.intake.config.model, request = ?job.request, ?error, "a call failed in the engine");
            job.fail(error);
            self.over.push(at);
        }
        Outcome::Failed
    }

    fn ended(&mut self, job: usize) -> Outcome {
        self.note(job);
        Outcome::Ended
    }

    /// Checks a job that has sent an event: it may be over, its reader may be gone, or too much may be unread.
    fn note(&mut self, at: usize) {
        let Some(job) = self.jobs.get(at).and_then(Option::as_ref) else { return };
        if job.is_over() {
            self.over.push(at);
        } else if job.is_to_change() {
            self.to_change.push(at);
        }
    }

    /// Frees the blocks of finished jobs, unless the commit has freed them. If such a job is in the step about to be
    /// computed, the commit skips it. No freed block is reused before the next plan.
    fn abort_over(&mut self, shared: &mut SharedState) {
        for &at in &self.over {
            let Some(job) = self.jobs.get_mut(at).and_then(Option::as_mut) else { continue };
            let spoilt = job.is_spoilt();
            for seq in job.choices.iter_mut().filter_map(|choice| choice.seq.take()) {
                if spoilt {
                    shared.scheduler.fail(seq)
                } else {
                    shared.scheduler.abort(seq)
                };
            }
        }
    }

    /// Sends the terminal events, after the blocks are free.
    fn close_over(&mut self) {
        let mut closed = 0;
        for at in self.over.drain(..) {
            if let Some(job) = self.jobs.get_mut(at).and_then(Option::take) {
                job.close(self.all_times, self.seen_ns, self.all_work);
                self.vacant.push(at);
                closed += 1;
            }
        }
        if closed > 0 {
            let mut shared = self.intake.shared.lock();
            shared.alive -= closed;
            if shared.alive == 0 {
                self.intake.quiet.notify_all();
            }
        }
    }
}

/// Computes a batch. Returns a panic as an error.
fn run(forward: &mut dyn Forward, batch: &[SequenceChunk<'_>], logits: &mut Logits) -> Result<(), JobError> {
    match catch_unwind(AssertUnwindSafe(|| forward.step(batch, logits))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(ForwardError::Panicked { message })) => Err(JobError::Panicked { detail: message }),
        Ok(Err(error)) => Err(JobError::Internal { detail: error.to_string() }),
        Err(panic) => Err(JobError::Panicked { detail: panic_message(&*panic) }),
    }
}

/// Returns the message of a panic, if it has one.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let said = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    said.unwrap_or_else(|| "a panic without words".to_owned())
}
