//! Checks whether the marks around turns are single tokens. Must not know the content of a turn.

use std::collections::BTreeMap;

use super::patient::{ANSWER, NEXT, Patient, QUESTION, assistant, user};
use crate::finding::{Finding, Severity};

/// The maximum length of a mark, in bytes.
const LONGEST_MARK_BYTES: usize = 48;

/// The style of a mark. Marks of different styles are of different kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Style {
    /// `<|…|>`, `<｜…｜>`
    Barred,
    /// `<…>`
    Angled,
    /// `[…]`
    Squared,
}

/// A mark in a prompt.
struct Mark {
    style: Style,
    /// The number of tokens of the mark, which should be 1.
    tokens: usize,
    pieces: String,
}

pub(super) fn check(patient: &Patient<'_>, findings: &mut Vec<Finding>) {
    let marks = marks(patient);
    let config = patient.examined.tokenizer_config;
    let named = [&config.bos_token, &config.eos_token, &config.pad_token, &config.unk_token];
    let named: Vec<&str> =
        named.into_iter().flatten().chain(&config.additional_special_tokens).map(String::as_str).collect();
    for (text, mark) in marks.iter().filter(|(_, mark)| mark.tokens > 1) {
        let is_named = named.contains(&text.as_str());
        let sibling = marks.iter().find(|(_, other)| other.tokens == 1 && other.style == mark.style);
        let (severity, because) = match (is_named, sibling, mark.style) {
            (true, ..) => (Severity::Fault, "tokenizer_config.json names it as a special token".to_owned()),
            (_, Some((other, _)), _) => (Severity::Fault, format!("`{other}`, written alike, is one")),
            (_, None, Style::Barred) => (
                Severity::Warning,
                "a few models (Zephyr, TinyLlama) were taught so; in others it is lost".to_owned(),
            ),
            (_, None, _) => (Severity::Note, "models of the Llama 2 kind were taught so".to_owned()),
        };
        findings.push(Finding {
            code: "marker_split",
            severity,
            what: format!("the role marker `{text}` is {} tokens and not one", mark.tokens),
            evidence: format!("it becomes {}; {because}", mark.pieces),
            way_out: "tokenizer.json has lost its added tokens: take it from the model's repository, together with the weights that \
                      know it"
                .to_owned(),
        });
    }
}

/// Returns the marks that the template writes around turns: between a question and its answer, after the answer, and at
/// the beginning of the next answer. Text of the template before the first question is prose, including marks in it.
fn marks(patient: &Patient<'_>) -> BTreeMap<String, Mark> {
    let turns = vec![user(QUESTION), assistant(ANSWER), user(NEXT)];
    let alone = vec![user(QUESTION)];
    let rendered = [turns, alone].into_iter().find_map(|messages| {
        let (text, ids) = (patient.text(messages.clone(), true)?, patient.ids(messages, true)?);
        let spans = patient.words.tokenizer.spans(&text, &ids)?;
        Some((text, ids, spans))
    });
    let mut found = BTreeMap::new();
    let Some((text, ids, spans)) = rendered else { return found };
    let begins = text.find(QUESTION).unwrap_or(text.len());
    for (at, mark) in written(&text).into_iter().filter(|(at, _)| *at > begins) {
        let end = at.saturating_add(mark.len());
        let within: Vec<u32> = ids
            .iter()
            .zip(&spans)
            .filter(|(_, span)| span.end > at && span.start < end && !span.is_empty())
            .map(|(id, _)| *id)
            .collect();
        let pieces = patient.show_all(&within);
        let found = found.entry(mark.to_owned());
        found.or_insert(Mark { style: style(mark), tokens: within.len(), pieces });
    }
    found
}

fn style(mark: &str) -> Style {
    match mark.chars().nth(1) {
        Some('|' | '｜') => Style::Barred,
        _ if mark.starts_with('[') => Style::Squared,
        _ => Style::Angled,
    }
}

/// Returns everything that looks like a mark, with its position.
fn written(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| rest.find(['<', '['])) {
        let start = from.saturating_add(at);
        from = start.saturating_add(1);
        let Some(rest) = text.get(start..) else { break };
        let closing = if rest.starts_with('<') { '>' } else { ']' };
        let Some(length) = rest.find(closing) else { continue };
        let Some(mark) = rest.get(..=length) else { continue };
        let inner = mark.get(1..length).unwrap_or_default();
        let has_letters = inner.chars().any(char::is_alphabetic);
        let plain = !inner.contains(char::is_whitespace) && !inner.contains(['<', '[', '"', '=']);
        let shouts = closing == '>' || !inner.chars().any(char::is_lowercase);
        if has_letters && plain && shouts && mark.len() <= LONGEST_MARK_BYTES {
            found.push((start, mark));
            from = start.saturating_add(mark.len());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_from_text() {
        for (text, expected) in [
            ("<|im_start|>user\nhi<|im_end|>", vec!["<|im_start|>", "<|im_end|>"]),
            ("<s>[INST] a [/INST]", vec!["<s>", "[INST]", "[/INST]"]),
            ("<<SYS>>\nx\n<</SYS>>", vec!["<SYS>", "</SYS>"]),
            ("<｜User｜>a<｜Assistant｜>", vec!["<｜User｜>", "<｜Assistant｜>"]),
            ("a < b and c > d, x[i] [see below]", vec![]),
        ] {
            let found: Vec<&str> = written(text).into_iter().map(|(_, mark)| mark).collect();
            assert_eq!(found, expected, "{text}");
        }
    }
}
