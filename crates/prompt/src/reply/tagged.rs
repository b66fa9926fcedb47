//! Reads a call that is a name and a tag for each argument. Values have no quotes, so their schema determines their
//! types. Must not know the marks around calls.

use std::sync::Arc;

use crate::coerce;
use crate::family::Tagged;
use crate::json;
use crate::offered::OfferedTools;

use super::piece::Draft;
use super::step::{MOST_HEAD_BYTES, Step};

/// The reader.
///
/// A value may contain its own closing tag. It ends at the closing tag that is followed by the next argument's tag or
/// by the call's end. A value without a closing tag ends before a tag at the beginning of a line.
#[derive(Debug)]
pub(super) struct TaggedCall {
    form: Tagged,
    /// The mark that ends a call whose own end is missing.
    end: Option<&'static str>,
    offered: Arc<OfferedTools>,
    state: State,
    /// The name, key or tag that is being read.
    head: String,
    key: String,
    value: String,
    /// Whether the value is a text, if its tag says so.
    is_text: Option<bool>,
    arguments: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Name,
    /// Between arguments.
    Between,
    Key,
    /// Between a key and its value.
    Equals,
    Value,
    /// After a possible closing tag of a value. The tag begins at this byte of the value.
    Closed(usize),
}

/// The tags that may occur where a tag is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Key,
    End,
    /// A repeated closing tag.
    Again,
}

impl TaggedCall {
    pub(super) fn new(form: Tagged, end: Option<&'static str>, offered: &Arc<OfferedTools>) -> Self {
        Self {
            form,
            end,
            offered: Arc::clone(offered),
            state: State::Name,
            head: String::new(),
            key: String::new(),
            value: String::new(),
            is_text: None,
            arguments: Vec::new(),
        }
    }

    pub(super) fn step(&mut self, c: char, draft: &mut Draft) -> Step {
        match self.state {
            State::Name => self.step_name(c, draft),
            State::Between => self.step_between(c, draft),
            State::Key => {
                self.head.push(c);
                if let Some(key) = self.head.strip_suffix(self.form.key_end) {
                    self.key = unquoted(key);
                    self.begin_value();
                }
                self.within_bounds()
            }
            State::Equals => {
                self.head.push(c);
                if let Some(tag) = self.head.strip_suffix(self.form.value) {
                    self.is_text = tag.contains("string=").then(|| tag.contains("\"true\""));
                    self.head.clear();
                    self.state = State::Value;
                }
                self.within_bounds()
            }
            State::Value => self.step_value(c, draft),
            State::Closed(at) => self.step_closed(c, at, draft),
        }
    }

    /// Ends the input. A value that ends with the input is complete if its closing tag is.
    pub(super) fn stop(&mut self, draft: &mut Draft) {
        if let State::Closed(at) = self.state {
            self.take_value(at, draft);
            self.state = State::Between;
        }
        if self.state == State::Between {
            self.close(draft);
        }
    }

    fn within_bounds(&self) -> Step {
        if self.head.len() > MOST_HEAD_BYTES { Step::Off } else { Step::More }
    }

