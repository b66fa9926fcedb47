//! Operations on rows of activations, row by row: norms, RoPE, activation functions, token embeddings.
//! Must not know: architectures.

use crate::activation::Activation;
use crate::entry::dispatch;
use crate::error::KernelError;
use crate::kernels::Kernels;
use crate::matrix::Matrix;
use crate::memory::Shared;
use crate::rows::{HeadRow, RowNorm};
use crate::shapes::cut_rows;

/// The query and key heads at the start of each row, and the norms to apply to them.
#[derive(Clone, Copy)]
pub struct HeadRows<'a> {
    /// Query heads. The key heads follow them.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Elements of a head. Even.
    pub head_dim: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// RMSNorm weights for each query head, if the architecture normalizes queries.
    pub query_norm: Option<&'a [f32]>,
    /// RMSNorm weights for each key head, if the architecture normalizes keys.
    pub key_norm: Option<&'a [f32]>,
    /// The norms' epsilon.
    pub eps: f32,
}

/// The heads of a row that an operation works on.
#[derive(Clone, Copy, Debug)]
pub struct HeadColumns {
    /// The first element.
    pub first: usize,
    /// Number of heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// Rows of several projections of the same input.
#[derive(Clone, Copy)]
pub struct ProjectedRows<'a> {
    /// The rows, one after the other.
    pub rows: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
}

impl ProjectedRows<'_> {
    /// Returns whether there are `rows` rows, each with `width` elements from `first` on.
    pub(super) fn have(&self, rows: usize, first: usize, width: usize) -> bool {
        self.stride > 0
            && rows.checked_mul(self.stride) == Some(self.rows.len())
            && first.checked_add(width).is_some_and(|end| end <= self.stride)
    }
}

/// An RMSNorm over each of several groups of neighbouring elements.
#[derive(Clone, Copy)]
pub struct GroupNorm<'a> {
    /// One factor for each element of a row.
    pub weight: &'a [f32],
    /// Number of groups. Divides the elements of a row.
    pub groups: usize,
    /// The norm's epsilon.
    pub eps: f32,
}

/// Cosines and sines of the rotary angles, `[position][half]` each. The default table rotates nothing.
#[derive(Default)]
pub struct RopeTable {
    /// Half of the rotated elements, which are the first of a head.
    pub half: usize,
    /// The cosines.
    pub cos: Vec<f32>,
    /// The sines.
    pub sin: Vec<f32>,
}

impl RopeTable {
    fn at(&self, position: usize) -> Option<(&[f32], &[f32])> {
        let range = position.checked_mul(self.half)?..position.checked_add(1)?.checked_mul(self.half)?;
        Some((self.cos.get(range.clone())?, self.sin.get(range)?))
    }
}

impl Kernels {
    /// RMSNorm of each row from `x` into `out`. A row has `weight.len()` elements.
    pub fn rms_norm(
        &mut self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let width = weight.len();
        if x.len() != out.len() || width == 0 || !x.len().is_multiple_of(width) {
            return Err(KernelError::shape(format!("norm of {} into {} by {width}", x.len(), out.len())));
        }
        let isa = self.isa;
        self.each_row(x.len() / width, width, out, |row, out| {
            dispatch!(isa, rms_norm(&x[row * width..(row + 1) * width], weight, eps, out));
        })
    }

    /// `out = silu(gate) · up`. Each row of `gate_up` has `width` gates, then `width` ups.
    pub fn silu_mul(&mut self, gate_up: &[f32], width: usize, out: &mut [f32]) -> Result<(), KernelError> {
        if width == 0 || gate_up.len() != out.len() * 2 || !out.len().is_multiple_of(width) {
            return Err(KernelError::shape(format!(
                "silu of {} into {} by {width}",
                gate_up.len(),
                out.len()
            )));
        }
        let isa = self.isa;
        self.each_row(out.len() / width, width, out, |row, out| {
            let (gate, up) = gate_up[2 * row * width..2 * (row + 1) * width].split_at(width);
            dispatch!(isa, silu_mul(gate, up, out));
        })
    }

