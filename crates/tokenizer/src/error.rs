//! Tokenizer errors: an unusable `tokenizer.json`, or a text that cannot be encoded. Knows no HTTP status.

use std::fmt;

/// The reason why a tokenizer could not be built or a text could not be encoded. Never contains the text itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.json` does not describe a usable tokenizer.
    Load {
        /// What is wrong with the file.
        reason: String,
    },
    /// The tokenizer failed on a text.
    Encode {
        /// The error message of the tokenizers library.
        reason: String,
    },
    /// The vocabulary can write a character only as a control token, and the text may not produce control tokens.
    OnlyControl {
        /// The character.
        character: char,
    },
    /// The text has more tokens than [`Bounds::most_ids`](crate::Bounds::most_ids) allows.
    TooManyIds {
        /// The limit, in tokens.
        most: usize,
    },
    /// [`Bounds::room`](crate::Bounds::room) refused the memory that encoding needs.
    NoRoom {
        /// The number of bytes that the tokenizer asked for.
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
