//! Hedging: a call that waits longer for its first output than other calls of its model is also sent to a second
//! worker. The worker that produces output first keeps the call. A race starts only before any output, so a client
//! never sees two answers. Must not know what an answer says, or who pays.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_domain::{AttemptOutcome, PriceTier, Usage};
use headrace_fleet::{Placement, PrefixHashes, WorkerOutcome};

use crate::state::{RelayedMessages, RenderedInput, RenderedTokens, RenderedVectors};

use super::placement::{JobSubmission, PlacementContext, no_worker, panicked};
use super::relay_attempt;
use super::source::asked_server::AskedServer;
use super::source::jobs::SubmittedJob;
use super::source::messages::MessageSource;
use super::source::source_event::LostRace;

impl PlacementContext<'_> {
    /// How long the call waits for its first output before a second worker is asked. `None` if none is asked.
    pub(super) fn patience(&self) -> Option<Duration> {
        let model = &self.work.model;
        let hedge = model.policy.hedge.as_ref()?;
        let (fleet, first) = (self.work.terms.catalog.fleet(), self.source.only_worker()?);
        fleet.record_and_get_hedge_delay(&model.name, first, hedge, &self.work.terms.residency)
    }

    /// Sends the call to a second worker, if one takes it. The first worker continues in any case.
    pub(super) fn race(mut self) {
        let work = self.work;
        let (fleet, model) = (work.terms.catalog.fleet(), &work.model.name);
        let Some(first) = self.source.only_worker() else { return };
        let mut passed = self.tries.of(0).clone();
        passed.add_busy(first);
        if !fleet.try_take_race(model) {
            return;
        }
        match &work.rendered {
            RenderedInput::Messages(messages) => {
                let tokens = usize::try_from(messages.likely_prompt_tokens).unwrap_or(usize::MAX);
                let trail = PrefixHashes { marks: &messages.trail, tokens };
                let second = fleet.place_near(model, trail, &passed, &work.terms.residency);
                if let Some(second) = second.map(|second| second.called_by(work.terms.tenant.0)) {
                    self.ask_too(messages, second);
                }
            }
            RenderedInput::Tokens(RenderedTokens { prompts, .. })
            | RenderedInput::Vectors(RenderedVectors { texts: prompts }) => {
                let Some((prompt, keys)) = prompts.get(0) else { return };
                let second = fleet.place(model, keys, &passed, &work.terms.residency);
                if let Some(second) = second.map(|second| second.called_by(work.terms.tenant.0)) {
                    let at = self.next_job();
                    self.submit_second(&JobSubmission { part: 0, at, prompt, keys, resume: None }, second);
                }
            }
        }
    }

    fn submit_second(&mut self, submission: &JobSubmission<'_>, mut placement: Placement) {
        let (mut job, submitted_ns) = (self.job(submission), self.context.elapsed_ns());
        self.begin(0, &placement, submitted_ns);
        job.trace = self.trace(&placement);
        job.held = self.held(&placement, submission);
        self.tries.race(&placement, self.gateway, self.work);
        let rejection = match catch_unwind(AssertUnwindSafe(|| placement.submit(job))) {
            Ok(Ok(ticket)) => {
                let (part, at, continued_choice, generated) = (0, submission.at, None, 0);
                let second =
                    SubmittedJob { part, at, continued_choice, generated, ticket, placement, submitted_ns };
                if let Some(engine) = self.source.as_engine_mut() {
                    engine.race(second);
                }
                return;
            }
            Ok(Err(refusal)) => {
                placement.ended(&WorkerOutcome::from(&refusal));
                Rejection::from(refusal)
            }
            Err(_) => panicked(),
        };
        self.not_taken(placement, &rejection);
    }

    fn ask_too(&mut self, messages: &RelayedMessages, placement: Placement) {
        let submitted_ns = self.context.elapsed_ns();
        self.begin(0, &placement, submitted_ns);
        self.tries.race(&placement, self.gateway, self.work);
        let Some(relay) = placement.relay().map(Arc::clone) else {
            return self.not_taken(placement, &no_worker(self.work));
        };
        match relay_attempt::ask(self.gateway, self.context, self.work, messages, &*relay, None) {
            Ok(attempt) => {
                if let Some(source) = self.source.as_relay_mut() {
                    source.ask_too(AskedServer::new(relay.facts(), attempt, placement));
                }
            }
            Err(rejection) => self.not_taken(placement, &rejection),
        }
    }

    fn not_taken(&mut self, placement: Placement, rejection: &Rejection) {
        let reason = rejection.kept.as_ref().unwrap_or(&rejection.message).clone();
        let outcome = AttemptOutcome::Refused { code: rejection.code.name().to_owned(), why: reason };
        self.tries.left(&placement, &Usage::default(), PriceTier::Standard);
        self.end(0, Some(&placement), outcome, None);
        self.tries.of(0).add(placement);
    }

    /// Ends the race for the worker that no longer has the call.
    pub(super) fn outrun(mut self, outrun: LostRace) {
        let LostRace { mut placement, used, failed } = outrun;
        let paid = self.tries.left(&placement, &used, self.source.price_tier());
        match failed {
            None => {
                placement.outrun();
                self.end(0, Some(&placement), AttemptOutcome::Outrun, paid);
            }
            Some(lost) => {
                self.failed(lost.part, Some(&placement), &lost.rejection, lost.cause, paid);
                self.tries.add(lost.part, placement, lost.broke);
            }
        }
        if let Some(server) = self.source.as_relay().and_then(MessageSource::server) {
            self.context.record.upstream = Some(Arc::clone(server.upstream()));
        } else if let Some(winner) = self.source.only_worker() {
            self.context.record.upstream = winner.target().map(|(upstream, _)| upstream.into());
        }
    }
}
