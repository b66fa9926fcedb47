//! Keeps the texts of answers until they are complete, to check them against the requested form. Must not know who
//! produces them, nor what follows a violation.

use std::sync::Arc;

use headrace_domain::{Code, FinishReason, Form, Prompt, ReplyEvent, Stage};
use headrace_grammar::checked::{Checked, MAX_JUDGED_BYTES, check, is_checked};
use headrace_wire::WireLimits;
use headrace_wire::relay::form_asked;

use crate::policy::OffForm;
use crate::refused::Why;
use crate::state::Work;

/// See the top of the file.
pub(crate) struct Heard {
    form: Arc<Form>,
    choices: Vec<Choice>,
}

/// One answer.
#[derive(Default, Clone)]
struct Choice {
    text: String,
    /// It is too long to be checked, or calls a tool instead.
    is_other: bool,
    finish: Option<FinishReason>,
}

impl Heard {
    /// Makes the buffer for a call whose answers are to be checked. `None` if they are not.
    pub(super) fn of(work: &Work, limits: &WireLimits) -> Option<Self> {
        if work.model.policy.off_form == OffForm::Pass {
            return None;
        }
        let form = match (&work.call.form, &work.call.prompt) {
            (Some(form), _) => Arc::clone(form),
            (None, Prompt::Relayed(relayed)) => {
                Arc::new(form_asked(work.call.endpoint, &relayed.body, limits)?)
            }
            (None, _) => return None,
        };
        let choices = vec![Choice::default(); work.choices() as usize];
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
    pub(super) fn unsaid(&mut self) {
        self.choices.iter_mut().for_each(|choice| *choice = Choice::default());
    }

    fn choice(&mut self, choice: u32) -> Option<&mut Choice> {
        self.choices.get_mut(choice as usize)
    }

    /// Checks the answers that ended by themselves, off the event loop, because a schema may take milliseconds.
    ///
    /// # Errors
    /// The first answer that violates the form.
    pub(crate) async fn judged(self) -> Result<(), Why> {
        let judging = tokio::task::spawn_blocking(move || {
            let Self { form, choices } = self;
            let whole = |choice: &Choice| choice.finish == Some(FinishReason::Stop) && !choice.is_other;
            let judged =
                choices.iter().filter(|choice| whole(choice)).map(|choice| check(&form, &choice.text));
            judged.into_iter().find_map(|checked| match checked {
                Checked::Off { path, keyword } => Some((path, keyword)),
                Checked::Fits | Checked::Unknown { .. } => None,
            })
        });
        // If the check panics, it has found nothing.
        match judging.await.ok().flatten() {
            None => Ok(()),
            Some((path, keyword)) => Err(off_form(&path, &keyword)),
        }
    }
}

fn off_form(path: &str, keyword: &str) -> Why {
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
    Why::new(Code::AnswerOffForm, message).at(Stage::Postprocess).keeping(kept)
}
