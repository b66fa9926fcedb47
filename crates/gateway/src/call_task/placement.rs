//! Stage `place`: picks a worker for each prompt of a call. Tries workers until one produces the first visible output;
//! earlier failures are invisible to the client. After that point another worker must continue the answer as the lost
//! one would have. The model's policy may allow other workers that can continue. Every try is an attempt in the trace.
//! A full queue rejects at once. Must not know the content of an answer.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_catalog::OnBreak;
use headrace_domain::{
    Attempt, AttemptOutcome, Code, ContinuedAnswer, HeldPrefix, NanoDollars, PrefixKeys, PriceTier, Sampling,
    ServiceTier, Stage, Usage,
};
use headrace_engine_api::{Capabilities, Job, Priority, ResumeSupport, SubmitRefusal};
use headrace_fleet::{Placement, PrefixHashes, TriedWorkers, WorkerOutcome};
use headrace_ledger::prices::Quote;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{RelayedMessages, RenderedInput, RenderedTokens, RenderedVectors, RenderedWork};

use super::relay_attempt;
use super::source::AnswerSource;
use super::source::asked_server::AskedServer;
use super::source::jobs::SubmittedJob;
use super::source::messages::MessageSource;
use super::source::source_event::LostJob;
use super::source::tokens::PartialTokens;

/// The least that each of a call's jobs may leave unread, however many jobs there are: some tokens with their
/// log-probabilities.
const LEAST_UNREAD_BYTES: usize = 16 * 1024;
/// The most attempts that a call's trace lists. Later ones are left out.
const ATTEMPTS_KEPT: usize = 64;
/// Workers that may break over a prompt. After that the prompt is taken for the cause, and no other worker gets it.
const MOST_BROKEN: usize = 2;

/// Proof that every prompt was placed. Required to read events.
pub(crate) struct Placed(());

/// The failed attempts of each prompt that has moved on. The call's record lists all attempts; one that is in progress
/// is listed as cut short.
#[derive(Default)]
pub(crate) struct Attempts {
    in_vain: BTreeMap<usize, FailedAttempt>,
    /// What the worker of each job charges us, by the index of the job. Only known prices are present.
    costs: BTreeMap<usize, Quote>,
    /// The worker that races as the second one, at job index 1.
    second: Option<Arc<str>>,
    /// Index of the first of these attempts in the call's record.
    pub(super) first_index: usize,
    /// Start of the first attempt, in nanoseconds from the call's first byte. `None` before any.
    pub(super) start_ns: Option<u64>,
}

impl Attempts {
    /// Adds a second worker that races for the call.
    pub(super) fn race(&mut self, second: &Placement, gateway: &Gateway, work: &RenderedWork) {
        self.costed(1, second, gateway, work);
        self.second = Some(Arc::clone(second.worker_id()));
    }

    /// Removes one of two racing workers. The remaining one moves to job index 0. Returns what the removed worker
    /// charges for its work.
    pub(super) fn left(&mut self, who: &Placement, used: &Usage, tier: PriceTier) -> Option<NanoDollars> {
        let is_second = self.second.take().is_some_and(|second| second == *who.worker_id());
        let mut costs = [self.costs.remove(&0), self.costs.remove(&1)];
        if is_second {
            costs.reverse();
        }
        let [left, stays] = costs;
        if let Some(stays) = stays {
            self.costs.insert(0, stays);
        }
        left?.rates(tier, used.prompt_tokens()).cost(used).ok()
    }

    /// Notes the price of the worker that gets a job.
    fn costed(&mut self, job: usize, placement: &Placement, gateway: &Gateway, work: &RenderedWork) {
        let quote = placement.target().and_then(|(upstream, model)| {
            work.terms.catalog.costs().quote(upstream, model, gateway.parts().clock.now())
        });
        match quote {
            Some(quote) => drop(self.costs.insert(job, quote)),
            None => drop(self.costs.remove(&job)),
        }
    }

    /// What the worker of a job charges for its work.
    fn paid(&self, source: &AnswerSource, job: usize) -> Option<NanoDollars> {
        let (quote, usage) = (self.costs.get(&job)?, source.usage_of(job));
        quote.rates(source.price_tier(), usage.prompt_tokens()).cost(&usage).ok()
    }

