//! Checks whether the template accepts common conversations and shows all their messages to the model. Must not know
//! tokens.

use headrace_domain::{Conversation, Message};

use super::patient::{ANSWER, NEXT, Patient, QUESTION, SYSTEM, assistant, system, user};
use crate::finding::{Finding, Severity};

/// A conversation that is common among callers.
struct Usual {
    name: &'static str,
    /// The severity if the template rejects the conversation.
    severity: Severity,
    messages: Vec<Message>,
}

fn usual() -> Vec<Usual> {
    let row = |name, severity, messages| Usual { name, severity, messages };
    let (question, answer, next) = (|| user(QUESTION), || assistant(ANSWER), || user(NEXT));
    vec![
        row("a question", Severity::Fault, vec![question()]),
        row(
            "a question, its answer and another question",
            Severity::Fault,
            vec![question(), answer(), next()],
        ),
        row("instructions and a question", Severity::Warning, vec![system(SYSTEM), question()]),
        row(
            "instructions and several turns",
            Severity::Warning,
            vec![system(SYSTEM), question(), answer(), next()],
        ),
        row("two messages of the user in a row", Severity::Note, vec![question(), next()]),
        row("instructions in the middle", Severity::Note, vec![question(), answer(), system(SYSTEM), next()]),
        row("an answer before any question", Severity::Note, vec![answer(), next()]),
        row("an empty question", Severity::Note, vec![user("")]),
    ]
}

pub(super) fn check(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    for Usual { name, severity, messages } in usual() {
        let conversation = Conversation { messages, ..Conversation::default() };
        match patient.render(&conversation, true) {
            None => return,
            Some(Err(error)) => findings.push(Finding {
                code: "template_fails",
                severity,
                what: format!("the template does not take {name}"),
                evidence: error.to_string(),
                way_out: way_out(severity),
            }),
            Some(Ok(rendered)) => {
                let dropped = conversation.messages.iter().find(|message| {
                    !rendered.text().contains(message.content.as_deref().unwrap_or_default())
                });
                findings.extend(dropped.map(|message| Finding {
                    code: "message_dropped",
                    severity: severity.max(Severity::Warning),
                    what: format!("of {name}, the model never sees what the {} said", message.role.name()),
                    evidence: format!(
                        "{:?} does not stand in the prompt",
                        message.content.as_deref().unwrap_or_default()
                    ),
                    way_out: way_out(severity),
                }));
            }
        }
    }
}

fn way_out(severity: Severity) -> String {
    match severity {
        Severity::Note => {
            "callers who send such conversations have to bring them into the form that it takes".to_owned()
        }
        Severity::Warning | Severity::Fault => {
            "if the model's card does not say so, take chat_template.jinja of its repository".to_owned()
        }
    }
}
