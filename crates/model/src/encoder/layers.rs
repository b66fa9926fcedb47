//! Parts that the encoders' layers share: working memory, a norm with its bias, and attention over whole sequences.
//! Must not know: the architecture.

use headrace_kernels::attention::{KvStore, Span};
use headrace_kernels::{KernelError, Kernels, Queries};

use super::rows::Rows;
use crate::scratch::room;

/// Kernels and memory with which the layers compute.
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
    /// Activations within the MLP, `rows × intermediate`, or twice that if the MLP is gated.
    pub(crate) inner: Vec<f32>,
    /// Output of the gated activation, `rows × intermediate`.
    pub(crate) gated: Vec<f32>,
}

/// A layer norm.
pub(crate) struct Norm {
    pub(crate) weight: Vec<f32>,
    /// Empty if the norm has no bias.
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

    /// Normalizes the stream in place.
    pub(crate) fn norm_in_place(&mut self, norm: &Norm, rows: usize) -> Result<(), KernelError> {
        self.norm(norm, rows)?;
        std::mem::swap(&mut self.scratch.stream, &mut self.scratch.normed);
        Ok(())
    }

    /// Attention of each sequence over itself, from `qkv` to `attended`, with `heads` heads of width `head_dim`.
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
        let queries = Queries { rows: qkv, stride: 3 * width, heads, scale, cap: None, sinks: &[] };
        kernels.attention(kv, 0, queries, spans, room(&mut scratch.attended, count * width))
    }
}
