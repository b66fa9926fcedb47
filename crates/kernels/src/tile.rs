//! The register tile of a product with dense weights. The other register tiles have the same structure.
//! Must not know: how the loop over a product works, or threads.

use crate::section::Section;
use crate::shapes::{LANES, MAX_PANELS};
use crate::simd::Simd;

/// How many bytes a pass over the weights prefetches ahead, over all panels that it reads side by side. This is more
/// than memory delivers during one memory latency, and takes little of the first-level cache.
pub(crate) const AHEAD_BYTES: usize = 8 << 10;
/// Prefetch distance in each panel if the weights are in a cache already, in bytes.
pub(crate) const NEAR_BYTES: usize = 2048;

/// How weights are read, two inputs of a panel at a time.
pub(crate) trait Weight: Copy + 'static {
    /// Bytes of two inputs × 16 outputs.
    const PAIR_BYTES: usize;

    /// Returns the weights of the pair's first input.
    ///
    /// # Safety
    /// As for [`Simd`]. `pair` is readable.
    unsafe fn first<S: Simd>(pair: *const u8) -> S::V;

    /// Returns the weights of the pair's second input.
    ///
    /// # Safety
    /// As for [`Weight::first`].
    unsafe fn second<S: Simd>(pair: *const u8) -> S::V;
}

/// f32 weights: `[input][16]`.
#[derive(Clone, Copy)]
pub(crate) struct F32;
/// f16 weights: `[input][16]`.
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// bf16 weights: `[input / 2][16][2]`, the operand of a dot product of pairs.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Weight for F32 {
    const PAIR_BYTES: usize = 8 * LANES;

    #[inline(always)]
    unsafe fn first<S: Simd>(pair: *const u8) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load(pair.cast()) }
    }

    #[inline(always)]
    unsafe fn second<S: Simd>(pair: *const u8) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load(pair.cast::<f32>().add(LANES)) }
    }
}

impl Weight for F16 {
    const PAIR_BYTES: usize = 4 * LANES;

    #[inline(always)]
    unsafe fn first<S: Simd>(pair: *const u8) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(pair.cast()) }
    }

    #[inline(always)]
    unsafe fn second<S: Simd>(pair: *const u8) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(pair.cast::<u16>().add(LANES)) }
    }
}

impl Weight for Bf16 {
    const PAIR_BYTES: usize = 4 * LANES;

    #[inline(always)]
    unsafe fn first<S: Simd>(pair: *const u8) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::low_bf16(pair.cast()) }
    }

    #[inline(always)]
    unsafe fn second<S: Simd>(pair: *const u8) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::high_bf16(pair.cast()) }
    }
}

/// The work of one register tile. For R rows and P panels of 16 columns,
/// `out[r][16p + c] = start + Σᵢ x[i][r] · panel[p][i][c]` over `k` inputs. `start` is `bias` (or zero), plus the
/// value in `out` if `accumulate`.
pub(crate) struct Tile {
    /// Number of inputs.
    pub(crate) k: usize,
    /// The input rows, `[k][R]`.
    pub(crate) x: *const f32,
    /// The starts of the P panels.
    pub(crate) panels: [*const u8; MAX_PANELS],
    /// The first output element.
    pub(crate) out: *mut f32,
    /// Elements from one output row to the next.
    pub(crate) out_stride: usize,
    /// The bias, `[16·P]`, or null.
    pub(crate) bias: *const f32,
    /// Whether to add to the values in `out`.
    pub(crate) accumulate: bool,
    /// Columns of the last panel that exist, 1–16.
    pub(crate) valid: usize,
    /// Which weights to prefetch.
    pub(crate) ahead: Ahead,
}

/// The prefetch distance in bytes from the current weights: `near` for the first `units` units, `then` for the rest.
/// A unit is a pair of inputs, or a span of quantized weights.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) near: usize,
    pub(crate) units: usize,
    pub(crate) then: usize,
}

