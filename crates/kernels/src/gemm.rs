//! Matrix products: the register tile that everything is made of, and the walk over one task's columns.
//! Must not know: threads. Attention uses the same tile on its key and value blocks.
//!
//! **One reduction shape.** An output is the sum, in ascending order, of blocks of [`BLOCK_K`] inputs, each block
//! one chain of multiply-adds from zero in ascending order. Nothing about it depends on the number of rows, on the
//! tile an output falls into or on the thread, so its bits do not either.

use crate::matrix::{Matrix, WeightType};
use crate::simd::{LANES, Simd};

/// Inputs in one chain. Part of the numerics: changing it changes bits.
pub(crate) const BLOCK_K: usize = 512;
/// How far ahead of the multiplication weights are asked for.
const PREFETCH_BYTES: usize = 2048;
/// The most panels in a tile.
pub(crate) const MAX_PANELS: usize = 4;

/// How one weight is read.
pub(crate) trait Weight: Copy + 'static {
    /// As stored.
    type Element: Copy;

    /// # Safety
    /// As for [`Simd`]; 16 readable elements.
    unsafe fn load<S: Simd>(at: *const Self::Element) -> S::V;
}

/// f32 weights, keys and values.
#[derive(Clone, Copy)]
pub(crate) struct F32;
/// f16 weights.
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// bf16 weights.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Weight for F32 {
    type Element = f32;

    #[inline(always)]
    unsafe fn load<S: Simd>(at: *const f32) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load(at) }
    }
}

impl Weight for F16 {
    type Element = u16;

    #[inline(always)]
    unsafe fn load<S: Simd>(at: *const u16) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(at) }
    }
}

impl Weight for Bf16 {
    type Element = u16;

    #[inline(always)]
    unsafe fn load<S: Simd>(at: *const u16) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_bf16(at) }
    }
}

/// What one register tile computes: for R rows and P panels of 16 columns,
/// `out[r][16p + c] = start + Σᵢ x[i][r] · panel[p][i][c]` over `k` inputs, where `start` is `bias` (or zero), plus what
/// `out` holds if `accumulate`.
pub(crate) struct Tile {
    /// How many inputs.
    pub(crate) k: usize,
    /// `[k][R]`.
    pub(crate) x: *const f32,
    /// P starts of `[k][16]`.
    pub(crate) panels: [*const u8; MAX_PANELS],
    /// The first output.
    pub(crate) out: *mut f32,
    /// Elements between two rows of the output.
    pub(crate) out_stride: usize,
    /// `[16·P]`, or null.
    pub(crate) bias: *const f32,
    /// Whether to add to what `out` holds.
    pub(crate) accumulate: bool,
    /// Columns of the last panel that exist, 1–16.
    pub(crate) valid: usize,
}

/// One register tile; see [`Tile`].
///
/// # Safety
/// As for [`Simd`]; the tile's pointers are valid for what its documentation says they hold.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, W: Weight, const R: usize, const P: usize>(tile: &Tile) {
    // SAFETY: the caller's contract; `i` stays below k, `r` below R and `p` below P.
    unsafe {
        let mut sums = [[S::splat(0.0); P]; R];
        let mut panels = [std::ptr::null::<W::Element>(); P];
        for p in 0..P {
            panels[p] = tile.panels[p].cast();
        }
        let mut x = tile.x;
        for i in 0..tile.k {
            let mut weights = [S::splat(0.0); P];
            for p in 0..P {
                let at = panels[p].add(i * LANES);
                if P > 1 {
                    S::prefetch(at.cast::<u8>().wrapping_add(PREFETCH_BYTES));
                }
                weights[p] = W::load::<S>(at);
            }
            for r in 0..R {
                let value = S::splat(*x.add(r));
                for p in 0..P {
                    sums[r][p] = S::fma(value, weights[p], sums[r][p]);
                }
            }
            x = x.add(R);
        }
        // Every index into `sums` is a constant once the loops are unrolled, so it lives in registers; the walk over the
        // output, which is not unrolled, reads a copy.
        let mut done = [[[0.0_f32; LANES]; P]; R];
        for r in 0..R {
            for p in 0..P {
                S::store(done[r][p].as_mut_ptr(), sums[r][p]);
            }
        }
        for (r, row) in done.iter().enumerate() {
            for (p, sum) in row.iter().enumerate() {
                finish::<S>(tile, tile.out.add(r * tile.out_stride + p * LANES), p, p + 1 == P, sum);
            }
        }
    }
}

/// Writes one vector of a tile's outputs, of panel `p`.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn finish<S: Simd>(tile: &Tile, at: *mut f32, p: usize, last: bool, sum: &[f32; LANES]) {
    // SAFETY: the caller's contract: 16 outputs at `at`, or `valid` of them in the last panel.
    unsafe {
        let sum = S::load(sum.as_ptr());
        let bias = if tile.bias.is_null() { S::splat(0.0) } else { S::load(tile.bias.add(p * LANES)) };
        if last && tile.valid < LANES {
            finish_part::<S>(tile, at, bias, sum);
        } else {
            let start = if tile.accumulate { S::add(S::load(at), bias) } else { bias };
            S::store(at, S::add(start, sum));
        }
    }
}

