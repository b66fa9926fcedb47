//! A round of a call: one rendering of its prompts, and the workers that answer them. What a call has only once (its
//! record, its hold, the line to its client, its settlement) is kept outside, and rounds add to it. Must not know
//! money, or what follows a round.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_domain::{
    Attempt, AttemptOutcome, CacheMiss, Call, Code, EngineSeen, PriceTier, ReaderPauses, RoundOutcome,
    RoundTimes, ServiceTier, Stage, TraceRound,
};
use headrace_wire::WireLimits;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::RenderedWork;
use crate::unrepeated::unrepeated;

use super::call_ending::CallEnding;
use super::placement::{self, Attempts, Placed, PlacementContext};
use super::reply::ReplyWriter;
use super::source::AnswerSource;
use super::source::asked_server::AskedServer;
use super::source::jobs::CallJobs;
use super::source::messages::MessageSource;
use super::source::source_event::{LostJob, LostRace};
use super::source::source_report::{SourceTimes, SourceUsage};
use super::source::tokens::TokenSource;

/// See the top of the file.
pub(super) struct Round {
    pub(super) work: Arc<RenderedWork>,
    pub(super) source: AnswerSource,
    tries: Attempts,
    /// When the task took no events because the client took nothing.
    pub(super) pauses: ReaderPauses,
    /// Its usage has been added to the call's record.
    noted: bool,
    /// Its times have been added too.
    timed: bool,
}

impl Round {
    pub(super) fn new(work: Arc<RenderedWork>, limits: &WireLimits) -> Self {
        let source = AnswerSource::new(&work, limits);
        Self {
            work,
            source,
            tries: Attempts::default(),
            pauses: ReaderPauses::default(),
            noted: false,
            timed: false,
        }
    }

    /// Submits its prompts to workers.
    pub(super) fn place(
        &mut self,
        gateway: &Gateway,
        context: &mut RequestContext,
    ) -> Result<Placed, Rejection> {
        self.placing(gateway, context).all()
    }

    /// Submits a lost prompt to another worker.
    pub(super) fn place_again(
        &mut self,
        gateway: &Gateway,
        context: &mut RequestContext,
        lost: LostJob,
    ) -> Result<(), Rejection> {
        self.placing(gateway, context).again(lost)
    }

    /// How long its call may wait for the first output before a second worker is asked as well.
    pub(super) fn patience(&mut self, gateway: &Gateway, context: &mut RequestContext) -> Option<Duration> {
        self.placing(gateway, context).patience()
    }

    /// Sends its call to a second worker, which races with the first.
    pub(super) fn race(&mut self, gateway: &Gateway, context: &mut RequestContext) {
        self.placing(gateway, context).race();
    }

    /// Ends the race for the worker that no longer has the call.
    pub(super) fn outrun(&mut self, gateway: &Gateway, context: &mut RequestContext, outrun: LostRace) {
        self.placing(gateway, context).outrun(outrun);
    }

