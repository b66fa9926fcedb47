//! Limits on the number of ids and the memory of one encoding. Must not know who owns the memory.

use std::fmt;

use crate::error::TokenizerError;

/// The maximum memory that the library takes per byte of text that it works on at once, in bytes. Every character may
/// become a word with its own strings, and normalizers write some characters as eighteen.
pub(crate) const LIBRARY_BYTES_PER_BYTE: usize = 1_024;

/// The maximum memory that a growing list of ids takes per byte of text, in bytes. Normalizers write a character of two
/// bytes as four ids, and a full list is copied into one of twice its length.
pub(crate) const ID_BYTES_PER_BYTE: usize = 32;

/// The limits of one encoding.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// The maximum number of ids, including the special tokens around the text. If the tokenizer allows it, encoding
    /// stops early for a text with more.
    pub most_ids: usize,
    /// Called before encoding takes more memory than a small multiple of the text's length. The argument is a number of
    /// bytes. Reserves them and returns `true`, or returns `false` if they are not available.
    pub room: &'a dyn Fn(usize) -> bool,
}

impl Bounds<'static> {
    /// No limits, for texts of our own.
    pub const NONE: Self = Self { most_ids: usize::MAX, room: &|_| true };
}

impl Bounds<'_> {
    pub(crate) fn ask(&self, text_bytes: usize) -> Result<(), TokenizerError> {
        let bytes = text_bytes.saturating_mul(LIBRARY_BYTES_PER_BYTE);
        if (self.room)(bytes) { Ok(()) } else { Err(TokenizerError::NoRoom { bytes }) }
    }

    /// Asks for the memory of the ids, for a text that a normalizer may lengthen.
    pub(crate) fn ask_for_ids(&self, text_bytes: usize) -> Result<(), TokenizerError> {
        let bytes = text_bytes.saturating_mul(ID_BYTES_PER_BYTE);
        if (self.room)(bytes) { Ok(()) } else { Err(TokenizerError::NoRoom { bytes }) }
    }

    pub(crate) fn check(&self, ids: &[u32]) -> Result<(), TokenizerError> {
        if ids.len() > self.most_ids {
            Err(TokenizerError::TooManyIds { most: self.most_ids })
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Bounds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounds").field("most_ids", &self.most_ids).finish_non_exhaustive()
    }
}
