//! Matrix products of int8 activations with block-quantized weights: the loop over one task's columns, tile by tile.
//! Must not know: threads, or how a tile multiplies.
//!
//! **One order of reduction.** An output is `start` plus a sum over groups of 32 inputs in ascending order. A group
//! adds `(scale_w · scale_x) · (exact integer sum)`, then `offset_w · (scale_x · Σ codes)` if the format has offsets.
//! If each half of a group has its own scale, both products are added first, then both offsets.
//! Each addition is a fused multiply-add on one chain. `start` is the value that the product is added to (the bias,
//! the residual). The chain passes through memory between blocks of inputs, which changes no bits. It depends neither
//! on rows nor on tiles nor on threads.

use std::mem::MaybeUninit;

use crate::opened;
use crate::packed::Format;
use crate::section::Section;
use crate::shapes::{FACTS, GROUP, LANES, MAX_PANELS, group, group_count};
use crate::tile::Ahead;
use crate::tile_int::{IntTile, Share};
use crate::tiles::IntTiles;

/// Inputs per pass over several groups of rows. Two panels of this length stay in the first-level cache.
const BLOCK_K: usize = 512;

/// A whole product, shared by its tasks.
pub(crate) struct IntProduct<'a> {
    pub(crate) section: &'a Section,
    /// Codes of the rows in groups, as `activations::quantize` lays them out. A group starts at
    /// `codes + first row · padded_k / 4`.
    pub(crate) codes: *const i32,
    /// Metadata of the codes in the same groups. A group starts at `facts + first row · padded_k / 32 · FACTS`.
    pub(crate) facts: *const f32,
    /// Number of inputs, padded to whole spans.
    pub(crate) padded_k: usize,
    /// Number of rows.
    pub(crate) m: usize,
    /// The output element in the first row and the section's first column.
    pub(crate) out: *mut f32,
    /// Elements from one output row to the next.
    pub(crate) out_stride: usize,
    pub(crate) accumulate: bool,
    /// Room for `m` rows of the task's columns, where partial sums wait between blocks of inputs. The output rows
    /// would work too, but they are large powers of two apart and evict each other from the caches.
    pub(crate) waiting: *mut f32,
}

/// Some panels along one block of inputs. All groups of rows pass over a stretch before the next one.
struct Stretch {
    /// The first panel.
    panel: usize,
    /// Number of panels.
    width: usize,
    /// The first span.
    from: usize,
    /// Number of spans.
    depth: usize,
}

/// Panels that are unpacked side by side.
const OPENED_PANELS: usize = 2;
/// Room for one unpacked block of a panel of any format.
const OPENED_BYTES: usize = opened_bytes(opened::MOST_GROUP_BYTES);

/// Returns the bytes from one unpacked block of a panel to the next. They hold groups of `group_bytes`, and are an odd
/// number of half pages, so that two panels do not compete for the same lines of the first-level cache.
const fn opened_bytes(group_bytes: usize) -> usize {
    const HALF_PAGE: usize = 2048;
    HALF_PAGE * ((BLOCK_K / GROUP * group_bytes).div_ceil(HALF_PAGE) | 1)
}

/// Memory for an unpacked stretch.
#[repr(align(64))]
struct UnpackedPanels([MaybeUninit<u8>; OPENED_PANELS * OPENED_BYTES]);

