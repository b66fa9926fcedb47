//! How many ids and how much memory an encoding may take. Must not know who has the memory.

use std::fmt;

use crate::error::TokenizerError;

/// The library takes at most this many bytes for each byte of text that it works on at once: every character may become a word with
/// its own strings, and normalizers write some characters as eighteen.
pub(crate) const LIBRARY_BYTES_PER_BYTE: usize = 1_024;

/// A list of ids that grows takes at most this many bytes for each byte of text: normalizers write a character of two bytes as four
/// ids, and a full list is copied into one of twice its length.
pub(crate) const ID_BYTES_PER_BYTE: usize = 32;

/// The bounds of one encoding.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// The most ids, those around the text included. A text of more is left early where its tokenizer allows that.
    pub most_ids: usize,
    /// Asked before memory is taken that goes beyond some bytes for each byte of the text. It reserves that many bytes, or says that
    /// there are none.
    pub room: &'a dyn Fn(usize) -> bool,
}

impl Bounds<'static> {
    /// No bounds, for texts of our own.
    pub const NONE: Self = Self { most_ids: usize::MAX, room: &|_| true };
}

impl Bounds<'_> {
    pub(crate) fn ask(&self, text_bytes: usize) -> Result<(), TokenizerError> {
        let bytes = text_bytes.saturating_mul(LIBRARY_BYTES_PER_BYTE);
        if (self.room)(bytes) { Ok(()) } else { Err(TokenizerError::NoRoom { bytes }) }
    }

    /// Asks for the ids of a text that a normalizer may lengthen.
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
