//! Checks how a prompt begins and how it opens an answer. Must not know how an answer ends.

use headrace_domain::{Conversation, UnixNanos};
use headrace_prompt::{RenderOptions, RenderedPrompt};

use super::patient::{ANSWER, NEXT, Patient, QUESTION, assistant, user};
use crate::finding::{Finding, Severity};

/// A day and a minute, in nanoseconds: changes the date and the time of day.
const LATER_NANOS: u64 = (24 * 3600 + 60) * 1_000_000_000;

pub(super) fn check(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    opening(patient, findings);
    beginning(patient, findings);
    time(patient, findings);
}

/// Checks whether the text that opens an answer equals the text before an earlier answer.
fn opening(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    let Some(opened) = patient.opening() else { return };
    let closed = patient.text(vec![user(QUESTION)], false);
    let closed = closed.and_then(|text| Some(text.rsplit_once(QUESTION)?.1.to_owned()));
    let history = patient.text(vec![user(QUESTION), assistant(ANSWER), user(NEXT)], false);
    let between = history.and_then(|text| {
        let from = text.find(QUESTION)?.checked_add(QUESTION.len())?;
        let until = text.find(ANSWER)?;
        text.get(from..until).map(str::to_owned)
    });
    let Some(between) = between else { return };
    let (opens, before) = (opened.trim(), between.trim());
    let evidence =
        format!("before an answer that was given is {between:?}, and at the end of a prompt {opened:?}");
    let way_out = "take chat_template.jinja of the model's repository: behind `{% if add_generation_prompt %}` it writes what \
                   opens the assistant's turn"
        .to_owned();
    let rest = before.strip_prefix(opens).map(str::trim).filter(|rest| !rest.is_empty());
    if rest.is_some() && closed.as_deref() == Some(opened.as_str()) {
        findings.push(Finding {
            code: "generation_prompt_missing",
            severity: Severity::Fault,
            what: "the template does not open the assistant's turn: the model may continue as the user"
                .to_owned(),
            evidence,
            way_out,
        });
    } else if names_another(opens, before) {
        findings.push(Finding {
            code: "generation_prompt_differs",
            severity: Severity::Warning,
            what: "the template opens an answer in other words than it shows an earlier one with".to_owned(),
            evidence,
            way_out,
        });
    }
}

/// Whether two heads of a turn differ in words and not only in marks. Marks may differ: reasoning may be opened, shown
/// as empty or left out, and a head may leave some text to the model.
fn names_another(opens: &str, before: &str) -> bool {
    let same = opens.bytes().zip(before.bytes()).take_while(|(left, right)| left == right).count();
    let word = |text: &str| {
        let rest = text.get(same..).unwrap_or_default().trim_start();
        let within = text.get(..same).unwrap_or_default();
        // Letters inside a mark are not part of a word.
        let in_mark = within.rfind(['<', '[']) > within.rfind(['>', ']']);
        !in_mark && rest.starts_with(char::is_alphabetic)
    };
    word(opens) && word(before)
}

/// Checks whether a prompt begins with the beginning-of-sequence token exactly once.
fn beginning(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    let Some(bos) = patient.named(&patient.examined.tokenizer_config.bos_token) else { return };
    let Some(ids) = patient.ids(vec![user(QUESTION)], true) else { return };
    let times = ids.iter().take_while(|id| **id == bos).count();
    let adds = patient.words.tokenizer.prefix().contains(&bos);
    match times {
        0 if adds => findings.push(Finding {
            code: "bos_missing",
            severity: Severity::Warning,
            what: "texts begin with the beginning-of-sequence token, and conversations do not".to_owned(),
            evidence: format!("the tokenizer puts {} before a text; the template does not write it", patient.show(bos)),
            way_out: "write `{{ bos_token }}` at the top of the template, if the model was taught so: conversations are encoded \
                      as the template writes them"
                .to_owned(),
        }),
        0 => {}
        1 if adds => findings.push(Finding {
            code: "bos_doubled_elsewhere",
            severity: Severity::Note,
            what: "the template writes the beginning-of-sequence token and the tokenizer puts it before every text".to_owned(),
            evidence: format!("{} is once in a conversation's prompt here", patient.show(bos)),
            way_out: "nothing here. Whoever sends the rendered text as a raw prompt begins it twice: leave one out there"
                .to_owned(),
        }),
        1 => {}
        times => findings.push(Finding {
            code: "bos_doubled",
            severity: Severity::Fault,
            what: format!("a prompt begins with the beginning-of-sequence token {times} times"),
            evidence: format!("the first tokens of a rendered question: {}", patient.show_all(ids.get(..times).unwrap_or_default())),
            way_out: "the template writes it twice: leave one `{{ bos_token }}` out".to_owned(),
        }),
    }
}

/// Checks whether a prompt changes with the time.
fn time(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    let at = |now: u64| {
        let conversation = Conversation { messages: vec![user(QUESTION)], ..Conversation::default() };
        let options =
            RenderOptions { add_generation_prompt: true, now: UnixNanos::new(now), reasoning: None };
        patient.template()?.render(&conversation, &options).ok().map(RenderedPrompt::into_text)
    };
    let (Some(now), Some(later)) = (at(0), at(LATER_NANOS)) else { return };
    if now == later {
        return;
    }
    let same = now.bytes().zip(later.bytes()).take_while(|(left, right)| left == right).count();
    findings.push(Finding {
        code: "template_tells_time",
        severity: Severity::Note,
        what: "the template writes the time into every prompt: cached prefixes end there when it changes".to_owned(),
        evidence: format!("the prompts of two days part at byte {same} of {}", now.len()),
        way_out: "give `date_string` by `chat_template_kwargs` if the template takes one, or leave the date out of it".to_owned(),
    });
}
