//! Reasoning before an answer. The reasoning is free, and the form applies after it. The marks that open and close it
//! are single tokens. Knows no form.

use std::sync::Arc;

use headrace_domain::Form;
use headrace_engine_api::{FormThought, Grammar, GrammarFailed, GrammarState, SharedGrammar};

/// A grammar that applies after the reasoning. The vocabulary has `ids` ids, and the ids in `ends` end an answer. None
/// of those may come within the reasoning.
pub(crate) fn after(thought: FormThought, ends: &[u32], ids: u32, grammar: SharedGrammar) -> SharedGrammar {
    Arc::new(After { marks: Arc::new(Marks { thought, ends: ends.to_vec(), ids }), grammar })
}

#[derive(Debug)]
struct Marks {
    thought: FormThought,
    ends: Vec<u32>,
    ids: u32,
}

#[derive(Debug)]
struct After {
    marks: Arc<Marks>,
    grammar: SharedGrammar,
}

impl Grammar for After {
    fn form(&self) -> &Arc<Form> {
        self.grammar.form()
    }

    fn thought(&self) -> Option<&FormThought> {
        Some(&self.marks.thought)
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        let FormThought { is_open, close, .. } = self.marks.thought;
        let mut state = State {
            marks: Arc::clone(&self.marks),
            at: if is_open { At::Thinking } else { At::Before },
            ids: 0,
            close: [close],
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
    /// Reasoning may begin, or the answer.
    Before,
    Thinking,
    /// The reasoning has used up its tokens.
    Closing,
    /// White space may come, or the answer.
    Behind,
    Answer,
}

struct State {
    marks: Arc<Marks>,
    at: At,
    /// Ids accepted before the answer so far.
    ids: u32,
    close: [u32; 1],
    inner: Box<dyn GrammarState>,
}

impl State {
    fn bound(&mut self) {
        if self.at == At::Thinking && self.marks.thought.most_ids.is_some_and(|most| self.ids >= most) {
            self.at = At::Closing;
        }
    }
}

impl GrammarState for State {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed> {
        let Marks { thought: FormThought { open, close, between, .. }, ends, ids } = &*self.marks;
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
            At::Before if id == self.marks.thought.open => At::Thinking,
            At::Thinking | At::Closing if id == self.marks.thought.close => At::Behind,
            At::Thinking => At::Thinking,
            At::Closing => return Err(GrammarFailed { why: "a thought that should end".to_owned() }),
            At::Behind if self.marks.thought.between.contains(&id) => At::Answer,
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
            // More than one continuation is possible.
            At::Before | At::Behind | At::Thinking => &[],
        }
    }

    fn is_over(&self) -> bool {
        self.at == At::Answer && self.inner.is_over()
    }

    fn work_units(&self) -> u64 {
        self.inner.work_units()
    }
}

fn set(allowed: &mut [u32], id: u32, on: bool) {
    if let Some(word) = allowed.get_mut(id as usize / 32) {
        let bit = 1 << (id % 32);
        if on { *word |= bit } else { *word &= !bit }
    }
}
