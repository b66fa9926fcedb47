//! The token source: the jobs of a call in engines, and its replies parsed. Its input is ids and deliverable text; tool
//! calls are extracted from the text here (stage `postprocess`). Must not know dialects, bytes or money.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use headrace_call_state::{AnswerRecorder, MOST_ANSWER_TOKENS, Rejection};
use headrace_domain::{
    Call, Code, EncodeWish, FinishReason, PriceTier, Prompt, PromptItem, ReplyEvent, RequestId, ShownPrompt,
    Stage, ToEncode, TokenLogprob, Usage, UsageSource,
};
use headrace_engine_api::{JobError, JobEvent, ResumeSupport, SubmitRefusal};
use headrace_fleet::Placement;
use headrace_prompt::{CallIds, OfferedTools, ReplyForm, ReplyParser};
use headrace_render::constrained_tools;
use headrace_wire::WireLimits;

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::formatted_text::FormattedText;
use super::jobs::{CallJobs, SubmittedJob};
use super::source_event::{LostJob, LostRace, ReplyProgress, SourceEvent};
use super::source_report::{SourceTimes, SourceUsage};

/// See the top of the file.
pub(crate) struct TokenSource {
    work: Arc<RenderedWork>,
    jobs: CallJobs,
    /// One for each choice.
    parsers: Vec<ReplyParser>,
    /// Choices that a stop string ended within their reasoning. They have no text, and their end must be
    /// distinguishable.
    cut_thoughts: Vec<usize>,
    /// The usage of the prompt, as far as it was known when the first event came.
    prompt: Option<Usage>,
    /// The generated ids, if another worker could continue from them. Otherwise nothing is kept.
    resumable: Option<Box<ResumableTokens>>,
    /// The answers' texts, if they are to be checked against a form.
    checked_text: Option<Box<FormattedText>>,
    /// The ids of each answer, if they go into the generated-id cache.
    recorded: Vec<Vec<u32>>,
    /// Two workers have the call, and neither has produced output.
    racing: bool,
    /// The first output of the faster worker.
    first_output: Option<Box<JobEvent>>,
    /// Ids generated so far, over all choices.
    generated: u64,
    times: SourceTimes,
}

/// What another worker needs to continue.
#[derive(Default)]
struct ResumableTokens {
    /// One for each choice.
    emitted: Vec<EmittedTokens>,
    /// The prompt usage of all jobs that began, each prompt counted once.
    prompts: Usage,
    /// An answer was begun by one worker and continued by another.
    moved_on: bool,
}

/// The output of a choice so far.
#[derive(Default)]
struct EmittedTokens {
    ids: Vec<u32>,
    finished: bool,
}

/// An unfinished answer.
pub(crate) struct PartialTokens {
    pub(crate) choice: u32,
    /// The prompt, and the answer so far.
    pub(crate) ids: Arc<[u32]>,
    /// How many of the last ids belong to the answer.
    pub(crate) generated: u32,
}

impl TokenSource {
    pub(super) fn new(work: Arc<RenderedWork>, limits: &WireLimits) -> Self {
        Self {
            checked_text: FormattedText::of(&work, limits).map(Box::new),
            work,
            jobs: CallJobs::default(),
            parsers: Vec::new(),
            cut_thoughts: Vec::new(),
            prompt: None,
            resumable: None,
            recorded: Vec::new(),
            racing: false,
            first_output: None,
            generated: 0,
            times: SourceTimes::default(),
        }
    }

    /// Adds a job for a prompt that a worker has taken. Prompts come in order; a lost one is added again.
    pub(crate) fn add_job(&mut self, job: SubmittedJob) {
        let continues = job.placement.capabilities().map_or(ResumeSupport::Never, |engine| engine.continues);
        let work = &self.work;
        // A single worker has no other to hand over to.
        if self.resumable.is_none()
            && continues != ResumeSupport::Never
            && work.terms.catalog.fleet().workers_of(&work.model.name) > 1
        {
            let mut resumable = Box::<ResumableTokens>::default();
            resumable.emitted.resize_with(work.choices() as usize, EmittedTokens::default);
            self.resumable = Some(resumable);
        }
        if let Some(resumable) = &mut self.resumable {
            resumable.moved_on |= job.continued_choice.is_some();
        }
        self.jobs.add(job);
    }

    pub(super) fn only_worker(&self) -> Option<&Placement> {
        self.jobs.only_worker().filter(|_| self.work.parts() == 1)
    }

    /// Adds a second worker that has taken the call. The worker that produces the first output keeps it.
    pub(crate) fn race(&mut self, second: SubmittedJob) {
        self.add_job(second);
        self.racing = true;
    }

