//! BERT, RoBERTa and XLM-RoBERTa: learned positions, and a norm after each residual sum (Devlin and others 2018, arXiv
//! 1810.04805). Must not know: files, or how the states are used.

use headrace_checkpoint::BertConfig;
use headrace_kernels::attention::Sees;
use headrace_kernels::matrix::Matrix;
use headrace_kernels::{Activation, KernelError, Write};

use super::layers::{Norm, Work};
use super::rows::Rows;
use crate::scratch::room;

/// The weights.
pub(crate) struct Bert {
    pub(crate) config: BertConfig,
    pub(crate) hidden: usize,
    pub(crate) act: Activation,
    /// `vocab × hidden`.
    pub(crate) words: Matrix,
    /// `positions × hidden`.
    pub(crate) positions: Vec<f32>,
    /// `token types × hidden`.
    pub(crate) types: Vec<f32>,
    pub(crate) norm: Norm,
    pub(crate) layers: Vec<Layer>,
}

/// One layer.
pub(crate) struct Layer {
    /// Queries, keys and values: `3·hidden × hidden`.
    pub(crate) qkv: Matrix,
    /// `hidden × hidden`.
    pub(crate) output: Matrix,
    pub(crate) output_norm: Norm,
    /// `intermediate × hidden`.
    pub(crate) up: Matrix,
    /// `hidden × intermediate`.
    pub(crate) down: Matrix,
    pub(crate) down_norm: Norm,
}

impl Bert {
    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        let layer = |layer: &Layer| {
            let matrices = [&layer.qkv, &layer.output, &layer.up, &layer.down].map(Matrix::bytes);
            matrices.iter().sum::<usize>() + layer.output_norm.bytes() + layer.down_norm.bytes()
        };
        let tables = 4 * (self.positions.len() + self.types.len());
        self.words.bytes() + tables + self.norm.bytes() + self.layers.iter().map(layer).sum::<usize>()
    }

    /// Computes the last hidden states of every row and leaves them in `scratch.stream`.
    pub(crate) fn states(&self, work: &mut Work, rows: &Rows) -> Result<(), KernelError> {
        let (count, hidden) = (rows.len(), self.hidden);
        work.kernels.rows(&self.words, &rows.tokens, room(&mut work.scratch.stream, count * hidden))?;
        self.place(rows, room(&mut work.scratch.stream, count * hidden));
        work.norm_in_place(&self.norm, count)?;
        let spans = rows.spans(Sees::All);
        let (heads, head_dim) = (self.config.heads, hidden / self.config.heads.max(1));
        for layer in &self.layers {
            let stream = room(&mut work.scratch.stream, count * hidden);
            let qkv = room(&mut work.scratch.qkv, count * 3 * hidden);
            work.kernels.matmul(stream, count, &layer.qkv, qkv, Write::Set)?;
            work.attend(rows, &spans, heads, head_dim)?;
            let stream = room(&mut work.scratch.stream, count * hidden);
            let attended = room(&mut work.scratch.attended, count * hidden);
            work.kernels.matmul(attended, count, &layer.output, stream, Write::Add)?;
            work.norm_in_place(&layer.output_norm, count)?;
            let width = self.config.intermediate_size;
            let stream = room(&mut work.scratch.stream, count * hidden);
            let inner = room(&mut work.scratch.inner, count * width);
            work.kernels.matmul(stream, count, &layer.up, inner, Write::Set)?;
            work.kernels.activate(self.act, inner, width)?;
            work.kernels.matmul(inner, count, &layer.down, stream, Write::Add)?;
            work.norm_in_place(&layer.down_norm, count)?;
        }
        Ok(())
    }

    /// Adds the embeddings of each row's token type and position.
    fn place(&self, rows: &Rows, stream: &mut [f32]) {
        let hidden = self.hidden;
        for range in rows.ranges() {
            let mut next = self.config.first_position;
            for row in range.clone() {
                let padding = self.config.padding.is_some_and(|id| rows.tokens.get(row) == Some(&id));
                // RoBERTa counts only tokens that are not padding. A padding token has the position before the first.
                let position = if padding { self.config.first_position.saturating_sub(1) } else { next };
                next += usize::from(!padding);
                let second = rows.second.get(row) == Some(&true) && self.config.token_types > 1;
                let of = |table: &'_ [f32], at: usize| at * hidden..((at + 1) * hidden).min(table.len());
                let position = self.positions.get(of(&self.positions, position)).unwrap_or_default();
                let kind = self.types.get(of(&self.types, usize::from(second))).unwrap_or_default();
                let out = stream.get_mut(row * hidden..(row + 1) * hidden).unwrap_or_default();
                for ((out, kind), position) in out.iter_mut().zip(kind).zip(position) {
                    *out = *out + kind + position;
                }
            }
        }
    }
}
