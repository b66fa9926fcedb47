//! The register tile of a product of int8 activations with block-quantized weights.
//! Must not know: how a product is walked, or threads.

use std::ops::Range;

use crate::packed::{Codes, Format};
use crate::shapes::{FACTS, GROUP, LANES, LINE, MAX_PANELS, WORDS};
use crate::simd::Simd;
use crate::simd_int::Ints;
use crate::tile::Ahead;

/// What one register tile computes: for R rows and P panels of 16 columns, the chains over `spans` spans.
pub(crate) struct IntTile {
    pub(crate) spans: usize,
    /// `[inputs / 4][R]`.
    pub(crate) codes: *const i32,
    /// `[inputs / 32][FACTS][R]`: scale, negated sum of all codes, negated sum of the first half's.
    pub(crate) facts: *const f32,
    /// P starts of spans.
    pub(crate) panels: [*const u8; MAX_PANELS],
    /// Where the chains start, and elements between two rows there; null: at zero.
    pub(crate) from: *const f32,
    pub(crate) from_stride: usize,
    /// `[16·P]`, added at the start, or null.
    pub(crate) bias: *const f32,
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    /// Columns of the last panel that exist, 1–16.
    pub(crate) valid: usize,
    pub(crate) asks: Asks,
}

/// Which weights a tile asks for before they are needed.
#[derive(Clone, Copy)]
pub(crate) enum Asks {
    /// Those so far ahead of what it reads, line by line.
    Ahead(Ahead),
    /// A share of others that the tiles of several groups of rows ask for together.
    Share(Share),
}

/// A tile's share of the weights that are read next.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    /// Where they start, for each panel.
    pub(crate) from: [*const u8; MAX_PANELS],
    /// Their bytes for each group of 32 inputs.
    pub(crate) step: usize,
    /// It asks once in this many groups of inputs.
    pub(crate) every: usize,
    /// How many it passes before the next.
    pub(crate) before: usize,
}

impl Share {
    /// Nothing.
    const NONE: Share = Share { from: [std::ptr::null(); MAX_PANELS], step: 0, every: 0, before: 0 };
}

/// Walks one half of a group, four lines, with everything about a line a constant. Asks for each line `$ahead` bytes behind it
/// if `$ask`.
macro_rules! lines {
    ($F:ident, $N:ident, $R:ident, $P:ident, $half:literal, $at:ident, $group:ident, $x:ident, $sums:ident, $ask:ident, $ahead:ident) => {
        lines!(@ $F, $N, $R, $P, $half, $at, $group, $x, $sums, $ask, $ahead, [0 1 2 3])
    };
    (@ $F:ident, $N:ident, $R:ident, $P:ident, $half:literal, $at:ident, $group:ident, $x:ident, $sums:ident, $ask:ident, $ahead:ident,
     [$($step:literal)*]) => {$(
        {
            let mut weights = [$F::line::<$N, $half, $step>($at[0], $group); $P];
            for p in 1..$P {
                weights[p] = $F::line::<$N, $half, $step>($at[p], $group);
            }
            // The other half of four-bit codes stands in the same lines.
            if $ask && ($half == 0 || matches!($F::CODES, Codes::Bytes)) {
                let line = $F::HEAD + $group * $F::CODES.group_bytes() + $F::CODES.plane_bytes();
                for p in 0..$P {
                    let line = $at[p].wrapping_add(line + ($half * 4 + $step) * LINE);
                    $N::F::prefetch(line.wrapping_add($ahead));
                }
            }
            let x = $x.add(($half * 4 + $step) * $R);
            for r in 0..$R {
                for p in 0..$P {
                    $sums[r][p] = if $F::WIDE {
                        $N::dot::<true>($sums[r][p], weights[p], x.add(r))
                    } else {
                        $N::dot::<false>($sums[r][p], weights[p], x.add(r))
                    };
                }
            }
        }
    )*};
}