    pub(super) fn take_back(&mut self, job: usize) -> Option<Placement> {
        self.jobs.take_back(job)
    }

    /// The jobs of the call.
    pub(crate) const fn jobs(&self) -> &CallJobs {
        &self.jobs
    }

    /// The unfinished answers of a lost job, which another worker can continue. `None` if the job can start again
    /// unseen.
    pub(crate) fn unfinished_answers(
        &mut self,
        job: usize,
        context: &RequestContext,
    ) -> Option<Vec<PartialTokens>> {
        if !self.jobs.has_shown(job) {
            return None;
        }
        let unfinished: Vec<PartialTokens> =
            self.choices_of(job).filter_map(|choice| self.unfinished_answer(job, choice)).collect();
        if unfinished.is_empty() {
            // Only its final event is missing.
            if let Some(resumable) = &mut self.resumable {
                resumable.moved_on = true;
            }
            self.jobs.note_answered(job, context.elapsed_ns());
        }
        Some(unfinished)
    }

    /// The choices that a job is to answer.
    fn choices_of(&self, job: usize) -> std::ops::Range<u32> {
        let n = self.work.sampling.n;
        let first = u32::try_from(self.jobs.part(job)).unwrap_or(u32::MAX).saturating_mul(n);
        match self.jobs.choice(job) {
            Some(choice) => choice..choice.saturating_add(1),
            None => first..first.saturating_add(n),
        }
    }

    fn unfinished_answer(&self, job: usize, choice: u32) -> Option<PartialTokens> {
        let emitted =
            self.resumable.as_ref()?.emitted.get(choice as usize).filter(|emitted| !emitted.finished)?;
        let prompt = self.prompt(job)?;
        let ids: Vec<u32> = prompt.iter().chain(&emitted.ids).copied().collect();
        let generated = u32::try_from(emitted.ids.len()).ok()?;
        Some(PartialTokens { choice, ids: ids.into(), generated })
    }

