//! Stage `place`: a worker for each prompt of a call. It is a loop over the workers, until one has given the first thing that a
//! client could see. A worker that refuses or fails before that is passed over, unseen. Behind that, only a worker takes an answer up
//! that goes on with it as the lost one would have. Each try is an attempt in the trace.
//! A bounded queue refuses honestly. Must not know what an answer says.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{
    Attempt, AttemptOutcome, Code, Continued, NanoDollars, PrefixKeys, PriceTier, Sampling, ServiceTier,
    Stage, Usage,
};
use headrace_engine_api::{Capabilities, Continues, Job, Priority, SubmitRefusal};
use headrace_fleet::{Outcome, Placement, Trail, Tried};
use headrace_ledger::prices::Quote;

use crate::Gateway;
use crate::dossier::Dossier;
use crate::policy::OnBreak;
use crate::refused::Why;
use crate::state::{Messages, Work};

use super::asking;
use super::source::Source;
use super::source::asked::Asked;
use super::source::jobs::Handed;
use super::source::said::Lost;
use super::source::tokens::Begun;

/// What each of a call's jobs may have unread at least, however many they are: some tokens with their log-probabilities.
const LEAST_UNREAD_BYTES: usize = 16 * 1024;
/// Attempts of a call that its trace tells; of more, the first.
const ATTEMPTS_KEPT: usize = 64;
/// Workers that may break over a prompt. After that the prompt is taken for the cause, and no other worker gets it.
const MOST_BROKEN: usize = 2;

/// Its prompts are with workers. Only who has one may wait for what they say.
pub(crate) struct Placed(());

/// Who was tried in vain, for each prompt that has moved on. All tries stand in the call's record; one that is under way stands
/// there as cut short.
#[derive(Default)]
pub(crate) struct Tries {
    in_vain: BTreeMap<usize, InVain>,
    /// What whoever has a job charges us, by its place among the call's jobs, where that is known.
    costs: BTreeMap<usize, Quote>,
    /// Who has the call as a second one, in the second place among its jobs.
    second: Option<Arc<str>>,
}

impl Tries {
    /// The call is put to this one, too.
    pub(super) fn race(&mut self, second: &Placement, gateway: &Gateway, work: &Work) {
        self.costed(1, second, gateway, work);
        self.second = Some(Arc::clone(second.worker_id()));
    }

    /// Of the two who have a call, this one has it no longer, and the other one is in the first place. What it charges for what it did.
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

    /// A job is put to this one.
    fn costed(&mut self, job: usize, placement: &Placement, gateway: &Gateway, work: &Work) {
        let quote = placement.target().and_then(|(upstream, model)| {
            work.catalog.costs().quote(upstream, model, gateway.parts().clock.now())
        });
        match quote {
            Some(quote) => drop(self.costs.insert(job, quote)),
            None => drop(self.costs.remove(&job)),
        }
    }

    /// What whoever has a job charges for what it did.
    fn paid(&self, source: &Source, job: usize) -> Option<NanoDollars> {
        let (quote, usage) = (self.costs.get(&job)?, source.usage_of(job));
        quote.rates(source.price_tier(), usage.prompt_tokens()).cost(&usage).ok()
    }

    /// Those with whom a prompt was tried.
    pub(super) fn of(&mut self, part: usize) -> &mut Tried {
        &mut self.in_vain.entry(part).or_default().tried
    }

    /// One more, which may have broken over it. How many have?
    pub(super) fn add(&mut self, part: usize, placement: Placement, broke: bool) -> usize {
        let in_vain = self.in_vain.entry(part).or_default();
        in_vain.tried.add(placement);
        in_vain.broken += usize::from(broke);
        in_vain.broken
    }
}

/// Of one prompt.
#[derive(Default)]
struct InVain {
    tried: Tried,
    /// Workers that broke while they had it.
    broken: usize,
}

