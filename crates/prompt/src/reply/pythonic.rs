//! Reads a list of calls as Python writes them: `[f(a=1), g()]`. Must not know marks.

use std::sync::Arc;

use crate::offered::OfferedTools;
use crate::python;

use super::piece::Draft;
use super::span::is_space;
use super::step::{MOST_HEAD_BYTES, Step};

/// The reader. It searches for the end of the list, which is then parsed as a whole. The list must begin with a call of
/// an offered tool. This is checked at once, so that other text in brackets is not held back.
#[derive(Debug)]
pub(super) struct Pythonic {
    offered: Arc<OfferedTools>,
    text: String,
    state: State,
}

#[derive(Debug)]
enum State {
    Open,
    Name(String),
    Inside { depth: usize, quote: Option<char>, escaped: bool },
}

impl Pythonic {
    pub(super) fn new(offered: &Arc<OfferedTools>) -> Self {
        Self { offered: Arc::clone(offered), text: String::new(), state: State::Open }
    }

    pub(super) fn step(&mut self, c: char, draft: &mut Draft) -> Step {
        self.text.push(c);
        match &mut self.state {
            State::Open if is_space(c) => Step::More,
            State::Open if c == '[' => {
                self.state = State::Name(String::new());
                Step::More
            }
            State::Open => Step::Off,
            State::Name(name) if is_space(c) && name.is_empty() => Step::More,
            State::Name(name) if python::is_name(c) && name.len() < MOST_HEAD_BYTES => {
                name.push(c);
                Step::More
            }
            State::Name(name) if c == '(' && self.offered.has(name) => {
                // From here on, the text is known to be meant as a call.
                draft.name = Some(std::mem::take(name));
                self.state = State::Inside { depth: 2, quote: None, escaped: false };
                Step::More
            }
            State::Name(_) => Step::Off,
            State::Inside { depth, quote, escaped } => {
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
                    return Step::More;
                }
                match python::calls(self.text.trim()) {
                    Some(calls) => Step::All(calls.into_iter().map(drafted).collect()),
                    None => Step::Off,
                }
            }
        }
    }
}

fn drafted((name, arguments): (String, String)) -> Draft {
    Draft { id: None, name: Some(name), arguments, whole: true }
}