    /// The workers that were tried with a prompt.
    pub(super) fn of(&mut self, part: usize) -> &mut TriedWorkers {
        &mut self.in_vain.entry(part).or_default().tried
    }

    /// Adds a failed attempt. `broke` says whether the worker may have broken over the prompt. Returns how many workers
    /// have.
    pub(super) fn add(&mut self, part: usize, placement: Placement, broke: bool) -> usize {
        let in_vain = self.in_vain.entry(part).or_default();
        in_vain.tried.add(placement);
        in_vain.broken += usize::from(broke);
        in_vain.broken
    }
}

/// The failed attempts of one prompt.
#[derive(Default)]
struct FailedAttempt {
    tried: TriedWorkers,
    /// Workers that broke while they had it.
    broken: usize,
}

/// A prompt that is submitted to a worker.
pub(super) struct JobSubmission<'a> {
    pub(super) part: usize,
    /// Index of the job slot that this submission fills.
    pub(super) at: usize,
    pub(super) prompt: &'a Arc<[u32]>,
    /// The keys of the prompt's blocks.
    pub(super) keys: &'a PrefixKeys,
    pub(super) resume: Option<ResumePoint<'a>>,
}

/// An answer that another worker began and this one is to continue.
pub(super) struct ResumePoint<'a> {
    choice: u32,
    /// How many of the last ids of the prompt belong to the answer.
    generated: u32,
    /// The engine that began it.
    began: &'a Capabilities,
}

impl ResumePoint<'_> {
    /// Whether this worker continues the answer as the first one would have.
    fn is_unchanged_by(&self, placement: &Placement, work: &RenderedWork) -> bool {
        // A server that receives the form as text would apply it from its beginning again.
        let continued_choice = |engine: &Capabilities| {
            let has_grammar = work.rendered.tokens().is_some_and(|tokens| tokens.grammar.is_some());
            engine.continue_of(self.began, &work.sampling) && (engine.grammars || !has_grammar)
        };
        placement.capabilities().is_some_and(continued_choice)
    }
}

/// Everything that placing needs.
pub(super) struct PlacementContext<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) context: &'a mut RequestContext,
    pub(super) work: &'a RenderedWork,
    pub(super) source: &'a mut AnswerSource,
    pub(super) tries: &'a mut Attempts,
}

