//! Reasoning before an answer. The reasoning is free, and the form applies after it. The marks that open and close it
//! are single tokens. Knows no form.

use std::sync::Arc;

use headrace_domain::ResponseFormat;
use headrace_engine_api::{CompiledGrammar, FormThought, GrammarFailed, GrammarState, SharedGrammar};

/// A grammar that applies after the reasoning. The vocabulary has `ids` ids, and the ids in `ends` end an answer. None
/// of those may come within the reasoning.
pub(crate) fn after(thought: FormThought, ends: &[u32], ids: u32, grammar: SharedGrammar) -> SharedGrammar {
    Arc::new(WithReasoning { marks: Arc::new(MarkIds { thought, ends: ends.to_vec(), ids }), grammar })
}

#[derive(Debug)]
struct MarkIds {
    thought: FormThought,
    ends: Vec<u32>,
    ids: u32,
}

#[derive(Debug)]
struct WithReasoning {
    marks: Arc<MarkIds>,
    grammar: SharedGrammar,
}

impl CompiledGrammar for WithReasoning {
    fn form(&self) -> &Arc<ResponseFormat> {
        self.grammar.form()
    }

    fn thought(&self) -> Option<&FormThought> {
        Some(&self.marks.thought)
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        let FormThought { is_open, close, .. } = self.marks.thought;
        let mut state = ReasoningState {
            marks: Arc::clone(&self.marks),
            at: if is_open { ReasoningPosition::Thinking } else { ReasoningPosition::Before },
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
enum ReasoningPosition {
    /// Reasoning may begin, or the answer.
    Before,
    Thinking,
    /// The reasoning has used up its tokens.
    Closing,
    /// White space may come, or the answer.
    Behind,
    Answer,
}

struct ReasoningState {
    marks: Arc<MarkIds>,
    at: ReasoningPosition,
    /// Ids accepted before the answer so far.
    ids: u32,
    close: [u32; 1],
    inner: Box<dyn GrammarState>,
}

impl ReasoningState {
    fn bound(&mut self) {
        if self.at == ReasoningPosition::Thinking
            && self.marks.thought.most_ids.is_some_and(|most| self.ids >= most)
        {
            self.at = ReasoningPosition::Closing;
        }
    }
}

impl GrammarState for ReasoningState {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed> {
        let MarkIds { thought: FormThought { open, close, between, .. }, ends, ids } = &*self.marks;
        match self.at {
            ReasoningPosition::Answer => return self.inner.mask(allowed),
            ReasoningPosition::Before => {
                self.inner.mask(allowed)?;
                set(allowed, *open, true);
            }
            ReasoningPosition::Behind => {
                self.inner.mask(allowed)?;
                between.iter().for_each(|id| set(allowed, *id, true));
            }
            ReasoningPosition::Closing => {
                allowed.fill(0);
                set(allowed, *close, true);
            }
            ReasoningPosition::Thinking => {
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
            ReasoningPosition::Answer => return self.inner.accept(id),
            ReasoningPosition::Before if id == self.marks.thought.open => ReasoningPosition::Thinking,
            ReasoningPosition::Thinking | ReasoningPosition::Closing if id == self.marks.thought.close => {
                ReasoningPosition::Behind
            }
            ReasoningPosition::Thinking => ReasoningPosition::Thinking,
            ReasoningPosition::Closing => {
                return Err(GrammarFailed { why: "a thought that should end".to_owned() });
            }
            ReasoningPosition::Behind if self.marks.thought.between.contains(&id) => {
                ReasoningPosition::Answer
            }
            ReasoningPosition::Before | ReasoningPosition::Behind => {
                self.at = ReasoningPosition::Answer;
                return self.inner.accept(id);
            }
        };
        self.ids += 1;
        self.bound();
        Ok(())
    }

    fn forced(&self) -> &[u32] {
        match self.at {
            ReasoningPosition::Answer => self.inner.forced(),
            ReasoningPosition::Closing => &self.close,
            // More than one continuation is possible.
            ReasoningPosition::Before | ReasoningPosition::Behind | ReasoningPosition::Thinking => &[],
        }
    }

    fn is_over(&self) -> bool {
        self.at == ReasoningPosition::Answer && self.inner.is_over()
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
