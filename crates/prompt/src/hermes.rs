//! The Hermes family's replies: text with `<tool_call>` JSON `</tool_call>` in it, read character by character.
//! Must not know events, ids or how a call is carried out.

use std::sync::Arc;

use crate::offered::{CallFault, OfferedTools};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What the machine makes of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Call { name: String, arguments: String },
}

/// The machine. Each character is decided by those before it alone, which is what makes the outcome independent of
/// how the text was cut.
///
/// What belongs to the syntax of calls and is not text: the marks, white space between calls and at the end after
/// one, all white space before a call that no text precedes, and otherwise one line break before it (templates write
/// these back by themselves). Everything else comes out as text, and so does, word for word, what turns out to be no
/// call. A call comes out whole once its name and its arguments have been read and fit a tool that was offered. A call
/// that nobody could carry out is text like any other.
#[derive(Debug, Default)]
pub(crate) struct Hermes {
    offered: Arc<OfferedTools>,
    state: State,
    /// Calls made.
    calls: u32,
    /// What was wrong with the first that could not be carried out.
    fault: Option<CallFault>,
    /// Text other than white space has come since the beginning or the last call.
    visible: bool,
    /// White space held back: it may belong to a call that follows.
    space: String,
    /// Text of the current call so far, to be given back if it is none.
    raw: String,
    call: Call,
    /// Pieces of this push.
    out: Vec<Piece>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Text; so many bytes of the opening mark have matched.
    #[default]
    Text,
    Mark(usize),
    /// Before the call's opening brace.
    Open,
    /// Before a key.
    Key,
    InKey,
    Colon,
    Value,
    InName,
    InArguments,
    /// After a value, name or arguments being unknown yet.
    AfterValue,
    /// The call is complete but for its brace (`false`: not seen yet) and closing mark, of which so many bytes have
    /// matched.
    Closing(bool, usize),
}

/// What is known of the call being read.
#[derive(Debug, Default)]
struct Call {
    /// The string being read, quotes and escapes as written.
    string: String,
    escaped: bool,
    key: String,
    name: Option<String>,
    arguments: Option<String>,
    /// Name and arguments are known, and what becomes of them is decided.
    decided: bool,
    depth: usize,
    in_string: bool,
}

impl Hermes {
    pub(crate) fn new(offered: Arc<OfferedTools>) -> Self {
        Self { offered, ..Self::default() }
    }

    /// Calls made so far.
    pub(crate) fn calls(&self) -> u32 {
        self.calls
    }