    /// Layer norm of each row from `x` into `out`. A row has `weight.len()` elements. An empty `bias` means no bias.
    pub fn layer_norm(
        &mut self,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let width = weight.len();
        let fits = x.len() == out.len() && width > 0 && x.len().is_multiple_of(width);
        if !fits || !(bias.is_empty() || bias.len() == width) {
            return Err(KernelError::shape(format!(
                "layer norm of {} into {} by {width}",
                x.len(),
                out.len()
            )));
        }
        let isa = self.isa;
        self.each_row(x.len() / width, width, out, |row, out| {
            dispatch!(isa, layer_norm(&x[row * width..(row + 1) * width], weight, bias, eps, out));
        })
    }

    /// Applies the activation function to each element in place. A row has `width` elements.
    pub fn activate(&mut self, kind: Activation, x: &mut [f32], width: usize) -> Result<(), KernelError> {
        if width == 0 || !x.len().is_multiple_of(width) {
            return Err(KernelError::shape(format!("activation of {} by {width}", x.len())));
        }
        let isa = self.isa;
        self.each_row(x.len() / width, width, x, |_, row| dispatch!(isa, activate(kind, row)))
    }

    /// `out = activation(input) · gate`. Each row of `both` has `width` inputs, then `width` gates.
    pub fn activate_gated(
        &mut self,
        kind: Activation,
        both: &[f32],
        width: usize,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        if width == 0 || both.len() != out.len() * 2 || !out.len().is_multiple_of(width) {
            let (both, out) = (both.len(), out.len());
            return Err(KernelError::shape(format!("gated activation of {both} into {out} by {width}")));
        }
        let isa = self.isa;
        self.each_row(out.len() / width, width, out, |row, out| {
            let (x, gates) = both[2 * row * width..2 * (row + 1) * width].split_at(width);
            dispatch!(isa, activate_gated(kind, x, gates, out));
        })
    }

    /// `out = (up + 1) · gate · σ(slope · gate)`, with gates of at most `limit` and ups within plus and minus `limit`. Each
    /// row of `both` has `width` gates, then `width` ups.
    pub fn clamped_gated(
        &mut self,
        both: &[f32],
        width: usize,
        (limit, slope): (f32, f32),
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        if width == 0 || both.len() != out.len() * 2 || !out.len().is_multiple_of(width) {
            let (both, out) = (both.len(), out.len());
            return Err(KernelError::shape(format!("clamped gates of {both} into {out} by {width}")));
        }
        let isa = self.isa;
        self.each_row(out.len() / width, width, out, |row, out| {
            let (gates, ups) = both[2 * row * width..2 * (row + 1) * width].split_at(width);
            dispatch!(isa, clamped_gated(gates, ups, (limit, slope), out));
        })
    }

    /// Normalizes the query and key heads of each row if `shape` has norms, then rotates their first `2 · table.half`
    /// elements by the row's position.
    pub fn rope(
        &mut self,
        rows: &mut [f32],
        shape: HeadRows<'_>,
        positions: &[usize],
        table: &RopeTable,
    ) -> Result<(), KernelError> {
        let HeadRows { heads, kv_heads, head_dim, stride, query_norm, key_norm, eps } = shape;
        let used = heads.checked_add(kv_heads).and_then(|all| all.checked_mul(head_dim));
        let fits = positions.len().checked_mul(stride) == Some(rows.len())
            && used.is_some_and(|used| used <= stride)
            && table.half * 2 <= head_dim
            && positions.iter().all(|&position| table.at(position).is_some())
            && [query_norm, key_norm].iter().flatten().all(|norm| norm.len() == head_dim);
        if !fits {
            return Err(KernelError::shape(format!(
                "rope of {} elements, {} rows",
                rows.len(),
                positions.len()
            )));
        }
        let isa = self.isa;
        self.each_row(positions.len(), stride, rows, |row, out| {
            let Some((cos, sin)) = table.at(positions[row]) else { return };
            let (queries, rest) = out.split_at_mut(heads * head_dim);
            for head in queries.chunks_exact_mut(head_dim) {
                dispatch!(isa, rope_head(head, &HeadRow { norm: query_norm, eps, cos, sin }));
            }
            for head in rest.chunks_exact_mut(head_dim).take(kv_heads) {
                dispatch!(isa, rope_head(head, &HeadRow { norm: key_norm, eps, cos, sin }));
            }
        })
    }

