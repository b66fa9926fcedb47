//! Reads a list of calls as Python writes them: `[f(a=1), g()]`. Must not know marks.

use std::sync::Arc;

use crate::offered::OfferedTools;
use crate::python;

use super::piece::CallDraft;
use super::span::is_space;
use super::step::{CallStep, MOST_HEAD_BYTES};

/// The reader. It searches for the end of the list, which is then parsed as a whole. The list must begin with a call of
/// an offered tool. This is checked at once, so that other text in brackets is not held back.
#[derive(Debug)]
pub(super) struct PythonicCall {
    offered: Arc<OfferedTools>,
    text: String,
    state: PythonicState,
}

#[derive(Debug)]
enum PythonicState {
    Open,
    Name(String),
    Inside { depth: usize, quote: Option<char>, escaped: bool },
}

impl PythonicCall {
    pub(super) fn new(offered: &Arc<OfferedTools>) -> Self {
        Self { offered: Arc::clone(offered), text: String::new(), state: PythonicState::Open }
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
            PythonicState::Name(name) if c == '(' && self.offered.has(name) => {
                // From here on, the text is known to be meant as a call.
                draft.name = Some(std::mem::take(name));
                self.state = PythonicState::Inside { depth: 2, quote: None, escaped: false };
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
                match python::calls(self.text.trim()) {
                    Some(calls) => CallStep::All(calls.into_iter().map(drafted).collect()),
                    None => CallStep::Off,
                }
            }
        }
    }
}

fn drafted((name, arguments): (String, String)) -> CallDraft {
    CallDraft { id: None, name: Some(name), arguments, whole: true }
}