impl PlacementContext<'_> {
    /// Submits every prompt to a worker. After an error some prompts may have been taken nevertheless, so the source
    /// must be cancelled.
    pub(super) fn all(mut self) -> Result<Placed, Rejection> {
        self.context.record.attempts.reserve_exact(self.work.parts().min(ATTEMPTS_KEPT));
        self.tries.first_index = self.context.record.attempts.len();
        // A panic of an engine here is the engine's failure, not the call's.
        let placed = catch_unwind(AssertUnwindSafe(|| {
            (0..self.work.parts()).try_for_each(|part| self.part(part, None))
        }));
        if let Err(rejection) = placed.unwrap_or_else(|_| Err(panicked())) {
            self.context.end_stage(Stage::Place);
            return Err(rejection);
        }
        Ok(Placed(()))
    }

    /// Submits a lost prompt to the next worker.
    ///
    /// # Errors
    /// The rejection for the client: no other worker takes the prompt, or another attempt would be visible or do harm.
    pub(super) fn again(mut self, lost: LostJob) -> Result<(), Rejection> {
        let LostJob { part, job, rejection, cause, may_move, broke, .. } = lost;
        let paid = self.tries.paid(self.source, job);
        let placement = self.source.take_back(job);
        self.failed(part, placement.as_ref(), &rejection, cause, paid);
        let Some(placement) = placement.filter(|_| may_move) else { return Err(rejection) };
        let engine = self.source.as_engine_mut();
        let unfinished = engine.and_then(|engine| engine.unfinished_answers(job, self.context));
        if unfinished.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let began = placement.capabilities().cloned();
        let broken = self.tries.add(part, placement, broke);
        // The lost work must be computed again, and retries must not multiply an overload.
        let may_retry = || self.work.terms.catalog.fleet().try_take_retry(&self.work.model.name);
        if broken >= MOST_BROKEN || !may_retry() {
            return Err(rejection);
        }
        let placed = catch_unwind(AssertUnwindSafe(|| match (unfinished, began) {
            (Some(unfinished), Some(began)) => {
                self.resume_elsewhere(part, job, &unfinished, &began, rejection)
            }
            _ => self.part(part, Some(rejection)),
        }));
        placed.unwrap_or_else(|_| Err(panicked()))
    }

    /// Submits unfinished answers to workers that continue them.
    fn resume_elsewhere(
        &mut self,
        part: usize,
        job: usize,
        unfinished: &[PartialTokens],
        began: &Capabilities,
        rejection: Rejection,
    ) -> Result<(), Rejection> {
        let prompts = self.work.rendered.prompts();
        let Some((_, keys)) = prompts.and_then(|prompts| prompts.get(part)) else { return Err(rejection) };
        let mut at = job;
        for answer in unfinished {
            let resume = Some(ResumePoint { choice: answer.choice, generated: answer.generated, began });
            self.submit(
                &JobSubmission { part, at, prompt: &answer.ids, keys, resume },
                Some(rejection.clone()),
            )?;
            at = self.next_job();
        }
        Ok(())
    }

    /// The index of the next job that is added.
    pub(super) fn next_job(&self) -> usize {
        self.source.as_engine().map_or(0, |engine| engine.jobs().len())
    }

    /// Submits a prompt to the most suitable worker, and to the next one whenever one refuses it. If no worker is left,
    /// `first` is the rejection for the client, if there is one already.
    fn part(&mut self, part: usize, first: Option<Rejection>) -> Result<(), Rejection> {
        let work = self.work;
        match &work.rendered {
            RenderedInput::Messages(messages) => self.messages(messages, first),
            RenderedInput::Tokens(RenderedTokens { prompts, .. })
            | RenderedInput::Vectors(RenderedVectors { texts: prompts }) => {
                let Some((prompt, keys)) = prompts.get(part) else { return Ok(()) };
                self.submit(&JobSubmission { part, at: part, prompt, keys, resume: None }, first)
            }
        }
    }

    fn submit(
        &mut self,
        submission: &JobSubmission<'_>,
        mut first: Option<Rejection>,
    ) -> Result<(), Rejection> {
        let (work, part) = (self.work, submission.part);
        let prompts = work.parts();
        while let Some(placement) = self.candidate(submission) {
            let mut placement = placement.called_by(self.work.terms.tenant.0);
            let mut job = self.job(submission);
            job.held = self.held(&placement, submission);
            // The engine's time begins here, on its own threads. This task may learn only later that the job was taken.
            let submitted_ns = self.context.elapsed_ns();
            // No other worker has a part of the call yet, so all the time until here was spent on placing it.
            if submission.resume.is_none() && (self.source.is_empty() || prompts == 1) {
                self.context.line.mark(Stage::Place, submitted_ns);
            }
            self.begin(part, &placement, submitted_ns);
            job.trace = self.trace(&placement);
            self.context.is_in(Stage::Queue);
            self.tries.costed(submission.at, &placement, self.gateway, work);
            let submitted = catch_unwind(AssertUnwindSafe(|| placement.submit(job)));
            let refusal = match submitted {
                Ok(Ok(ticket)) => {
                    self.note_continued(submission, &placement);
                    self.context.record.upstream = placement.target().map(|(upstream, _)| upstream.into());
                    let resume = submission.resume.as_ref();
                    let (at, continued_choice) = (submission.at, resume.map(|resume| resume.choice));
                    let generated = resume.map_or(0, |resume| resume.generated);
                    let job = SubmittedJob {
                        part,
                        at,
                        continued_choice,
                        generated,
                        ticket,
                        placement,
                        submitted_ns,
                    };
                    if let Some(engine) = self.source.as_engine_mut() {
                        engine.add_job(job);
                    }
                    return Ok(());
                }
                Ok(Err(refusal)) => refusal,
                Err(_) => {
                    let rejection = panicked();
                    self.failed(
                        part,
                        Some(&placement),
                        &rejection,
                        "it panicked on the job".to_owned(),
                        None,
                    );
                    return Err(rejection);
                }
            };
            placement.ended(&WorkerOutcome::from(&refusal));
            let (cause, may_move) = (refusal.to_string(), !is_of_the_call(&refusal));
            let rejection = Rejection::from(refusal);
            let outcome = AttemptOutcome::Refused { code: rejection.code.name().to_owned(), why: cause };
            self.end(part, Some(&placement), outcome, None);
            if !may_move {
                return Err(rejection);
            }
            self.tries.of(part).add(placement);
            first = Some(match first {
                // A refusal that says when to try again is more useful. Otherwise the refusal of the most suitable
                // worker remains.
                Some(first) if first.retry_after.is_some() || rejection.retry_after.is_none() => first,
                _ => rejection,
            });
        }
        Err(first.unwrap_or_else(|| no_worker(work)))
    }

    /// Records that a worker continues an answer, but not as the lost worker would have.
    fn note_continued(&mut self, submission: &JobSubmission<'_>, placement: &Placement) {
        let other = |resume: &&ResumePoint<'_>| !resume.is_unchanged_by(placement, self.work);
        if let Some(resume) = submission.resume.as_ref().filter(other) {
            let (choice, after_tokens) = (resume.choice, resume.generated.into());
            let worker = Arc::clone(placement.worker_id());
            self.context.record.continued.push(ContinuedAnswer { choice, after_tokens, worker });
        }
    }

    /// Asks the most suitable target for a relayed call. Whether it answers shows later.
    fn messages(
        &mut self,
        messages: &RelayedMessages,
        mut first: Option<Rejection>,
    ) -> Result<(), Rejection> {
        let (work, none_tried) = (self.work, TriedWorkers::default());
        loop {
            let tried = self.tries.in_vain.get(&0).map_or(&none_tried, |in_vain| &in_vain.tried);
            let tokens = usize::try_from(messages.likely_prompt_tokens).unwrap_or(usize::MAX);
            let trail = PrefixHashes { marks: &messages.trail, tokens };
            let placement =
                work.terms.catalog.fleet().place_near(&work.model.name, trail, tried, &work.terms.residency);
            let Some(placement) = placement.map(|placement| placement.called_by(work.terms.tenant.0)) else {
                return Err(first.unwrap_or_else(|| no_target(work)));
            };
            let submitted_ns = self.context.elapsed_ns();
            self.context.line.mark(Stage::Place, submitted_ns);
            self.begin(0, &placement, submitted_ns);
            self.context.is_in(Stage::Upstream);
            self.tries.costed(0, &placement, self.gateway, work);
            let Some(relay) = placement.relay().map(Arc::clone) else {
                self.failed(
                    0,
                    Some(&placement),
                    &no_worker(work),
                    "it takes tokens, not messages".to_owned(),
                    None,
                );
                self.tries.of(0).add(placement);
                continue;
            };
            let partial = self.source.as_relay().and_then(MessageSource::partial_text);
            match relay_attempt::ask(self.gateway, self.context, work, messages, &*relay, partial.as_ref()) {
                Ok(attempt) => {
                    self.context.record.upstream = Some(Arc::clone(&relay.facts().upstream));
                    if let Some(partial) = partial {
                        let (worker, after_tokens) = (Arc::clone(placement.worker_id()), partial.generated);
                        self.context.record.continued.push(ContinuedAnswer {
                            choice: 0,
                            after_tokens,
                            worker,
                        });
                    }
                    if let Some(source) = self.source.as_relay_mut() {
                        source.ask(AskedServer::new(relay.facts(), attempt, placement));
                    }
                    return Ok(());
                }
                Err(rejection) => {
                    let (code, reason) = (rejection.code.name().to_owned(), rejection.message.clone());
                    self.end(0, Some(&placement), AttemptOutcome::Refused { code, why: reason }, None);
                    first = first.or(Some(rejection));
                }
            }
            self.tries.of(0).add(placement);
        }
    }

    fn candidate(&mut self, submission: &JobSubmission<'_>) -> Option<Placement> {
        let work = self.work;
        let (fleet, model, within) = (work.terms.catalog.fleet(), &work.model.name, &work.terms.residency);
        let Some(resume) = &submission.resume else {
            return match self.tries.in_vain.get(&submission.part) {
                Some(in_vain) => fleet.place(model, submission.keys, &in_vain.tried, within),
                None => fleet.place(model, submission.keys, &TriedWorkers::default(), within),
            };
        };
        let tried = self.tries.of(submission.part);
        let mut unlike = tried.clone();
        while let Some(placement) = fleet.place(model, submission.keys, &unlike, within) {
            if resume.is_unchanged_by(&placement, work) {
                return Some(placement);
            }
            unlike.add(placement);
        }
        if work.model.policy.on_break == OnBreak::Error {
            return None;
        }
        // Any worker that accepts generated ids is better than no end of the answer.
        loop {
            let placement = fleet.place(model, submission.keys, tried, within)?;
            if placement.capabilities().is_some_and(|engine| engine.continues != ResumeSupport::Never) {
                return Some(placement);
            }
            tried.add(placement);
        }
    }

    pub(super) fn begin(&mut self, part: usize, placement: &Placement, start_ns: u64) {
        self.tries.start_ns.get_or_insert(start_ns);
        let attempts = &mut self.context.record.attempts;
        if attempts.len() < ATTEMPTS_KEPT {
            let (prompt, worker) =
                (u32::try_from(part).unwrap_or(u32::MAX), Arc::clone(placement.worker_id()));
            let outcome = AttemptOutcome::CutShort;
            attempts.push(Attempt {
                prompt,
                worker,
                model: None,
                start_ns,
                duration_ns: 0,
                outcome,
                paid: None,
            });
        }
    }

    pub(super) fn failed(
        &mut self,
        part: usize,
        placement: Option<&Placement>,
        rejection: &Rejection,
        cause: String,
        paid: Option<NanoDollars>,
    ) {
        let code = rejection.code.name().to_owned();
        self.end(part, placement, AttemptOutcome::Failed { code, why: cause }, paid);
    }

    /// Ends the attempt in progress of a prompt with this worker.
    pub(super) fn end(
        &mut self,
        part: usize,
        placement: Option<&Placement>,
        outcome: AttemptOutcome,
        paid: Option<NanoDollars>,
    ) {
        let now_ns = self.context.elapsed_ns();
        let is_this = |attempt: &&mut Attempt| {
            is_under_way(attempt)
                && attempt.prompt as usize == part
                && placement.is_none_or(|placement| *placement.worker_id() == attempt.worker)
        };
        if let Some(attempt) = self.context.record.attempts.iter_mut().find(is_this) {
            finish(attempt, now_ns, outcome, paid);
        }
    }

    /// The `traceparent` that the worker of the latest attempt gets. `None` if the worker is not a configured upstream.
    pub(super) fn trace(&self, placement: &Placement) -> Option<Arc<str>> {
        placement.target()?;
        self.gateway.parts().records.traceparent(&self.context.record).map(Arc::from)
    }

    /// What a job holds in the cache of its worker until the call ends. `None` if the call holds nothing.
    pub(super) fn held(
        &mut self,
        placement: &Placement,
        submission: &JobSubmission<'_>,
    ) -> Option<HeldPrefix> {
        let held = self.context.held.as_deref_mut()?;
        Some(held.hold(placement.engine()?, submission.prompt.len()))
    }

    pub(super) fn job(&self, submission: &JobSubmission<'_>) -> Job {
        let Self { gateway, context, work, .. } = self;
        let first = u32::try_from(submission.part).unwrap_or(u32::MAX).saturating_mul(work.sampling.n);
        let (sampling, tokens) = (work.sampling.clone(), work.rendered.tokens());
        let deadline = || work.call.timeout.map(|timeout| context.deadline_ns(timeout));
        let (first_choice, generated, sampling, keys, start_deadline_ns) = match &submission.resume {
            None => (first, 0, sampling, Some(submission.keys.clone()), deadline()),
            // The prompt's scores have been sent already, and the start deadline was met.
            Some(resume) => {
                let one = Sampling { n: 1, prompt_logprobs: None, ..sampling };
                (resume.choice, resume.generated, one, None, None)
            }
        };
        Job {
            request: context.id,
            first_choice,
            prompt: Arc::clone(submission.prompt),
            generated,
            sampling,
            pins: tokens.map_or_else(Arc::default, |tokens| Arc::clone(&tokens.pins)),
            held: None,
            grammar: tokens.and_then(|tokens| tokens.grammar.clone()),
            thought: tokens.and_then(|tokens| tokens.reasoning_budget.clone()),
            salt: work.salt,
            keys,
            tenant: work.terms.tenant,
            weight: work.terms.weight,
            priority: match work.call.tier {
                ServiceTier::Standard if context.copy().is_none() => Priority::Normal,
                ServiceTier::Standard => Priority::Idle,
                ServiceTier::Flex | ServiceTier::Batch => Priority::Idle,
            },
            start_deadline_ns,
            trace: None,
            unread_bytes: (gateway.config().delivery_buffer_bytes / work.parts()).max(LEAST_UNREAD_BYTES),
        }
    }
}