    /// Rotates the first `2 · table.half` elements of heads of each row by the row's position, in place. A row has `stride`
    /// elements; the heads begin at `columns.first`.
    pub fn rotate_heads(
        &mut self,
        rows: &mut [f32],
        stride: usize,
        columns: HeadColumns,
        positions: &[usize],
        table: &RopeTable,
    ) -> Result<(), KernelError> {
        let HeadColumns { first, heads, head_dim } = columns;
        let width = heads.saturating_mul(head_dim);
        let fits = positions.len().checked_mul(stride) == Some(rows.len())
            && head_dim > 0
            && first.checked_add(width).is_some_and(|end| end <= stride)
            && table.half * 2 <= head_dim
            && positions.iter().all(|&position| table.at(position).is_some());
        if !fits {
            let found = positions.len();
            return Err(KernelError::shape(format!("rotation of {heads} heads of {head_dim}, {found} rows")));
        }
        let isa = self.isa;
        self.each_row(positions.len(), stride, rows, |row, out| {
            let Some((cos, sin)) = table.at(positions[row]) else { return };
            for head in out[first..first + width].chunks_exact_mut(head_dim) {
                dispatch!(isa, rope_head(head, &HeadRow { norm: None, eps: 0.0, cos, sin }));
            }
        })
    }

    /// Normalizes heads of each row in place. A row has `stride` elements; `columns.heads` heads of `columns.head_dim`
    /// elements begin at `columns.first`. `weight` holds the factors of one head, which all heads share, or those of all
    /// heads.
    pub fn norm_heads(
        &mut self,
        rows: &mut [f32],
        stride: usize,
        columns: HeadColumns,
        (kind, weight, eps): (RowNorm, &[f32], f32),
    ) -> Result<(), KernelError> {
        let HeadColumns { first, heads, head_dim } = columns;
        let width = heads.saturating_mul(head_dim);
        let fits = stride > 0
            && head_dim > 0
            && rows.len().is_multiple_of(stride)
            && first.checked_add(width).is_some_and(|end| end <= stride)
            && (weight.len() == head_dim || weight.len() == width);
        if !fits {
            let found = weight.len();
            return Err(KernelError::shape(format!(
                "norm of {heads} heads of {head_dim} by {found} factors"
            )));
        }
        let isa = self.isa;
        self.each_row(rows.len() / stride, stride, rows, |_, row| {
            let heads = row[first..first + width].chunks_exact_mut(head_dim);
            for (head, weight) in heads.zip(weight.chunks_exact(head_dim).cycle()) {
                dispatch!(isa, norm_in_place(kind, head, weight, eps));
            }
        })
    }

    /// Multiplies every element by `factor`, and caps it: `cap · tanh(x / cap)`. A row has `width` elements.
    pub fn scale_and_cap(
        &mut self,
        x: &mut [f32],
        width: usize,
        factor: f32,
        cap: Option<f32>,
    ) -> Result<(), KernelError> {
        if width == 0 || !x.len().is_multiple_of(width) {
            return Err(KernelError::shape(format!("scaling of {} by {width}", x.len())));
        }
        let isa = self.isa;
        self.each_row(x.len() / width, width, x, |_, row| dispatch!(isa, scale_and_cap(row, factor, cap)))
    }

    /// `out = out + factor · x`, element by element. A row has `width` elements.
    pub fn add_scaled(
        &mut self,
        x: &[f32],
        width: usize,
        factor: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        if width == 0 || x.len() != out.len() || !x.len().is_multiple_of(width) {
            return Err(KernelError::shape(format!("sum of {} and {} by {width}", x.len(), out.len())));
        }
        self.each_row(x.len() / width, width, out, |row, out| {
            for (out, &x) in out.iter_mut().zip(&x[row * width..(row + 1) * width]) {
                *out += factor * x;
            }
        })
    }

    /// Multiplies the first `used` elements of each row by the row's factor. A row has `stride` elements.
    pub fn scale_rows(
        &mut self,
        rows: &mut [f32],
        stride: usize,
        used: usize,
        factors: &[f32],
    ) -> Result<(), KernelError> {
        if stride == 0 || used > stride || factors.len().checked_mul(stride) != Some(rows.len()) {
            return Err(KernelError::shape(format!("scaling of {used} of {stride} in {}", rows.len())));
        }
        self.each_row(factors.len(), stride, rows, |at, row| {
            row[..used].iter_mut().for_each(|x| *x *= factors[at]);
        })
    }

