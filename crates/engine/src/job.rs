//! One job in the engine: its choices, its deliveries and its usage. Must not know: blocks or the batch.

use std::sync::Arc;
use std::time::Instant;

use headrace_domain::{EngineTrace, FinishReason, RequestId, Sampling, TokenLogprob, Usage};
use headrace_engine_api::{EventSender, GrammarFailed, Job, JobError, JobEvent, JobReport, PromptScores};
use headrace_scheduler::{Scheduler, SeqId, StartedSequence, Work};
use headrace_tokenizer::StopMatcher;

use crate::choice_grammar::ChoiceGrammar;
use crate::masks::{MAX_FORCED_IDS, MaskRunner, Wake, WorkBudget};
use crate::reasoning::{ReasoningState, ReasoningStep};
use crate::sampler::{Seen, penalizes};
use crate::text::{Decode, TextOf};
use crate::times::Times;
use crate::work_meter::WorkMeter;

/// The sampling rules that all choices of a job share.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) sampling: Sampling,
    /// Ids that end a choice, in ascending order.
    pub(crate) stop_ids: Vec<u32>,
    /// Most ids that a choice generates: `max_tokens`, or the rest of the context window if that is less.
    pub(crate) limit: u32,
}

/// One answer in progress.
pub(crate) struct Choice {
    pub(crate) number: u32,
    pub(crate) seen: Seen,
    pub(crate) generated: u32,
    /// The choice's sequence. `None` after the choice has ended.
    pub(crate) seq: Option<SeqId>,
    /// The grammar of the response format, if the job has one.
    pub(crate) grammar: Option<ChoiceGrammar>,
    /// The last chosen id, until the grammar has accepted it.
    pub(crate) pending: Option<ChosenId>,
    /// Whether the sequence is paused until its grammar has an answer.
    pub(crate) waits_for_grammar: bool,
    /// The state of the reasoning budget, if the job has one.
    pub(crate) thinking: Option<ReasoningState>,
    decoder: Box<dyn Decode>,
    stops: StopMatcher,
}

/// An id that was chosen from logits.
#[derive(Debug)]
pub(crate) struct ChosenId {
    pub(crate) id: u32,
    pub(crate) logprob: Option<TokenLogprob>,
}

/// Which of a job's choices are paused because of unread events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PausedChoices {
    None,
    /// All but the first, which computes the prompt scores. The events of the other choices wait for these scores.
    ButScores,
    /// All, until the reader has caught up.
    All,
}

/// The result of accepting one more id of a choice.
struct AcceptedId {
    text: String,
    finish: Option<FinishReason>,
    /// Whether this id ends a reasoning section.
    closes: bool,
    /// Whether the reasoning budget ends a section for the first time.
    cut: bool,
}

/// A job on the engine's thread. The caller's thread has built all its costly parts.
pub(crate) struct JobState {
    pub(crate) request: RequestId,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) rules: Rules,
    pub(crate) choices: Vec<Choice>,
    pub(crate) trace: EngineTrace,
    /// Set if the job is over early. The terminal event follows when the job's blocks are free.
    pub(crate) failure: Option<JobError>,
    sender: EventSender,
    arrived_ns: u64,
    started_ns: Option<u64>,
    first_token_ns: Option<u64>,
    cached_tokens: u64,
    /// Uncached prompt tokens that the cache keeps for minutes, and for an hour.
    pinned_tokens: [u64; 2],
    computed: u64,
    output: u64,
    last_step: u64,
    /// How the steps' time was spent when the job started.
    times: Times,
    /// The work that ran before the job and concurrently with it.
    work_meter: WorkMeter,
    /// Prompt scores so far. `None` if they were not requested or are delivered.
    scores: Option<Vec<TokenLogprob>>,
    /// Events of the choices that wait for the scores, which must come first.
    withheld: Vec<JobEvent>,
    withheld_bytes: usize,
    /// Which choices are paused, and since when.
    paused_choices: PausedChoices,
    paused_since_ns: u64,
}