/// Ends all attempts when nothing more comes from the source: each one either has answered or is cut short now.
pub(super) fn close(attempts: &mut [Attempt], source: &AnswerSource, tries: &Attempts, now_ns: u64) {
    let mut jobs = if tries.costs.is_empty() { Vec::new() } else { source.running() };
    for attempt in attempts.iter_mut().filter(|attempt| is_under_way(attempt)) {
        let part = attempt.prompt as usize;
        // If several jobs continue answers of one prompt, each attempt takes one of them, in order.
        let job = jobs.iter().position(|(of, _)| *of == part).map(|at| jobs.remove(at).1);
        let paid = job.and_then(|job| tries.paid(source, job));
        match source.answered_ns(part) {
            Some(at_ns) => finish(attempt, at_ns, AttemptOutcome::Answered, paid),
            None => finish(attempt, now_ns, AttemptOutcome::CutShort, paid),
        }
    }
}

fn is_under_way(attempt: &Attempt) -> bool {
    attempt.outcome == AttemptOutcome::CutShort
}

fn finish(attempt: &mut Attempt, now_ns: u64, outcome: AttemptOutcome, paid: Option<NanoDollars>) {
    attempt.paid = paid;
    attempt.duration_ns = now_ns.saturating_sub(attempt.start_ns);
    attempt.outcome = outcome;
}

