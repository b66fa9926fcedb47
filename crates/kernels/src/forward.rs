//! The seam between the engine's step loop and a model: tokens of several sequences in, rows of logits out.
//! Must not know: requests, sampling, scheduling, or what kind of model answers.

use std::fmt;

/// Tokens in one KV block: `headrace_domain::BLOCK_TOKENS`, which the engine holds this equal to when it is compiled. It stands
/// here again so that a change of the domain does not compile the kernels anew.
pub const BLOCK_TOKENS: usize = 16;

/// Tokens of one sequence to compute in this step.
#[derive(Clone, Copy, Debug)]
pub struct SequenceChunk<'a> {
    /// The tokens; at least one.
    pub tokens: &'a [u32],
    /// Absolute position of `tokens[0]`. Keys and values of the positions before it are already stored.
    pub start: usize,
    /// Block table: physical block ids covering positions `0..start + tokens.len()`, [`BLOCK_TOKENS`] each. The blocks
    /// that hold the chunk's own positions are written.
    pub blocks: &'a [u32],
    /// Which rows of logits to return.
    pub logits: LogitsWanted,
}

/// Which tokens of a chunk need logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogitsWanted {
    /// None: an inner piece of a prompt.
    None,
    /// The last token's: the next token is to be sampled.
    Last,
    /// Every token's: prompt logprobs, or verification of drafts.
    All,
}

impl LogitsWanted {
    /// How many rows a chunk of `tokens` tokens returns.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            LogitsWanted::None => 0,
            LogitsWanted::Last => tokens.min(1),
            LogitsWanted::All => tokens,
        }
    }
}

/// What a [`Forward`] can hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForwardShape {
    /// Columns of a row of logits; token ids are below it.
    pub vocab: usize,
    /// Positions of one sequence are below it.
    pub max_positions: usize,
    /// Tokens per KV block ([`BLOCK_TOKENS`]).
    pub block_tokens: usize,
    /// KV blocks; block ids are below it.
    pub block_count: usize,
    /// Bytes of KV per block over all layers.
    pub kv_bytes_per_block: usize,
    /// Bytes of weights, as held in memory.
    pub weight_bytes: usize,
}

/// Row-major `rows × vocab` logits, rows in batch order (for [`LogitsWanted::All`] one per token of the chunk, in
/// order). Kept between steps, so that its memory is reused.
#[derive(Default)]
pub struct Logits {
    rows: usize,
    vocab: usize,
    values: Vec<f32>,
}

impl Logits {
    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// One row, `vocab` long.
    pub fn row(&self, row: usize) -> Option<&[f32]> {
        if row >= self.rows {
            return None;
        }
        self.values.get(row * self.vocab..(row + 1) * self.vocab)
    }

    /// One row to write, `vocab` long.
    pub fn row_mut(&mut self, row: usize) -> Option<&mut [f32]> {
        if row >= self.rows {
            return None;
        }
        self.values.get_mut(row * self.vocab..(row + 1) * self.vocab)
    }

    /// All rows, one after the other.
    pub fn values(&self) -> &[f32] {
        self.values.get(..self.rows * self.vocab).unwrap_or_default()
    }

    /// All rows to write, one after the other.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.values.get_mut(..self.rows * self.vocab).unwrap_or_default()
    }

    /// Makes room for `rows × vocab`. The values are unspecified until they are written.
    pub fn reset(&mut self, rows: usize, vocab: usize) {
        self.rows = rows;
        self.vocab = vocab;
        let wanted = rows * vocab;
        if self.values.len() < wanted {
            self.values.resize(wanted, 0.0);
        }
    }
}

/// Why a step could not be computed. Its logits are void; KV blocks that the batch was to write are unspecified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ForwardError {
    /// The computation panicked. The model can be stepped again.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// A chunk breaks the contract of [`SequenceChunk`]; nothing was computed.
    BadBatch {
        /// Which chunk of the batch.
        chunk: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A kernel refused: memory or shapes.
    Failed {
        /// What it said.
        message: String,
    },
}

impl fmt::Display for ForwardError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForwardError::Panicked { message } => write!(out, "the forward step panicked: {message}"),
            ForwardError::BadBatch { chunk, message } => write!(out, "chunk {chunk} of the batch: {message}"),
            ForwardError::Failed { message } => write!(out, "the forward step failed: {message}"),
        }
    }
}

impl std::error::Error for ForwardError {}

/// A model that computes steps. Same bits: a token's logits depend on its sequence alone, not on what else is in the
/// batch, on how the sequence is cut into chunks, or on the number of threads.
pub trait Forward: Send {
    /// What it can hold.
    fn shape(&self) -> &ForwardShape;

    /// A fingerprint of everything that decides bits beside the model itself: instruction set, compute mode, KV type,
    /// version of the kernels. Two engines with the same model and fingerprint can continue each other's sequences.
    fn numerics(&self) -> &str;

    /// Computes one step: stores keys and values of every chunk's tokens and fills `out`. No two chunks may write one
    /// block. An empty batch gives no rows.
    fn step(&mut self, batch: &[SequenceChunk<'_>], out: &mut Logits) -> Result<(), ForwardError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_keep_their_memory_and_guard_their_rows() {
        let mut logits = Logits::default();
        assert_eq!((logits.rows(), logits.row(0)), (0, None));
        logits.reset(2, 3);
        logits.row_mut(1).unwrap().copy_from_slice(&[1.0, 2.0, 3.0]);
        assert_eq!(logits.row(1), Some(&[1.0, 2.0, 3.0][..]));
        assert_eq!(logits.row(2), None);
        let before = logits.values().as_ptr();
        logits.reset(1, 3);
        assert_eq!((logits.values().len(), logits.values().as_ptr()), (3, before));
        assert_eq!(logits.row(1), None);
    }

    #[test]
    fn rows_wanted() {
        assert_eq!(LogitsWanted::None.rows(5), 0);
        assert_eq!(LogitsWanted::Last.rows(5), 1);
        assert_eq!(LogitsWanted::All.rows(5), 5);
    }
}
