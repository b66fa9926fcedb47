//! Grouped-query attention within a layer: projections, norms, rotation, the store of keys and values, and the sums over
//! it. Must not know: files, or which layer this is.

use headrace_kernels::attention::{KvStore, Span};
use headrace_kernels::{
    HeadColumns, HeadRows, KernelError, Kernels, ProjectedRows, Queries, RopeTable, RowNorm, Write, math,
};

use crate::batch::Rows;
use crate::layer::{AttentionWeights, HeadNorm};
use crate::scratch::{Scratch, room};

/// The store and the layer in it that hold a layer's keys and values.
pub(crate) struct LayerKv<'a> {
    pub(crate) store: &'a mut KvStore,
    pub(crate) layer: usize,
    /// Whether the layer belongs to the cache group of the window.
    pub(crate) in_window: bool,
}

impl AttentionWeights {
    /// Elements of a row of query, key and value heads, and of output gates if there are some.
    fn stride(&self) -> usize {
        let gates = if self.is_gated { self.heads } else { 0 };
        (self.heads + 2 * self.kv_heads + gates) * self.head_dim
    }

    /// Computes the query, key and value heads of every row of `input`, normalizes and rotates them, and stores keys and
    /// values.
    pub(crate) fn heads(
        &self,
        kernels: &mut Kernels,
        input: &[f32],
        rows: &Rows,
        tables: &[RopeTable],
        kv: &mut LayerKv<'_>,
        qkv: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        let stride = self.stride();
        let qkv = room(qkv, rows.len() * stride);
        kernels.matmul(input, rows.len(), &self.qkv, qkv, Write::Set)?;
        self.rotate(kernels, qkv, rows, tables)?;
        if self.kv_heads == 0 {
            // The layer reads what an earlier one stored.
            return Ok(());
        }
        kernels.store_kv(kv.store, kv.layer, qkv, self.heads * self.head_dim, rows.slots_of(kv.in_window))
    }

    /// Normalizes and rotates queries and keys.
    fn rotate(
        &self,
        kernels: &mut Kernels,
        qkv: &mut [f32],
        rows: &Rows,
        tables: &[RopeTable],
    ) -> Result<(), KernelError> {
        let AttentionWeights { heads, kv_heads, head_dim, .. } = *self;
        let stride = self.stride();
        let queries = HeadColumns { first: 0, heads, head_dim };
        let keys = HeadColumns { first: heads * head_dim, heads: kv_heads, head_dim };
        let mut fused = [None, None];
        for ((norm, columns), fused) in
            [(&self.query_norm, queries), (&self.key_norm, keys)].into_iter().zip(&mut fused)
        {
            match norm {
                Some(norm) if norm.fuses_with_rotation(head_dim) => *fused = Some(norm),
                Some(norm) => {
                    let columns = match norm.is_whole {
                        true => HeadColumns { heads: 1, head_dim: columns.heads * head_dim, ..columns },
                        false => columns,
                    };
                    kernels.norm_heads(qkv, stride, columns, (norm.kind, &norm.weight, norm.eps))?;
                }
                None => {}
            }
        }
        if let Some(norm) = &self.value_norm {
            let values = HeadColumns { first: (heads + kv_heads) * head_dim, heads: kv_heads, head_dim };
            kernels.norm_heads(qkv, stride, values, (norm.kind, &norm.weight, norm.eps))?;
        }
        if let Some(limit) = self.clip {
            kernels.clamp(qkv, stride, stride, limit)?;
        }
        let still = RopeTable::default();
        let table = self.table.and_then(|table| tables.get(table)).unwrap_or(&still);
        let [query_norm, key_norm] = fused;
        if table.half > 0 || query_norm.is_some() || key_norm.is_some() {
            let eps = query_norm.or(key_norm).map_or(0.0, |norm| norm.eps);
            let shape = HeadRows {
                heads,
                kv_heads,
                head_dim,
                stride,
                query_norm: query_norm.map(|norm| norm.weight.as_slice()),
                key_norm: key_norm.map(|norm| norm.weight.as_slice()),
                eps,
            };
            kernels.rope(qkv, shape, rows.angles(), table)?;
        }
        if let Some((beta, positions)) = self.growth {
            let factor =
                |&position: &usize| 1.0 + beta * math::ln((1 + position / positions.max(1)) as f64) as f32;
            let factors: Vec<f32> = rows.positions.iter().map(factor).collect();
            kernels.scale_rows(qkv, stride, heads * head_dim, &factors)?;
        }
        Ok(())
    }

    /// Computes attention for `spans` into `scratch.attended`, one row for each row in `wanted`, or for all. `count` is the
    /// number of rows of heads.
    pub(crate) fn attend(
        &self,
        kernels: &mut Kernels,
        kv: &LayerKv<'_>,
        count: usize,
        (spans, wanted): (&[Span<'_>], Option<&[usize]>),
        scratch: &mut Scratch,
    ) -> Result<(), KernelError> {
        let stride = self.stride();
        let queries = Queries {
            rows: room(&mut scratch.qkv, count * stride),
            stride,
            heads: self.heads,
            scale: self.scale,
            cap: self.cap,
            sinks: &self.sinks,
        };
        let width = self.heads * self.head_dim;
        let attended = room(&mut scratch.attended, count * width);
        kernels.attention(kv.store, kv.layer, queries, spans, attended)?;
        if !self.is_gated {
            return Ok(());
        }
        let gates = ProjectedRows { rows: queries.rows, stride };
        let first = (self.heads + 2 * self.kv_heads) * self.head_dim;
        let rows = wanted.map_or(count, <[usize]>::len) * width;
        kernels.sigmoid_gated(attended.get_mut(..rows).unwrap_or_default(), width, (gates, first), wanted)
    }
}

impl HeadNorm {
    /// Whether the norm is computed together with the rotation: RMSNorm over each head, with weights that all heads
    /// share.
    fn fuses_with_rotation(&self, head_dim: usize) -> bool {
        self.kind == RowNorm::Rms && !self.is_whole && self.weight.len() == head_dim
    }
}
