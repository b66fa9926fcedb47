//! Reads a call that is a JSON object of a name and arguments, or the first call of a list. Must not know marks.

use crate::family::ObjectLayout;

use super::piece::CallDraft;
use super::span::{BracketSpan, is_space};
use super::step::CallStep;

/// The reader. An object with keys other than a name, arguments, an id, a number and a type is not a call. If such keys
/// come after the arguments, the object is a call, and they are text.
#[derive(Debug)]
pub(super) struct ObjectCall {
    /// The keys. The call may be the first of a list if arrays are accepted. An opening bracket makes it one.
    layout: ObjectLayout,
    /// Whether a mark precedes the call. If so, an object without arguments is a call, too.
    marked: bool,
    in_list: bool,
    state: ObjectState,
    /// The string that is being read, with quotes and escapes as written.
    string: String,
    escaped: bool,
    key: String,
    arguments: Option<BracketSpan>,
    has_arguments: bool,
    /// The characters read since name and arguments were known.
    tail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectState {
    /// Before the opening brace.
    Open,
    /// Before a key.
    Key,
    InKey,
    Colon,
    Value,
    /// Inside a name, an id, a number or a type.
    InString,
    InArguments,
    /// Inside arguments that are written as a JSON string.
    InText,
    /// Inside arguments that are `null`.
    InNull,
    AfterValue,
}

impl ObjectCall {
    pub(super) fn new(layout: ObjectLayout, marked: bool) -> Self {
        Self {
            layout,
            marked,
            in_list: false,
            state: ObjectState::Open,
            string: String::new(),
            escaped: false,
            key: String::new(),
            arguments: None,
            has_arguments: false,
            tail: String::new(),
        }
    }

    /// Creates a reader for the first call of a list whose bracket has been read.
    pub(super) fn listed(layout: ObjectLayout) -> Self {
        Self { in_list: true, ..Self::new(ObjectLayout { array: false, ..layout }, true) }
    }

    pub(super) fn in_list(&self) -> bool {
        self.in_list
    }

    pub(super) fn tail(&mut self) -> String {
        std::mem::take(&mut self.tail)
    }

    pub(super) fn step(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        if self.state == ObjectState::InArguments {
            draft.arguments.push(c);
            if self.arguments.as_mut().is_some_and(|span| span.step(c)) {
                self.state = ObjectState::AfterValue;
                self.has_arguments = true;
                draft.whole = draft.name.is_some();
            }
            return CallStep::More;
        }
        let was_whole = draft.whole;
        let next = match (self.state, c) {
            (ObjectState::InKey | ObjectState::InString | ObjectState::InText, _) => {
                self.step_string(c, draft)
            }
            (ObjectState::InNull, _) => self.step_null(c, draft),
            (state, c) if is_space(c) => Some(state),
            (ObjectState::Open, '{') => Some(ObjectState::Key),
            (ObjectState::Open, '[') if self.layout.array => {
                (self.layout.array, self.in_list) = (false, true);
                Some(ObjectState::Open)
            }
            (ObjectState::Key, '"') => Some(self.begin(ObjectState::InKey)),
            (ObjectState::Colon, ':') => Some(ObjectState::Value),
            (ObjectState::Value, '"') if self.takes_string(draft) => Some(self.begin(ObjectState::InString)),
            (ObjectState::Value, '"') if self.takes_arguments() => Some(self.begin(ObjectState::InText)),
            (ObjectState::Value, 'n') if self.takes_arguments() => {
                self.string = "n".to_owned();
                Some(ObjectState::InNull)
            }
            (ObjectState::Value, '{') if self.takes_arguments() => {
                draft.arguments = "{".to_owned();
                self.arguments = Some(BracketSpan::open());
                Some(ObjectState::InArguments)
            }
            (ObjectState::AfterValue, ',') => Some(ObjectState::Key),
            (ObjectState::AfterValue, '}') if draft.whole => return CallStep::Whole,
            (ObjectState::AfterValue, '}') if self.marked && draft.name.is_some() && !self.has_arguments => {
                self.has_no_arguments(draft);
                return CallStep::Whole;
            }
            _ => None,
        };
        match next {
            Some(state) => {
                self.state = state;
                if was_whole {
                    self.tail.push(c);
                }
                CallStep::More
            }
            None if was_whole => CallStep::Before(self.tail()),
            None => CallStep::Off,
        }
    }

    fn begin(&mut self, state: ObjectState) -> ObjectState {
        self.string = "\"".to_owned();
        self.escaped = false;
        state
    }

    fn takes_string(&self, draft: &CallDraft) -> bool {
        match self.key.as_str() {
            key if key == self.layout.name => draft.name.is_none(),
            "id" => draft.id.is_none(),
            // The number of a call counts the calls of an answer, so it is no id.
            key => key == "type" || key == self.layout.number,
        }
    }

    fn takes_arguments(&self) -> bool {
        let known = matches!(self.key.as_str(), "arguments" | "parameters");
        (known || self.layout.name.is_empty()) && !self.has_arguments
    }

    fn has_no_arguments(&mut self, draft: &mut CallDraft) {
        draft.arguments = "{}".to_owned();
        self.has_arguments = true;
        draft.whole = draft.name.is_some();
    }

    fn step_null(&mut self, c: char, draft: &mut CallDraft) -> Option<ObjectState> {
        self.string.push(c);
        if self.string == "null" {
            self.has_no_arguments(draft);
            return Some(ObjectState::AfterValue);
        }
        "null".starts_with(self.string.as_str()).then_some(ObjectState::InNull)
    }

    /// Takes the arguments from a string, which contains a JSON object or nothing.
    fn arguments_in(&mut self, text: &str, draft: &mut CallDraft) -> Option<ObjectState> {
        let text = text.trim();
        if matches!(text, "" | "null") {
            self.has_no_arguments(draft);
            return Some(ObjectState::AfterValue);
        }
        serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).ok()?;
        draft.arguments = text.to_owned();
        self.has_arguments = true;
        draft.whole = draft.name.is_some();
        Some(ObjectState::AfterValue)
    }

    fn step_string(&mut self, c: char, draft: &mut CallDraft) -> Option<ObjectState> {
        self.string.push(c);
        if self.escaped || c != '"' {
            self.escaped = !self.escaped && c == '\\';
            return Some(self.state);
        }
        let text: String = serde_json::from_str(&std::mem::take(&mut self.string)).ok()?;
        if self.state == ObjectState::InText {
            return self.arguments_in(&text, draft);
        }
        if self.state == ObjectState::InKey {
            return self.key_read(text, draft);
        }
        match self.key.as_str() {
            key if key == self.layout.name && text.is_empty() => return None,
            key if key == self.layout.name => {
                draft.name = Some(text);
                draft.whole = self.has_arguments;
            }
            "id" => draft.id = Some(text),
            _ => {}
        }
        Some(ObjectState::AfterValue)
    }

    /// Takes a key. If the name is the key of the arguments, the object has no other key.
    fn key_read(&mut self, key: String, draft: &mut CallDraft) -> Option<ObjectState> {
        if self.layout.name.is_empty() {
            let first = !key.is_empty() && draft.name.is_none();
            draft.name = draft.name.take().or(Some(key));
            return first.then_some(ObjectState::Colon);
        }
        let known = [self.layout.name, self.layout.number, "id", "type", "arguments", "parameters"];
        self.key = key;
        (!self.key.is_empty() && known.contains(&self.key.as_str())).then_some(ObjectState::Colon)
    }
}