/// One register tile; see [`IntTile`].
///
/// # Safety
/// As for [`Simd`]; the tile's pointers are valid for what its documentation says they hold.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
pub(crate) unsafe fn tile<N: Ints, F: Format, const R: usize, const P: usize>(tile: &IntTile) {
    // SAFETY: the caller's contract; r stays below R, p below P.
    unsafe {
        // A tile that waits for memory asks for it line by line: a burst of requests would itself wait for room in the processor.
        let totals = match tile.asks {
            Asks::Ahead(ahead) => chains::<N, F, R, P, true>(tile, ahead, Share::NONE),
            Asks::Share(share) => chains::<N, F, R, P, false>(tile, Ahead::always(0), share),
        };
        for r in 0..R {
            for p in 0..P {
                let at = tile.out.add(r * tile.out_stride + p * LANES);
                match p + 1 == P && tile.valid < LANES {
                    true => store_first::<N::F>(at, totals[r][p], tile.valid),
                    false => N::F::store(at, totals[r][p]),
                }
            }
        }
    }
}

/// The chains of a tile, from their starts to the end of its spans. With `ASK` every line of codes is asked for, `ahead` of
/// time, where one is read; without, lines of the `share`.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn chains<N: Ints, F: Format, const R: usize, const P: usize, const ASK: bool>(
    tile: &IntTile,
    ahead: Ahead,
    mut share: Share,
) -> [[<N::F as Simd>::V; P]; R] {
    // SAFETY: the caller's contract; p stays below P, spans below `tile.spans`.
    unsafe {
        let mut totals = start::<N, R, P>(tile);
        let mut at = [std::ptr::null(); P];
        at.copy_from_slice(&tile.panels[..P]);
        let (mut x, mut facts) = (tile.codes, tile.facts);
        for span in 0..tile.spans {
            let ahead = if span < ahead.units { ahead.near } else { ahead.then };
            for group in 0..F::SPAN / GROUP {
                if ASK {
                    let codes = F::HEAD + group * F::CODES.group_bytes();
                    let from = if group == 0 { 0 } else { codes };
                    for at in at {
                        ask::<N>(at.wrapping_add(ahead), from..codes + F::CODES.plane_bytes());
                    }
                } else {
                    if share.before == 0 {
                        share.before = share.every;
                        for from in &share.from[..P] {
                            ask::<N>(*from, 0..share.step);
                        }
                    }
                    share.before -= 1;
                    for from in &mut share.from[..P] {
                        *from = from.wrapping_add(share.step);
                    }
                }
                group_of::<N, F, R, P, ASK>(&mut totals, &at, group, x, facts, ahead);
                x = x.add(WORDS * R);
                facts = facts.add(FACTS * R);
            }
            for p in 0..P {
                at[p] = at[p].add(F::BYTES);
            }
        }
        totals
    }
}

/// Adds a group of 32 inputs to the chains. With `ASK` asks for each line of codes `ahead` bytes behind it.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn group_of<N: Ints, F: Format, const R: usize, const P: usize, const ASK: bool>(
    totals: &mut [[<N::F as Simd>::V; P]; R],
    at: &[*const u8; P],
    group: usize,
    x: *const i32,
    facts: *const f32,
    ahead: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if F::HALVES {
            let mut sums = zero_sums::<N, F, R, P>(facts.add(2 * R), None);
            lines!(F, N, R, P, 0, at, group, x, sums, ASK, ahead);
            let scale = scales::<N, F, P, 0>(at, group);
            add_scaled::<N, R, P>(totals, &sums, &scale, facts);
            let mut sums = zero_sums::<N, F, R, P>(facts.add(R), Some(facts.add(2 * R)));
            lines!(F, N, R, P, 1, at, group, x, sums, ASK, ahead);
            let scale = scales::<N, F, P, 1>(at, group);
            add_scaled::<N, R, P>(totals, &sums, &scale, facts);
        } else {
            let mut sums = zero_sums::<N, F, R, P>(facts.add(R), None);
            lines!(F, N, R, P, 0, at, group, x, sums, ASK, ahead);
            lines!(F, N, R, P, 1, at, group, x, sums, ASK, ahead);
            let scale = scales::<N, F, P, 0>(at, group);
            add_scaled::<N, R, P>(totals, &sums, &scale, facts);
        }
        if F::OFFSET {
            for p in 0..P {
                let offset = F::offset::<N>(at[p], group);
                for r in 0..R {
                    let negated = N::to_f32(N::splat_at(facts.add(R + r).cast()));
                    let sum = N::F::mul(N::F::splat(-*facts.add(r)), negated);
                    totals[r][p] = N::F::fma(offset, sum, totals[r][p]);
                }
            }
        }
    }
}

