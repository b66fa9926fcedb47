//! What the layers of encoders share: memory, a norm with its bias, and attention over whole sequences.
//! Must not know: which architecture.

use headrace_kernels::attention::{KvStore, Span};
use headrace_kernels::{KernelError, Kernels, Queries};

use super::rows::Rows;
use crate::model::room;

/// What the layers compute with.
pub(crate) struct Work {
    pub(crate) kernels: Kernels,
    /// Keys and values of one layer.
    pub(crate) kv: KvStore,
    pub(crate) scratch: Scratch,
}

/// Activations, reused between batches.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The residual stream, `rows × hidden`.
    pub(crate) stream: Vec<f32>,
    /// Normalized rows, `rows × hidden`.
    pub(crate) normed: Vec<f32>,
    /// Query, key and value heads, `rows × 3·hidden`.
    pub(crate) qkv: Vec<f32>,
    /// Attention's output, `rows × hidden`.
    pub(crate) attended: Vec<f32>,
    /// Within the MLP, `rows × intermediate`, or twice as much where it is gated.
    pub(crate) inner: Vec<f32>,
    /// What the gates leave, `rows × intermediate`.
    pub(crate) gated: Vec<f32>,
}

/// A layer norm.
pub(crate) struct Norm {
    pub(crate) weight: Vec<f32>,
    /// Empty where there is none.
    pub(crate) bias: Vec<f32>,
    pub(crate) eps: f32,
}

impl Norm {
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.weight.len() + self.bias.len())
    }
}

impl Work {
    /// Normalizes the stream into `normed`.
    pub(crate) fn norm(&mut self, norm: &Norm, rows: usize) -> Result<(), KernelError> {
        let count = rows * norm.weight.len();
        let (from, to) = (room(&mut self.scratch.stream, count), room(&mut self.scratch.normed, count));
        self.kernels.layer_norm(from, &norm.weight, &norm.bias, norm.eps, to)
    }

    /// Normalizes the stream in its place.
    pub(crate) fn norm_in_place(&mut self, norm: &Norm, rows: usize) -> Result<(), KernelError> {
        self.norm(norm, rows)?;
        std::mem::swap(&mut self.scratch.stream, &mut self.scratch.normed);
        Ok(())
    }

    /// Attention of each sequence over itself: `qkv` → `attended`, `heads` heads of `head_dim`.
    pub(crate) fn attend(
        &mut self,
        rows: &Rows,
        spans: &[Span<'_>],
        heads: usize,
        head_dim: usize,
    ) -> Result<(), KernelError> {
        let Work { kernels, kv, scratch } = self;
        let (count, width) = (rows.len(), heads * head_dim);
        let qkv = room(&mut scratch.qkv, count * 3 * width);
        kernels.store_kv(kv, 0, qkv, width, &rows.slots)?;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let queries = Queries { rows: qkv, stride: 3 * width, heads, scale };
        kernels.attention(kv, 0, queries, spans, room(&mut scratch.attended, count * width))
    }
}