    fn placing<'a>(
        &'a mut self,
        gateway: &'a Gateway,
        context: &'a mut RequestContext,
    ) -> PlacementContext<'a> {
        let Self { work, source, tries, .. } = self;
        PlacementContext { gateway, context, work, source, tries }
    }

    /// Adds the round, which ended with `ending`, to the call's record, once: its usage, how its attempts ended, and the
    /// engines' own times, placed between what was seen here.
    pub(super) fn note(
        &mut self,
        context: &mut RequestContext,
        reply: Option<&mut ReplyWriter>,
        ending: &CallEnding,
    ) {
        if std::mem::replace(&mut self.noted, true) {
            return;
        }
        let source = &self.source;
        let record = &mut context.record;
        // First, before anything that could fail: this is what the client pays for.
        let SourceUsage { usage, known_by, why_estimated } = source.usage();
        record.usage = record.usage.plus(&usage);
        // A batch request has the batch price, even if the upstream reports another tier.
        let is_batch = self.work.call.tier == ServiceTier::Batch;
        record.price_tier = if is_batch { PriceTier::Batch } else { source.price_tier() };
        record.usage_source = known_by;
        record.why_estimated = why_estimated.map(Into::into);
        let server = source.as_relay().and_then(MessageSource::server);
        record.answer_notes = server.map_or_else(Vec::new, AskedServer::notes);
        record.upstream_model = server.and_then(AskedServer::answered_as).map(str::to_owned);
        record.upstream_id = server.and_then(AskedServer::answer_id).map(str::to_owned);
        let jobs = source.as_engine().map(TokenSource::jobs);
        if let Some(mut engine) = jobs.and_then(CallJobs::engine).filter(|engine| engine.steps > 0) {
            engine.miss = jobs.and_then(CallJobs::first_miss).map(|(_, miss)| miss);
            record.engine = Some(match record.engine.take() {
                Some(before) => before.with(&engine),
                None => engine,
            });
        }
        context.record.first_token_ns = context.record.first_token_ns.or(source.times().first_token_ns);
        self.time(context, reply, ending);
    }

    /// Adds to the call's record, once, how the attempts and the round ended and how the time was spent. Of a round that
    /// another model replaces unseen, nothing more is recorded.
    pub(super) fn time(
        &mut self,
        context: &mut RequestContext,
        reply: Option<&mut ReplyWriter>,
        ending: &CallEnding,
    ) {
        if std::mem::replace(&mut self.timed, true) {
            return;
        }
        let outcome = self.outcome(reply.as_deref(), ending);
        let Self { source, tries, pauses, work, .. } = self;
        let until_ns = context.elapsed_ns();
        placement::close(&mut context.record.attempts, source, tries, until_ns);
        for attempt in &mut context.record.attempts {
            without_own_words(&mut attempt.outcome, &work.call);
        }
        if !self.work.terms.keeps_words {
            context.record.attempts.iter_mut().for_each(|attempt| attempt.outcome.without_words());
        }
        context.record.paid = Attempt::paid_for(&context.record.attempts);
        if source.is_empty() {
            return context.line.mark(Stage::Place, until_ns);
        }
        add_round(context, source, tries, until_ns, outcome);
        let SourceTimes { first_token_ns, postprocess_ns } = source.times();
        let seen = EngineSeen { first_token_ns, until_ns, pauses };
        match source.as_engine() {
            Some(engine) => context.line.engine(engine.jobs().runs(), &seen),
            None => context.line.upstream(&seen),
        }
        let deliver_ns = reply.map_or(0, ReplyWriter::take_deliver_ns);
        // This work ran beside decoding. What exceeds the decoding time ran after it.
        for (stage, took) in [(Stage::Postprocess, postprocess_ns), (Stage::Deliver, deliver_ns)] {
            let left = context.line.share(stage, Stage::Decode, took);
            context.line.share(stage, Stage::Handover, left);
        }
    }

    /// How the round ended, for the call's trace.
    fn outcome(&self, reply: Option<&ReplyWriter>, ending: &CallEnding) -> RoundOutcome {
        match ending {
            CallEnding::Completed => {
                let name = reply.and_then(|reply| reply.finish_names().first().copied());
                RoundOutcome::Answered { finish: name.map(|name| self.source.finish_name(0, name)) }
            }
            CallEnding::Failed(rejection) | CallEnding::Refused(rejection) => {
                RoundOutcome::Failed { code: rejection.code.name().into() }
            }
            CallEnding::ClientGone | CallEnding::Stalled { .. } | CallEnding::KeyOver(_) => {
                RoundOutcome::CutShort
            }
        }
    }

    /// The first of its prompts whose blocks were not all in the cache, and why.
    pub(super) fn first_miss(&self) -> Option<(usize, CacheMiss)> {
        self.source.as_engine()?.jobs().first_miss()
    }
}

/// Adds a round that a worker took to the call's trace. Its attempts have ended at `until_ns`.
fn add_round(
    context: &mut RequestContext,
    source: &AnswerSource,
    tries: &Attempts,
    until_ns: u64,
    outcome: RoundOutcome,
) {
    let record = &mut context.record;
    let attempts = record.attempts.get(tries.first_index..).unwrap_or_default();
    let answered = attempts.iter().rev().find(|attempt| attempt.outcome == AttemptOutcome::Answered);
    let start_ns = tries.start_ns.unwrap_or(until_ns);
    let round = TraceRound {
        model: None,
        upstream: record.upstream.clone(),
        worker: answered.or(attempts.last()).map(|attempt| Arc::clone(&attempt.worker)),
        start_ns,
        duration_ns: until_ns.saturating_sub(start_ns),
        usage: source.usage().usage,
        engine: source.as_engine().and_then(|engine| engine.jobs().runs().next()).map(|run| RoundTimes {
            queue_ns: run.queue_ns,
            prefill_ns: run.prefill_ns,
            decode_ns: run.decode_ns,
        }),
        outcome,
    };
    record.rounds.reserve_exact(1);
    record.rounds.push(round);
}

/// Faults of the call itself: the upstream's message about them may repeat the call's words.
const FAULTS_OF_CALLS: [Code; 4] =
    [Code::UpstreamRefused, Code::ContextLengthExceeded, Code::ContentPolicy, Code::RequestTooLarge];

/// Removes the call's own words from an upstream's message.
fn without_own_words(outcome: &mut AttemptOutcome, call: &Call) {
    let (AttemptOutcome::Refused { code, why } | AttemptOutcome::Failed { code, why }) = outcome else {
        return;
    };
    if !FAULTS_OF_CALLS.iter().any(|fault| fault.name() == code) {
        return;
    }
    if let Some((status, words)) = why.split_once(": ") {
        let own = unrepeated(words, call).filter(|own| !own.is_empty());
        *why = own.map_or_else(|| status.to_owned(), |own| format!("{status}: {own}"));
    }
}
