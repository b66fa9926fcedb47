//! A thought before the answer that may have only so many tokens: how it is known from ids, and with which ids it is ended. Knows no
//! model's marks and no text.

use serde::{Deserialize, Serialize};

/// The most ids that the mark which opens a thought may have, and its ending.
pub const MOST_MARK_IDS: usize = 256;

/// How much an answer may think, and what is put where it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThoughtCap {
    /// Tokens that thoughts of one answer may have together, their marks and what is put at their end not counted.
    pub most_tokens: u32,
    /// The ids that open a thought, at least one.
    pub open: Vec<u32>,
    /// The id that closes one, or begins to.
    pub close: u32,
    /// What is put where a thought has enough: perhaps some last words, then `close`, then perhaps what leads over to the answer.
    /// `close` is among them.
    pub ending: Vec<u32>,
    /// Whether the prompt has opened one already.
    pub is_open: bool,
}

impl ThoughtCap {
    /// What is wrong with it, if anything is. `vocab` is the number of ids that there are.
    ///
    /// # Errors
    /// In words.
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
