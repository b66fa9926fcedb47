//! Tracks the reasoning of one answer, and ends it when the reasoning budget is used up. Depends only on the ids of
//! the answer, so the result is the same however the ids arrived. Must not know: text or grammars.

use std::sync::Arc;

use headrace_engine_api::{GrammarFailed, ReasoningBudget};

/// The reasoning state of one answer.
#[derive(Debug)]
pub(crate) struct ReasoningState {
    cap: Arc<ReasoningBudget>,
    at: ReasoningPosition,
    /// Reasoning tokens so far.
    tokens: u32,
    /// Whether the budget has ended a reasoning section of this answer.
    cut: bool,
    /// Whether the answer has a grammar. The grammar starts after the first reasoning section, or at once if there is
    /// none.
    once: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReasoningPosition {
    /// Outside of reasoning. `opened` ids of the opening mark have matched so far.
    Outside {
        opened: usize,
    },
    Inside,
    /// The forced ending is being emitted. `sent` is the number of its ids so far.
    Ending {
        sent: usize,
    },
    /// No further reasoning is recognized.
    Over,
}

/// What an id means for the answer's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReasoningStep {
    /// Whether the id ends a reasoning section.
    pub(crate) closes: bool,
    /// Whether the budget ends a section for the first time.
    pub(crate) cut: bool,
}

impl ReasoningState {
    /// Creates the state at the start of an answer. `once` means that the answer has a grammar: it may reason before
    /// the structured part, not within it.
    pub(crate) fn new(cap: &Arc<ReasoningBudget>, once: bool) -> Self {
        let at =
            if cap.is_open { ReasoningPosition::Inside } else { ReasoningPosition::Outside { opened: 0 } };
        let mut thinking = Self { cap: Arc::clone(cap), at, tokens: 0, cut: false, once };
        thinking.bound();
        thinking
    }

    /// Returns the id that must come next. `None` if the model chooses freely.
    pub(crate) fn forced(&self) -> Option<u32> {
        match self.at {
            ReasoningPosition::Ending { sent } => self.cap.ending.get(sent).copied(),
            ReasoningPosition::Outside { .. } | ReasoningPosition::Inside | ReasoningPosition::Over => None,
        }
    }

    /// Accepts the answer's next id.
    ///
    /// # Errors
    /// Another id must come.
    pub(crate) fn accept(&mut self, id: u32) -> Result<ReasoningStep, GrammarFailed> {
        let mut turn = ReasoningStep { closes: id == self.cap.close, cut: false };
        match self.at {
            ReasoningPosition::Ending { sent } => {
                if self.cap.ending.get(sent) != Some(&id) {
                    return Err(GrammarFailed { why: "a thought that should end".to_owned() });
                }
                turn.cut = !std::mem::replace(&mut self.cut, true);
                let is_over = sent + 1 >= self.cap.ending.len();
                self.at = if is_over { self.behind() } else { ReasoningPosition::Ending { sent: sent + 1 } };
            }
            ReasoningPosition::Inside if turn.closes => self.at = self.behind(),
            ReasoningPosition::Inside => {
                self.tokens = self.tokens.saturating_add(1);
                self.bound();
            }
            ReasoningPosition::Outside { opened } => {
                turn.closes = false;
                let opened = match self.cap.open.get(opened) {
                    Some(next) if *next == id => opened + 1,
                    _ => usize::from(self.cap.open.first() == Some(&id)),
                };
                self.at = if opened == 0 && self.once {
                    ReasoningPosition::Over
                } else {
                    ReasoningPosition::Outside { opened }
                };
                if opened == self.cap.open.len() {
                    self.at = ReasoningPosition::Inside;
                    self.bound();
                }
            }
            ReasoningPosition::Over => turn.closes = false,
        }
        Ok(turn)
    }

    fn behind(&self) -> ReasoningPosition {
        if self.once { ReasoningPosition::Over } else { ReasoningPosition::Outside { opened: 0 } }
    }

    fn bound(&mut self) {
        if self.at == ReasoningPosition::Inside && self.tokens >= self.cap.most_tokens {
            self.at = ReasoningPosition::Ending { sent: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: [u32; 2] = [7, 8];
    const CLOSE: u32 = 9;

    fn cap(most_tokens: u32, is_open: bool) -> Arc<ReasoningBudget> {
        let (open, ending) = (OPEN.to_vec(), vec![1, 2, CLOSE, 3]);
        Arc::new(ReasoningBudget { most_tokens, open, close: CLOSE, ending, is_open })
    }

    /// Follows ids that a model would choose. Forced ids replace the model's choice.
    fn follow(cap: &Arc<ReasoningBudget>, wishes: &[u32]) -> (Vec<u32>, u32) {
        let (mut thinking, mut came, mut cuts) = (ReasoningState::new(cap, false), Vec::new(), 0);
        for wish in wishes {
            let id = thinking.forced().unwrap_or(*wish);
            cuts += u32::from(thinking.accept(id).unwrap().cut);
            came.push(id);
        }
        (came, cuts)
    }

    #[test]
    fn a_thought_ends_where_it_has_enough() {
        let wish = [50, 51, 52, 53, 54, 55, 56, 57];
        for (most, is_open, wishes, came, cuts) in [
            (2, true, &wish[..], vec![50, 51, 1, 2, 9, 3, 56, 57], 1),
            (0, true, &wish, vec![1, 2, 9, 3, 54, 55, 56, 57], 1),
            (99, true, &wish, wish.to_vec(), 0),
            (2, false, &wish, wish.to_vec(), 0),
            // The reasoning closes by itself, also on its last allowed token.
            (2, true, &[50, 9, 51, 52, 53, 54], vec![50, 9, 51, 52, 53, 54], 0),
            // The model opens reasoning itself. Half a mark opens nothing.
            (1, false, &[7, 7, 8, 50, 51, 52, 53, 54, 55], vec![7, 7, 8, 50, 1, 2, 9, 3, 55], 1),
            (1, false, &[7, 50, 8, 51], vec![7, 50, 8, 51], 0),
            // A second section gets the budget that the first one left. Later sections get none.
            (
                2,
                true,
                &[50, 9, 7, 8, 50, 0, 0, 0, 0, 7, 8, 0, 0, 0, 0, 5],
                { vec![50, 9, 7, 8, 50, 1, 2, 9, 3, 7, 8, 1, 2, 9, 3, 5] },
                1,
            ),
        ] {
            assert_eq!(follow(&cap(most, is_open), wishes), (came, cuts), "{most} {is_open} {wishes:?}");
        }
    }

    #[test]
    fn within_a_form_nothing_is_a_thought() {
        for (is_open, ids) in [(true, &[50, CLOSE, 7, 8, 50, 51][..]), (false, &[50, 7, 8, 50, 51])] {
            let mut thinking = ReasoningState::new(&cap(1, is_open), true);
            for id in ids {
                let id = thinking.forced().unwrap_or(*id);
                thinking.accept(id).unwrap();
            }
            assert_eq!((thinking.at, thinking.cut), (ReasoningPosition::Over, is_open), "{ids:?}");
        }
    }

    #[test]
    fn what_should_end_and_does_not_is_refused() {
        let mut thinking = ReasoningState::new(&cap(0, true), false);
        assert!(thinking.accept(50).is_err());
    }
}