    fn step_name(&mut self, c: char, draft: &mut Draft) -> Step {
        // If a line break ends names, the first tag ends a name, too.
        let tag = self.form.name_end == "\n" && c == '<';
        if !tag {
            self.head.push(c);
        }
        let name = match self.head.strip_suffix(self.form.name_end) {
            Some(name) => name,
            None if tag => &self.head,
            // A name has no white space in it.
            None if self.head.trim().contains(char::is_whitespace) => return Step::Off,
            None => return self.within_bounds(),
        };
        let name = unquoted(name);
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Step::Off;
        }
        draft.name = Some(name);
        self.head.clear();
        self.state = State::Between;
        if tag { self.step_between(c, draft) } else { Step::More }
    }

    /// Returns the tag that `text` is. `Ok(None)` if it may still become one, and `Err` if it cannot.
    fn tag(&self, text: &str) -> Result<Option<Tag>, ()> {
        let tags = [
            (self.form.key, Tag::Key),
            (self.form.end, Tag::End),
            (self.end.unwrap_or(self.form.end), Tag::End),
            (self.form.value_end, Tag::Again),
        ];
        if let Some((_, tag)) = tags.into_iter().find(|(mark, _)| *mark == text) {
            return Ok(Some(tag));
        }
        if tags.into_iter().any(|(mark, _)| mark.starts_with(text)) { Ok(None) } else { Err(()) }
    }

    fn step_between(&mut self, c: char, draft: &mut Draft) -> Step {
        if self.head.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        self.head.push(c);
        match self.tag(&self.head) {
            Ok(None) => Step::More,
            Ok(Some(tag)) => self.enter(tag, draft),
            Err(()) => Step::Off,
        }
    }

    fn enter(&mut self, tag: Tag, draft: &mut Draft) -> Step {
        self.head.clear();
        match tag {
            Tag::Key => {
                self.state = State::Key;
                Step::More
            }
            Tag::Again => {
                self.state = State::Between;
                Step::More
            }
            Tag::End => {
                self.close(draft);
                Step::Whole
            }
        }
    }

    fn begin_value(&mut self) {
        self.head.clear();
        self.value.clear();
        self.is_text = None;
        self.state = if self.form.value.is_empty() { State::Value } else { State::Equals };
    }

    fn step_value(&mut self, c: char, draft: &mut Draft) -> Step {
        self.value.push(c);
        if self.value.ends_with(self.form.value_end) {
            self.state = State::Closed(self.value.len().saturating_sub(self.form.value_end.len()));
            self.head.clear();
            return Step::More;
        }
        for (mark, tag) in [(self.form.key, Tag::Key), (self.form.end, Tag::End)] {
            if let Some(value) = self.value.strip_suffix(mark)
                && value.trim_end_matches([' ', '\t']).ends_with('\n')
            {
                let at = value.len();
                self.take_value(at, draft);
                return self.enter(tag, draft);
            }
        }
        Step::More
    }

    /// Handles a character after a possible closing tag of the value. The tag begins at `at`.
    fn step_closed(&mut self, c: char, at: usize, draft: &mut Draft) -> Step {
        self.value.push(c);
        if self.head.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        self.head.push(c);
        match self.tag(&self.head) {
            Ok(None) => Step::More,
            Ok(Some(tag)) => {
                self.take_value(at, draft);
                self.enter(tag, draft)
            }
            // The tag was part of the value.
            Err(()) => {
                self.head.clear();
                self.state = State::Value;
                if self.value.ends_with(self.form.value_end) {
                    self.state = State::Closed(self.value.len().saturating_sub(self.form.value_end.len()));
                }
                Step::More
            }
        }
    }

    /// Takes the value, which ends at `at`.
    fn take_value(&mut self, at: usize, draft: &mut Draft) {
        let value = std::mem::take(&mut self.value);
        let mut value = value.get(..at).unwrap_or("");
        if self.form.lines {
            value = value.strip_prefix('\n').unwrap_or(value);
            value = value.strip_suffix('\n').unwrap_or(value);
        }
        let name = draft.name.as_deref().unwrap_or("");
        let value = match self.is_text {
            Some(true) => json::quoted(value),
            Some(false) => coerce::value(value, None),
            None => coerce::value(value, self.offered.types(name, &self.key).as_deref()),
        };
        let key = std::mem::take(&mut self.key);
        if let Some(known) = self.arguments.iter_mut().find(|(known, _)| *known == key) {
            // The last value of a repeated key counts, as in JSON.
            known.1 = value;
            let all: Vec<String> = self.arguments.iter().map(|(key, value)| member(key, value)).collect();
            draft.arguments = format!("{{{}", all.join(", "));
            return;
        }
        draft.arguments.push_str(if self.arguments.is_empty() { "{" } else { ", " });
        draft.arguments.push_str(&member(&key, &value));
        self.arguments.push((key, value));
    }

    fn close(&self, draft: &mut Draft) {
        draft.arguments.push_str(if self.arguments.is_empty() { "{}" } else { "}" });
        draft.whole = true;
    }
}

fn member(key: &str, value: &str) -> String {
    format!("{}: {value}", json::quoted(key))
}

/// Returns a name without the white space and quotes around it.
fn unquoted(name: &str) -> String {
    name.trim().trim_matches(['"', '\'']).to_owned()
}
