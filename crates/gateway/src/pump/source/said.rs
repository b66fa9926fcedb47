//! What a source says, piece by piece. Must not know who says it, nor who listens.

use bytes::Bytes;
use headrace_domain::Usage;
use headrace_fleet::Placement;

use crate::refused::Why;

/// The next thing that a source says. It is handed on by several hands, so what is rare in it stands apart.
pub(crate) enum Said {
    /// More of the answer. Its reply events stand with those that wait.
    More(More),
    /// More of the answer, in the caller's dialect already.
    Passed(Passed),
    /// A part of the call has ended without its answer.
    Lost(Box<Lost>),
    /// Of two who had the call, one has it no longer.
    Outrun(Box<Outrun>),
    /// All parts have ended well.
    Over,
}

impl Said {
    /// When what is for the client was here.
    pub(crate) fn is_here_at(&mut self, ns: u64) {
        match self {
            Self::More(more) => more.at_ns = ns,
            Self::Passed(passed) => passed.at_ns = ns,
            Self::Lost(_) | Self::Outrun(_) | Self::Over => {}
        }
    }
}

/// Who had the call beside another one, and has it no longer.
pub(crate) struct Outrun {
    pub(crate) placement: Placement,
    /// What it did, as far as that is known.
    pub(crate) used: Usage,
    /// What went wrong; `None`: the other one was faster.
    pub(crate) failed: Option<Box<Lost>>,
}

/// What came with reply events.
pub(crate) struct More {
    /// What the prompt takes, as far as it is known. It comes once, with the first of all.
    pub(crate) prompt: Option<Box<Usage>>,
    /// Tokens of the answer, from its start, that are whole with it, where its events have no ids to count.
    pub(crate) tokens: Option<u64>,
    /// There is something to show to the client.
    pub(crate) meaningful: bool,
    /// When its events were there, in nanoseconds of the clock's monotonic time.
    pub(crate) at_ns: u64,
}

impl More {
    /// With what came behind it.
    pub(crate) fn join(&mut self, next: Self) {
        let Self { prompt, tokens, meaningful, at_ns } = next;
        self.prompt = self.prompt.take().or(prompt);
        self.tokens = tokens.or(self.tokens);
        self.meaningful |= meaningful;
        self.at_ns = at_ns;
    }
}

/// What goes to the client as it came.
pub(crate) struct Passed {
    /// A whole event of a stream, or a whole answer.
    pub(crate) bytes: Bytes,
    /// Tokens of the answer, from its start, that are whole with it.
    pub(crate) tokens: u64,
    /// It ends the answer: it goes out when the call is settled.
    pub(crate) last: bool,
    /// There is something to show to the client.
    pub(crate) meaningful: bool,
    /// When it was here, in nanoseconds of the clock's monotonic time.
    pub(crate) at_ns: u64,
}

/// A part of the call that ended without its answer.
pub(crate) struct Lost {
    /// Which prompt.
    pub(crate) part: usize,
    /// By which of the call's jobs.
    pub(crate) job: usize,
    /// What the client is told if nobody else answers it.
    pub(crate) why: Why,
    /// What went wrong, in the words of the worker that had it.
    pub(crate) cause: String,
    /// Another worker might do better. Where the client may have seen something of it, that one goes on with what there is.
    pub(crate) may_move: bool,
    /// Another worker might do better, and what was said is all that the call has said: if none of it has left, it can be taken
    /// back.
    pub(crate) unless_seen: bool,
    /// The worker broke: it did not end by itself.
    pub(crate) broke: bool,
}
