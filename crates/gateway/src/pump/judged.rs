//! What follows where an answer is whole and may not be of the form that was asked for: it is judged before its last word goes out, and
//! asked for once more where its model's operator wants that. Must not know what a form is.

use std::sync::Arc;

use headrace_domain::{AttemptOutcome, Code};

use crate::Gateway;
use crate::policy::OffForm;
use crate::refused::Why;

use super::place::Placed;
use super::round::Round;
use super::{Carried, Ending};

/// How often an answer is asked for once more.
const MOST_ASKED_AGAIN: usize = 2;

impl Carried {
    /// [`Self::noted_run`], and an answer that is whole is judged where there is anything to judge by.
    pub(super) async fn judged_run(&mut self, gateway: &Gateway, placed: &Placed) -> Ending {
        let ending = self.noted_run(gateway, placed).await;
        if !matches!(ending, Ending::Completed) {
            return ending;
        }
        let Some(heard) = self.round.source.heard() else { return ending };
        // Apart, so that no other call has room for it.
        let Err(why) = Box::pin(heard.judged()).await else { return ending };
        self.round.time(&mut self.dossier, self.reply.as_mut());
        self.note_off_form(&why);
        Ending::Failed(why)
    }

    /// Whoever answered has failed after all.
    fn note_off_form(&mut self, why: &Why) {
        let attempts = self.dossier.record.attempts.iter_mut();
        for attempt in attempts.filter(|attempt| attempt.outcome == AttemptOutcome::Answered) {
            let (code, why) = (why.code.name().to_owned(), why.traced().message);
            attempt.outcome = AttemptOutcome::Failed { code, why };
        }
    }

    /// Begins the round anew where that was the matter, nothing of it has gone out and retries last. What was computed in vain is
    /// paid for by nobody.
    pub(super) fn asks_again(&mut self, ending: &Ending) -> bool {
        let Ending::Failed(why) = ending else { return false };
        let work = &self.round.work;
        let wanted = why.code == Code::AnswerOffForm && work.model.policy.off_form == OffForm::Retry;
        if !wanted || !self.may_begin_anew() {
            return false;
        }
        let off = |outcome: &AttemptOutcome| match outcome {
            AttemptOutcome::Failed { code, .. } => code == Code::AnswerOffForm.name(),
            _ => false,
        };
        let tried = self.dossier.record.attempts.iter().filter(|attempt| off(&attempt.outcome)).count();
        if tried > MOST_ASKED_AGAIN || !work.catalog.fleet().may_retry(&work.model.name) {
            return false;
        }
        self.reply = None;
        self.round = Round::new(Arc::clone(&self.round.work));
        true
    }
}