    pub(super) fn answered_ns(&self, part: usize) -> Option<u64> {
        self.jobs.answered_ns(part)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Makes the parsers, which may take a while with tools. The workers that took the call are already running.
    pub(crate) fn make_parsers(&mut self, request: RequestId) {
        let form = reply_form(&self.work);
        let parser = |choice| ReplyParser::new(&form, choice, CallIds::from(request));
        self.parsers = (0..self.work.choices()).map(parser).collect();
        if self.recorder().is_some() {
            self.recorded.resize_with(self.parsers.len(), Vec::new);
        }
    }

    pub(super) fn next(
        &mut self,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> impl Future<Output = SourceEvent> {
        poll_fn(move |cx| self.poll_next(cx, None, context, events))
    }

    pub(super) fn next_ready(
        &mut self,
        from_ns: u64,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Option<SourceEvent> {
        let cx = &mut Context::from_waker(Waker::noop());
        match self.poll_next(cx, Some(from_ns), context, events) {
            Poll::Ready(event) => Some(event),
            Poll::Pending => None,
        }
    }

    /// Returns the next event of any job, processed. If `timed_ns` is set, the caller times all events since then
    /// together, and the clock is not read here.
    pub(super) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        timed_ns: Option<u64>,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> Poll<SourceEvent> {
        if let Some(first) = self.first_output.take() {
            return Poll::Ready(self.take(0, *first, timed_ns, context, events));
        }
        self.jobs.poll_next(cx).map(|next| match next {
            None => SourceEvent::Over,
            Some((job, event)) if self.racing => self.raced(job, event, timed_ns, context, events),
            Some((job, None)) => SourceEvent::Lost(self.lost(job, None)),
            Some((job, Some(event))) => self.take(job, event, timed_ns, context, events),
        })
    }

    /// Processes an event of one of two racing jobs.
    fn raced(
        &mut self,
        job: usize,
        event: Option<JobEvent>,
        timed_ns: Option<u64>,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> SourceEvent {
        let failed = match &event {
            Some(JobEvent::Started { .. }) => {
                return event
                    .map_or(SourceEvent::Over, |event| self.take(job, event, timed_ns, context, events));
            }
            Some(JobEvent::Failed { error, .. }) => Some(self.lost(job, Some(error))),
            None => Some(self.lost(job, None)),
            Some(_) => None,
        };
        self.racing = false;
        let loser = if failed.is_some() { job } else { 1 - job.min(1) };
        self.first_output = event.filter(|_| failed.is_none()).map(Box::new);
        let used = self.usage_of(loser);
        match self.jobs.remove(loser) {
            Some(placement) => SourceEvent::Outrun(Box::new(LostRace { placement, used, failed })),
            None => SourceEvent::Over,
        }
    }

    /// Processes one event of job `job`.
    fn take(
        &mut self,
        job: usize,
        event: JobEvent,
        timed_ns: Option<u64>,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) -> SourceEvent {
        let from = timed_ns.unwrap_or_else(|| context.clock.monotonic_nanos());
        let before = events.len();
        let (mut cached, mut has_started, mut meaningful) = (0, true, true);
        match event {
            JobEvent::Started { cached_tokens } => {
                (cached, meaningful) = (u64::from(cached_tokens), false);
                self.start(job, cached, context, events);
            }
            JobEvent::Scored(scores) => {
                if self.wants_prompt() {
                    self.show_prompt(job, scores.tokens, events);
                }
            }
            JobEvent::Tokens { choice, ids, text, logprobs } => {
                self.generated += ids.len() as u64;
                context.publish_token_count(self.generated);
                self.note_output(context);
                if let Some(emitted) = self.emitted_of(choice) {
                    emitted.ids.extend_from_slice(&ids);
                }
                let recorded = self.recorded.get_mut(choice as usize);
                if let Some(recorded) = recorded.filter(|ids| is_recorded(ids)) {
                    recorded.extend_from_slice(&ids);
                }
                if let Some(parser) = self.parsers.get_mut(choice as usize) {
                    parser.push(text, ids, logprobs, events);
                }
            }
            JobEvent::Encoded(values) => {
                self.note_output(context);
                let choice = u32::try_from(self.jobs.part(job)).unwrap_or(u32::MAX);
                events.push(ReplyEvent::Encoded { choice, values: shortened(&self.work.call, values) });
            }
            JobEvent::Finished { choice, reason } => self.finish(choice, reason, context, events),
            JobEvent::Done(_) => {
                (has_started, meaningful) = (false, false);
                self.jobs.note_answered(job, context.elapsed_ns());
            }
            JobEvent::Failed { error, .. } => return SourceEvent::Lost(self.lost(job, Some(&error))),
        }
        if let (Some(text), Some(new)) = (&mut self.checked_text, events.get(before..)) {
            text.take(new);
        }
        let prompt = if has_started { self.begin(cached).map(Box::new) } else { None };
        let at_ns = match timed_ns {
            Some(from) => from,
            None => self.time_batch(from, from, context),
        };
        SourceEvent::More(ReplyProgress { prompt, tokens: None, meaningful, at_ns })
    }

    /// Takes the start of a job, with `cached` tokens of its prompt from the cache.
    fn start(&mut self, job: usize, cached: u64, context: &RequestContext, events: &mut Vec<ReplyEvent>) {
        if self.times.first_token_ns.is_none() {
            context.is_in(Stage::Prefill);
        }
        // A prompt that moved to another worker begins again there, but is counted once.
        if !self.jobs.begin(job) {
            return;
        }
        let tokens = self.prompt_tokens(job);
        let cached_input = cached.min(tokens);
        let usage = Usage { input: tokens - cached_input, cached_input, ..Usage::default() };
        if let Some(resumable) = &mut self.resumable {
            resumable.prompts = resumable.prompts.plus(&usage);
        }
        // With its log-probabilities, the prompt is shown once they have come.
        if self.wants_prompt() && self.work.sampling.prompt_logprobs.is_none() {
            self.show_prompt(job, Vec::new(), events);
        }
    }

    /// Notes when the first output came.
    fn note_output(&mut self, context: &RequestContext) {
        if self.times.first_token_ns.is_none() {
            self.times.first_token_ns = Some(context.elapsed_ns());
            context.is_in(Stage::Decode);
        }
    }

    /// Takes the end of a choice.
    fn finish(
        &mut self,
        choice: u32,
        reason: FinishReason,
        context: &RequestContext,
        events: &mut Vec<ReplyEvent>,
    ) {
        if let Some(emitted) = self.emitted_of(choice) {
            emitted.finished = true;
        }
        if let (Some(recorder), Some(ids)) = (self.recorder(), self.recorded.get(choice as usize)) {
            recorder.keep(ids, context.record.started);
        }
        if let Some(parser) = self.parsers.get_mut(choice as usize) {
            if matches!(reason, FinishReason::StopString { .. }) && parser.is_thinking() {
                self.cut_thoughts.push(choice as usize);
            }
            parser.finish(reason, events);
        }
    }

    /// Adds the time since `from_ns` to the stage `postprocess`. Returns the present time.
    pub(super) fn time_batch(&mut self, from_ns: u64, _: u64, context: &RequestContext) -> u64 {
        let now_ns = context.clock.monotonic_nanos();
        self.times.postprocess_ns += now_ns.saturating_sub(from_ns);
        now_ns
    }

    /// Describes a job that ended without its answer. Without an error, its engine is gone.
    fn lost(&self, job: usize, error: Option<&JobError>) -> Box<LostJob> {
        let (rejection, cause) = match error {
            Some(error) => (Rejection::job_failed(error), error.to_string()),
            None => (engine_died(), "the engine stopped without a word".to_owned()),
        };
        let unseen_or_known = !self.jobs.has_shown(job) || self.resumable.is_some();
        let may_move = !error.is_some_and(is_of_the_call) && unseen_or_known;
        let broke = !matches!(error, Some(JobError::ShuttingDown | JobError::Refused(_)));
        let part = self.jobs.part(job);
        Box::new(LostJob { part, job, rejection, cause, may_move, may_move_if_unseen: false, broke })
    }

    /// Returns the prompt's usage with the first output, and `None` afterwards.
    fn begin(&mut self, cached: u64) -> Option<Usage> {
        if self.prompt.is_some() {
            return None;
        }
        let prompt = self.work.prompt_tokens();
        let cached_input = cached.min(prompt);
        self.prompt = Some(Usage { input: prompt - cached_input, cached_input, ..Usage::default() });
        self.prompt
    }

    pub(super) fn take_checked_text(&mut self) -> Option<Box<FormattedText>> {
        self.checked_text.take()
    }

    pub(super) async fn cancel(&mut self) {
        self.jobs.cancel().await;
    }

    pub(super) fn price_tier(&self) -> PriceTier {
        self.work.call.tier.into()
    }

    pub(super) fn usage(&self) -> SourceUsage {
        SourceUsage { usage: self.counted_usage(), known_by: UsageSource::Counted, why_estimated: None }
    }

    /// The usage that engines report, but at least what came: an engine that died, or stopped too slowly, has reported
    /// nothing. The parsers count reasoning tokens.
    fn counted_usage(&self) -> Usage {
        let thought = self.parsers.iter().map(ReplyParser::reasoning_tokens).sum();
        with_thought(self.generated_usage(), thought)
    }

    fn generated_usage(&self) -> Usage {
        if let Some(resumable) = self.resumable.as_ref().filter(|resumable| resumable.moved_on) {
            // Work that was done twice is counted once.
            return Usage { output: self.generated, ..resumable.prompts };
        }
        let reported = self.jobs.usage();
        if reported.output >= self.generated {
            return reported;
        }
        let has_prompt = reported.input + reported.cached_input > 0;
        let prompt = if has_prompt { reported } else { self.prompt.unwrap_or_default() };
        Usage { output: self.generated, ..prompt }
    }

    pub(super) fn usage_of(&self, job: usize) -> Usage {
        let parsers = self.choices_of(job).filter_map(|choice| self.parsers.get(choice as usize));
        let thought = parsers.map(ReplyParser::reasoning_tokens).sum();
        with_thought(self.jobs.usage_of(job, self.prompt_tokens(job)), thought)
    }

    pub(super) fn running(&self) -> Vec<(usize, usize)> {
        self.jobs.running()
    }

    pub(super) const fn times(&self) -> SourceTimes {
        self.times
    }

    /// The name may have a suffix after a colon: why a text that looked like a tool call stayed text, or that a stop
    /// string ended the reasoning.
    pub(super) fn finish_name(&self, choice: usize, encoded: &'static str) -> Cow<'static, str> {
        match self.parse_fault(choice) {
            Some(fault) => format!("{encoded}:{fault}").into(),
            None => encoded.into(),
        }
    }

    fn parse_fault(&self, choice: usize) -> Option<&'static str> {
        if self.cut_thoughts.contains(&choice) {
            return Some("stop_string_in_thought");
        }
        Some(self.parsers.get(choice)?.fault()?.name())
    }

    /// The output of a choice, if it is kept.
    fn emitted_of(&mut self, choice: u32) -> Option<&mut EmittedTokens> {
        self.resumable.as_mut()?.emitted.get_mut(choice as usize)
    }

    /// A job's prompt as ids.
    fn prompt(&self, job: usize) -> Option<&Arc<[u32]>> {
        self.work.rendered.prompts()?.ids.get(self.jobs.part(job))
    }

    fn recorder(&self) -> Option<&AnswerRecorder> {
        self.work.rendered.tokens()?.recorder.as_ref()
    }

    /// The length of a job's prompt.
    fn prompt_tokens(&self, job: usize) -> u64 {
        self.prompt(job).map_or(0, |prompt| prompt.len() as u64)
    }

    fn wants_prompt(&self) -> bool {
        let call = &self.work.call;
        call.dialect.echo() || call.return_token_ids || call.sampling.prompt_logprobs.is_some()
    }

    /// Adds the prompt of a job to `events`, once for each of its choices.
    fn show_prompt(&self, job: usize, logprobs: Vec<TokenLogprob>, events: &mut Vec<ReplyEvent>) {
        let (Some(ids), Some(backend)) = (self.prompt(job), self.work.model.backend.tokens()) else { return };
        let (work, job) = (&self.work, self.jobs.part(job));
        let text = match &work.call.prompt {
            Prompt::Raw(items) if work.call.dialect.echo() => match items.get(job) {
                Some(PromptItem::Text(text)) => text.clone(),
                _ => backend.tokenizer.decode(ids, false),
            },
            _ => String::new(),
        };
        let prompt = Arc::new(ShownPrompt { text, ids: Arc::clone(ids), logprobs });
        let first = u32::try_from(job).unwrap_or(u32::MAX).saturating_mul(work.sampling.n);
        for choice in first..first.saturating_add(work.sampling.n) {
            events.push(ReplyEvent::Prompt { choice, prompt: Arc::clone(&prompt) });
        }
    }
}

/// Whether more of an answer is kept. An answer that is too long is not kept at all.
const fn is_recorded(ids: &[u32]) -> bool {
    ids.len() <= MOST_ANSWER_TOKENS
}

/// The first values of a vector, normalized to length 1, if the caller asks for fewer dimensions than the model has.
fn shortened(call: &Call, values: Arc<[f32]>) -> Arc<[f32]> {
    let Prompt::Encode(ToEncode { wish: EncodeWish::Vectors(wish), .. }) = &call.prompt else {
        return values;
    };
    let shortened = wish.dimensions.and_then(|most| values.get(..most as usize));
    let Some(shortened) = shortened.filter(|shortened| shortened.len() < values.len()) else { return values };
    let length = shortened.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let length = if length > 0.0 { length } else { 1.0 };
    shortened.iter().map(|value| (f64::from(*value) / length) as f32).collect()
}

/// The same tokens, `thought` of them as reasoning.
fn with_thought(usage: Usage, thought: u64) -> Usage {
    let reasoning = thought.min(usage.output);
    Usage { output: usage.output - reasoning, reasoning: usage.reasoning + reasoning, ..usage }
}

/// Reasoning is parsed only in answers to conversations, and tool calls only if tools were offered. Elsewhere the same
/// text is just text.
fn reply_form(work: &RenderedWork) -> ReplyForm {
    let (Some(backend), Some(rendered)) = (work.model.backend.tokens(), work.rendered.tokens()) else {
        return ReplyForm::default();
    };
    let hidden = Arc::clone(backend.tokenizer.shown());
    let Prompt::Conversation(conversation) = &work.call.prompt else {
        return ReplyForm { hidden, ..ReplyForm::default() };
    };
    let prompt = rendered.text.as_deref().unwrap_or("");
    let mut offered = OfferedTools::of(conversation);
    // A server that receives the form as text may enforce less of it.
    if rendered.grammar.is_some() && backend.capabilities.grammars {
        offered = offered.held(constrained_tools(conversation));
    }
    ReplyForm {
        style: backend.replies,
        hidden,
        thinking: backend.replies.thought.is_some_and(|thought| thought.is_open_at_end(prompt)),
        offered: Arc::new(offered),
    }
}

/// Whether the job would fail the same elsewhere, or the call may be the cause. A call that breaks an engine must not
/// break the next one.
fn is_of_the_call(error: &JobError) -> bool {
    match error {
        JobError::Cancelled
        | JobError::Expired { .. }
        | JobError::Panicked { .. }
        | JobError::NotFinite { .. }
        | JobError::Form { .. } => true,
        JobError::Refused(SubmitRefusal::Invalid { .. }) => true,
        JobError::Refused(_) | JobError::ShuttingDown | JobError::Internal { .. } => false,
    }
}

fn engine_died() -> Rejection {
    Rejection::new(
        Code::EngineUnavailable,
        "The engine stopped. What was not delivered is not charged. Try again.",
    )
    .at(Stage::Decode)
    .retry_after(std::time::Duration::from_secs(1))
}
