//! What one step is: the chunks to be computed, what they refer to, and what came of them. Knows nothing of how a step is
//! chosen.

use headrace_domain::CacheMiss;

use crate::pins::Pinned;
use crate::sequence::SeqId;

/// Which logits of a chunk are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsNeed {
    /// None: only keys and values. An inner chunk where nothing is shared anyway.
    None,
    /// The last position's: at the end of the known tokens the next one is sampled from it, and it vouches for what it
    /// stands on. What is not a number at one position is not a number at any later one, so finite logits at the end
    /// of a chunk mean that every block up to there may be shared.
    Last,
    /// Every position's: the prompt is scored.
    All,
}

/// A run of one sequence's tokens to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedChunk {
    /// Whose.
    pub seq: SeqId,
    /// Position of the first token.
    pub start: usize,
    /// Tokens, at least one.
    pub len: usize,
    /// Which logits are wanted.
    pub logits: LogitsNeed,
    /// Whether the chunk ends with the last known token, so that a next one can be sampled.
    pub reaches_end: bool,
}

/// A sequence whose first chunk is in this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Which.
    pub seq: SeqId,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
    /// What becomes of the blocks that it computes and that are to be kept.
    pub pinned: Pinned,
    /// Why not more did; `None`: all that can did.
    pub miss: Option<CacheMiss>,
}

/// A waiting sequence that was dropped because its start deadline had passed. It is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// Which.
    pub seq: SeqId,
    /// Nanoseconds after which what still waits before another like it will be computed; at least a second.
    pub retry_after_ns: u64,
}

/// One step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// What is to be computed; one chunk per sequence at most.
    pub chunks: Vec<PlannedChunk>,
    /// Sequences that begin with this step.
    pub started: Vec<Started>,
    /// Sequences that lost their blocks and wait again.
    pub preempted: Vec<SeqId>,
    /// Sequences of idle work that are served as normal work from this step on, until they end or stand still.
    pub raised: Vec<SeqId>,
    /// Sequences that came too late for this step or any other.
    pub expired: Vec<Expired>,
    /// When it was planned, in the caller's nanoseconds.
    pub planned_ns: u64,
}

/// A planned chunk with what it refers to.
#[derive(Debug, Clone, Copy)]
pub struct ChunkView<'a> {
    /// The tokens to compute.
    pub tokens: &'a [u32],
    /// Physical blocks that cover every position from 0 to the end of the chunk.
    pub blocks: &'a [u32],
}

/// What the engine made of a planned chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Keys and values are stored; more of the sequence's known tokens remain, or none was sampled.
    Advanced,
    /// Stored, and this token follows. Only for a chunk that reached the last known token.
    Token(u32),
    /// Stored, and the sequence has ended.
    Ended,
    /// Stored but for the last position, which is to be computed again: no token could be sampled from it yet. Only for a chunk that
    /// reached the last known token.
    Repeat,
    /// Not to be trusted: the sequence ends and nothing of this step enters the cache.
    Failed,
}

impl StepPlan {
    /// Tokens in all chunks.
    pub fn tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len).sum()
    }

    pub(crate) fn clear(&mut self, now_ns: u64) {
        self.chunks.clear();
        self.started.clear();
        self.preempted.clear();
        self.raised.clear();
        self.expired.clear();
        self.planned_ns = now_ns;
    }
}