impl Rules {
    /// `context_left` is the number of ids that fit after the prompt.
    pub(crate) fn new(sampling: Sampling, eos: &[u32], context_left: usize) -> Self {
        let mut stop_ids = sampling.stop_token_ids.clone();
        if !sampling.ignore_eos {
            stop_ids.extend_from_slice(eos);
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let limit = sampling.max_tokens.min(u32::try_from(context_left).unwrap_or(u32::MAX));
        Self { sampling, stop_ids, limit }
    }

    /// Returns the ids that may not be chosen next.
    pub(crate) fn suppressed(&self, generated: u32) -> &[u32] {
        if generated < self.sampling.min_tokens { &self.stop_ids } else { &[] }
    }
}

impl Choice {
    fn new(
        number: u32,
        seen_prompt: &Arc<[u32]>,
        rules: &Rules,
        text: &dyn TextOf,
        (grammar, thinking): (Option<ChoiceGrammar>, Option<ReasoningState>),
    ) -> Self {
        Self {
            number,
            seen: Seen { prompt: Arc::clone(seen_prompt), output: Default::default() },
            generated: 0,
            seq: None,
            grammar,
            pending: None,
            waits_for_grammar: false,
            thinking,
            decoder: text.decoder(),
            stops: StopMatcher::new(&rules.sampling.stop),
        }
    }

    /// Accepts the next id. Text of the first `min_tokens` ids is delivered without checking stop strings: a stop
    /// string counts only if it lies entirely in the text after them.
    fn accept(&mut self, id: u32, rules: &Rules) -> Result<AcceptedId, GrammarFailed> {
        self.generated += 1;
        if penalizes(&rules.sampling) {
            *self.seen.output.entry(id).or_default() += 1;
        }
        let free = self.generated <= rules.sampling.min_tokens;
        let stops = rules.stop_ids.binary_search(&id).is_ok();
        // A complete grammar allows only the end, even if `min_tokens` asks for a longer answer.
        if stops && (!free || self.grammar.is_some()) {
            let mut text = String::new();
            let matched = self.finish_text(rules, &mut text);
            let finish = Some(matched.unwrap_or(FinishReason::Stop));
            return Ok(AcceptedId { text, finish, closes: false, cut: false });
        }
        let ReasoningStep { closes, cut } = match &mut self.thinking {
            Some(thinking) => thinking.accept(id)?,
            None => ReasoningStep::default(),
        };
        let complete = self.grammar.as_ref().is_some_and(ChoiceGrammar::is_complete);
        let piece = self.decoder.push(id);
        let (mut text, mut finish) = if free { (piece, None) } else { self.deliver(&piece, rules) };
        if finish.is_none() && (complete || self.generated >= rules.limit) {
            let matched = self.finish_text(rules, &mut text);
            let end = if complete { FinishReason::Stop } else { FinishReason::Length };
            finish = Some(matched.unwrap_or(end));
        }
        Ok(AcceptedId { text, finish, closes, cut })
    }

    /// Returns the id that must come next, because of the reasoning budget or the grammar.
    pub(crate) fn forced(&self) -> Option<u32> {
        let thought = self.thinking.as_ref().and_then(ReasoningState::forced);
        thought.or_else(|| self.grammar.as_ref().and_then(ChoiceGrammar::forced))
    }

    /// Whether the next id can be chosen. If necessary, waits for the grammar until `until`.
    pub(crate) fn is_ready(&mut self, masks: &mut dyn MaskRunner, until: impl FnOnce() -> Instant) -> bool {
        let Some(grammar) = &mut self.grammar else { return true };
        grammar.poll_and_send(masks);
        grammar.is_ready() || grammar.wait(until(), masks, ChoiceGrammar::is_ready)
    }