/// The end of a tile whose last panel has fewer than 16 columns: only those are read and written.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn finish_part<S: Simd>(tile: &Tile, at: *mut f32, bias: S::V, sum: S::V) {
    let mut lanes = [0.0_f32; LANES];
    // SAFETY: `valid` (at most 16) columns of the output exist from `at` on.
    unsafe {
        let valid = tile.valid.min(LANES);
        if tile.accumulate {
            std::ptr::copy_nonoverlapping(at, lanes.as_mut_ptr(), valid);
        }
        let start = if tile.accumulate { S::add(S::load(lanes.as_ptr()), bias) } else { bias };
        S::store(lanes.as_mut_ptr(), S::add(start, sum));
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, valid);
    }
}

/// A whole product, as its tasks see it.
pub(crate) struct Product<'a> {
    pub(crate) matrix: &'a Matrix,
    /// The rows in groups, as [`pack_group`] leaves them: group g at `x + first_row(g) · k`.
    pub(crate) x: *const f32,
    /// How many rows.
    pub(crate) m: usize,
    /// `m × n`.
    pub(crate) out: *mut f32,
    pub(crate) accumulate: bool,
}

/// How `m` rows are cut into groups of at most `most`, as evenly as possible: (number of groups).
pub(crate) fn group_count(m: usize, most: usize) -> usize {
    m.div_ceil(most)
}

/// The first row of a group and how many rows it has.
pub(crate) fn group(m: usize, groups: usize, index: usize) -> (usize, usize) {
    let (base, extra) = (m / groups, m % groups);
    (index * base + index.min(extra), base + usize::from(index < extra))
}

/// Lays a group of rows out as `[k][rows]`, so that a tile reads it in one stream.
pub(crate) fn pack_group(x: &[f32], k: usize, rows: usize, out: &mut [f32]) {
    for (r, row) in x.chunks_exact(k).take(rows).enumerate() {
        for (target, &value) in out.iter_mut().skip(r).step_by(rows).zip(row) {
            *target = value;
        }
    }
}

/// Computes `count` panels of columns, from panel `first` on, of every row.
///
/// # Safety
/// As for [`Simd`]; the product's pointers are valid, the panels exist, and nobody else touches these columns.
#[inline(always)]
pub(crate) unsafe fn columns<S: Simd>(product: &Product<'_>, first: usize, count: usize) {
    // SAFETY: the caller's contract; the weight type is the matrix's own.
    unsafe {
        match product.matrix.weight_type() {
            WeightType::F32 => columns_of::<S, F32>(product, first, count),
            WeightType::F16 => columns_of::<S, F16>(product, first, count),
            WeightType::Bf16 => columns_of::<S, Bf16>(product, first, count),
        }
    }
}

/// # Safety
/// As for [`columns`]; the matrix holds `W`s.
#[inline(always)]
unsafe fn columns_of<S: Simd, W: Weight>(product: &Product<'_>, first: usize, count: usize) {
    let (m, k, n) = (product.m, product.matrix.k(), product.matrix.n());
    let groups = group_count(m, S::ROWS);
    let element = product.matrix.weight_type().bytes();
    for from in (0..k).step_by(BLOCK_K) {
        let depth = BLOCK_K.min(k - from);
        for index in 0..groups {
            let (row, rows) = group(m, groups, index);
            let mut panel = first;
            while panel < first + count {
                let wide = S::panels(rows);
                let width = if panel + wide <= first + count { wide } else { 1 };
                let mut panels = [std::ptr::null(); MAX_PANELS];
                for (p, slot) in panels.iter_mut().enumerate().take(width) {
                    *slot = product.matrix.panel(panel + p).wrapping_add(from * LANES * element);
                }
                let bias = product.matrix.bias().filter(|_| from == 0);
                // SAFETY: columns `panel·16 ..` of rows `row ..` lie inside `out`; `x` holds the group at `row · k`; the
                // bias is padded to whole panels.
                unsafe {
                    S::tile::<W>(
                        rows,
                        width,
                        &Tile {
                            k: depth,
                            x: product.x.add(row * k + from * rows),
                            panels,
                            out: product.out.add(row * n + panel * LANES),
                            out_stride: n,
                            bias: bias.map_or(std::ptr::null(), |bias| bias.as_ptr().add(panel * LANES)),
                            accumulate: product.accumulate || from > 0,
                            valid: (n - (panel + width - 1) * LANES).min(LANES),
                        },
                    );
                }
                panel += width;
            }
        }
    }
}
