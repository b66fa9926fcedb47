//! What can go wrong with a tokenizer: its file, or a text that it cannot write. Knows no HTTP status.

use std::fmt;

/// Why a tokenizer could not be built, or a text not encoded. Never contains the text itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.json` does not describe a tokenizer that can be run.
    Load {
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer failed on a text.
    Encode {
        /// What the tokenizer says.
        reason: String,
    },
    /// The vocabulary has only a control token for a character, and the text may not use it.
    OnlyControl {
        /// The character.
        character: char,
    },
    /// The text has more tokens than were asked for.
    TooManyIds {
        /// The most that were asked for.
        most: usize,
    },
    /// The caller has no memory for the text.
    NoRoom {
        /// The bytes that the tokenizer asked for.
        bytes: usize,
    },
}

impl TokenizerError {
    pub(crate) fn load(reason: impl fmt::Display) -> Self {
        Self::Load { reason: reason.to_string() }
    }

    pub(crate) fn encode(reason: impl fmt::Display) -> Self {
        Self::Encode { reason: reason.to_string() }
    }
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { reason } => write!(f, "tokenizer.json cannot be used: {reason}"),
            Self::Encode { reason } => write!(f, "the text cannot be tokenized: {reason}"),
            Self::OnlyControl { character } => {
                write!(f, "the vocabulary writes {character:?} only with a control token")
            }
            Self::TooManyIds { most } => write!(f, "the text has more than {most} tokens"),
            Self::NoRoom { bytes } => write!(f, "there is no memory of {bytes} bytes to tokenize the text"),
        }
    }
}

impl std::error::Error for TokenizerError {}