/// Asks for the lines of `bytes` behind `at`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn ask<N: Ints>(at: *const u8, bytes: Range<usize>) {
    for line in bytes.step_by(LINE) {
        // SAFETY: a prefetch never faults.
        unsafe { N::F::prefetch(at.wrapping_add(line)) };
    }
}

/// The first `count` (below 16) lanes from memory, the rest zero.
///
/// # Safety
/// As for [`Simd`]; `count` elements at `at`.
#[inline(always)]
unsafe fn load_first<S: Simd>(at: *const f32, count: usize) -> S::V {
    let mut held = [0.0_f32; LANES];
    // SAFETY: the caller's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(at, held.as_mut_ptr(), count.min(LANES));
        S::load(held.as_ptr())
    }
}

/// The first `count` (below 16) lanes to memory.
///
/// # Safety
/// As for [`Simd`]; room for `count` elements at `at`.
#[inline(always)]
unsafe fn store_first<S: Simd>(at: *mut f32, value: S::V, count: usize) {
    let mut lanes = [0.0_f32; LANES];
    // SAFETY: the caller's contract.
    unsafe {
        S::store(lanes.as_mut_ptr(), value);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, count.min(LANES));
    }
}

/// Where the chains of a tile start.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn start<N: Ints, const R: usize, const P: usize>(tile: &IntTile) -> [[<N::F as Simd>::V; P]; R] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut totals = [[N::F::splat(0.0); P]; R];
        for r in 0..R {
            for p in 0..P {
                if !tile.from.is_null() {
                    let at = tile.from.add(r * tile.from_stride + p * LANES);
                    totals[r][p] = match p + 1 == P && tile.valid < LANES {
                        true => load_first::<N::F>(at, tile.valid),
                        false => N::F::load(at),
                    };
                }
                if !tile.bias.is_null() {
                    totals[r][p] = N::F::add(totals[r][p], N::F::load(tile.bias.add(p * LANES)));
                }
            }
        }
        totals
    }
}

/// The scales of a group (or half) of P panels.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn scales<N: Ints, F: Format, const P: usize, const HALF: usize>(
    at: &[*const u8; P],
    group: usize,
) -> [<N::F as Simd>::V; P] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut scales = [F::scale::<N, HALF>(at[0], group); P];
        for p in 1..P {
            scales[p] = F::scale::<N, HALF>(at[p], group);
        }
        scales
    }
}

/// Integer sums at the start of a group (or half): minus zero times the sum of the activations' codes.
///
/// # Safety
/// As for [`tile`]; R negated sums at `negated`, and at `less`, which are taken off them.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn zero_sums<N: Ints, F: Format, const R: usize, const P: usize>(
    negated: *const f32,
    less: Option<*const f32>,
) -> [[N::I; P]; R] {
    // SAFETY: the caller's contract.
    unsafe {
        const { assert!(matches!(F::ZERO, None | Some(3..=5 | 7)), "a shift below stands for each zero") };
        let mut starts = [[N::zero(); P]; R];
        for r in 0..R {
            let sum = N::splat_at(negated.add(r).cast());
            let sum = less.map_or(sum, |less| N::sub(sum, N::splat_at(less.add(r).cast())));
            let start = match F::ZERO {
                None => N::zero(),
                Some(3) => N::shift_left::<3>(sum),
                Some(4) => N::shift_left::<4>(sum),
                Some(5) => N::shift_left::<5>(sum),
                Some(_) => N::shift_left::<7>(sum),
            };
            starts[r] = [start; P];
        }
        starts
    }
}

/// Adds the scaled integer sums to the chains.
///
/// # Safety
/// As for [`tile`]; R scales of activations at `facts`.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn add_scaled<N: Ints, const R: usize, const P: usize>(
    totals: &mut [[<N::F as Simd>::V; P]; R],
    sums: &[[N::I; P]; R],
    scales: &[<N::F as Simd>::V; P],
    facts: *const f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for r in 0..R {
            let x = N::F::splat(*facts.add(r));
            for p in 0..P {
                totals[r][p] = N::F::fma(N::to_f32(sums[r][p]), N::F::mul(scales[p], x), totals[r][p]);
            }
        }
    }
}