    /// What was wrong with the first text that looked like a call and is none.
    pub(crate) fn fault(&self) -> Option<CallFault> {
        self.fault
    }

    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        text.chars().for_each(|c| self.step(c));
        std::mem::take(&mut self.out)
    }

    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        match self.state {
            State::Text if !self.visible && self.calls > 0 => {}
            State::Text => self.release_space(),
            State::Mark(matched) => self.release_mark(matched),
            // Only the syntax of a call that was made is held back.
            State::Closing(..) => {}
            State::InArguments => {
                self.fault.get_or_insert(CallFault::Unfinished);
                self.give_back();
            }
            _ => self.give_back(),
        }
        self.state = State::Text;
        std::mem::take(&mut self.out)
    }

    fn step(&mut self, c: char) {
        match self.state {
            State::Text => self.step_text(c),
            State::Mark(matched) => {
                if OPEN.as_bytes().get(matched).is_some_and(|byte| char::from(*byte) == c) {
                    let matched = matched.saturating_add(1);
                    self.state = State::Mark(matched);
                    if matched == OPEN.len() {
                        self.raw = std::mem::take(&mut self.space) + OPEN;
                        self.call = Call::default();
                        self.state = State::Open;
                    }
                } else {
                    self.release_mark(matched);
                    self.step_text(c);
                }
            }
            State::Closing(brace, matched) => self.step_closing(c, brace, matched),
            State::InArguments => self.step_arguments(c),
            _ => self.step_call(c),
        }
    }

    fn step_text(&mut self, c: char) {
        self.state = State::Text;
        if c == '<' {
            self.state = State::Mark(1);
        } else if is_space(c) && (!self.visible || c == '\n') {
            if self.visible {
                self.release_space();
            }
            self.space.push(c);
        } else {
            self.release_space();
            self.visible |= !is_space(c);
            self.text_char(c);
        }
    }

    /// One character of a call, outside of its arguments.
    fn step_call(&mut self, c: char) {
        let next = match (self.state, c) {
            (State::InKey | State::InName, _) => self.step_string(c),
            (state, c) if is_space(c) => Some(state),
            (State::Open, '{') => Some(State::Key),
            (State::Key, '"') => Some(self.begin_string(State::InKey)),
            (State::Colon, ':') => Some(State::Value),
            (State::Value, '"') if self.call.key == "name" && self.call.name.is_none() => {
                Some(self.begin_string(State::InName))
            }
            (State::Value, '{') if self.call.key == "arguments" && self.call.arguments.is_none() => {
                self.raw.push(c);
                self.begin_arguments();
                return;
            }
            (State::AfterValue, ',') => Some(State::Key),
            _ => None,
        };
        match next {
            // The name completed a call whose arguments came first.
            Some(_) if self.call.decided => {}
            Some(state) => {
                self.raw.push(c);
                self.state = state;
            }
            None => {
                self.give_back();
                self.step(c);
            }
        }
    }

    fn begin_string(&mut self, state: State) -> State {
        self.call.string = "\"".to_owned();
        self.call.escaped = false;
        state
    }

    fn step_string(&mut self, c: char) -> Option<State> {
        self.call.string.push(c);
        if self.call.escaped || c != '"' {
            self.call.escaped = !self.call.escaped && c == '\\';
            return Some(self.state);
        }
        let text: String = serde_json::from_str(&std::mem::take(&mut self.call.string)).ok()?;
        if self.state == State::InKey {
            self.call.key = text;
            return Some(State::Colon);
        }
        if text.is_empty() {
            return None;
        }
        self.call.name = Some(text);
        if self.call.arguments.is_some() {
            self.raw.push(c);
            self.decide();
        }
        Some(State::AfterValue)
    }

    fn begin_arguments(&mut self) {
        self.call.depth = 1;
        self.call.in_string = false;
        self.call.escaped = false;
        self.call.arguments = Some("{".to_owned());
        self.state = State::InArguments;
    }

    fn step_arguments(&mut self, c: char) {
        self.raw.push(c);
        let call = &mut self.call;
        call.arguments.get_or_insert_default().push(c);
        if call.in_string {
            call.in_string = call.escaped || c != '"';
            call.escaped = !call.escaped && c == '\\';
            return;
        }
        match c {
            '"' => call.in_string = true,
            '{' | '[' => call.depth = call.depth.saturating_add(1),
            '}' | ']' => call.depth = call.depth.saturating_sub(1),
            _ => {}
        }
        if call.depth == 0 {
            self.state = State::AfterValue;
            if call.name.is_some() {
                self.decide();
            }
        }
    }

    /// After the arguments: space, the brace, space, the closing mark. A missing brace or mark is forgiven; anything
    /// else is text again.
    fn step_closing(&mut self, c: char, brace: bool, matched: usize) {
        if CLOSE.as_bytes().get(matched).is_some_and(|byte| char::from(*byte) == c) {
            let matched = matched.saturating_add(1);
            self.state = State::Closing(brace, matched);
            self.space.push(c);
            if matched == CLOSE.len() {
                self.end_call();
            }
        } else if matched == 0 && is_space(c) {
            self.space.push(c);
        } else if matched == 0 && c == '}' && !brace {
            self.space.clear();
            self.state = State::Closing(true, 0);
        } else {
            let held = std::mem::take(&mut self.space);
            self.end_call();
            held.chars().for_each(|c| self.step(c));
            self.step(c);
        }
    }

    fn end_call(&mut self) {
        self.space.clear();
        self.visible = false;
        self.state = State::Text;
    }

    /// Name and arguments are known: a call, or text.
    fn decide(&mut self) {
        self.call.decided = true;
        let name = self.call.name.take().unwrap_or_default();
        let arguments = self.call.arguments.take().unwrap_or_default();
        match self.offered.judge(&name, &arguments) {
            Ok(()) => {
                self.calls = self.calls.saturating_add(1);
                self.raw.clear();
                self.out.push(Piece::Call { name, arguments });
                self.state = State::Closing(false, 0);
            }
            Err(fault) => {
                self.fault.get_or_insert(fault);
                self.give_back();
            }
        }
    }

    /// What was read is no call: it comes out as it was written.
    fn give_back(&mut self) {
        let raw = std::mem::take(&mut self.raw);
        self.text(&raw);
        self.visible = true;
        self.state = State::Text;
    }

    fn release_mark(&mut self, matched: usize) {
        self.release_space();
        self.text(OPEN.get(..matched).unwrap_or(OPEN));
        self.visible = true;
        self.state = State::Text;
    }

    fn release_space(&mut self) {
        let space = std::mem::take(&mut self.space);
        self.text(&space);
    }

    fn text_char(&mut self, c: char) {
        self.text(c.encode_utf8(&mut [0; 4]));
    }

    fn text(&mut self, text: &str) {
        match self.out.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Text(last)) => last.push_str(text),
            _ => self.out.push(Piece::Text(text.to_owned())),
        }
    }
}

/// JSON's white space.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
