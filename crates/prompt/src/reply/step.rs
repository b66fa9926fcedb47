//! What a reader of a call says of each character. Must not know the readers.

use super::piece::Draft;

/// The most bytes of a name and what stands around it.
pub(super) const MOST_HEAD_BYTES: usize = 512;

/// What a character is to the call being read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A part of it.
    More,
    /// A part of it, and the last one.
    Whole,
    /// None of it: the call was whole some characters ago, which are these.
    Before(String),
    /// The last one of a list of calls.
    All(Vec<Draft>),
    /// None of it, and it is no call.
    Off,
}
