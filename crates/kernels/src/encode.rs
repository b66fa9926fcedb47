//! The seam between an engine of encoders and a model: whole sequences in, one row of numbers out for each (an embedding, or a
//! score). The sibling of [`crate::forward`]. Must not know: requests, queues, or what kind of model answers.

use crate::forward::ForwardError;

/// A whole sequence to be read at once.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The tokens, those that begin and end a text included; at least one.
    pub tokens: &'a [u32],
    /// The first token of the second of two texts (token type 1); the sequence's length where there is one text.
    pub second: usize,
}

/// What an [`Encode`] takes and gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodeShape {
    /// Token ids are below it.
    pub vocab: usize,
    /// Tokens of the longest sequence.
    pub max_tokens: usize,
    /// The most tokens of a batch, the lengths of its sequences rounded up to whole blocks
    /// ([`crate::forward::BLOCK_TOKENS`]); the longest sequence fits.
    pub max_batch_tokens: usize,
    /// Numbers of a row of output: an embedding's dimensions, or 1 for a score.
    pub width: usize,
    /// Bytes of weights, as held in memory.
    pub weight_bytes: usize,
}

/// Row-major `sequences × width` output, in batch order. Kept between batches, so that its memory is reused.
#[derive(Default)]
pub struct Vectors {
    width: usize,
    values: Vec<f32>,
}

impl Vectors {
    /// One row.
    pub fn row(&self, row: usize) -> Option<&[f32]> {
        self.values.get(row.checked_mul(self.width)?..row.checked_add(1)?.checked_mul(self.width)?)
    }

    /// One row to write.
    pub fn row_mut(&mut self, row: usize) -> Option<&mut [f32]> {
        self.values.get_mut(row.checked_mul(self.width)?..row.checked_add(1)?.checked_mul(self.width)?)
    }

    /// Makes room for exactly `rows × width` zeros.
    pub fn reset(&mut self, rows: usize, width: usize) {
        self.width = width;
        self.values.clear();
        self.values.resize(rows.saturating_mul(width), 0.0);
    }
}

/// A model that reads whole sequences. Same bits: a sequence's row depends on its tokens alone, not on what else is in the batch or
/// on the number of threads.
pub trait Encode: Send {
    /// What it takes and gives.
    fn shape(&self) -> &EncodeShape;

    /// A fingerprint of everything that decides bits beside the model itself: instruction set, compute mode, version of the kernels.
    fn numerics(&self) -> &str;

    /// Reads each sequence of `batch` and fills a row of `out` for it. An empty batch gives no rows.
    ///
    /// # Errors
    /// [`ForwardError::BadBatch`] names the sequence that breaks the contract of [`Sequence`]; then nothing was computed. Other errors
    /// leave no rows.
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
