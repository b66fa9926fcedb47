//! Latent attention within a layer, in its absorbed form (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1): the cache keeps
//! one row for each token, and queries are brought into its space. Must not know: files, or which layer this is.
//!
//! **Same bits.** The projection from the latent to the keys is applied to the queries instead, and the one to the values
//! to the sums, so that prefill and decode compute the same products of the same stored rows. Keys and values of heads are
//! never expanded.

use headrace_kernels::attention::Span;
use headrace_kernels::{HeadColumns, KernelError, Kernels, Queries, RopeTable, Write};

use crate::attention::LayerKv;
use crate::batch::Rows;
use crate::layer::LatentWeights;
use crate::norm::NormWeights;
use crate::scratch::{LatentScratch, Scratch, room};

impl LatentWeights {
    /// Elements of a stored row.
    fn row_width(&self) -> usize {
        self.latent_dim + self.rotary_dim
    }

    /// Computes and stores the row of every token of `input`, and computes the queries of every row in the space of the
    /// stored rows.
    pub(crate) fn heads(
        &self,
        kernels: &mut Kernels,
        input: &[f32],
        rows: &Rows,
        tables: &[RopeTable],
        kv: &mut LayerKv<'_>,
        scratch: &mut LatentScratch,
    ) -> Result<(), KernelError> {
        let still = RopeTable::default();
        let table = tables.get(self.table).unwrap_or(&still);
        self.store(kernels, input, rows, table, kv, &mut scratch.rows)?;
        self.queries(kernels, input, rows, table, scratch)
    }

    /// Computes, normalizes, rotates and stores the row of every token.
    fn store(
        &self,
        kernels: &mut Kernels,
        input: &[f32],
        rows: &Rows,
        table: &RopeTable,
        kv: &mut LayerKv<'_>,
        stored: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        let (count, width) = (rows.len(), self.row_width());
        let stored = room(stored, count * width);
        kernels.matmul(input, count, &self.row, stored, Write::Set)?;
        let latent = HeadColumns { first: 0, heads: 1, head_dim: self.latent_dim };
        let NormWeights { kind, eps, weight, .. } = &self.latent_norm;
        kernels.norm_heads(stored, width, latent, (*kind, weight, *eps))?;
        let key = HeadColumns { first: self.latent_dim, heads: 1, head_dim: self.rotary_dim };
        kernels.rotate_heads(stored, width, key, rows.angles(), table)?;
        kernels.store_kv(kv.store, kv.layer, stored, 0, rows.slots_of(kv.in_window))
    }

    /// Computes the queries, rotates them, and multiplies the plain part of each head by its projection to the keys.
    fn queries(
        &self,
        kernels: &mut Kernels,
        input: &[f32],
        rows: &Rows,
        table: &RopeTable,
        scratch: &mut LatentScratch,
    ) -> Result<(), KernelError> {
        let LatentWeights { heads, plain_dim, rotary_dim, latent_dim, .. } = *self;
        let (count, plain, width) = (rows.len(), heads * plain_dim, self.row_width());
        let stride = plain + heads * rotary_dim;
        let LatentScratch { low, low_normed, projected, queries, .. } = scratch;
        let projected = room(projected, count * stride);
        match &self.query_down {
            None => kernels.matmul(input, count, &self.query, projected, Write::Set)?,
            Some((down, norm)) => {
                let low = room(low, count * down.n());
                kernels.matmul(input, count, down, low, Write::Set)?;
                let low_normed = room(low_normed, low.len());
                norm.apply(kernels, low, low_normed)?;
                kernels.matmul(low_normed, count, &self.query, projected, Write::Set)?;
            }
        }
        let rotated = HeadColumns { first: plain, heads, head_dim: rotary_dim };
        kernels.rotate_heads(projected, stride, rotated, rows.angles(), table)?;
        let queries = room(queries, count * heads * width);
        kernels.matmul_heads(projected, count, &self.key, queries)?;
        let rotated = projected
            .chunks_exact(stride)
            .flat_map(|row| row.get(plain..).unwrap_or_default().chunks_exact(rotary_dim));
        for (query, rotated) in queries.chunks_exact_mut(width).zip(rotated) {
            query.iter_mut().skip(latent_dim).zip(rotated).for_each(|(to, &x)| *to = x);
        }
        Ok(())
    }

    /// Computes attention for `spans` into `scratch.attended`: the values of every head of `wanted` rows, which are the
    /// output rows of the spans. `count` is the number of rows of queries.
    pub(crate) fn attend(
        &self,
        kernels: &mut Kernels,
        kv: &LayerKv<'_>,
        (count, wanted): (usize, usize),
        spans: &[Span<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), KernelError> {
        let LatentWeights { heads, latent_dim, value_dim, .. } = *self;
        let Scratch { latent: LatentScratch { queries, summed, .. }, attended, .. } = scratch;
        let stride = heads * self.row_width();
        let queries = Queries {
            rows: room(queries, count * stride),
            stride,
            heads,
            scale: self.scale,
            cap: None,
            sinks: &[],
        };
        let summed = room(summed, wanted * heads * latent_dim);
        kernels.attention(kv.store, kv.layer, queries, spans, summed)?;
        let attended = room(attended, wanted * heads * value_dim);
        kernels.matmul_heads(summed, wanted, &self.value, attended)
    }
}
