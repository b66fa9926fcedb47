//! The interface between the engine's step loop and a model: tokens of several sequences in, rows of logits out.
//! Must not know: requests, sampling, scheduling, or which kind of model implements it.

use std::fmt;

use headrace_kv_layout::{BlockTables, KvLayout};

/// Tokens of one sequence to compute in this step.
#[derive(Clone, Copy, Debug)]
pub struct SequenceChunk<'a> {
    /// The tokens. At least one.
    pub tokens: &'a [u32],
    /// Absolute position of `tokens[0]`. Keys and values of the positions before it are already stored.
    pub start: usize,
    /// For each cache group, the ids of the physical blocks for positions `0..start + tokens.len()`. The step writes
    /// the blocks that hold the chunk's own positions.
    pub tables: BlockTables<'a>,
    /// Which rows of logits to return.
    pub logits: LogitsWanted,
    /// Whether the sequence uses the rotary frequencies for long contexts, in every chunk. See
    /// [`ForwardShape::short_positions`].
    pub long_context: bool,
}

/// Which tokens of a chunk need logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogitsWanted {
    /// No token: the chunk is an inner part of a prompt.
    None,
    /// The last token, because the next token is sampled from its logits.
    Last,
    /// Every token, for prompt log-probabilities or to verify drafted tokens.
    All,
}

impl LogitsWanted {
    /// Returns the number of logits rows for a chunk of `tokens` tokens.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            LogitsWanted::None => 0,
            LogitsWanted::Last => tokens.min(1),
            LogitsWanted::All => tokens,
        }
    }
}

/// The capacity and sizes of a [`Forward`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForwardShape {
    /// Columns in a row of logits. Token ids are below this number.
    pub vocab: usize,
    /// Most positions in one sequence.
    pub max_positions: usize,
    /// The cache groups and their blocks.
    pub kv: KvLayout,
    /// Bytes of memory that the weights take.
    pub weight_bytes: usize,
    /// For models with two sets of rotary frequencies (LongRoPE): the most positions of a sequence that uses the first
    /// set. `None` for other models.
    pub short_positions: Option<usize>,
}

impl ForwardShape {
    /// Returns whether a sequence that may grow to `positions` positions uses the frequencies for long contexts.
    pub fn is_long(&self, positions: usize) -> bool {
        self.short_positions.is_some_and(|short| positions > short)
    }
}

/// Logits, row-major `rows × vocab`, with rows in batch order. [`LogitsWanted::All`] gives one row per token of the
/// chunk, in order. Reused between steps to avoid allocation.
#[derive(Default)]
pub struct Logits {
    rows: usize,
    vocab: usize,
    values: Vec<f32>,
}

impl Logits {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns one row of `vocab` values. `None` if there is no such row.
    pub fn row(&self, row: usize) -> Option<&[f32]> {
        if row >= self.rows {
            return None;
        }
        self.values.get(row * self.vocab..(row + 1) * self.vocab)
    }

    /// Returns one row of `vocab` values for writing. `None` if there is no such row.
    pub fn row_mut(&mut self, row: usize) -> Option<&mut [f32]> {
        if row >= self.rows {
            return None;
        }
        self.values.get_mut(row * self.vocab..(row + 1) * self.vocab)
    }

    /// Returns all rows, one after the other.
    pub fn values(&self) -> &[f32] {
        self.values.get(..self.rows * self.vocab).unwrap_or_default()
    }

    /// Returns all rows for writing, one after the other.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.values.get_mut(..self.rows * self.vocab).unwrap_or_default()
    }

    /// Resizes to `rows × vocab`. The values are unspecified until they are written.
    pub fn reset(&mut self, rows: usize, vocab: usize) {
        self.rows = rows;
        self.vocab = vocab;
        let wanted = rows * vocab;
        if self.values.len() < wanted {
            self.values.resize(wanted, 0.0);
        }
    }
}

/// Why a step failed. The step's logits are void, and the contents of the KV blocks that it was to write are
/// unspecified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ForwardError {
    /// The computation panicked. The model can run further steps.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// A chunk violates the contract of [`SequenceChunk`]. Nothing was computed.
    BadBatch {
        /// Index of the chunk in the batch.
        chunk: usize,
        /// What is wrong with the chunk.
        message: String,
    },
    /// A kernel failed, because of memory or shapes.
    Failed {
        /// The kernel's error message.
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

/// A model that computes steps. Same bits: a token's logits depend on its sequence alone. They do not depend on the
/// rest of the batch, on how the sequence is cut into chunks, or on the number of threads.
pub trait Forward: Send {
    /// Returns the model's capacity and sizes.
    fn shape(&self) -> &ForwardShape;

    /// Returns a fingerprint of everything besides the model that decides result bits: instruction set, compute mode,
    /// KV type and kernel version. Two engines with the same model and the same fingerprint can continue each other's
    /// sequences.
    fn numerics(&self) -> &str;

    /// Computes one step: stores the keys and values of every chunk's tokens, and fills `out`. No two chunks may
    /// write the same block. An empty batch gives no rows.
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