/// Whether every worker would refuse for the same reason.
fn is_of_the_call(refusal: &SubmitRefusal) -> bool {
    match refusal {
        SubmitRefusal::Invalid { .. } => true,
        // Another worker may have a shorter queue, more memory, or the prefix in its cache.
        SubmitRefusal::QueueFull { .. }
        | SubmitRefusal::DoesNotFit { .. }
        | SubmitRefusal::TooLate { .. }
        | SubmitRefusal::Unavailable { .. } => false,
    }
}

pub(super) fn no_worker(work: &RenderedWork) -> Rejection {
    let message = format!("No worker serves `{}` now. Nothing was charged.", work.model.name);
    let readiness = work.terms.catalog.fleet().readiness(&work.model.name, &work.terms.residency);
    let soonest = readiness.and_then(|ready| ready.retry_after);
    Rejection::new(Code::EngineUnavailable, message).retry_after(soonest.unwrap_or(Duration::from_secs(1)))
}

/// The rejection if all targets of a model failed recently, are full, or were taken out of service.
fn no_target(work: &RenderedWork) -> Rejection {
    let readiness = work.terms.catalog.fleet().readiness(&work.model.name, &work.terms.residency);
    let wait = readiness.and_then(|readiness| readiness.retry_after).unwrap_or(Duration::from_secs(1));
    let message = format!("No upstream of `{}` takes calls now. Nothing was charged.", work.model.name);
    Rejection::new(Code::UpstreamOverloaded, message).at(Stage::Place).retry_after(wait)
}

pub(super) fn panicked() -> Rejection {
    let message = "The engine failed on this call. Nothing was charged.";
    Rejection::new(Code::EngineFailed, message).at(Stage::Place)
}
