//! The items that a source yields. Must not know which source yields them, nor who reads them.

use bytes::Bytes;
use headrace_call_state::Rejection;
use headrace_domain::Usage;
use headrace_fleet::Placement;

/// The next item of a source. It is moved several times, so rare variants are boxed.
pub(crate) enum SourceEvent {
    /// More of the answer. Its reply events were added to those that wait.
    More(ReplyProgress),
    /// More of the answer, already in the caller's dialect.
    Passed(RawPiece),
    /// A part of the call has ended without its answer.
    Lost(Box<LostJob>),
    /// One of two racing workers no longer has the call.
    Outrun(Box<LostRace>),
    /// All parts have ended well.
    Over,
}

impl SourceEvent {
    /// Sets when output for the client arrived.
    pub(crate) fn set_arrival(&mut self, ns: u64) {
        match self {
            Self::More(more) => more.at_ns = ns,
            Self::Passed(passed) => passed.at_ns = ns,
            Self::Lost(_) | Self::Outrun(_) | Self::Over => {}
        }
    }
}

/// A racing worker that no longer has the call.
pub(crate) struct LostRace {
    pub(crate) placement: Placement,
    /// Its usage, as far as it is known.
    pub(crate) used: Usage,
    /// What went wrong. `None` if the other worker was faster.
    pub(crate) failed: Option<Box<LostJob>>,
}

/// Facts about a batch of reply events.
pub(crate) struct ReplyProgress {
    /// The usage of the prompt, as far as it is known. Set once, with the first events.
    pub(crate) prompt: Option<Box<Usage>>,
    /// Tokens from the answer's start that these events complete, if the events have no ids to count.
    pub(crate) tokens: Option<u64>,
    /// There is something to show to the client.
    pub(crate) meaningful: bool,
    /// When its events arrived, in nanoseconds of the clock's monotonic time.
    pub(crate) at_ns: u64,
}

impl ReplyProgress {
    /// Adds the facts about the events after it.
    pub(crate) fn join(&mut self, next: Self) {
        let Self { prompt, tokens, meaningful, at_ns } = next;
        self.prompt = self.prompt.take().or(prompt);
        self.tokens = tokens.or(self.tokens);
        self.meaningful |= meaningful;
        self.at_ns = at_ns;
    }
}

/// Output that goes to the client as it came.
pub(crate) struct RawPiece {
    /// Whole events of a stream, or a whole answer.
    pub(crate) bytes: Bytes,
    /// Tokens from the answer's start that it completes.
    pub(crate) tokens: u64,
    /// It ends the answer, and goes out when the call is settled.
    pub(crate) last: bool,
    /// There is something to show to the client.
    pub(crate) meaningful: bool,
    /// When it arrived, in nanoseconds of the clock's monotonic time.
    pub(crate) at_ns: u64,
}

/// A part of the call that ended without its answer.
pub(crate) struct LostJob {
    /// Index of the prompt.
    pub(crate) part: usize,
    /// Index of the job.
    pub(crate) job: usize,
    /// The rejection for the client if no other worker answers.
    pub(crate) rejection: Rejection,
    /// What went wrong, in the words of the worker that had it.
    pub(crate) cause: String,
    /// Another worker may succeed. If the client may have seen a part of the answer, that worker continues it.
    pub(crate) may_move: bool,
    /// Another worker may succeed, and the call has no output but this part's. If none of it has left, it can be taken
    /// back.
    pub(crate) may_move_if_unseen: bool,
    /// The worker broke instead of ending by itself.
    pub(crate) broke: bool,
}
