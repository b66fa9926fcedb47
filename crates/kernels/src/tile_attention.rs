//! The register tile of attention: query rows against panels of keys, or weights against panels of values, over a
//! table of blocks.
//! Must not know: positions, softmax, or which sequence the blocks belong to.
//!
//! **One order of reduction.** An output is one chain of multiply-adds in ascending order of its inputs. It depends
//! neither on the number of rows and panels of the tile, nor on where a loop over the inputs stops and resumes.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::shapes::LANES;
use crate::simd::Simd;

/// How two adjacent rows of a panel are read.
pub(crate) trait Element: Copy + 'static {
    /// Bytes of one element.
    const BYTES: usize;
    /// Whether elements come from memory, so that the tile should prefetch.
    const PREFETCH: bool = true;
    /// Whether each vector has its own scale.
    const SCALED: bool = false;

    /// Returns rows `2·pair` and `2·pair + 1` of a panel.
    ///
    /// # Safety
    /// As for [`Simd`]. The rows are readable.
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize) -> (S::V, S::V);
}

/// f32, in the store.
#[derive(Clone, Copy)]
pub(crate) struct F32;
/// f32, widened into a worker's scratch.
#[derive(Clone, Copy)]
pub(crate) struct Wide;
/// f16.
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// bf16, two rows interleaved.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;
/// Signed bytes. The scale is not applied here.
#[derive(Clone, Copy)]
pub(crate) struct Q8;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize) -> (S::V, S::V) {
        let at = panel.cast::<f32>().wrapping_add(2 * pair * LANES);
        // SAFETY: the caller's contract.
        unsafe { (S::load(at), S::load(at.add(LANES))) }
    }
}

impl Element for Wide {
    const BYTES: usize = 4;
    const PREFETCH: bool = false;

    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize) -> (S::V, S::V) {
        // SAFETY: the caller's contract.
        unsafe { F32::pair::<S>(panel, pair) }
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize) -> (S::V, S::V) {
        let at = panel.cast::<u16>().wrapping_add(2 * pair * LANES);
        // SAFETY: the caller's contract.
        unsafe { (S::load_f16(at), S::load_f16(at.add(LANES))) }
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize) -> (S::V, S::V) {
        let at = panel.cast::<u16>().wrapping_add(2 * pair * LANES);
        // SAFETY: the caller's contract.
        unsafe { (S::low_bf16(at), S::high_bf16(at)) }
    }
}

impl Element for Q8 {
    const BYTES: usize = 1;
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize) -> (S::V, S::V) {
        let at = panel.cast::<i8>().wrapping_add(2 * pair * LANES);
        // SAFETY: the caller's contract.
        unsafe { (S::load_i8(at), S::load_i8(at.add(LANES))) }
    }
}

/// Elements from one row of a tile's inputs to the next. A constant, so that all rows can be addressed from one
/// register.
pub(crate) const X_STRIDE: usize = 256;

/// The work of one register tile. For R rows and P panels, `out[r][16p + c] = start + Σᵢ x[r][i] · panel[p][i][c]`
/// over `count` inputs. `start` is the value in `out` if `accumulate`, else zero.
///
/// The inputs come in segments. The rows of a panel in segment s are at
/// `table[s · segment_step + p · panel_step] + offset + p · panel_bytes`.
pub(crate) struct KvTile {
    /// The input rows, [`X_STRIDE`] elements apart.
    pub(crate) x: *const f32,
    /// Number of inputs.
    pub(crate) count: usize,
    /// Index of the first input within the first segment.
    pub(crate) first: usize,
    /// Inputs per segment.
    pub(crate) segment: usize,
    /// Pointers to the blocks.
    pub(crate) table: *const *const u8,
    pub(crate) segment_step: usize,
    pub(crate) panel_step: usize,
    pub(crate) offset: usize,
    pub(crate) panel_bytes: usize,
    /// The blocks to prefetch from, indexed like `table`, starting at byte `ahead_offset`.
    pub(crate) ahead: *const *const u8,
    pub(crate) ahead_offset: usize,
    pub(crate) out: *mut f32,
    /// Elements from one output row to the next.
    pub(crate) out_stride: usize,
    /// Whether to add to the values in `out`.
    pub(crate) accumulate: bool,
}