    /// Passes the next id to the grammar. Skips stop ids, which are not part of the response format.
    ///
    /// # Errors
    /// The grammar forces another id.
    pub(crate) fn note_id(&mut self, id: u32, rules: &Rules) -> Result<(), GrammarFailed> {
        match &mut self.grammar {
            Some(grammar) if rules.stop_ids.binary_search(&id).is_err() => grammar.take(id),
            _ => Ok(()),
        }
    }

    fn deliver(&mut self, piece: &str, rules: &Rules) -> (String, Option<FinishReason>) {
        let step = self.stops.push(piece);
        let matched = step.matched.and_then(|at| rules.sampling.stop.get(at));
        (step.deliver, matched.map(|stop| FinishReason::StopString { matched: stop.clone() }))
    }

    /// Delivers the text held back at the end: incomplete characters, and the start of a stop string that did not
    /// complete.
    fn finish_text(&mut self, rules: &Rules, text: &mut String) -> Option<FinishReason> {
        let rest = self.decoder.flush();
        let (rest, matched) = self.deliver(&rest, rules);
        text.push_str(&rest);
        if matched.is_none() {
            text.push_str(&self.stops.flush());
        }
        matched
    }
}

impl JobState {
    /// Prepares a job whose sequences are not known yet.
    pub(crate) fn new(
        job: &Job,
        rules: Rules,
        (text, vocab): (&dyn TextOf, u32),
        (sender, wake): (EventSender, Option<Wake>),
        now_ns: u64,
    ) -> Self {
        let mut seen: Vec<u32> = Vec::new();
        if rules.sampling.repetition_penalty != 1.0 {
            seen.extend_from_slice(job.parts().0);
            seen.sort_unstable();
            seen.dedup();
        }
        let seen: Arc<[u32]> = seen.into();
        let numbers = (0..rules.sampling.n).map(|i| job.first_choice.saturating_add(i));
        let budget = WorkBudget::of_choice(rules.sampling.n);
        let bound = || {
            let grammar = job.grammar.as_ref().zip(wake.as_ref());
            let grammar = grammar
                .map(|(grammar, wake)| ChoiceGrammar::new(&**grammar, (vocab, job.tenant.0), budget, wake));
            (grammar, job.thought.as_ref().map(|cap| ReasoningState::new(cap, job.grammar.is_some())))
        };
        let choices = numbers.map(|number| Choice::new(number, &seen, &rules, text, bound())).collect();
        Self {
            request: job.request,
            prompt: Arc::clone(&job.prompt),
            scores: rules.sampling.prompt_logprobs.map(|_| Vec::with_capacity(job.prompt.len())),
            rules,
            choices,
            trace: EngineTrace::default(),
            failure: None,
            sender,
            arrived_ns: now_ns,
            started_ns: None,
            first_token_ns: None,
            cached_tokens: 0,
            pinned_tokens: [0; 2],
            computed: 0,
            output: 0,
            last_step: 0,
            times: Times::default(),
            work_meter: WorkMeter::of(job.tenant.0),
            withheld: Vec::new(),
            withheld_bytes: 0,
            paused_choices: PausedChoices::None,
            paused_since_ns: 0,
        }
    }

    /// Accepts the ids that another engine generated for the job's only choice, without sending them. Returns the
    /// finish reason if they complete the answer.
    ///
    /// # Errors
    /// The ids do not match the job's response format.
    pub(crate) fn take_up(&mut self, generated: &[u32]) -> Result<Option<FinishReason>, GrammarFailed> {
        let Some(choice) = self.choices.first_mut() else { return Ok(None) };
        for id in generated {
            if let Some(grammar) = &mut choice.grammar
                && self.rules.stop_ids.binary_search(id).is_err()
            {
                grammar.accept_here(*id)?;
            }
            let finish = choice.accept(*id, &self.rules)?.finish;
            if finish.is_some() {
                return Ok(finish);
            }
        }
        Ok(None)
    }