/// Computes `count` panels of columns of every row, starting at panel `first`.
///
/// # Safety
/// As for [`IntTiles`]. The product's pointers are valid. The panels exist and hold `F`. Nothing else accesses these
/// columns.
#[inline(always)]
pub(crate) unsafe fn columns<N: IntTiles, F: Format>(product: &IntProduct<'_>, first: usize, count: usize) {
    // `ops::product` widens them. The test of a constant comes first, so that nothing else is compiled.
    if F::FLOATS {
        debug_assert!(false, "no integer product of floats");
        return;
    }
    let section = product.section;
    let groups = group_count(product.m, N::rows(product.m));
    let spans = product.padded_k / F::SPAN;
    let block = if groups == 1 { spans } else { BLOCK_K / F::SPAN };
    // A single group of rows unpacks the weights as it reads them. Several groups would each repeat that work.
    let open = groups > 1 && !F::IS_OPEN && (F::OPENS_ALWAYS || product.m >= N::OPENS_NIBBLES);
    let mut room = UnpackedPanels([MaybeUninit::uninit(); OPENED_PANELS * OPENED_BYTES]);
    let most = N::panels(group(product.m, groups, 0).1);
    let most = if open { most.min(OPENED_PANELS) } else { most };
    // For every block of inputs, all row groups pass over a set of panels together. The panels' block stays in the
    // first-level cache and the rows' block in the second. The weights are read from memory once.
    for from in (0..spans).step_by(block) {
        let depth = block.min(spans - from);
        let mut panel = first;
        while panel < first + count {
            let width = if panel + most <= first + count { most } else { 1 };
            let here = Stretch { panel, width, from, depth };
            let mut panels = [std::ptr::null(); MAX_PANELS];
            for (p, slot) in panels.iter_mut().enumerate().take(width) {
                *slot = section.panel(panel + p).wrapping_add(from * F::BYTES);
            }
            let packed = panels;
            if !F::IS_OPEN && open {
                for (p, slot) in panels.iter_mut().enumerate().take(width) {
                    let apart = const { opened_bytes(F::Opened::BYTES) };
                    let to = room.0.as_mut_ptr().wrapping_add(p * apart).cast();
                    // SAFETY: the spans exist. `room` holds a block of at most BLOCK_K inputs for each of
                    // OPENED_PANELS panels.
                    unsafe { opened::open::<N, F>(*slot, depth, to) };
                    *slot = to.cast_const();
                }
            }
            // What is read next: the following panels, or the next block of the first panels.
            let next = match (panel + width < first + count, from + depth < spans) {
                (true, _) => (panel + width, from),
                (false, true) => (first, from + depth),
                (false, false) => (first + count, 0),
            };
            let at = |(panel, span)| section.panel_bytes() * panel + F::BYTES * span;
            let next = at(next).wrapping_sub(at((panel, from)));
            for index in 0..groups {
                let (row, rows) = group(product.m, groups, index);
                // SAFETY: the caller's contract. The stretch lies inside the columns and the rows inside the product.
                // The panels hold the stretch, packed or unpacked.
                unsafe {
                    let tile = product.tile::<F>(&here, (first, count), (row, rows), panels);
                    // A single group of rows prefetches what it reads soon. Several groups share the prefetching of
                    // the panels that all of them read next.
                    if groups == 1 {
                        let ahead = Ahead::walk(section, width, width, F::BYTES, 0);
                        N::alone::<F>(rows, width, &tile.asking(ahead));
                        continue;
                    }
                    let step = F::BYTES / (F::SPAN / GROUP);
                    let from = packed.map(|at| at.wrapping_add(next));
                    let mut tile = tile.asking(Share { from, step, every: groups, before: index });
                    // Constants are tested first, so that only reachable code is compiled.
                    if F::IS_OPEN {
                        N::among::<F>(rows, width, &tile);
                    } else if F::OPENS_ALWAYS || open {
                        tile.spans *= F::SPAN / GROUP;
                        N::among::<F::Opened>(rows, width, &tile);
                    } else {
                        N::among::<F>(rows, width, &tile);
                    }
                }
            }
            panel += width;
        }
    }
}

impl IntProduct<'_> {
    /// Returns the tile of a stretch of `columns` (the first panel and the number of panels) for a group of rows (the
    /// first and the number).
    ///
    /// # Safety
    /// The stretch lies inside the columns, and the group inside the product.
    #[inline(always)]
    unsafe fn tile<F: Format>(
        &self,
        here: &Stretch,
        columns: (usize, usize),
        (row, rows): (usize, usize),
        panels: [*const u8; MAX_PANELS],
    ) -> IntTile<()> {
        let Stretch { panel, width, from, depth } = *here;
        let (first, count) = columns;
        let inputs = from * F::SPAN;
        let (last, all) = (inputs + depth * F::SPAN == self.padded_k, count * LANES);
        let bias = self.section.bias().filter(|_| from == 0);
        // SAFETY: columns `panel·16 ..` of rows `row ..` lie inside `out`. A group's codes and metadata start where
        // the documentation of [`IntProduct`] says. The bias is padded to whole panels.
        unsafe {
            let out = self.out.add(row * self.out_stride + panel * LANES);
            let waiting = self.waiting.add(row * all + (panel - first) * LANES);
            let (start, from_stride) = match from {
                0 if !self.accumulate => (std::ptr::null(), 0),
                0 => (out.cast_const(), self.out_stride),
                _ => (waiting.cast_const(), all),
            };
            IntTile {
                spans: depth,
                codes: self.codes.add(row * (self.padded_k / 4) + inputs / 4 * rows),
                facts: self.facts.add((row * (self.padded_k / GROUP) + inputs / GROUP * rows) * FACTS),
                panels,
                from: start,
                from_stride,
                bias: bias.map_or(std::ptr::null(), |bias| bias.as_ptr().add(panel * LANES)),
                out: if last { out } else { waiting },
                out_stride: if last { self.out_stride } else { all },
                valid: (self.section.n() - (panel + width - 1) * LANES).min(LANES),
                asks: (),
            }
        }
    }
}
