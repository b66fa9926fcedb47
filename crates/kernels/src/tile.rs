//! The register tile of a product with dense weights, which everything else is made like.
//! Must not know: how a product is walked, or threads.

use crate::section::Section;
use crate::shapes::{LANES, MAX_PANELS};
use crate::simd::Simd;

/// Bytes that a pass over the weights asks for ahead of itself, over all panels that it reads side by side: more than
/// memory delivers while it takes to answer, and little of what the first-level cache holds.
pub(crate) const AHEAD_BYTES: usize = 8 << 10;
/// How far ahead, in each panel, where weights are in a cache already.
pub(crate) const NEAR_BYTES: usize = 2048;

/// How weights are read: two inputs of a panel at a time.
pub(crate) trait Weight: Copy + 'static {
    /// Bytes of two inputs × 16 outputs.
    const PAIR_BYTES: usize;

    /// The weights of the pair's first input.
    ///
    /// # Safety
    /// As for [`Simd`]; a readable pair.
    unsafe fn first<S: Simd>(pair: *const u8) -> S::V;

    /// The weights of its second input.
    ///
    /// # Safety
    /// As for [`Weight::first`].
    unsafe fn second<S: Simd>(pair: *const u8) -> S::V;
}

/// f32 weights, keys and values: `[input][16]`.
#[derive(Clone, Copy)]
pub(crate) struct F32;
/// f16 weights: `[input][16]`.
#[derive(Clone, Copy)]
pub(crate) struct F16;
/// bf16 weights: `[input / 2][16][2]`, as a dot product of pairs takes them.
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

/// What one register tile computes: for R rows and P panels of 16 columns,
/// `out[r][16p + c] = start + Σᵢ x[i][r] · panel[p][i][c]` over `k` inputs, where `start` is `bias` (or zero), plus what
/// `out` holds if `accumulate`.
pub(crate) struct Tile {
    /// How many inputs.
    pub(crate) k: usize,
    /// `[k][R]`.
    pub(crate) x: *const f32,
    /// P starts of weights.
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
    /// Where the weights stand that it asks for.
    pub(crate) ahead: Ahead,
}

/// How many bytes behind the weights being multiplied the weights stand that a tile asks for: `near` for the first `units`
/// units (pairs of inputs, spans of quantized ones), `then` for the others.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) near: usize,
    pub(crate) units: usize,
    pub(crate) then: usize,
}

impl Ahead {
    /// The same number of bytes behind throughout.
    pub(crate) const fn always(bytes: usize) -> Ahead {
        Ahead { near: bytes, units: usize::MAX, then: bytes }
    }

    /// For reading `width` panels side by side, in units of `unit` bytes, from byte `from` of each on: what will be read soon,
    /// and at the end of the panels the beginning of those that stand `step` panels further.
    pub(crate) fn walk(section: &Section, width: usize, step: usize, unit: usize, from: usize) -> Ahead {
        let near = AHEAD_BYTES / width;
        let to_next = (step * section.panel_bytes()).wrapping_sub(section.filled_bytes());
        let left = section.filled_bytes().saturating_sub(from + near);
        Ahead { near, units: left / unit, then: near.wrapping_add(to_next) }
    }
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

/// The first weights of a pair in each of P panels.
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

/// The second weights of a pair in each of P panels.
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

/// Writes one vector of a tile's outputs, of panel `p`.
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