    /// Starts the computation of the masks for the first ids of the choices.
    pub(crate) fn look_ahead(&mut self, masks: &mut dyn MaskRunner) {
        let grammars = self.choices.iter_mut().filter_map(|choice| choice.grammar.as_mut());
        grammars.for_each(|grammar| grammar.send(masks));
    }

    /// Whether a choice is paused, because of unread events or because of its grammar.
    pub(crate) fn is_paused(&self, choice: usize) -> bool {
        let unread = self.paused_choices == PausedChoices::All
            || (self.paused_choices == PausedChoices::ButScores && choice > 0);
        unread || self.choices.get(choice).is_some_and(|choice| choice.waits_for_grammar)
    }

    /// Returns why the grammar of a choice could not accept its last ids.
    pub(crate) fn form_failure(&self, choice: usize) -> Option<GrammarFailed> {
        self.choices.get(choice)?.grammar.as_ref()?.accept_failure().cloned()
    }

    /// Ends a choice whose grammar turned out to be complete after its last id was delivered.
    pub(crate) fn end_behind(&mut self, choice: usize) {
        let Some(ended) = self.choices.get_mut(choice) else { return };
        let (number, mut text) = (ended.number, String::new());
        let matched = ended.finish_text(&self.rules, &mut text);
        if !text.is_empty() {
            self.emit(JobEvent::Tokens { choice: number, ids: Vec::new(), text, logprobs: Vec::new() });
        }
        self.end(choice, matched.unwrap_or(FinishReason::Stop));
    }

    /// Whether the job was cancelled or its reader is gone.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.sender.is_cancelled()
    }

