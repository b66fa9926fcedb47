//! Replaces what the rules find in the texts of one call. The same value gets the same placeholder, and numbers follow the
//! order in which values first appear, so a conversation that grows keeps the placeholders of its beginning. Must not
//! know the place of a text in a call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::input_redactions::{InputRedactions, InputReplacement, RedactedSpan};
use super::placeholder_map::{PlaceholderMap, each_placeholder, placeholder};
use crate::output::{ArgumentEdit, edit_arguments};

/// See the top of the file.
pub struct RequestRedactor {
    rules: Arc<InputRedactions>,
    /// Texts of the call that look like placeholders. None of them becomes one.
    taken: BTreeSet<String>,
    /// For each label, the last number.
    numbers: BTreeMap<String, usize>,
    /// Placeholders by label and value.
    placeholders: BTreeMap<(String, String), String>,
}

impl fmt::Debug for RequestRedactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestRedactor({} placeholders)", self.placeholders.len())
    }
}

impl RequestRedactor {
    /// Starts with no placeholders.
    pub fn new(rules: &Arc<InputRedactions>) -> Self {
        Self {
            rules: Arc::clone(rules),
            taken: BTreeSet::new(),
            numbers: BTreeMap::new(),
            placeholders: BTreeMap::new(),
        }
    }

    /// Reserves everything in `text` that looks like a placeholder. Comes before the first redaction, for every text of
    /// the call.
    pub fn reserve(&mut self, text: &str) {
        each_placeholder(text, &mut |found| {
            self.taken.insert(found.to_owned());
        });
    }

    /// Whether the rules find something in `text`.
    pub fn finds(&self, text: &str) -> bool {
        !self.rules.find(text).is_empty()
    }

    /// Redacts a text. `None` if it stays as it is.
    pub fn text(&mut self, text: &str) -> Option<String> {
        self.parts(&[text])?.pop()
    }

    /// Redacts texts that the model reads as one: a match may begin in one of them and end in another. Its replacement is
    /// then in the first one. `None` if all stay as they are.
    pub fn parts(&mut self, parts: &[&str]) -> Option<Vec<String>> {
        let joined;
        let text = match parts {
            [only] => *only,
            _ => {
                joined = parts.concat();
                joined.as_str()
            }
        };
        let rules = Arc::clone(&self.rules);
        let spans = rules.find(text);
        if spans.is_empty() {
            return None;
        }
        let mut redacted = Vec::with_capacity(parts.len());
        let (mut start, mut spans) = (0, spans.iter().peekable());
        for part in parts {
            let end = start + part.len();
            let (mut out, mut at) = (String::with_capacity(part.len()), start);
            while let Some(span) = spans.peek().filter(|span| span.start < end) {
                if span.start >= start {
                    out.push_str(text.get(at..span.start).unwrap_or_default());
                    let value = text.get(span.start..span.end).unwrap_or_default();
                    self.replace(&rules, span, value, &mut out);
                }
                at = span.end.min(end);
                if span.end > end {
                    break;
                }
                spans.next();
            }
            out.push_str(text.get(at..end).unwrap_or_default());
            redacted.push(out);
            start = end;
        }
        Some(redacted)
    }

    /// Redacts the arguments of a tool call: each string, key and number by itself, as the tool reads it. `None` if they
    /// stay as they are. Redacted arguments stay JSON.
    pub fn arguments(&mut self, arguments: &str) -> Option<String> {
        edit_arguments(arguments, &mut |text| {
            self.text(text).map_or(ArgumentEdit::Keep, ArgumentEdit::Replace)
        })
    }

    /// The placeholders that were used. `None` if none was, so that nothing is to be put back.
    pub fn into_map(self) -> Option<Arc<PlaceholderMap>> {
        let entries = self.placeholders.into_iter();
        let entries: Vec<_> = entries.map(|((_, value), placeholder)| (placeholder, value)).collect();
        (!entries.is_empty()).then(|| Arc::new(PlaceholderMap::new(entries)))
    }

    fn replace(&mut self, rules: &InputRedactions, span: &RedactedSpan, value: &str, out: &mut String) {
        match rules.replacement(span) {
            InputReplacement::Fixed(text) => out.push_str(text),
            InputReplacement::Numbered(label) => {
                let key = (label.to_owned(), value.to_owned());
                if let Some(known) = self.placeholders.get(&key) {
                    return out.push_str(known);
                }
                let number = self.numbers.entry(label.to_owned()).or_default();
                let fresh = loop {
                    *number += 1;
                    let fresh = placeholder(label, *number);
                    if !self.taken.contains(&fresh) {
                        break fresh;
                    }
                };
                out.push_str(&fresh);
                self.placeholders.insert(key, fresh);
            }
        }
    }
}