/// What is handed to a worker.
pub(super) struct Handing<'a> {
    pub(super) part: usize,
    /// In whose place among the call's jobs.
    pub(super) at: usize,
    pub(super) prompt: &'a Arc<[u32]>,
    /// Of the prompt's blocks.
    pub(super) keys: &'a PrefixKeys,
    pub(super) onward: Option<Onward<'a>>,
}

/// It is an answer that has been begun.
pub(super) struct Onward<'a> {
    choice: u32,
    /// How many of the last ids of its prompt are its own.
    generated: u32,
    /// The engine that began it.
    began: &'a Capabilities,
}

impl Onward<'_> {
    /// Whether this one goes on with it as the other one would have.
    fn is_unchanged_by(&self, placement: &Placement, work: &Work) -> bool {
        // Who is told a form in words begins with it anew.
        let goes_on = |engine: &Capabilities| {
            engine.continue_of(self.began, &work.sampling) && (engine.grammars || work.grammar.is_none())
        };
        placement.capabilities().is_some_and(goes_on)
    }
}

/// All that placing needs.
pub(super) struct Placing<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) dossier: &'a mut Dossier,
    pub(super) work: &'a Work,
    pub(super) source: &'a mut Source,
    pub(super) tries: &'a mut Tries,
}

impl Placing<'_> {
    /// Hands every prompt to a worker. After an error some may have been taken all the same: cancel the source.
    pub(super) fn all(mut self) -> Result<Placed, Why> {
        self.dossier.record.attempts.reserve_exact(self.work.parts().min(ATTEMPTS_KEPT));
        // An engine that panics here has failed by its own name, and not the call.
        let placed = catch_unwind(AssertUnwindSafe(|| {
            (0..self.work.parts()).try_for_each(|part| self.part(part, None))
        }));
        if let Err(why) = placed.unwrap_or_else(|_| Err(panicked())) {
            self.dossier.mark(Stage::Place);
            return Err(why);
        }
        Ok(Placed(()))
    }

    /// Hands a lost prompt to the next worker.
    ///
    /// # Errors
    /// What the client is told: where nobody else takes the prompt, and where another try would be seen, or do harm.
    pub(super) fn again(mut self, lost: Lost) -> Result<(), Why> {
        let Lost { part, job, why, cause, may_move, broke, .. } = lost;
        let paid = self.tries.paid(self.source, job);
        let placement = self.source.take_back(job);
        self.failed(part, placement.as_ref(), &why, cause, paid);
        let Some(placement) = placement.filter(|_| may_move) else { return Err(why) };
        let begun = self.source.begun(job, self.dossier);
        if begun.as_ref().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let began = placement.capabilities().cloned();
        let broken = self.tries.add(part, placement, broke);
        // What it computed is lost: a load that is too much must not be multiplied.
        let may_retry = || self.work.catalog.fleet().may_retry(&self.work.model.name);
        if broken >= MOST_BROKEN || !may_retry() {
            return Err(why);
        }
        let placed = catch_unwind(AssertUnwindSafe(|| match (begun, began) {
            (Some(begun), Some(began)) => self.onward(part, job, &begun, &began, why),
            _ => self.part(part, Some(why)),
        }));
        placed.unwrap_or_else(|_| Err(panicked()))
    }

    /// Hands answers that have been begun to workers that go on with them as the one would have that began them.
    fn onward(
        &mut self,
        part: usize,
        job: usize,
        begun: &[Begun],
        began: &Capabilities,
        why: Why,
    ) -> Result<(), Why> {
        let Some(keys) = self.work.keys.get(part) else { return Err(why) };
        let mut at = job;
        for answer in begun {
            let onward = Some(Onward { choice: answer.choice, generated: answer.generated, began });
            self.hand(&Handing { part, at, prompt: &answer.ids, keys, onward }, Some(why.clone()))?;
            at = self.source.jobs();
        }
        Ok(())
    }

    /// Hands a prompt to the worker that suits it best. If that one does not take it, the next one is asked, until nobody is left.
    /// The client is told `told` then, if something is to be told already.
    fn part(&mut self, part: usize, told: Option<Why>) -> Result<(), Why> {
        let work = self.work;
        if let Some(messages) = &work.messages {
            return self.messages(messages, told);
        }
        let (Some(prompt), Some(keys)) = (work.prompts.get(part), work.keys.get(part)) else { return Ok(()) };
        self.hand(&Handing { part, at: part, prompt, keys, onward: None }, told)
    }

    fn hand(&mut self, handing: &Handing<'_>, mut told: Option<Why>) -> Result<(), Why> {
        let (work, part) = (self.work, handing.part);
        let prompts = work.prompts.len();
        while let Some(placement) = self.candidate(handing) {
            let mut placement = placement.called_by(self.work.tenant.0);
            let mut job = self.job(handing);
            // The engine's time begins here, on threads of its own: this one may be late to learn that it was taken.
            let submitted_ns = self.dossier.elapsed_ns();
            // Nobody else works for the call meanwhile: all the time until here has gone into placing it.
            if handing.onward.is_none() && (self.source.is_empty() || prompts == 1) {
                self.dossier.line.mark(Stage::Place, submitted_ns);
            }
            self.begin(part, &placement, submitted_ns);
            job.trace = self.trace(&placement);
            self.dossier.is_in(Stage::Queue);
            self.tries.costed(handing.at, &placement, self.gateway, work);
            let submitted = catch_unwind(AssertUnwindSafe(|| placement.submit(job)));
            let refusal = match submitted {
                Ok(Ok(ticket)) => {
                    self.note_continued(handing, &placement);
                    self.dossier.record.upstream = placement.target().map(|(upstream, _)| upstream.into());
                    let onward = handing.onward.as_ref();
                    let (at, goes_on) = (handing.at, onward.map(|onward| onward.choice));
                    let generated = onward.map_or(0, |onward| onward.generated);
                    self.source.put(Handed { part, at, goes_on, generated, ticket, placement, submitted_ns });
                    return Ok(());
                }
                Ok(Err(refusal)) => refusal,
                Err(_) => {
                    let why = panicked();
                    self.failed(part, Some(&placement), &why, "it panicked on the job".to_owned(), None);
                    return Err(why);
                }
            };
            placement.ended(&Outcome::from(&refusal));
            let (cause, may_move) = (refusal.to_string(), !is_of_the_call(&refusal));
            let why = Why::from(refusal);
            let outcome = AttemptOutcome::Refused { code: why.code.name().to_owned(), why: cause };
            self.end(part, Some(&placement), outcome, None);
            if !may_move {
                return Err(why);
            }
            self.tries.of(part).add(placement);
            told = Some(match told {
                // It is better news that waiting helps. Otherwise the word of the worker that suited best stands.
                Some(first) if first.retry_after.is_some() || why.retry_after.is_none() => first,
                _ => why,
            });
        }
        Err(told.unwrap_or_else(|| nobody(work)))
    }

    /// Notes where somebody goes on in another way.
    fn note_continued(&mut self, handing: &Handing<'_>, placement: &Placement) {
        let other = |onward: &&Onward<'_>| !onward.is_unchanged_by(placement, self.work);
        if let Some(onward) = handing.onward.as_ref().filter(other) {
            let (choice, after_tokens) = (onward.choice, onward.generated.into());
            let worker = Arc::clone(placement.worker_id());
            self.dossier.record.continued.push(Continued { choice, after_tokens, worker });
        }
    }

    /// Asks the target that suits a call in messages best. Whether it answers shows later.
    fn messages(&mut self, messages: &Messages, mut told: Option<Why>) -> Result<(), Why> {
        let (work, nobody_yet) = (self.work, Tried::default());
        loop {
            let tried = self.tries.in_vain.get(&0).map_or(&nobody_yet, |in_vain| &in_vain.tried);
            let tokens = usize::try_from(messages.likely_prompt_tokens).unwrap_or(usize::MAX);
            let trail = Trail { marks: &messages.trail, tokens };
            let placement = work.catalog.fleet().place_near(&work.model.name, trail, tried, &work.residency);
            let Some(placement) = placement.map(|placement| placement.called_by(work.tenant.0)) else {
                return Err(told.unwrap_or_else(|| no_target(work)));
            };
            let submitted_ns = self.dossier.elapsed_ns();
            self.dossier.line.mark(Stage::Place, submitted_ns);
            self.begin(0, &placement, submitted_ns);
            self.dossier.is_in(Stage::Upstream);
            self.tries.costed(0, &placement, self.gateway, work);
            let Some(relay) = placement.relay().map(Arc::clone) else {
                self.failed(
                    0,
                    Some(&placement),
                    &nobody(work),
                    "it takes tokens, not messages".to_owned(),
                    None,
                );
                self.tries.of(0).add(placement);
                continue;
            };
            let begun = self.source.text_begun();
            match asking::ask(self.gateway, self.dossier, work, messages, &*relay, begun.as_ref()) {
                Ok(asking) => {
                    self.dossier.record.upstream = Some(Arc::clone(&relay.facts().upstream));
                    if let Some(begun) = begun {
                        let (worker, after_tokens) = (Arc::clone(placement.worker_id()), begun.generated);
                        self.dossier.record.continued.push(Continued { choice: 0, after_tokens, worker });
                    }
                    self.source.ask(Asked::new(relay.facts(), asking, placement));
                    return Ok(());
                }
                Err(why) => {
                    let (code, why_not) = (why.code.name().to_owned(), why.message.clone());
                    self.end(0, Some(&placement), AttemptOutcome::Refused { code, why: why_not }, None);
                    told = told.or(Some(why));
                }
            }
            self.tries.of(0).add(placement);
        }
    }

    fn candidate(&mut self, handing: &Handing<'_>) -> Option<Placement> {
        let work = self.work;
        let (fleet, model, within) = (work.catalog.fleet(), &work.model.name, &work.residency);
        let Some(onward) = &handing.onward else {
            return match self.tries.in_vain.get(&handing.part) {
                Some(in_vain) => fleet.place(model, handing.keys, &in_vain.tried, within),
                None => fleet.place(model, handing.keys, &Tried::default(), within),
            };
        };
        let tried = self.tries.of(handing.part);
        let mut unlike = tried.clone();
        while let Some(placement) = fleet.place(model, handing.keys, &unlike, within) {
            if onward.is_unchanged_by(&placement, work) {
                return Some(placement);
            }
            unlike.add(placement);
        }
        if work.model.policy.on_break == OnBreak::Error {
            return None;
        }
        // It is better than no end at all that whoever takes ids goes on.
        loop {
            let placement = fleet.place(model, handing.keys, tried, within)?;
            if placement.capabilities().is_some_and(|engine| engine.continues != Continues::Never) {
                return Some(placement);
            }
            tried.add(placement);
        }
    }

    pub(super) fn begin(&mut self, part: usize, placement: &Placement, start_ns: u64) {
        let attempts = &mut self.dossier.record.attempts;
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
        why: &Why,
        cause: String,
        paid: Option<NanoDollars>,
    ) {
        let code = why.code.name().to_owned();
        self.end(part, placement, AttemptOutcome::Failed { code, why: cause }, paid);
    }

    /// Of a prompt with this worker.
    pub(super) fn end(
        &mut self,
        part: usize,
        placement: Option<&Placement>,
        outcome: AttemptOutcome,
        paid: Option<NanoDollars>,
    ) {
        let now_ns = self.dossier.elapsed_ns();
        let is_this = |attempt: &&mut Attempt| {
            is_under_way(attempt)
                && attempt.prompt as usize == part
                && placement.is_none_or(|placement| *placement.worker_id() == attempt.worker)
        };
        if let Some(attempt) = self.dossier.record.attempts.iter_mut().find(is_this) {
            finish(attempt, now_ns, outcome, paid);
        }
    }

    /// What whoever is asked for the attempt that has just begun is told of the trace that it works in, where that is not an engine
    /// of ours.
    pub(super) fn trace(&self, placement: &Placement) -> Option<Arc<str>> {
        placement.target()?;
        self.gateway.parts().records.traceparent(&self.dossier.record).map(Arc::from)
    }

    pub(super) fn job(&self, handing: &Handing<'_>) -> Job {
        let Self { gateway, dossier, work, .. } = self;
        let first = u32::try_from(handing.part).unwrap_or(u32::MAX).saturating_mul(work.sampling.n);
        let sampling = work.sampling.clone();
        let deadline = || work.call.timeout.map(|timeout| dossier.deadline_ns(timeout));
        let (first_choice, generated, sampling, keys, start_deadline_ns) = match &handing.onward {
            None => (first, 0, sampling, Some(handing.keys.clone()), deadline()),
            // The prompt's scores are told, and the time to begin has been kept.
            Some(onward) => {
                let one = Sampling { n: 1, prompt_logprobs: None, ..sampling };
                (onward.choice, onward.generated, one, None, None)
            }
        };
        Job {
            request: dossier.id,
            first_choice,
            prompt: Arc::clone(handing.prompt),
            generated,
            sampling,
            pins: Arc::clone(&work.pins),
            grammar: work.grammar.clone(),
            thought: work.thought.clone(),
            salt: work.salt,
            keys,
            tenant: work.tenant,
            weight: work.weight,
            priority: match work.call.tier {
                ServiceTier::Standard if dossier.copy().is_none() => Priority::Normal,
                ServiceTier::Standard => Priority::Idle,
                ServiceTier::Flex | ServiceTier::Batch => Priority::Idle,
            },
            start_deadline_ns,
            trace: None,
            unread_bytes: (gateway.config().delivery_buffer_bytes / work.prompts.len())
                .max(LEAST_UNREAD_BYTES),
        }
    }
}

