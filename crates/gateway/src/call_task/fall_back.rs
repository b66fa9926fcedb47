//! The next model of a route takes a call if no worker of the first one answers and nothing of an answer has gone out.
//! The hold remains the same. Must not know which models those are, or what an answer says.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_catalog::ServedModel;
use headrace_rollout::CallVerdict;

use crate::stages::render::passes_over;
use crate::stages::work_quote::quoted;
use crate::state::RenderedWork;
use crate::{Gateway, features};

use super::round::Round;
use super::{CallEnding, CallTask};

impl CallTask {
    /// Replaces the model with which the round ended by a fallback model. Returns `false` if no model may or can take
    /// over: then the ending is final.
    pub(super) async fn falls_back(&mut self, gateway: &Gateway, ending: &CallEnding) -> bool {
        let (CallEnding::Refused(rejection) | CallEnding::Failed(rejection)) = ending else { return false };
        if !self.may_begin_anew() {
            return false;
        }
        let Some(mut next) = self.next(rejection) else { return false };
        // A discarded round is not charged. Only its times and attempts are recorded.
        self.round.time(&mut self.context, self.reply.as_mut(), ending);
        loop {
            self.passed_over.push(next.name.clone());
            match self.work_for(gateway, Arc::clone(&next)).await {
                Ok(work) => {
                    self.note_failed_trial(gateway, rejection);
                    self.begin_again_with(gateway, work);
                    return true;
                }
                Err(unfit) => passes_over(&mut self.context, &next, &unfit),
            }
            let Some(further) = self.next(rejection) else { return false };
            next = further;
        }
    }

    /// Whether the client has nothing of the answer, and only the answer's opening waits for it. Discards the opening.
    pub(super) fn may_begin_anew(&self) -> bool {
        let only_opened = self.reply.as_ref().is_none_or(|reply| !reply.is_meaningful());
        // What earlier rounds answered cannot be made again.
        if self.settlement.has_ended_rounds() && !only_opened {
            return false;
        }
        if self.line.has_begun() || !(only_opened || self.line.sender.is_empty()) {
            return false;
        }
        self.line.sender.cut();
        true
    }

    /// The next model that was not tried. The first failure decides, not the reason why other models could not take
    /// over.
    fn next(&self, rejection: &Rejection) -> Option<Arc<ServedModel>> {
        let work = &self.round.work;
        let (ending, tried) = ((rejection.code, rejection.stage), &self.passed_over);
        work.terms.catalog.fallback(&work.call.model, ending, &work.model, tried, &work.terms.residency)
    }

    /// Renders the call for another model, and takes limits and money for it.
    async fn work_for(
        &mut self,
        gateway: &Gateway,
        model: Arc<ServedModel>,
    ) -> Result<Box<RenderedWork>, Rejection> {
        let failed = Arc::clone(&self.round.work);
        let work = failed.for_model(gateway, model, &mut self.context).await?;
        let quoted = quoted(&work, self.settlement.tiers(), gateway.parts().clock.now())?;
        let tokens = work.prompt_tokens().saturating_add(work.most_output_tokens());
        let models = (&*failed.model, &*work.model);
        self.settlement.go_over(gateway, models, tokens, quoted, &mut self.context).await?;
        Ok(work)
    }

    /// Counts the call as failed for the canary, because the answer of another model says nothing about it.
    fn note_failed_trial(&mut self, gateway: &Gateway, rejection: &Rejection) {
        let verdict = CallVerdict::of_refusal(rejection.code, rejection.status);
        features::on_verdict(gateway, &mut self.context, verdict);
    }

    /// Makes the call look as if the other model had been asked at once, except for the failed attempts.
    fn begin_again_with(&mut self, gateway: &Gateway, work: Box<RenderedWork>) {
        let failed: Arc<str> = self.round.work.model.name.as_str().into();
        self.passed_over.push(self.round.work.model.name.clone());
        self.context.served_by(&work.model);
        let now = self.context.clock.now();
        let record = &mut self.context.record;
        record.billed = Some(Box::new(work.held_for(self.settlement.quote(), now)));
        record.upstream = None;
        for attempt in record.attempts.iter_mut().filter(|attempt| attempt.model.is_none()) {
            attempt.model = Some(Arc::clone(&failed));
        }
        for round in record.rounds.iter_mut().filter(|round| round.model.is_none()) {
            round.model = Some(Arc::clone(&failed));
        }
        self.reply = None;
        self.round = Round::new(Arc::from(work), &gateway.config().wire);
    }
}