impl Ahead {
    /// Uses the same distance throughout.
    pub(crate) const fn always(bytes: usize) -> Ahead {
        Ahead { near: bytes, units: usize::MAX, then: bytes }
    }

    /// Returns the distances for reading `width` panels side by side, in units of `unit` bytes, starting at byte
    /// `from` of each panel. Prefetches what will be read soon. At the end of the panels, prefetches the start of the
    /// panels that follow `step` panels later.
    pub(crate) fn walk(section: &Section, width: usize, step: usize, unit: usize, from: usize) -> Ahead {
        let near = AHEAD_BYTES / width;
        let to_next = (step * section.panel_bytes()).wrapping_sub(section.filled_bytes());
        let left = section.filled_bytes().saturating_sub(from + near);
        Ahead { near, units: left / unit, then: near.wrapping_add(to_next) }
    }
}

/// Computes one register tile. See [`Tile`].
///
/// # Safety
/// As for [`Simd`]. The tile's pointers are valid for the memory that its documentation describes.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, W: Weight, const R: usize, const P: usize>(tile: &Tile) {
    // SAFETY: the caller's contract. `pair` stays below k / 2, `r` below R and `p` below P.
    unsafe {
        let mut sums = [[S::splat(0.0); P]; R];
        let mut panels = [std::ptr::null(); P];
        panels.copy_from_slice(&tile.panels[..P]);
        let mut x = tile.x;
        for pair in 0..tile.k / 2 {
            if P > 1 {
                let ahead = if pair < tile.ahead.units { tile.ahead.near } else { tile.ahead.then };
                for p in 0..P {
                    for line in 0..W::PAIR_BYTES / 64 {
                        S::prefetch(panels[p].wrapping_add(ahead).wrapping_add(64 * line));
                    }
                }
            }
            let weights = first::<S, W, P>(&panels);
            for r in 0..R {
                let value = S::splat(*x.add(r));
                for p in 0..P {
                    sums[r][p] = S::fma(value, weights[p], sums[r][p]);
                }
            }
            let weights = second::<S, W, P>(&panels);
            for r in 0..R {
                let value = S::splat(*x.add(R + r));
                for p in 0..P {
                    sums[r][p] = S::fma(value, weights[p], sums[r][p]);
                }
            }
            x = x.add(2 * R);
            for p in 0..P {
                panels[p] = panels[p].add(W::PAIR_BYTES);
            }
        }
        if tile.k % 2 == 1 {
            let weights = first::<S, W, P>(&panels);
            for r in 0..R {
                let value = S::splat(*x.add(r));
                for p in 0..P {
                    sums[r][p] = S::fma(value, weights[p], sums[r][p]);
                }
            }
        }
        // Once the loops are unrolled, every index into `sums` is a constant, so `sums` lives in registers. The loop
        // over the output is not unrolled, and reads a copy.
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

/// Returns the first weights of a pair in each of P panels.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn first<S: Simd, W: Weight, const P: usize>(panels: &[*const u8; P]) -> [S::V; P] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut weights = [W::first::<S>(panels[0]); P];
        for (weights, &panel) in weights.iter_mut().zip(panels).skip(1) {
            *weights = W::first::<S>(panel);
        }
        weights
    }
}

/// Returns the second weights of a pair in each of P panels.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn second<S: Simd, W: Weight, const P: usize>(panels: &[*const u8; P]) -> [S::V; P] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut weights = [W::second::<S>(panels[0]); P];
        for (weights, &panel) in weights.iter_mut().zip(panels).skip(1) {
            *weights = W::second::<S>(panel);
        }
        weights
    }
}

/// Writes one vector of a tile's outputs, for panel `p`.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
pub(crate) unsafe fn finish<S: Simd>(tile: &Tile, at: *mut f32, p: usize, last: bool, sum: &[f32; LANES]) {
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

/// Finishes a tile whose last panel has fewer than 16 columns. Reads and writes only those columns.
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
