//! What a source says, piece by piece. Must not know who says it, nor who listens.

use headrace_domain::Usage;

use crate::refused::Why;

/// The next thing that a source says.
pub(crate) enum Said {
    /// More of the answer. Its reply events stand with those that wait.
    More(More),
    /// A part of the call has ended without its answer.
    Lost(Lost),
    /// All parts have ended well.
    Over,
}

/// What came with reply events.
pub(crate) struct More {
    /// What the prompt takes, as far as it shows: with the first that is said.
    pub(crate) prompt: Option<Usage>,
    /// There is something to show to the client.
    pub(crate) meaningful: bool,
    /// When its events were there, in nanoseconds of the clock's monotonic time.
    pub(crate) at_ns: u64,
}

/// A part of the call that whoever had it did not answer.
pub(crate) struct Lost {
    /// Which prompt.
    pub(crate) part: usize,
    /// What the client is told where nobody else answers it.
    pub(crate) why: Why,
    /// What went wrong, as who had it says.
    pub(crate) cause: String,
    /// Nothing of it could be seen yet, and the call itself is not what failed: another one may answer it.
    pub(crate) may_move: bool,
}
