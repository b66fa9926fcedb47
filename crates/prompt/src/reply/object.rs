//! Reads a call that is a JSON object of a name and arguments, or the first call of a list. Must not know marks.

use super::piece::Draft;
use super::span::{Span, is_space};
use super::step::Step;

/// The reader. An object with keys other than a name, arguments, an id and a type is not a call. If such keys come
/// after the arguments, the object is a call, and they are text.
#[derive(Debug)]
pub(super) struct Object {
    /// Whether the call may be the first of a list. An opening bracket makes it one.
    array: bool,
    /// Whether a mark precedes the call. If so, an object without arguments is a call, too.
    marked: bool,
    in_list: bool,
    state: State,
    /// The string that is being read, with quotes and escapes as written.
    string: String,
    escaped: bool,
    key: String,
    arguments: Option<Span>,
    has_arguments: bool,
    /// The characters read since name and arguments were known.
    tail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the opening brace.
    Open,
    /// Before a key.
    Key,
    InKey,
    Colon,
    Value,
    /// Inside a name, an id or a type.
    InString,
    InArguments,
    /// Inside arguments that are written as a JSON string.
    InText,
    /// Inside arguments that are `null`.
    InNull,
    AfterValue,
}

impl Object {
    pub(super) fn new(array: bool, marked: bool) -> Self {
        Self {
            array,
            marked,
            in_list: false,
            state: State::Open,
            string: String::new(),
            escaped: false,
            key: String::new(),
            arguments: None,
            has_arguments: false,
            tail: String::new(),
        }
    }

    pub(super) fn in_list(&self) -> bool {
        self.in_list
    }

    pub(super) fn tail(&mut self) -> String {
        std::mem::take(&mut self.tail)
    }

    pub(super) fn step(&mut self, c: char, draft: &mut Draft) -> Step {
        if self.state == State::InArguments {
            draft.arguments.push(c);
            if self.arguments.as_mut().is_some_and(|span| span.step(c)) {
                self.state = State::AfterValue;
                self.has_arguments = true;
                draft.whole = draft.name.is_some();
            }
            return Step::More;
        }
        let was_whole = draft.whole;
        let next = match (self.state, c) {
            (State::InKey | State::InString | State::InText, _) => self.step_string(c, draft),
            (State::InNull, _) => self.step_null(c, draft),
            (state, c) if is_space(c) => Some(state),
            (State::Open, '{') => Some(State::Key),
            (State::Open, '[') if self.array => {
                (self.array, self.in_list) = (false, true);
                Some(State::Open)
            }
            (State::Key, '"') => Some(self.begin(State::InKey)),
            (State::Colon, ':') => Some(State::Value),
            (State::Value, '"') if self.takes_string(draft) => Some(self.begin(State::InString)),
            (State::Value, '"') if self.takes_arguments() => Some(self.begin(State::InText)),
            (State::Value, 'n') if self.takes_arguments() => {
                self.string = "n".to_owned();
                Some(State::InNull)
            }
            (State::Value, '{') if self.takes_arguments() => {
                draft.arguments = "{".to_owned();
                self.arguments = Some(Span::open());
                Some(State::InArguments)
            }
            (State::AfterValue, ',') => Some(State::Key),
            (State::AfterValue, '}') if draft.whole => return Step::Whole,
            (State::AfterValue, '}') if self.marked && draft.name.is_some() && !self.has_arguments => {
                self.has_no_arguments(draft);
                return Step::Whole;
            }
            _ => None,
        };
        match next {
            Some(state) => {
                self.state = state;
                if was_whole {
                    self.tail.push(c);
                }
                Step::More
            }
            None if was_whole => Step::Before(self.tail()),
            None => Step::Off,
        }
    }

    fn begin(&mut self, state: State) -> State {
        self.string = "\"".to_owned();
        self.escaped = false;
        state
    }

    fn takes_string(&self, draft: &Draft) -> bool {
        match self.key.as_str() {
            "name" => draft.name.is_none(),
            "id" => draft.id.is_none(),
            "type" => true,
            _ => false,
        }
    }

    fn takes_arguments(&self) -> bool {
        matches!(self.key.as_str(), "arguments" | "parameters") && !self.has_arguments
    }

    fn has_no_arguments(&mut self, draft: &mut Draft) {
        draft.arguments = "{}".to_owned();
        self.has_arguments = true;
        draft.whole = draft.name.is_some();
    }

    fn step_null(&mut self, c: char, draft: &mut Draft) -> Option<State> {
        self.string.push(c);
        if self.string == "null" {
            self.has_no_arguments(draft);
            return Some(State::AfterValue);
        }
        "null".starts_with(self.string.as_str()).then_some(State::InNull)
    }

    /// Takes the arguments from a string, which contains a JSON object or nothing.
    fn arguments_in(&mut self, text: &str, draft: &mut Draft) -> Option<State> {
        let text = text.trim();
        if matches!(text, "" | "null") {
            self.has_no_arguments(draft);
            return Some(State::AfterValue);
        }
        serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).ok()?;
        draft.arguments = text.to_owned();
        self.has_arguments = true;
        draft.whole = draft.name.is_some();
        Some(State::AfterValue)
    }

    fn step_string(&mut self, c: char, draft: &mut Draft) -> Option<State> {
        self.string.push(c);
        if self.escaped || c != '"' {
            self.escaped = !self.escaped && c == '\\';
            return Some(self.state);
        }
        let text: String = serde_json::from_str(&std::mem::take(&mut self.string)).ok()?;
        if self.state == State::InText {
            return self.arguments_in(&text, draft);
        }
        if self.state == State::InKey {
            let known = ["name", "id", "type", "arguments", "parameters"];
            self.key = text;
            return known.contains(&self.key.as_str()).then_some(State::Colon);
        }
        match self.key.as_str() {
            "name" if text.is_empty() => return None,
            "name" => {
                draft.name = Some(text);
                draft.whole = self.has_arguments;
            }
            "id" => draft.id = Some(text),
            _ => {}
        }
        Some(State::AfterValue)
    }
}
