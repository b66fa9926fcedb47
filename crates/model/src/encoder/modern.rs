//! ModernBERT: rotary positions, gated MLPs, pre-norms, and attention to neighbours only in most layers (Warner and
//! others 2024, arXiv 2412.13663). Must not know: files, or how the states are used.

use headrace_checkpoint::ModernBertConfig;
use headrace_kernels::attention::Sees;
use headrace_kernels::matrix::Matrix;
use headrace_kernels::{Activation, HeadRows, KernelError, RopeTable, Write};

use super::layers::{Norm, Work};
use super::rows::Rows;
use crate::scratch::room;

/// The weights.
pub(crate) struct Modern {
    pub(crate) config: ModernBertConfig,
    pub(crate) hidden: usize,
    pub(crate) act: Activation,
    /// `vocab × hidden`.
    pub(crate) words: Matrix,
    pub(crate) norm: Norm,
    pub(crate) layers: Vec<Layer>,
    pub(crate) final_norm: Norm,
    pub(crate) global_rope: RopeTable,
    pub(crate) local_rope: RopeTable,
}

/// One layer.
pub(crate) struct Layer {
    /// Whether the layer attends to the whole sequence.
    pub(crate) global: bool,
    /// `None` in the first layer.
    pub(crate) attention_norm: Option<Norm>,
    /// Queries, keys and values: `3·hidden × hidden`.
    pub(crate) qkv: Matrix,
    /// `hidden × hidden`.
    pub(crate) output: Matrix,
    pub(crate) mlp_norm: Norm,
    /// Inputs, then gates: `2·intermediate × hidden`.
    pub(crate) up: Matrix,
    /// `hidden × intermediate`.
    pub(crate) down: Matrix,
}

impl Modern {
    /// Bytes of all weights and tables.
    pub(crate) fn bytes(&self) -> usize {
        let layer = |layer: &Layer| {
            let matrices = [&layer.qkv, &layer.output, &layer.up, &layer.down].map(Matrix::bytes);
            let norm = layer.attention_norm.as_ref().map_or(0, Norm::bytes);
            matrices.iter().sum::<usize>() + norm + layer.mlp_norm.bytes()
        };
        let table = |table: &RopeTable| 4 * (table.cos.len() + table.sin.len());
        self.words.bytes()
            + self.norm.bytes()
            + self.final_norm.bytes()
            + table(&self.global_rope)
            + table(&self.local_rope)
            + self.layers.iter().map(layer).sum::<usize>()
    }

    /// Computes the last hidden states of every row and leaves them in `scratch.stream`.
    pub(crate) fn states(&self, work: &mut Work, rows: &Rows) -> Result<(), KernelError> {
        let (count, hidden) = (rows.len(), self.hidden);
        work.kernels.rows(&self.words, &rows.tokens, room(&mut work.scratch.stream, count * hidden))?;
        work.norm_in_place(&self.norm, count)?;
        let (all, near) = (rows.spans(Sees::All), rows.spans(Sees::Near(self.config.reach)));
        for layer in &self.layers {
            let spans = if layer.global { &all } else { &near };
            self.heads(layer, work, rows)?;
            work.attend(rows, spans, self.config.heads, hidden / self.config.heads.max(1))?;
            let stream = room(&mut work.scratch.stream, count * hidden);
            let attended = room(&mut work.scratch.attended, count * hidden);
            work.kernels.matmul(attended, count, &layer.output, stream, Write::Add)?;
            work.norm(&layer.mlp_norm, count)?;
            let width = self.config.intermediate_size;
            let normed = room(&mut work.scratch.normed, count * hidden);
            let inner = room(&mut work.scratch.inner, count * 2 * width);
            work.kernels.matmul(normed, count, &layer.up, inner, Write::Set)?;
            let gated = room(&mut work.scratch.gated, count * width);
            work.kernels.activate_gated(self.act, inner, width, gated)?;
            let stream = room(&mut work.scratch.stream, count * hidden);
            work.kernels.matmul(gated, count, &layer.down, stream, Write::Add)?;
        }
        work.norm_in_place(&self.final_norm, count)
    }

    /// Computes the query, key and value heads of every row and rotates queries and keys.
    fn heads(&self, layer: &Layer, work: &mut Work, rows: &Rows) -> Result<(), KernelError> {
        let (count, hidden) = (rows.len(), self.hidden);
        if let Some(norm) = &layer.attention_norm {
            work.norm(norm, count)?;
        }
        let from =
            if layer.attention_norm.is_some() { &mut work.scratch.normed } else { &mut work.scratch.stream };
        let from = room(from, count * hidden);
        let qkv = room(&mut work.scratch.qkv, count * 3 * hidden);
        work.kernels.matmul(from, count, &layer.qkv, qkv, Write::Set)?;
        let heads = self.config.heads;
        let shape = HeadRows {
            heads,
            kv_heads: heads,
            head_dim: hidden / heads.max(1),
            stride: 3 * hidden,
            query_norm: None,
            key_norm: None,
            eps: self.config.eps,
        };
        let table = if layer.global { &self.global_rope } else { &self.local_rope };
        work.kernels.rope(qkv, shape, &rows.positions, table)
    }
}
