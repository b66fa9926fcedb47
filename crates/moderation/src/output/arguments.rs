//! The arguments of a tool call, which are JSON text: each string, key and number is checked by itself, as the tool will
//! read it. What replaces a match is written as JSON, so the arguments stay JSON. Must not know tools.

use std::sync::Arc;

use super::filter::OutputFilter;
use super::text_rules::TextRules;

/// A text after the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScreenedText {
    /// The text that may leave. `None` if the rules change nothing.
    pub changed: Option<String>,
    /// The index of the rule that withholds the text. `None` if no rule does.
    pub blocked_by: Option<usize>,
    /// The indices of the other rules that matched.
    pub matched: Vec<usize>,
}

/// Checks a whole text.
pub fn screen_text(rules: &Arc<TextRules>, text: &str) -> ScreenedText {
    let (mut filter, mut out) = (OutputFilter::new(rules), String::with_capacity(text.len()));
    filter.push(text, &mut out);
    filter.finish(&mut out);
    ScreenedText {
        changed: (out != text).then_some(out),
        blocked_by: filter.blocked_by(),
        matched: filter.matched().to_vec(),
    }
}

/// Checks the whole arguments of a tool call. Arguments that are no JSON object or array are checked as one text.
/// Arguments that break off are checked up to their end.
pub fn screen_arguments(rules: &Arc<TextRules>, arguments: &str) -> ScreenedText {
    let mut screened = ScreenedText::default();
    let changed = edit_arguments(arguments, &mut |text| {
        let ScreenedText { changed, blocked_by, matched } = screen_text(rules, text);
        for rule in matched {
            if !screened.matched.contains(&rule) {
                screened.matched.push(rule);
            }
        }
        screened.blocked_by = blocked_by;
        match blocked_by {
            Some(_) => ArgumentEdit::Stop,
            None => changed.map_or(ArgumentEdit::Keep, ArgumentEdit::Replace),
        }
    });
    ScreenedText { changed, ..screened }
}

/// What becomes of one text of the arguments.
pub(crate) enum ArgumentEdit {
    /// It stays.
    Keep,
    /// Another text takes its place.
    Replace(String),
    /// It and what follows are left out.
    Stop,
}

/// Gives each string, key and number of arguments to `edit`, as the tool reads them. Arguments that are no JSON object,
/// array or string are given as one text. Returns the edited arguments. `None` if nothing changes.
pub(crate) fn edit_arguments(arguments: &str, edit: &mut dyn FnMut(&str) -> ArgumentEdit) -> Option<String> {
    if !arguments.trim_start().starts_with(['{', '[', '"']) {
        return match edit(arguments) {
            ArgumentEdit::Keep => None,
            ArgumentEdit::Replace(text) => Some(text),
            ArgumentEdit::Stop => Some(String::new()),
        };
    }
    let mut out = String::with_capacity(arguments.len());
    let mut rest = arguments;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '"' => string_end(rest),
            c if is_structure(c) => first.len_utf8(),
            _ => rest.find(|c: char| c == '"' || is_structure(c)).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let edited = match first {
            '"' => edit(&decoded(inner(token))),
            c if is_structure(c) => ArgumentEdit::Keep,
            _ => edit(token),
        };
        match edited {
            ArgumentEdit::Keep => out.push_str(token),
            // What replaces a number or a literal is a string.
            ArgumentEdit::Replace(text) => {
                let written = serde_json::Value::String(text).to_string();
                let is_open = first == '"' && !is_closed(token);
                out.push_str(if is_open { written.strip_suffix('"').unwrap_or(&written) } else { &written });
            }
            ArgumentEdit::Stop => break,
        }
        rest = after;
    }
    (out != arguments).then_some(out)
}

/// What is between the quotes of a string. The second one is missing if the arguments break off.
fn inner(token: &str) -> &str {
    let inner = token.strip_prefix('"').unwrap_or(token);
    if is_closed(token) { inner.strip_suffix('"').unwrap_or(inner) } else { inner }
}

const fn is_structure(c: char) -> bool {
    matches!(c, '{' | '}' | '[' | ']' | ',' | ':' | ' ' | '\t' | '\n' | '\r')
}

/// The length of the string at the start of `text`, with its quotes.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at.saturating_add(1),
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

fn is_closed(token: &str) -> bool {
    token.len() > 1 && token.ends_with('"') && {
        let inner = token.strip_suffix('"').unwrap_or(token);
        inner.chars().rev().take_while(|c| *c == '\\').count() % 2 == 0
    }
}

/// The text of a string. Escapes that JSON does not know stay as they are.
fn decoded(inner: &str) -> String {
    if !inner.contains('\\') {
        return inner.to_owned();
    }
    if let Ok(text) = serde_json::from_str::<String>(&format!("\"{inner}\"")) {
        return text;
    }
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('r') => text.push('\r'),
            Some('b') => text.push('\u{8}'),
            Some('f') => text.push('\u{c}'),
            Some('u') => {
                let digits = chars.as_str().get(..4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
                match digits.and_then(char::from_u32) {
                    Some(c) => {
                        text.push(c);
                        chars = chars.as_str().get(4..).unwrap_or_default().chars();
                    }
                    None => text.push_str("\\u"),
                }
            }
            Some(other) => text.push(other),
            None => text.push('\\'),
        }
    }
    text
}

#[cfg(test)]
mod tests;
