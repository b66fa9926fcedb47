//! Reads one text of an answer piece by piece and puts the values of placeholders back. Holds back the longest suffix that
//! may still become a placeholder of the call, and nothing else. What is let out in all does not depend on how the text
//! is split. A text that only looks like a placeholder stays as it is. Must not know where the text comes from.

use std::ops::Range;
use std::sync::Arc;

use super::placeholder_map::{PlaceholderMap, PlaceholderMatch};

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoredForm {
    /// As it is.
    Plain,
    /// As a part of a JSON string. Placeholders may be written with JSON escapes.
    Json,
    /// As JSON if the text begins with `{`, `[` or `"`, as the arguments of most tools do. Plain otherwise.
    Arguments,
}

/// See the top of the file.
#[derive(Debug, Clone)]
pub struct PlaceholderReader {
    map: Arc<PlaceholderMap>,
    form: RestoredForm,
    /// What is held back: the start of a placeholder, as it was written.
    held: String,
    /// The same without JSON escapes.
    seen: String,
    /// A JSON escape behind it that is not complete.
    escape: String,
    /// Bytes of the text that came.
    came: usize,
    /// The places in the text that were replaced, since [`Self::take_restored`].
    restored: Vec<Range<usize>>,
}

impl PlaceholderReader {
    /// Starts a text.
    pub const fn new(map: Arc<PlaceholderMap>, form: RestoredForm) -> Self {
        Self {
            map,
            form,
            held: String::new(),
            seen: String::new(),
            escape: String::new(),
            came: 0,
            restored: Vec::new(),
        }
    }

    /// A whole text with its values put back. `None` if it has no placeholder of the call.
    pub fn whole(map: &Arc<PlaceholderMap>, form: RestoredForm, text: &str) -> Option<String> {
        let (mut reader, mut out) = (Self::new(Arc::clone(map), form), String::with_capacity(text.len()));
        reader.push(text, &mut out);
        reader.finish(&mut out);
        (!reader.restored.is_empty()).then_some(out)
    }

    /// Takes the next piece of the text, and adds what may leave to `out`.
    pub fn push(&mut self, piece: &str, out: &mut String) {
        if self.form == RestoredForm::Arguments {
            match piece.trim_start().chars().next() {
                None => {
                    self.came += piece.len();
                    return out.push_str(piece);
                }
                Some('{' | '[' | '"') => self.form = RestoredForm::Json,
                Some(_) => self.form = RestoredForm::Plain,
            }
        }
        let mut rest = piece;
        loop {
            if self.held.is_empty() && self.escape.is_empty() {
                // Most texts have none of the characters that a placeholder may begin with.
                let first = match self.form {
                    RestoredForm::Json => rest.find(['<', '\\']),
                    RestoredForm::Plain | RestoredForm::Arguments => rest.find('<'),
                };
                let (before, behind) = rest.split_at(first.unwrap_or(rest.len()));
                out.push_str(before);
                self.came += before.len();
                rest = behind;
            }
            let Some(c) = rest.chars().next() else { return };
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
            self.came += c.len_utf8();
            self.take(c, out);
        }
    }

    /// Takes the end of the text, and adds what was held back to `out`.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        out.push_str(&self.escape);
        self.held.clear();
        self.seen.clear();
        self.escape.clear();
    }

    /// The number of bytes of the text that were let out or replaced.
    pub const fn decided(&self) -> usize {
        self.came.saturating_sub(self.held.len()).saturating_sub(self.escape.len())
    }

    /// Takes the places in the text that were replaced since the last call, as byte offsets.
    pub fn take_restored(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.restored)
    }

    fn take(&mut self, c: char, out: &mut String) {
        if self.form != RestoredForm::Json {
            let mut unit = [0; 4];
            return self.take_unit(c.encode_utf8(&mut unit), Some(c), out);
        }
        if self.escape.is_empty() && c != '\\' {
            let mut unit = [0; 4];
            return self.take_unit(c.encode_utf8(&mut unit), Some(c), out);
        }
        self.escape.push(c);
        match self.escape.strip_prefix("\\u") {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
                if digits.len() == 4 {
                    let c = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                    let unit = std::mem::take(&mut self.escape);
                    self.take_unit(&unit, c, out);
                } else if !self.may_continue(&self.seen, digits) {
                    // It ends the placeholder that may have begun, but may begin another one.
                    if self.may_continue("", digits) {
                        out.push_str(&self.held);
                        (self.held, self.seen) = Default::default();
                    } else {
                        self.finish(out);
                    }
                }
            }
            // A `\u` that is none. Its last character may begin a placeholder or an escape.
            Some(_) => {
                self.escape.pop();
                self.finish(out);
                self.take(c, out);
            }
            None if self.escape.len() == 1 => {}
            // An escape of two characters. No placeholder has such a character.
            None => {
                let unit = std::mem::take(&mut self.escape);
                self.take_unit(&unit, None, out);
            }
        }
    }

    /// Whether the escape of a character that may follow `seen` in a placeholder begins with these digits.
    fn may_continue(&self, seen: &str, digits: &str) -> bool {
        self.map.starting(seen).any(|(placeholder, _)| {
            let next = placeholder.as_bytes().get(seen.len());
            next.is_some_and(|next| {
                let escape = format!("{next:04x}");
                escape.get(..digits.len()).is_some_and(|start| start.eq_ignore_ascii_case(digits))
            })
        })
    }

    /// Takes a character and the way in which it is written.
    fn take_unit(&mut self, unit: &str, c: Option<char>, out: &mut String) {
        if let Some(c) = c.filter(|c| *c == '<' || !self.held.is_empty()) {
            if c == '<' {
                out.push_str(&self.held);
                self.held.clear();
                self.seen.clear();
            }
            self.held.push_str(unit);
            self.seen.push(c);
            match self.map.find(&self.seen) {
                PlaceholderMatch::Start => return,
                PlaceholderMatch::None => {}
                PlaceholderMatch::Whole(value) => {
                    match self.form {
                        RestoredForm::Json => push_json(value, out),
                        RestoredForm::Plain | RestoredForm::Arguments => out.push_str(value),
                    }
                    self.restored.push(self.came.saturating_sub(self.held.len())..self.came);
                    self.held.clear();
                    self.seen.clear();
                    return;
                }
            }
            return self.finish(out);
        }
        self.finish(out);
        out.push_str(unit);
    }
}

/// Adds a text as a part of a JSON string.
fn push_json(text: &str, out: &mut String) {
    let written = serde_json::Value::from(text).to_string();
    let inner = written.strip_prefix('"').and_then(|written| written.strip_suffix('"'));
    out.push_str(inner.unwrap_or_default());
}
