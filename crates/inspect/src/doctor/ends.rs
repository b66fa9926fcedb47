//! Checks whether answers end at the token with which the model ends them. Must not know how answers are opened.

use headrace_prompt::ReplyFamily;

use super::patient::{ANSWER, NEXT, Patient, QUESTION, assistant, user};
use crate::finding::{Finding, Severity};

/// Runs the checks that need no template.
pub(super) fn check_ids(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    let (examined, tokenizer) = (patient.examined, &patient.words.tokenizer);
    if examined.eos.is_empty() {
        findings.push(Finding {
            code: "eos_missing",
            severity: Severity::Fault,
            what: "nothing ends an answer but its length".to_owned(),
            evidence: "neither config.json nor generation_config.json has `eos_token_id`".to_owned(),
            way_out: "add `eos_token_id` to generation_config.json: the ids that the model's card names"
                .to_owned(),
        });
    }
    for id in examined.eos.iter().filter(|id| tokenizer.token_bytes(**id).is_none()) {
        findings.push(Finding {
            code: "eos_unknown",
            severity: Severity::Fault,
            what: format!("answers would end with id {id}, and the tokenizer has no such token"),
            evidence: format!("`eos_token_id` {:?}; tokenizer.json ends with id {}", examined.eos, tokenizer.vocab_size().saturating_sub(1)),
            way_out: "the tokenizer is another model's, or its added tokens are missing: take both from one repository".to_owned(),
        });
    }
    let named = patient.named(&examined.tokenizer_config.eos_token);
    if let Some(id) = named.filter(|id| !examined.eos.is_empty() && !examined.eos.contains(id)) {
        findings.push(Finding {
            code: "eos_disagrees",
            severity: Severity::Warning,
            what: "the tokenizer's file names another end than the model's".to_owned(),
            evidence: format!(
                "tokenizer_config.json: `eos_token` {}; `eos_token_id`: {}",
                patient.show(id),
                patient.show_all(examined.eos)
            ),
            way_out: format!(
                "if the model ends its turns with it, add {id} to `eos_token_id` in generation_config.json"
            ),
        });
    }
    let text = tokenizer.encode_plain(QUESTION, true).unwrap_or_default();
    if let Some(last) = text.last().filter(|id| examined.eos.contains(id)) {
        findings.push(Finding {
            code: "eos_appended",
            severity: Severity::Warning,
            what: "the tokenizer ends every text with what ends an answer".to_owned(),
            evidence: format!("a plain text becomes {} tokens, the last of which is {}", text.len(), patient.show(*last)),
            way_out: "set `add_eos_token` to false in tokenizer_config.json: a raw prompt would be over before its answer begins"
                .to_owned(),
        });
    }
}

/// Runs the checks that need a template.
pub(super) fn check_turns(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    // GPT-OSS ends its turns with one token and its answers with others.
    if patient.words.replies.family == ReplyFamily::Harmony {
        return;
    }
    prompt_is_over(patient, findings);
    let Some(ends) = turn_end(patient) else { return };
    match ends {
        None => findings.push(Finding {
            code: "turn_without_end",
            severity: Severity::Warning,
            what: "the template ends an answer with no token of its own".to_owned(),
            evidence: "no special token is between an answer and the next question".to_owned(),
            way_out: "the model may go on and write the user's next question: set stop strings, or take the template of the \
                      model's repository"
                .to_owned(),
        }),
        Some(id) if patient.examined.eos.is_empty() || patient.examined.eos.contains(&id) => {}
        Some(id) => findings.push(Finding {
            code: "eos_mismatch",
            severity: Severity::Fault,
            what: "what ends an answer in the template does not end one in the engine: answers will run on".to_owned(),
            evidence: format!(
                "the template writes {} behind an answer; `eos_token_id`: {}",
                patient.show(id),
                patient.show_all(patient.examined.eos)
            ),
            way_out: format!("add {id} to `eos_token_id` in generation_config.json"),
        }),
    }
}

/// Returns the first control or markup token between an answer and the next question. The outer `None` means that the
/// template rejects or hides such a conversation, the inner `None` that there is no such token.
fn turn_end(patient: &Patient<'_>) -> Option<Option<u32>> {
    let messages = vec![user(QUESTION), assistant(ANSWER), user(NEXT)];
    let text = patient.text(messages.clone(), true)?;
    let ids = patient.ids(messages, true)?;
    let tokenizer = &patient.words.tokenizer;
    let spans = tokenizer.spans(&text, &ids)?;
    let (from, until) = (text.find(ANSWER)?.saturating_add(ANSWER.len()), text.find(NEXT)?);
    let mut between =
        ids.iter().zip(&spans).filter(|(_, span)| span.end > from && span.start < until).map(|(id, _)| *id);
    Some(between.find(|id| tokenizer.is_control(*id) || tokenizer.is_markup(*id)))
}

/// Checks for a prompt whose last token ends an answer.
fn prompt_is_over(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    let ids = patient.ids(vec![user(QUESTION)], true).unwrap_or_default();
    let Some(last) = ids.last().filter(|id| patient.examined.eos.contains(id)) else { return };
    findings.push(Finding {
        code: "prompt_ends_with_eos",
        severity: Severity::Fault,
        what: "a prompt ends with what ends an answer".to_owned(),
        evidence: format!("the last token of a rendered question is {}", patient.show(*last)),
        way_out: "the template writes the end of a turn where it should open the assistant's: take the template of the model's \
                  repository"
            .to_owned(),
    });
}
