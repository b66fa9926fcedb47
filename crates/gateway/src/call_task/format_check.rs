//! Checks a complete answer against the requested form before its last event goes out. If the form is violated, the
//! answer is requested again, provided that the operator wants that for the model. Must not know what a form is.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_catalog::OffForm;
use headrace_domain::{AttemptOutcome, Code};

use crate::Gateway;

use super::placement::Placed;
use super::reply::ReplyWriter;
use super::round::Round;
use super::{CallEnding, CallTask};

/// How often an answer is requested again.
const MOST_ASKED_AGAIN: usize = 2;

impl CallTask {
    /// Like [`Self::noted_run`], and checks a complete answer if there is a form to check it against.
    pub(super) async fn checked_run(&mut self, gateway: &Gateway, placed: &Placed) -> CallEnding {
        let ending = self.noted_run(gateway, placed).await;
        if !matches!(ending, CallEnding::Completed) {
            return ending;
        }
        if self.reply.as_ref().is_some_and(ReplyWriter::is_cut) {
            return ending;
        }
        let Some(text) = self.round.source.take_checked_text() else { return ending };
        // Boxed, so that the futures of other calls reserve no space for it.
        let Err(mut rejection) = Box::pin(text.check()).await else { return ending };
        if self.reply.as_ref().is_some_and(|reply| reply.screen().is_some()) {
            // The message may name properties of the answer, which content rules have not checked.
            rejection.message = rejection.traced().message;
        }
        let failed = CallEnding::Failed(rejection.clone());
        self.round.time(&mut self.context, self.reply.as_mut(), &failed);
        self.note_off_form(&rejection);
        failed
    }

    /// Turns the answered attempts into failed ones.
    fn note_off_form(&mut self, rejection: &Rejection) {
        let attempts = self.context.record.attempts.iter_mut();
        for attempt in attempts.filter(|attempt| attempt.outcome == AttemptOutcome::Answered) {
            let (code, why) = (rejection.code.name().to_owned(), rejection.traced().message);
            attempt.outcome = AttemptOutcome::Failed { code, why };
        }
    }

    /// Starts the round again if its answer violated the form, the policy says to retry, nothing of it has gone out,
    /// and retries are left. The discarded work is not charged.
    pub(super) fn asks_again(&mut self, gateway: &Gateway, ending: &CallEnding) -> bool {
        let CallEnding::Failed(rejection) = ending else { return false };
        let work = &self.round.work;
        let wanted = rejection.code == Code::AnswerOffForm && work.model.policy.off_form == OffForm::Retry;
        if !wanted || !self.may_begin_anew() {
            return false;
        }
        let off = |outcome: &AttemptOutcome| match outcome {
            AttemptOutcome::Failed { code, .. } => code == Code::AnswerOffForm.name(),
            _ => false,
        };
        let tried = self.context.record.attempts.iter().filter(|attempt| off(&attempt.outcome)).count();
        if tried > MOST_ASKED_AGAIN || !work.terms.catalog.fleet().try_take_retry(&work.model.name) {
            return false;
        }
        self.reply = None;
        self.round = Round::new(Arc::clone(&self.round.work), &gateway.config().wire);
        true
    }
}
