//! Reasoning budget: how the reasoning before an answer is recognised by token ids, and which ids end it. Knows no
//! model's markers and no text.

use serde::{Deserialize, Serialize};

/// Maximum ids of the marker that opens a reasoning block, and of its ending.
pub const MOST_MARK_IDS: usize = 256;

/// A reasoning budget, and the ids that are inserted when it is used up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasoningBudget {
    /// Maximum reasoning tokens of one answer, over all its reasoning blocks. The markers and the inserted ending do
    /// not count.
    pub most_tokens: u32,
    /// The ids that open a reasoning block. At least one.
    pub open: Vec<u32>,
    /// The id that closes a reasoning block, or the first id of a longer closing marker.
    pub close: u32,
    /// The ids that are inserted when the budget is used up. They contain `close`, perhaps after some last words, and
    /// perhaps followed by text that leads over to the answer.
    pub ending: Vec<u32>,
    /// Whether the prompt has already opened a reasoning block.
    pub is_open: bool,
}

impl ReasoningBudget {
    /// Validates the ids. `vocab` is the size of the vocabulary.
    ///
    /// # Errors
    /// A description of the first fault.
    pub fn check(&self, vocab: u32) -> Result<(), String> {
        let Self { open, close, ending, .. } = self;
        if open.is_empty() || open.len().max(ending.len()) > MOST_MARK_IDS {
            return Err(format!("a thought's marks have from 1 to {MOST_MARK_IDS} ids"));
        }
        if !ending.contains(close) {
            return Err("the ending of a thought does not close it".to_owned());
        }
        match open.iter().chain(ending).find(|id| **id >= vocab) {
            Some(id) => Err(format!("id {id} of a thought's marks is outside the vocabulary of {vocab}")),
            None => Ok(()),
        }
    }
}