/// Nothing more comes from the source: attempts that are under way have answered, or are cut short now.
pub(super) fn close(attempts: &mut [Attempt], source: &Source, tries: &Tries, now_ns: u64) {
    let mut jobs = if tries.costs.is_empty() { Vec::new() } else { source.running() };
    for attempt in attempts.iter_mut().filter(|attempt| is_under_way(attempt)) {
        let part = attempt.prompt as usize;
        // Of several that go on with a prompt's answers, one after the other.
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

/// Whether every worker would refuse the same.
fn is_of_the_call(refusal: &SubmitRefusal) -> bool {
    match refusal {
        SubmitRefusal::Invalid { .. } => true,
        // Another one may have a shorter queue, more memory, the prefix in its cache.
        SubmitRefusal::QueueFull { .. }
        | SubmitRefusal::DoesNotFit { .. }
        | SubmitRefusal::TooLate { .. }
        | SubmitRefusal::Unavailable { .. } => false,
    }
}

pub(super) fn nobody(work: &Work) -> Why {
    let message = format!("No worker serves `{}` now. Nothing was charged.", work.model.name);
    let readiness = work.catalog.fleet().readiness(&work.model.name, &work.residency);
    let soonest = readiness.and_then(|ready| ready.retry_after);
    Why::new(Code::EngineUnavailable, message).retry_after(soonest.unwrap_or(Duration::from_secs(1)))
}

/// All targets of a model failed lately, or are full, or were taken out of service.
fn no_target(work: &Work) -> Why {
    let readiness = work.catalog.fleet().readiness(&work.model.name, &work.residency);
    let wait = readiness.and_then(|readiness| readiness.retry_after).unwrap_or(Duration::from_secs(1));
    let message = format!("No upstream of `{}` takes calls now. Nothing was charged.", work.model.name);
    Why::new(Code::UpstreamOverloaded, message).at(Stage::Place).retry_after(wait)
}

pub(super) fn panicked() -> Why {
    let message = "The engine failed on this call. Nothing was charged.";
    Why::new(Code::EngineFailed, message).at(Stage::Place)
}
