//! Reads a call that is a name and a tag for each argument. Values have no quotes, so their schema determines their
//! types. Must not know the marks around calls.

use std::sync::Arc;

use crate::coerce;
use crate::family::{TagLayout, TypeAttribute};
use crate::json;
use crate::offered::OfferedTools;

use super::piece::CallDraft;
use super::step::{CallStep, MOST_HEAD_BYTES};

/// The reader.
///
/// A value may contain its own closing tag. It ends at the closing tag that is followed by the next argument's tag or
/// by the call's end. A value without a closing tag ends before a tag at the beginning of a line.
#[derive(Debug)]
pub(super) struct TaggedCall {
    form: TagLayout,
    /// The mark that ends a call whose own end is missing.
    end: Option<&'static str>,
    offered: Arc<OfferedTools>,
    state: TaggedState,
    /// The name, key or tag that is being read.
    head: String,
    key: String,
    value: String,
    /// Whether the value is a text, if its tag says so.
    is_text: Option<bool>,
    arguments: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaggedState {
    Name,
    /// Between the name and the first argument.
    Rest,
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
enum ExpectedTag {
    Key,
    End,
    /// A repeated closing tag, or the tag that separates the name from the arguments.
    Again,
}

impl TaggedCall {
    pub(super) fn new(form: TagLayout, end: Option<&'static str>, offered: &Arc<OfferedTools>) -> Self {
        Self {
            form,
            end,
            offered: Arc::clone(offered),
            state: TaggedState::Name,
            head: String::new(),
            key: String::new(),
            value: String::new(),
            is_text: None,
            arguments: Vec::new(),
        }
    }

    pub(super) fn step(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        match self.state {
            TaggedState::Name => self.step_name(c, draft),
            TaggedState::Rest => {
                self.head.push(c);
                if self.head.ends_with(self.form.name_rest) {
                    self.head.clear();
                    self.state = TaggedState::Between;
                }
                self.within_bounds()
            }
            TaggedState::Between => self.step_between(c, draft),
            TaggedState::Key => {
                self.head.push(c);
                if let Some(key) = self.head.strip_suffix(self.form.key_end) {
                    self.key = self.unquoted(key);
                    self.begin_value();
                }
                self.within_bounds()
            }
            TaggedState::Equals => {
                self.head.push(c);
                if let Some(tag) = self.head.strip_suffix(self.form.value) {
                    self.is_text = match self.form.types {
                        TypeAttribute::None => None,
                        TypeAttribute::IsString => tag.contains("string=").then(|| tag.contains("\"true\"")),
                        TypeAttribute::Name => tag.contains("type=").then(|| tag.contains("\"string\"")),
                    };
                    self.head.clear();
                    self.state = TaggedState::Value;
                }
                self.within_bounds()
            }
            TaggedState::Value => self.step_value(c, draft),
            TaggedState::Closed(at) => self.step_closed(c, at, draft),
        }
    }

    /// Ends the input. A value that ends with the input is complete if its closing tag is.
    pub(super) fn stop(&mut self, draft: &mut CallDraft) {
        if let TaggedState::Closed(at) = self.state {
            self.take_value(at, draft);
            self.state = TaggedState::Between;
        }
        if self.state == TaggedState::Between {
            self.close(draft);
        }
    }

    fn within_bounds(&self) -> CallStep {
        if self.head.len() > MOST_HEAD_BYTES { CallStep::Off } else { CallStep::More }
    }

    fn step_name(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        // If a line break or a tag ends names, the first tag ends a name, too.
        let tag = c == '<' && self.form.name_end.starts_with(['\n', '<']);
        if !tag {
            self.head.push(c);
        }
        let name = match self.head.strip_suffix(self.form.name_end) {
            Some(name) => name,
            None if tag => &self.head,
            // A name has no white space in it.
            None if self.head.trim().contains(char::is_whitespace) => return CallStep::Off,
            None => return self.within_bounds(),
        };
        let name = self.unquoted(name);
        if name.is_empty() || name.contains(char::is_whitespace) {
            return CallStep::Off;
        }
        draft.name = Some(name);
        self.head.clear();
        let rest = !self.form.name_rest.is_empty();
        self.state = if rest { TaggedState::Rest } else { TaggedState::Between };
        if tag { self.step_between(c, draft) } else { CallStep::More }
    }

    /// Returns the tag that `text` is. `Ok(None)` if it may still become one, and `Err` if it cannot.
    fn tag(&self, text: &str) -> Result<Option<ExpectedTag>, ()> {
        let separator = Some(self.form.name_end).filter(|mark| mark.starts_with('<'));
        let tags = [
            (self.form.key, ExpectedTag::Key),
            (self.form.end, ExpectedTag::End),
            (self.end.unwrap_or(self.form.end), ExpectedTag::End),
            (self.form.value_end, ExpectedTag::Again),
            (separator.unwrap_or(self.form.value_end), ExpectedTag::Again),
        ];
        if let Some((_, tag)) = tags.into_iter().find(|(mark, _)| *mark == text) {
            return Ok(Some(tag));
        }
        if tags.into_iter().any(|(mark, _)| mark.starts_with(text)) { Ok(None) } else { Err(()) }
    }

    fn step_between(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        if self.head.is_empty() && c.is_whitespace() {
            return CallStep::More;
        }
        self.head.push(c);
        match self.tag(&self.head) {
            Ok(None) => CallStep::More,
            Ok(Some(tag)) => self.enter(tag, draft),
            Err(()) => CallStep::Off,
        }
    }

    fn enter(&mut self, tag: ExpectedTag, draft: &mut CallDraft) -> CallStep {
        self.head.clear();
        match tag {
            ExpectedTag::Key => {
                self.state = TaggedState::Key;
                CallStep::More
            }
            ExpectedTag::Again => {
                self.state = TaggedState::Between;
                CallStep::More
            }
            ExpectedTag::End => {
                self.close(draft);
                CallStep::Whole
            }
        }
    }

    fn begin_value(&mut self) {
        self.head.clear();
        self.value.clear();
        self.is_text = None;
        self.state = if self.form.value.is_empty() { TaggedState::Value } else { TaggedState::Equals };
    }

    fn step_value(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        self.value.push(c);
        if self.value.ends_with(self.form.value_end) {
            self.state = TaggedState::Closed(self.value.len().saturating_sub(self.form.value_end.len()));
            self.head.clear();
            return CallStep::More;
        }
        for (mark, tag) in [(self.form.key, ExpectedTag::Key), (self.form.end, ExpectedTag::End)] {
            if let Some(value) = self.value.strip_suffix(mark)
                && value.trim_end_matches([' ', '\t']).ends_with('\n')
            {
                let at = value.len();
                self.take_value(at, draft);
                return self.enter(tag, draft);
            }
        }
        CallStep::More
    }

    /// Handles a character after a possible closing tag of the value. The tag begins at `at`.
    fn step_closed(&mut self, c: char, at: usize, draft: &mut CallDraft) -> CallStep {
        self.value.push(c);
        if self.head.is_empty() && c.is_whitespace() {
            return CallStep::More;
        }
        self.head.push(c);
        match self.tag(&self.head) {
            Ok(None) => CallStep::More,
            Ok(Some(tag)) => {
                self.take_value(at, draft);
                self.enter(tag, draft)
            }
            // The tag was part of the value.
            Err(()) => {
                self.head.clear();
                self.state = TaggedState::Value;
                if self.value.ends_with(self.form.value_end) {
                    self.state =
                        TaggedState::Closed(self.value.len().saturating_sub(self.form.value_end.len()));
                }
                CallStep::More
            }
        }
    }

    /// Takes the value, which ends at `at`.
    fn take_value(&mut self, at: usize, draft: &mut CallDraft) {
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

    /// Returns a name or key without the white space and quotes around it.
    fn unquoted(&self, name: &str) -> String {
        let name = name.trim().trim_matches(['"', '\'']);
        if self.form.has_attributes() {
            return name.replace("&quot;", "\"").replace("&amp;", "&");
        }
        name.to_owned()
    }

    fn close(&self, draft: &mut CallDraft) {
        draft.arguments.push_str(if self.arguments.is_empty() { "{}" } else { "}" });
        draft.whole = true;
    }
}

fn member(key: &str, value: &str) -> String {
    format!("{}: {value}", json::quoted(key))
}
