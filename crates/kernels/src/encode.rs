//! The interface between the encoder engine and a model: whole sequences in, one row of numbers out per sequence (an
//! embedding or a score). The counterpart of [`crate::forward`]. Must not know: requests, queues, or which kind of
//! model implements it.

use crate::forward::ForwardError;

/// A whole sequence, encoded in one pass.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The tokens, including those that begin and end a text. At least one.
    pub tokens: &'a [u32],
    /// Index of the first token of the second text (token type 1). Equals the sequence's length if there is only one
    /// text.
    pub second: usize,
}

/// The sizes and limits of an [`Encode`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodeShape {
    /// Token ids are below this number.
    pub vocab: usize,
    /// Most tokens in one sequence.
    pub max_tokens: usize,
    /// Most tokens in a batch, counted by [`EncodeShape::batch_tokens`]. The longest sequence always fits.
    pub max_batch_tokens: usize,
    /// Tokens per KV block, at least 1.
    pub block_tokens: usize,
    /// Numbers in a row of output: the dimensions of an embedding, or 1 for a score.
    pub width: usize,
    /// Bytes of memory that the weights take.
    pub weight_bytes: usize,
}

impl EncodeShape {
    /// Returns the tokens of a batch that a sequence of `tokens` tokens takes: its length, rounded up to whole blocks.
    pub const fn batch_tokens(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.block_tokens)
    }
}

/// Output rows, row-major `sequences × width`, in batch order. Reused between batches to avoid allocation.
#[derive(Default)]
pub struct Vectors {
    width: usize,
    values: Vec<f32>,
}

impl Vectors {
    /// Returns one row. `None` if there is no such row.
    pub fn row(&self, row: usize) -> Option<&[f32]> {
        self.values.get(row.checked_mul(self.width)?..row.checked_add(1)?.checked_mul(self.width)?)
    }

    /// Returns one row for writing. `None` if there is no such row.
    pub fn row_mut(&mut self, row: usize) -> Option<&mut [f32]> {
        self.values.get_mut(row.checked_mul(self.width)?..row.checked_add(1)?.checked_mul(self.width)?)
    }

    /// Resizes to exactly `rows × width` zeros.
    pub fn reset(&mut self, rows: usize, width: usize) {
        self.width = width;
        self.values.clear();
        self.values.resize(rows.saturating_mul(width), 0.0);
    }
}

/// A model that encodes whole sequences. Same bits: a sequence's row depends on its tokens alone. It does not depend
/// on the rest of the batch or on the number of threads.
pub trait Encode: Send {
    /// Returns the model's sizes and limits.
    fn shape(&self) -> &EncodeShape;

    /// Returns a fingerprint of everything besides the model that decides result bits: instruction set, compute mode
    /// and kernel version.
    fn numerics(&self) -> &str;

    /// Encodes each sequence of `batch` and fills one row of `out` for it. An empty batch gives no rows.
    ///
    /// # Errors
    /// [`ForwardError::BadBatch`] names the sequence that violates the contract of [`Sequence`], in which case
    /// nothing was computed. Other errors leave no valid rows.
    fn encode(&mut self, batch: &[Sequence<'_>], out: &mut Vectors) -> Result<(), ForwardError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_guard_their_rows() {
        let mut vectors = Vectors::default();
        assert_eq!(vectors.row(0), Some(&[][..]));
        vectors.reset(2, 3);
        vectors.row_mut(1).unwrap().copy_from_slice(&[1.0, 2.0, 3.0]);
        assert_eq!(vectors.row(1), Some(&[1.0, 2.0, 3.0][..]));
        assert_eq!((vectors.row(2), vectors.row(usize::MAX)), (None, None));
    }
}