    /// Clamps the first `used` elements of each row to `-limit..=limit`. A row has `stride` elements.
    pub fn clamp(
        &mut self,
        rows: &mut [f32],
        stride: usize,
        used: usize,
        limit: f32,
    ) -> Result<(), KernelError> {
        if stride == 0 || used > stride || !rows.len().is_multiple_of(stride) {
            return Err(KernelError::shape(format!("clamp of {used} of {stride} in {}", rows.len())));
        }
        self.each_row(rows.len() / stride, stride, rows, |_, row| {
            row[..used].iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
        })
    }

    /// `x = x · σ(gate)` for each row of `x`. Row `i` of `x` has its gates in row `rows[i]` of `gates`, or in row `i` without
    /// `rows`, from element `first` on.
    pub fn sigmoid_gated(
        &mut self,
        x: &mut [f32],
        width: usize,
        (gates, first): (ProjectedRows<'_>, usize),
        rows: Option<&[usize]>,
    ) -> Result<(), KernelError> {
        let all = gates.rows.len() / gates.stride.max(1);
        let count = x.len() / width.max(1);
        let fits = width > 0
            && x.len() == count * width
            && gates.have(all, first, width)
            && match rows {
                None => count <= all,
                Some(rows) => rows.len() == count && rows.iter().all(|&row| row < all),
            };
        if !fits {
            return Err(KernelError::shape(format!("gates of {count} rows of {width}")));
        }
        let isa = self.isa;
        self.each_row(count, width, x, |index, x| {
            let from = rows.map_or(index, |rows| rows[index]) * gates.stride + first;
            dispatch!(isa, sigmoid_gated(x, &gates.rows[from..from + width]));
        })
    }

    /// `out = norm(x · gate · σ(gate))` for each row of `x`, which are as wide as the norm. The gates begin at element
    /// `first` of a row.
    pub fn gated_group_norm(
        &mut self,
        x: &[f32],
        (gates, first): (ProjectedRows<'_>, usize),
        norm: GroupNorm<'_>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let width = norm.weight.len();
        let rows = x.len() / width.max(1);
        let fits = width > 0
            && norm.groups > 0
            && width.is_multiple_of(norm.groups)
            && x.len() == rows * width
            && out.len() == x.len()
            && gates.have(rows, first, width);
        if !fits {
            return Err(KernelError::shape(format!("norm of {} in {} groups", x.len(), norm.groups)));
        }
        let (isa, group) = (self.isa, width / norm.groups);
        self.each_row(rows, width, out, |row, out| {
            let gate = &gates.rows[row * gates.stride + first..][..width];
            dispatch!(isa, silu_mul(gate, &x[row * width..(row + 1) * width], out));
            for (out, weight) in out.chunks_exact_mut(group).zip(norm.weight.chunks_exact(group)) {
                dispatch!(isa, norm_in_place(RowNorm::Rms, out, weight, norm.eps));
            }
        })
    }

    /// Copies rows of a matrix, widened to f32, into `out`, one after the other: the token embeddings.
    pub fn rows(&mut self, matrix: &Matrix, ids: &[u32], out: &mut [f32]) -> Result<(), KernelError> {
        let width = matrix.k();
        if Some(out.len()) != ids.len().checked_mul(width) || ids.iter().any(|&id| id as usize >= matrix.n())
        {
            return Err(KernelError::shape(format!("{} rows of {width} into {}", ids.len(), out.len())));
        }
        let isa = self.isa;
        self.each_row(ids.len(), width, out, |row, out| {
            // Cannot fail: id and length were checked above.
            let _ = matrix.row(isa, ids[row] as usize, out);
        })
    }

    /// Calls `work(row, slice of out for that row)` for every row.
    fn each_row(
        &mut self,
        rows: usize,
        width: usize,
        out: &mut [f32],
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<(), KernelError> {
        let (tasks, per_task) = cut_rows(rows, width);
        let out = Shared(out.as_mut_ptr());
        self.pool.run(tasks, |task, _| {
            for row in task * per_task..((task + 1) * per_task).min(rows) {
                // SAFETY: the callers checked that `out` has `rows · width` elements. Each row belongs to one task.
                work(row, unsafe { std::slice::from_raw_parts_mut(out.get().add(row * width), width) });
            }
        })
    }
}
