//! Matrix products of bf16 activations with bf16 weights: the loop over one task's columns, tile by tile.
//! Must not know: threads, or how a tile multiplies.
//!
//! **One order of reduction.** As in `gemm`: blocks of 512 inputs, added up in ascending order. Each block is one
//! chain from zero in ascending order. Each step of the chain takes two inputs, with the rounding of the instruction
//! set's pair product.

use crate::gemm::BLOCK_K;
use crate::section::Section;
use crate::shapes::{LANES, MAX_PANELS, group, group_count};
use crate::tile::{Ahead, NEAR_BYTES, Tile};
use crate::tile_bf16::PAIR_BYTES;
use crate::tiles::{PairTiles, Tiles};

/// A whole product, shared by its tasks.
pub(crate) struct PairProduct<'a> {
    pub(crate) section: &'a Section,
    /// The rows in groups, as `activations::pair_bf16` lays them out. A group starts at `x + first row · pairs`.
    pub(crate) x: *const u32,
    /// Pairs of inputs per row.
    pub(crate) pairs: usize,
    /// Number of rows.
    pub(crate) m: usize,
    /// The output element in the first row and the section's first column.
    pub(crate) out: *mut f32,
    /// Elements from one output row to the next.
    pub(crate) out_stride: usize,
    pub(crate) accumulate: bool,
}

/// Computes `count` panels of columns of every row, starting at panel `first`.
///
/// # Safety
/// As for [`PairTiles`]. The product's pointers are valid, the panels exist, and nothing else accesses these columns.
#[inline(always)]
pub(crate) unsafe fn columns<D: PairTiles>(product: &PairProduct<'_>, first: usize, count: usize) {
    let section = product.section;
    let (m, pairs) = (product.m, product.pairs);
    let groups = group_count(m, D::F::ROWS);
    for from in (0..pairs).step_by(BLOCK_K / 2) {
        let depth = (BLOCK_K / 2).min(pairs - from);
        for index in 0..groups {
            let (row, rows) = group(m, groups, index);
            let mut panel = first;
            while panel < first + count {
                let wide = D::F::panels(rows);
                let width = if panel + wide <= first + count { wide } else { 1 };
                let mut panels = [std::ptr::null(); MAX_PANELS];
                for (p, slot) in panels.iter_mut().enumerate().take(width) {
                    *slot = section.panel(panel + p).wrapping_add(from * PAIR_BYTES);
                }
                let bias = section.bias().filter(|_| from == 0);
                let ahead = match groups {
                    1 => Ahead::walk(section, width, count, PAIR_BYTES, from * PAIR_BYTES),
                    _ => Ahead::always(NEAR_BYTES),
                };
                // SAFETY: columns `panel·16 ..` of rows `row ..` lie inside `out`. `x` holds the group at
                // `row · pairs`. The bias is padded to whole panels.
                unsafe {
                    let tile = Tile {
                        k: depth,
                        x: product.x.add(row * pairs + from * rows).cast(),
                        panels,
                        out: product.out.add(row * product.out_stride + panel * LANES),
                        out_stride: product.out_stride,
                        bias: bias.map_or(std::ptr::null(), |bias| bias.as_ptr().add(panel * LANES)),
                        accumulate: product.accumulate || from > 0,
                        valid: (section.n() - (panel + width - 1) * LANES).min(LANES),
                        ahead,
                    };
                    D::tile(rows, width, &tile);
                }
                panel += width;
            }
        }
    }
}
