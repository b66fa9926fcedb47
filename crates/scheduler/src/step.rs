//! The types of one step: the chunks to compute, the tokens and blocks that they refer to, and their outcomes. Knows
//! nothing of how a step is chosen.

use headrace_domain::CacheMiss;
use headrace_kv_layout::{BlockTables, StateCopy};

use crate::pins::PinnedBlocks;
use crate::sequence::SeqId;

/// The logits that a chunk must produce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsNeed {
    /// None: the chunk only stores keys and values. Used for an inner chunk if the prefix cache is off.
    None,
    /// The last position's. At the end of the known tokens, the next token is sampled from it. It also vouches for the
    /// positions before it: a value that is not a number makes every later position not a number. So finite logits at
    /// the end of a chunk mean that every block up to there may be shared.
    Last,
    /// Every position's, because the prompt is scored.
    All,
}

/// A run of one sequence's tokens to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedChunk {
    /// The sequence of the tokens.
    pub seq: SeqId,
    /// Position of the first token.
    pub start: usize,
    /// Number of tokens, at least one.
    pub len: usize,
    /// The logits that the chunk must produce.
    pub logits: LogitsNeed,
    /// Whether the chunk ends with the last known token, so that a next one can be sampled.
    pub reaches_end: bool,
    /// A copy to make of the sequence's state, for models with states.
    pub copy: Option<StateCopy>,
}

/// A sequence whose first chunk is in this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartedSequence {
    /// The sequence.
    pub seq: SeqId,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: usize,
    /// How many of the blocks to compute are to be pinned, and how many exceed a limit on pins.
    pub pinned: PinnedBlocks,
    /// Why no more prompt tokens came from the cache. `None` if every cacheable token did.
    pub miss: Option<CacheMiss>,
}

/// A waiting sequence that was dropped because its start deadline had passed. Its id is no longer valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiredSequence {
    /// The sequence.
    pub seq: SeqId,
    /// Nanoseconds until the work that waits ahead of a similar sequence is computed. At least a second.
    pub retry_after_ns: u64,
}

/// One step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The chunks to compute, at most one per sequence.
    pub chunks: Vec<PlannedChunk>,
    /// Sequences that start with this step.
    pub started: Vec<StartedSequence>,
    /// Sequences that lost their blocks and wait again.
    pub preempted: Vec<SeqId>,
    /// Idle sequences that are served as normal work from this step on, until they end or are paused.
    pub raised: Vec<SeqId>,
    /// Sequences that were dropped because their start deadline passed.
    pub expired: Vec<ExpiredSequence>,
    /// When the step was planned, in the caller's nanoseconds.
    pub planned_ns: u64,
}

/// The tokens and block tables of a planned chunk.
#[derive(Debug, Clone, Copy)]
pub struct ChunkView<'a> {
    /// The tokens to compute.
    pub tokens: &'a [u32],
    /// The physical blocks of each cache group that cover every position from 0 to the end of the chunk, and the slots of
    /// the state.
    pub tables: BlockTables<'a>,
    /// As in [`SequenceSpec::long_context`](crate::SequenceSpec::long_context).
    pub long_context: bool,
}

/// The result of computing a planned chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Keys and values are stored. More known tokens of the sequence remain, or no token was sampled.
    Advanced,
    /// Keys and values are stored, and this token follows. Only for a chunk that reached the last known token.
    Token(u32),
    /// Keys and values are stored, and the sequence has ended.
    Ended,
    /// Keys and values are stored except at the last position. That position is computed again, because no token could
    /// be sampled from it yet. Only for a chunk that reached the last known token.
    Repeat,
    /// The result cannot be trusted: the sequence ends, and nothing of this step enters the cache.
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
