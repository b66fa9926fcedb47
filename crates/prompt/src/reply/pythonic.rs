//! Reads calls as Python writes them: a list, `[f(a=1), g()]`, or a call in each line. Must not know marks, except the
//! one that ends the lines.

use std::sync::Arc;

use crate::offered::OfferedTools;
use crate::python;

use super::piece::CallDraft;
use super::span::is_space;
use super::step::{CallStep, MOST_HEAD_BYTES};

/// The reader. It searches for the end of the calls, which are then parsed as a whole. A list must begin with a call of
/// an offered tool. This is checked at once, so that other text in brackets is not held back.
#[derive(Debug)]
pub(super) struct PythonicCall {
    offered: Arc<OfferedTools>,
    /// The mark that ends calls in lines. `None` for a list.
    end: Option<&'static str>,
    text: String,
    state: PythonicState,
}

#[derive(Debug)]
enum PythonicState {
    Open,
    Name(String),
    Inside {
        depth: usize,
        quote: Option<char>,
        escaped: bool,
    },
    /// After a call in a line, with the beginning of the mark that ends the lines.
    After(String),
}

impl PythonicCall {
    /// Creates a reader for a list.
    pub(super) fn new(offered: &Arc<OfferedTools>) -> Self {
        Self { offered: Arc::clone(offered), end: None, text: String::new(), state: PythonicState::Open }
    }

    /// Creates a reader for calls in lines up to the mark `end`.
    pub(super) fn lines(end: &'static str, offered: &Arc<OfferedTools>) -> Self {
        Self { end: Some(end), state: PythonicState::Name(String::new()), ..Self::new(offered) }
    }

    pub(super) fn step(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        self.text.push(c);
        match &mut self.state {
            PythonicState::Open if is_space(c) => CallStep::More,
            PythonicState::Open if c == '[' => {
                self.state = PythonicState::Name(String::new());
                CallStep::More
            }
            PythonicState::Open => CallStep::Off,
            PythonicState::Name(name) if is_space(c) && name.is_empty() => CallStep::More,
            PythonicState::Name(name) if python::is_name(c) && name.len() < MOST_HEAD_BYTES => {
                name.push(c);
                CallStep::More
            }
            PythonicState::Name(name) if c == '(' && (self.end.is_some() || self.offered.has(name)) => {
                // From here on, the text is known to be meant as a call.
                draft.name = Some(std::mem::take(name));
                let depth = if self.end.is_some() { 1 } else { 2 };
                self.state = PythonicState::Inside { depth, quote: None, escaped: false };
                CallStep::More
            }
            PythonicState::Name(_) => CallStep::Off,
            PythonicState::Inside { depth, quote, escaped } => {
                match (*quote, c) {
                    (Some(open), _) => {
                        if c == open && !*escaped {
                            *quote = None;
                        }
                        *escaped = !*escaped && c == '\\';
                    }
                    (None, '"' | '\'') => *quote = Some(c),
                    (None, '(' | '[' | '{') => *depth = depth.saturating_add(1),
                    (None, ')' | ']' | '}') => *depth = depth.saturating_sub(1),
                    _ => {}
                }
                if *depth > 0 {
                    return CallStep::More;
                }
                if self.end.is_some() {
                    self.state = PythonicState::After(String::new());
                    return CallStep::More;
                }
                all(python::calls(self.text.trim()))
            }
            PythonicState::After(held) if held.is_empty() && is_space(c) => CallStep::More,
            PythonicState::After(held) if held.is_empty() && python::is_name(c) => {
                self.state = PythonicState::Name(c.to_string());
                CallStep::More
            }
            PythonicState::After(held) => {
                held.push(c);
                match self.end {
                    Some(end) if *held == end => {
                        all(python::call_lines(self.text.strip_suffix(end).unwrap_or("")))
                    }
                    Some(end) if end.starts_with(held.as_str()) => CallStep::More,
                    _ => CallStep::Off,
                }
            }
        }
    }

    /// Ends the input. Calls in lines are complete without the mark that ends them.
    pub(super) fn stop(&self) -> CallStep {
        match &self.state {
            PythonicState::After(held) => {
                all(python::call_lines(self.text.strip_suffix(held.as_str()).unwrap_or("")))
            }
            _ => CallStep::More,
        }
    }
}

fn all(calls: Option<Vec<(String, String)>>) -> CallStep {
    match calls {
        Some(calls) => CallStep::All(calls.into_iter().map(drafted).collect()),
        None => CallStep::Off,
    }
}

fn drafted((name, arguments): (String, String)) -> CallDraft {
    CallDraft { id: None, name: Some(name), arguments, whole: true }
}