/// Computes one register tile. See [`KvTile`].
///
/// # Safety
/// As for [`Simd`]. The tile's pointers are valid for the memory that its documentation describes. `ahead`'s entries
/// may point anywhere. The number of rows of a segment's panel is even.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, E: Element, const R: usize, const P: usize>(tile: &KvTile) {
    // SAFETY: the caller's contract. Inputs stay below `count`, r below R and p below P.
    unsafe {
        let mut sums = [[S::splat(0.0); P]; R];
        if tile.accumulate {
            for r in 0..R {
                for p in 0..P {
                    sums[r][p] = S::load(tile.out.add(r * tile.out_stride + p * LANES));
                }
            }
        }
        let (mut x, mut left, mut at) = (tile.x, tile.count, tile.first);
        let (mut table, mut ahead) = (tile.table, tile.ahead);
        while left > 0 {
            let end = (at + left).min(tile.segment);
            left -= end - at;
            let mut panels = [std::ptr::null::<u8>(); P];
            let mut next = [std::ptr::null::<u8>(); P];
            for p in 0..P {
                let within = p * tile.panel_bytes;
                panels[p] = (*table.add(p * tile.panel_step)).wrapping_add(tile.offset + within);
                next[p] = (*ahead.add(p * tile.panel_step)).wrapping_add(tile.ahead_offset + within);
            }
            if at % 2 == 1 {
                x = step::<S, E, R, P>(&panels, at / 2, (false, true), x, &mut sums);
                at += 1;
            }
            while at + 2 <= end {
                if E::PREFETCH {
                    for p in 0..P {
                        for line in 0..(2 * LANES * E::BYTES).div_ceil(64) {
                            S::prefetch(next[p].wrapping_add(at * LANES * E::BYTES + 64 * line));
                        }
                    }
                }
                x = step::<S, E, R, P>(&panels, at / 2, (true, true), x, &mut sums);
                at += 2;
            }
            if at < end {
                x = step::<S, E, R, P>(&panels, at / 2, (true, false), x, &mut sums);
            }
            at = 0;
            table = table.wrapping_add(tile.segment_step);
            ahead = ahead.wrapping_add(tile.segment_step);
        }
        for r in 0..R {
            for p in 0..P {
                S::store(tile.out.add(r * tile.out_stride + p * LANES), sums[r][p]);
            }
        }
    }
}

/// Processes one pair of inputs, or one input of the pair. Returns the pointer to the next input.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn step<S: Simd, E: Element, const R: usize, const P: usize>(
    panels: &[*const u8; P],
    pair: usize,
    (even, odd): (bool, bool),
    x: *const f32,
    sums: &mut [[S::V; P]; R],
) -> *const f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let mut rows = [(S::splat(0.0), S::splat(0.0)); P];
        for p in 0..P {
            rows[p] = E::pair::<S>(panels[p], pair);
        }
        if even {
            for r in 0..R {
                let value = S::splat(*x.add(r * X_STRIDE));
                for p in 0..P {
                    sums[r][p] = S::fma(value, rows[p].0, sums[r][p]);
                }
            }
        }
        let x = x.add(usize::from(even));
        if even && odd {
            // Emits no code. Without it the compiler loads all inputs of both halves first, which are more than there
            // are registers.
            compiler_fence(Ordering::SeqCst);
        }
        if odd {
            for r in 0..R {
                let value = S::splat(*x.add(r * X_STRIDE));
                for p in 0..P {
                    sums[r][p] = S::fma(value, rows[p].1, sums[r][p]);
                }
            }
        }
        x.add(usize::from(odd))
    }
}
