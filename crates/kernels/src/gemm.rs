//! Matrix products with dense weights: the loop over one task's columns, tile by tile.
//! Must not know: threads, or how a tile multiplies.
//!
//! **One order of reduction.** An output is the sum, in ascending order, of blocks of [`BLOCK_K`] inputs. Each block
//! is one chain of multiply-adds from zero in ascending order. The order does not depend on the number of rows, on
//! the tile that computes an output, or on the thread. Neither do the output's bits.

use crate::section::Section;
use crate::shapes::{LANES, MAX_PANELS, group, group_count};
use crate::tile::{Ahead, Bf16, F16, F32, NEAR_BYTES, Tile, Weight};
use crate::tiles::Tiles;
use crate::weight_type::WeightType;

/// Inputs in one chain. Part of the numerics: a change here changes result bits.
pub(crate) const BLOCK_K: usize = 512;

/// A whole product, shared by its tasks.
pub(crate) struct Product<'a> {
    pub(crate) section: &'a Section,
    /// The rows in groups, as [`pack_group`] lays them out. Group g starts at `x + first_row(g) · k`.
    pub(crate) x: *const f32,
    /// Number of rows.
    pub(crate) m: usize,
    /// The output element in the first row and the section's first column.
    pub(crate) out: *mut f32,
    /// Elements from one output row to the next.
    pub(crate) out_stride: usize,
    pub(crate) accumulate: bool,
}

/// Lays out a group of rows as `[k][rows]`, so that a tile reads it as one stream.
pub(crate) fn pack_group(x: &[f32], k: usize, rows: usize, out: &mut [f32]) {
    for (r, row) in x.chunks_exact(k).take(rows).enumerate() {
        for (target, &value) in out.iter_mut().skip(r).step_by(rows).zip(row) {
            *target = value;
        }
    }
}

/// Computes `count` panels of columns of every row, starting at panel `first`.
///
/// # Safety
/// As for [`Tiles`]. The product's pointers are valid, the panels exist, and nothing else accesses these columns.
#[inline(always)]
pub(crate) unsafe fn columns<S: Tiles>(product: &Product<'_>, first: usize, count: usize) {
    // SAFETY: the caller's contract. The weight type is the matrix's own.
    unsafe {
        match product.section.weight_type() {
            WeightType::F16 => columns_of::<S, F16>(product, first, count),
            WeightType::Bf16 => columns_of::<S, Bf16>(product, first, count),
            WeightType::F32 | WeightType::Block(_) => columns_of::<S, F32>(product, first, count),
        }
    }
}

/// # Safety
/// As for [`columns`]. The matrix holds `W`s.
#[inline(always)]
unsafe fn columns_of<S: Tiles, W: Weight>(product: &Product<'_>, first: usize, count: usize) {
    let section = product.section;
    let (m, k, n) = (product.m, section.k(), section.n());
    let groups = group_count(m, S::ROWS);
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
                    *slot = section.panel(panel + p).wrapping_add(from / 2 * W::PAIR_BYTES);
                }
                let bias = section.bias().filter(|_| from == 0);
                let ahead = match groups {
                    1 => Ahead::walk(section, width, count, W::PAIR_BYTES, from / 2 * W::PAIR_BYTES),
                    _ => Ahead::always(NEAR_BYTES),
                };
                // SAFETY: columns `panel·16 ..` of rows `row ..` lie inside `out`. `x` holds the group at `row · k`.
                // The bias is padded to whole panels.
                unsafe {
                    S::tile::<W>(
                        rows,
                        width,
                        &Tile {
                            k: depth,
                            x: product.x.add(row * k + from * rows),
                            panels,
                            out: product.out.add(row * product.out_stride + panel * LANES),
                            out_stride: product.out_stride,
                            bias: bias.map_or(std::ptr::null(), |bias| bias.as_ptr().add(panel * LANES)),
                            accumulate: product.accumulate || from > 0,
                            valid: (n - (panel + width - 1) * LANES).min(LANES),
                            ahead,
                        },
                    );
                }
                panel += width;
            }
        }
    }
}
