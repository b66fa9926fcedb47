//! Keeps the texts of answers until they are complete, to check them against the requested form. Must not know who
//! produces them, nor what follows a violation.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_catalog::OffForm;
use headrace_domain::{Code, FinishReason, Prompt, ReplyEvent, ResponseFormat, Stage};
use headrace_grammar::checked::{self, MAX_JUDGED_BYTES, ValidationResult, is_checked};
use headrace_relay::form_asked;
use headrace_wire::WireLimits;

use crate::state::RenderedWork;

/// See the top of the file.
pub(crate) struct FormattedText {
    form: Arc<ResponseFormat>,
    choices: Vec<FormattedChoice>,
}

/// One answer.
#[derive(Default, Clone)]
struct FormattedChoice {
    text: String,
    /// It is too long to be checked, or calls a tool instead.
    is_other: bool,
    finish: Option<FinishReason>,
}

impl FormattedText {
    /// Makes the buffer for a call whose answers are to be checked. `None` if they are not.
    pub(super) fn of(work: &RenderedWork, limits: &WireLimits) -> Option<Self> {
        if work.model.policy.off_form == OffForm::Pass {
            return None;
        }
        let form = match (&work.call.form, &work.call.prompt) {
            (Some(form), _) => Arc::clone(form),
            (None, Prompt::Relayed(relayed)) => Arc::new(form_asked(work.call.endpoint, relayed, limits)?),
            (None, _) => return None,
        };
        let choices = vec![FormattedChoice::default(); work.choices() as usize];
        is_checked(&form).then_some(Self { form, choices })
    }

    /// Takes new output.
    pub(super) fn take(&mut self, events: &[ReplyEvent]) {
        for event in events {
            match event {
                ReplyEvent::Text { choice, text, .. } => {
                    if let Some(choice) = self.choice(*choice).filter(|choice| !choice.is_other) {
                        choice.text.push_str(text);
                        choice.is_other = choice.text.len() > MAX_JUDGED_BYTES;
                    }
                }
                ReplyEvent::ToolCallStart { choice, .. } => {
                    self.choice(*choice).into_iter().for_each(|choice| choice.is_other = true);
                }
                ReplyEvent::Finish { choice, reason } => {
                    if let Some(choice) = self.choice(*choice) {
                        choice.finish = Some(reason.clone());
                    }
                }
                ReplyEvent::Reasoning { .. }
                | ReplyEvent::ReasoningSignature { .. }
                | ReplyEvent::RedactedReasoning { .. }
                | ReplyEvent::ToolCallArguments { .. }
                | ReplyEvent::Encoded { .. }
                | ReplyEvent::Prompt { .. } => {}
            }
        }
    }

    /// Forgets output that was taken back.
    pub(super) fn clear(&mut self) {
        self.choices.iter_mut().for_each(|choice| *choice = FormattedChoice::default());
    }

    fn choice(&mut self, choice: u32) -> Option<&mut FormattedChoice> {
        self.choices.get_mut(choice as usize)
    }

    /// Checks the answers that ended by themselves, off the event loop, because a schema may take milliseconds.
    ///
    /// # Errors
    /// The first answer that violates the form.
    pub(crate) async fn check(self) -> Result<(), Rejection> {
        let checking = tokio::task::spawn_blocking(move || {
            let Self { form, choices } = self;
            let whole =
                |choice: &FormattedChoice| choice.finish == Some(FinishReason::Stop) && !choice.is_other;
            let results = choices
                .iter()
                .filter(|choice| whole(choice))
                .map(|choice| checked::check(&form, &choice.text));
            results.into_iter().find_map(|result| match result {
                ValidationResult::Off { path, keyword } => Some((path, keyword)),
                ValidationResult::Fits | ValidationResult::Unknown { .. } => None,
            })
        });
        // If the check panics, it has found nothing.
        match checking.await.ok().flatten() {
            None => Ok(()),
            Some((path, keyword)) => Err(off_form(&path, &keyword)),
        }
    }
}

fn off_form(path: &str, keyword: &str) -> Rejection {
    let place = if path.is_empty() { "as a whole".to_owned() } else { format!("at `{path}`") };
    let what = match keyword {
        "json" => "it is no JSON".to_owned(),
        keyword => format!("{place} it does not keep to `{keyword}`"),
    };
    let message = format!(
        "The answer has not the form that was asked for: {what}. What was not delivered is not charged."
    );
    // The path may contain property names from the answer.
    let kept = format!("The answer did not keep to `{keyword}` of the form that was asked for.");
    Rejection::new(Code::AnswerOffForm, message).at(Stage::Postprocess).keeping(kept)
}
