//! A thought before the answer: it is free, and behind it the form begins. Its marks are single tokens. Knows no form.

use std::sync::Arc;

use headrace_domain::Form;
use headrace_engine_api::{Grammar, GrammarFailed, GrammarState, SharedGrammar};

/// How a model marks its thoughts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thought {
    /// The id that opens one.
    pub open: u32,
    /// The id that ends one.
    pub close: u32,
    /// Whether the prompt has opened it. Otherwise an answer may begin with one, or not.
    pub is_open: bool,
    /// Ids that may stand once between a thought and the answer: white space.
    pub between: Vec<u32>,
    /// Ids that end an answer: none does within a thought.
    pub ends: Vec<u32>,
    /// The vocabulary's size in ids.
    pub ids: u32,
    /// After so many ids a thought is closed; `None`: as long as it likes.
    pub most_ids: Option<u32>,
}

/// A grammar that begins behind a thought.
pub fn after(thought: Thought, grammar: SharedGrammar) -> SharedGrammar {
    Arc::new(After { thought: Arc::new(thought), grammar })
}

#[derive(Debug)]
struct After {
    thought: Arc<Thought>,
    grammar: SharedGrammar,
}

impl Grammar for After {
    fn form(&self) -> &Arc<Form> {
        self.grammar.form()
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        let mut state = State {
            thought: Arc::clone(&self.thought),
            at: if self.thought.is_open { At::Thinking } else { At::Before },
            ids: 0,
            close: [self.thought.close],
            inner: self.grammar.begin(),
        };
        state.bound();
        Box::new(state)
    }

    fn state_bytes(&self) -> usize {
        self.grammar.state_bytes()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// A thought may begin, or the answer.
    Before,
    Thinking,
    /// It has thought enough.
    Closing,
    /// White space may come, or the answer.
    Behind,
    Answer,
}

struct State {
    thought: Arc<Thought>,
    at: At,
    /// Ids of the thought so far.
    ids: u32,
    close: [u32; 1],
    inner: Box<dyn GrammarState>,
}

impl State {
    fn bound(&mut self) {
        if self.at == At::Thinking && self.thought.most_ids.is_some_and(|most| self.ids >= most) {
            self.at = At::Closing;
        }
    }
}

impl GrammarState for State {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed> {
        let Thought { open, close, between, ends, ids, .. } = &*self.thought;
        match self.at {
            At::Answer => return self.inner.mask(allowed),
            At::Before => {
                self.inner.mask(allowed)?;
                set(allowed, *open, true);
            }
            At::Behind => {
                self.inner.mask(allowed)?;
                between.iter().for_each(|id| set(allowed, *id, true));
            }
            At::Closing => {
                allowed.fill(0);
                set(allowed, *close, true);
            }
            At::Thinking => {
                allowed.fill(u32::MAX);
                let beyond = u32::try_from(allowed.len() * 32).unwrap_or(u32::MAX);
                (*ids..beyond)
                    .chain(ends.iter().copied())
                    .chain([*open])
                    .for_each(|id| set(allowed, id, false));
            }
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<(), GrammarFailed> {
        self.at = match self.at {
            At::Answer => return self.inner.accept(id),
            At::Before if id == self.thought.open => At::Thinking,
            At::Thinking | At::Closing if id == self.thought.close => At::Behind,
            At::Thinking => At::Thinking,
            At::Closing => return Err(GrammarFailed { why: "a thought that should end".to_owned() }),
            At::Behind if self.thought.between.contains(&id) => At::Answer,
            At::Before | At::Behind => {
                self.at = At::Answer;
                return self.inner.accept(id);
            }
        };
        self.ids += 1;
        self.bound();
        Ok(())
    }

    fn forced(&self) -> &[u32] {
        match self.at {
            At::Answer => self.inner.forced(),
            At::Closing => &self.close,
            // There is a choice of where to go.
            At::Before | At::Behind | At::Thinking => &[],
        }
    }

    fn is_over(&self) -> bool {
        self.at == At::Answer && self.inner.is_over()
    }
}

fn set(allowed: &mut [u32], id: u32, on: bool) {
    if let Some(word) = allowed.get_mut(id as usize / 32) {
        let bit = 1 << (id % 32);
        if on { *word |= bit } else { *word &= !bit }
    }
}
