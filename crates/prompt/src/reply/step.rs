//! The result of a call's reader for each character. Must not know the readers.

use super::piece::CallDraft;

/// The maximum size of a name and the text around it, in bytes.
pub(super) const MOST_HEAD_BYTES: usize = 512;

/// The meaning of a character for the call being read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallStep {
    /// The character is part of the call.
    More,
    /// The character is the last one of the call.
    Whole,
    /// The character is not part of the call. The call was complete before the given characters.
    Before(String),
    /// The character is the last one of a list of calls.
    All(Vec<CallDraft>),
    /// The text is not a call, and the character is not part of it.
    Off,
}