    /// Whether the job has failed or every choice has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.failure.is_some() || self.choices.iter().all(|choice| choice.seq.is_none())
    }

    /// Records a failure. The first one is kept.
    pub(crate) fn fail(&mut self, error: JobError) {
        self.failure.get_or_insert(error);
    }

    /// Records the job's arrival, just before the scheduler gets it.
    pub(crate) fn arrive(&mut self, scheduler: &Scheduler) {
        self.trace.queue_depth = u32::try_from(scheduler.waiting()).unwrap_or(u32::MAX);
        self.work_meter.arrive(scheduler);
    }

    /// Records the job's start. Its first chunk is in the planned step that begins at `now_ns`.
    pub(crate) fn start(
        &mut self,
        started: &StartedSequence,
        now_ns: u64,
        times: Times,
        scheduler: &Scheduler,
    ) {
        if self.started_ns.is_some() {
            return;
        }
        let StartedSequence { cached_tokens, pinned, miss, .. } = *started;
        self.started_ns = Some(now_ns);
        let layout = scheduler.layout();
        self.pinned_tokens = pinned.blocks.map(|blocks| u64::from(blocks) * layout.block_tokens() as u64);
        self.trace.pinned_blocks = pinned.blocks.iter().sum();
        self.trace.unpinned_blocks = pinned.beyond;
        self.cached_tokens = cached_tokens as u64;
        self.computed = self.cached_tokens;
        self.trace.queue_ns = now_ns.saturating_sub(self.arrived_ns);
        self.trace.ahead = Some(self.work_meter.start(scheduler, self.trace.queue_ns));
        self.trace.miss = miss;
        self.times = times;
        self.trace.cached_blocks = layout.full_blocks(cached_tokens) as u32;
        self.send(JobEvent::Started { cached_tokens: u32::try_from(cached_tokens).unwrap_or(u32::MAX) });
    }

    /// Records that step `step` contains one of the job's chunks and `batch` sequences. `work` is the total work when
    /// the step was planned.
    pub(crate) fn note_step(&mut self, step: u64, batch: usize, prefills: bool, work: Work) {
        if self.last_step == step {
            return;
        }
        self.last_step = step;
        if self.first_token_ns.is_some() {
            self.work_meter.generates(work);
        }
        let batch = u32::try_from(batch).unwrap_or(u32::MAX);
        let trace = &mut self.trace;
        trace.batch_min = if trace.steps == 0 { batch } else { trace.batch_min.min(batch) };
        trace.batch_max = trace.batch_max.max(batch);
        trace.batch_sum += u64::from(batch);
        trace.steps = trace.steps.saturating_add(1);
        trace.prefill_chunks = trace.prefill_chunks.saturating_add(u32::from(prefills));
    }

    /// Records that keys and values are stored up to `end`.
    pub(crate) fn note_computed(&mut self, end: usize) {
        self.computed = self.computed.max(end.min(self.prompt.len()) as u64);
    }

    /// Returns the number of alternatives for each prompt score. `None` if no more scores are needed.
    pub(crate) fn scoring(&self) -> Option<u8> {
        self.scores.as_ref().and(self.rules.sampling.prompt_logprobs)
    }

    /// Returns the index of the prompt token to score next.
    pub(crate) fn next_score(&self) -> usize {
        self.scores.as_ref().map_or(usize::MAX, Vec::len)
    }

    /// Adds the score of the next prompt token.
    pub(crate) fn push_score(&mut self, score: TokenLogprob) {
        if let Some(scores) = &mut self.scores {
            scores.push(score);
        }
    }

    /// Sends the scores when they are complete, then the events that waited for them.
    pub(crate) fn deliver_scores(&mut self) {
        if self.next_score() != self.prompt.len() {
            return;
        }
        if let Some(tokens) = self.scores.take() {
            self.send(JobEvent::Scored(PromptScores { tokens }));
            self.withheld_bytes = 0;
            for event in std::mem::take(&mut self.withheld) {
                self.send(event);
            }
        }
    }

    /// Accepts one more id of a choice at `now_ns`, then the forced ids that follow it. Appends the forced ids to
    /// `further`. With log-probabilities no forced ids follow, because each id needs its own. Returns whether the
    /// choice continues.
    ///
    /// # Errors
    /// The grammar allows no further id, or has failed.
    pub(crate) fn accept(
        &mut self,
        choice: usize,
        id: u32,
        logprob: Option<TokenLogprob>,
        further: &mut Vec<u32>,
        now_ns: u64,
    ) -> Result<bool, GrammarFailed> {
        let Some(taken) = self.choices.get_mut(choice) else { return Ok(false) };
        let AcceptedId { mut text, mut finish, mut closes, mut cut } = taken.accept(id, &self.rules)?;
        let number = taken.number;
        let (mut ids, mut thoughts) = (vec![id], Vec::new());
        while finish.is_none() && logprob.is_none() && ids.len() < MAX_FORCED_IDS {
            let Some(next) = taken.forced() else { break };
            taken.note_id(next, &self.rules)?;
            if std::mem::replace(&mut closes, false) {
                // Reasoning text gets its own event, so that it is counted as reasoning.
                let thought = std::mem::take(&mut text);
                thoughts.push((ids.len(), thought));
            }
            let accepted = taken.accept(next, &self.rules)?;
            ids.push(next);
            text.push_str(&accepted.text);
            (finish, closes) = (accepted.finish, accepted.closes);
            cut |= accepted.cut;
        }
        further.extend_from_slice(ids.get(1..).unwrap_or_default());
        self.output += ids.len() as u64;
        let first = *self.first_token_ns.get_or_insert(now_ns);
        self.trace.prefill_ns = first.saturating_sub(self.started_ns.unwrap_or(first));
        self.trace.decode_ns = now_ns.saturating_sub(first);
        self.trace.thoughts_cut = self.trace.thoughts_cut.saturating_add(u32::from(cut));
        let mut emitted = 0;
        for (end, text) in thoughts {
            let rest = ids.split_off(end - emitted);
            emitted = end;
            let ids = std::mem::replace(&mut ids, rest);
            self.emit(JobEvent::Tokens { choice: number, ids, text, logprobs: Vec::new() });
        }
        let logprobs = logprob.into_iter().collect();
        self.emit(JobEvent::Tokens { choice: number, ids, text, logprobs });
        Ok(match finish {
            None => true,
            Some(reason) => {
                self.end(choice, reason);
                false
            }
        })
    }

    /// Ends a choice.
    pub(crate) fn end(&mut self, choice: usize, reason: FinishReason) {
        let Some(ended) = self.choices.get_mut(choice) else { return };
        ended.seq = None;
        ended.grammar = None;
        ended.pending = None;
        let number = ended.number;
        self.emit(JobEvent::Finished { choice: number, reason });
    }

    /// Sends an event, or keeps it while scores are pending.
    fn emit(&mut self, event: JobEvent) {
        if self.scores.is_some() {
            self.withheld_bytes += event.bytes();
            self.withheld.push(event);
        } else {
            self.send(event);
        }
    }

    /// Whether the amount of unread events changes which choices are paused.
    pub(crate) fn is_to_change(&self) -> bool {
        match self.paused_choices {
            PausedChoices::None => self.sender.is_full() || self.withheld_bytes >= self.sender.bound(),
            PausedChoices::ButScores => self.scores.is_none() || self.sender.is_full(),
            PausedChoices::All => !self.sender.is_paused(),
        }
    }

    /// Updates which choices are paused, from `now_ns` on.
    pub(crate) fn update_pause(&mut self, now_ns: u64) {
        if self.paused_choices == PausedChoices::All {
            self.trace.paused_ns += now_ns.saturating_sub(self.paused_since_ns);
        }
        self.paused_choices = if self.sender.is_full() && self.sender.pause() {
            self.paused_since_ns = now_ns;
            PausedChoices::All
        } else if self.withheld_bytes >= self.sender.bound() {
            PausedChoices::ButScores
        } else {
            PausedChoices::None
        };
    }

    fn send(&mut self, event: JobEvent) {
        if !self.sender.send(event) {
            self.fail(JobError::Cancelled);
        }
    }

    /// Whether the job's computed data may be corrupt.
    pub(crate) fn is_spoilt(&self) -> bool {
        matches!(
            self.failure,
            Some(JobError::Panicked { .. } | JobError::NotFinite { .. } | JobError::Internal { .. })
        )
    }

    /// Sends the terminal event. `times` and `work` are the time spent and the work done by all steps until `now_ns`.
    pub(crate) fn close(mut self, times: Times, now_ns: u64, work: Work) {
        if self.paused_choices == PausedChoices::All {
            self.trace.paused_ns += now_ns.saturating_sub(self.paused_since_ns);
        }
        if self.started_ns.is_some() {
            let own = times.since(self.times);
            (self.trace.step_ns, self.trace.forward_ns) = (own.step_ns, own.forward_ns);
            self.trace.sample_ns = own.sample_ns;
        }
        // Limits cache writes to computed tokens: tokens that were never computed are not in the cache either.
        let computed = self.computed.saturating_sub(self.cached_tokens);
        if self.started_ns.is_some() {
            self.trace.beside = Some(self.work_meter.end(work, computed, self.trace.decode_ns));
        }
        let [minutes, hour] = self.pinned_tokens;
        let cache_write_1h = hour.min(computed);
        let cache_write = minutes.min(computed - cache_write_1h);
        let usage = Usage {
            input: computed - cache_write_1h - cache_write,
            cached_input: self.cached_tokens,
            cache_write,
            cache_write_1h,
            output: self.output,
            ..Usage::default()
        };
        let report = Arc::new(JobReport { usage, engine: self.trace });
        self.sender.finish(match self.failure {
            None => JobEvent::Done(report),
            Some(error) => JobEvent::Failed { error, report },
        });
    }
}
