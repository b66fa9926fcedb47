//! The register tile of a product of int8 activations with block-quantized weights.
//! Must not know: how the loop over a product works, or threads.

use std::ops::Range;

use crate::packed::{Codes, Format};
use crate::shapes::{FACTS, GROUP, LANES, LINE, MAX_PANELS, WORDS};
use crate::simd::Simd;
use crate::simd_int::Ints;
use crate::tile::Ahead;

/// The work of one register tile: the chains over `spans` spans, for R rows and P panels of 16 columns.
pub(crate) struct IntTile<A> {
    pub(crate) spans: usize,
    /// Codes of the activations, `[inputs / 4][R]`.
    pub(crate) codes: *const i32,
    /// `[inputs / 32][FACTS][R]`: the scale, the negated sum of all codes, and the negated sum of the first half's
    /// codes.
    pub(crate) facts: *const f32,
    /// The starts of the P panels' spans.
    pub(crate) panels: [*const u8; MAX_PANELS],
    /// The start values of the chains, and the elements from one row of them to the next. If null, the chains start
    /// at zero.
    pub(crate) from: *const f32,
    pub(crate) from_stride: usize,
    /// The bias, `[16·P]`, added at the start, or null.
    pub(crate) bias: *const f32,
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
    /// Columns of the last panel that exist, 1–16.
    pub(crate) valid: usize,
    /// Which weights the tile prefetches.
    pub(crate) asks: A,
}

impl<A> IntTile<A> {
    /// Returns the same tile with another prefetch strategy.
    pub(crate) fn asking<B>(&self, asks: B) -> IntTile<B> {
        let IntTile { spans, codes, facts, panels, from, from_stride, bias, out, out_stride, valid, .. } =
            *self;
        IntTile { spans, codes, facts, panels, from, from_stride, bias, out, out_stride, valid, asks }
    }
}

/// Which weights a tile prefetches. Requests are spread out, because a burst would itself wait for free buffers in
/// the processor.
pub(crate) trait Asks: Copy {
    /// Whether the tile prefetches one line of codes for each line that it reads.
    const LINES: bool;

    /// Returns the distance in bytes from the lines read in this span to the lines to prefetch.
    fn bytes(self, _span: usize) -> usize {
        0
    }

    /// Called before each group of inputs of the panels `at`. Prefetches everything except lines of codes.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn group<N: Ints, F: Format, const P: usize>(
        &mut self,
        at: &[*const u8; P],
        group: usize,
        bytes: usize,
    );
}

/// A memory-bound tile prefetches what it reads soon, line by line.
impl Asks for Ahead {
    const LINES: bool = true;

    #[inline(always)]
    fn bytes(self, span: usize) -> usize {
        if span < self.units { self.near } else { self.then }
    }

    #[inline(always)]
    unsafe fn group<N: Ints, F: Format, const P: usize>(
        &mut self,
        at: &[*const u8; P],
        group: usize,
        bytes: usize,
    ) {
        let codes = F::HEAD + group * F::CODES.group_bytes();
        let from = if group == 0 { 0 } else { codes };
        for at in at {
            // SAFETY: the caller's contract.
            unsafe { ask::<N>(at.wrapping_add(bytes), from..codes + F::CODES.plane_bytes()) };
        }
    }
}

/// A tile's share of the weights that are read next. The tiles of several groups of rows prefetch them together.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    /// The start of these weights in each panel.
    pub(crate) from: [*const u8; MAX_PANELS],
    /// Bytes of these weights per group of 32 inputs.
    pub(crate) step: usize,
    /// The tile prefetches once in this many groups of inputs.
    pub(crate) every: usize,
    /// Groups to skip before the next prefetch.
    pub(crate) before: usize,
}

impl Asks for Share {
    const LINES: bool = false;

    #[inline(always)]
    unsafe fn group<N: Ints, F: Format, const P: usize>(
        &mut self,
        _at: &[*const u8; P],
        _group: usize,
        _bytes: usize,
    ) {
        if self.before == 0 {
            self.before = self.every;
            for from in &self.from[..P] {
                // SAFETY: the caller's contract.
                unsafe { ask::<N>(*from, 0..self.step) };
            }
        }
        self.before -= 1;
        for from in &mut self.from[..P] {
            *from = from.wrapping_add(self.step);
        }
    }
}

/// No prefetching, for instruction sets without a prefetch instruction.
impl Asks for () {
    const LINES: bool = false;

    #[inline(always)]
    unsafe fn group<N: Ints, F: Format, const P: usize>(
        &mut self,
        _at: &[*const u8; P],
        _group: usize,
        _bytes: usize,
    ) {
    }
}

/// Processes one half of a group, four lines, with all offsets constant. If `$A` prefetches lines, requests the line
/// `$ahead` bytes after each line.
macro_rules! lines {
    ($F:ident, $N:ident, $R:ident, $P:ident, $half:literal, $at:ident, $group:ident, $x:ident, $sums:ident, $A:ident, $ahead:ident) => {
        lines!(@ $F, $N, $R, $P, $half, $at, $group, $x, $sums, $A, $ahead, [0 1 2 3])
    };
    (@ $F:ident, $N:ident, $R:ident, $P:ident, $half:literal, $at:ident, $group:ident, $x:ident, $sums:ident, $A:ident, $ahead:ident,
     [$($step:literal)*]) => {$(
        {
            let mut weights = [$F::line::<$N, $half, $step>($at[0], $group); $P];
            for p in 1..$P {
                weights[p] = $F::line::<$N, $half, $step>($at[p], $group);
            }
            // The other half of four-bit codes is in the same lines. Codes of two bits are all in the plane.
            if $A::LINES
                && ($half == 0 || matches!($F::CODES, Codes::Bytes))
                && !matches!($F::CODES, Codes::Pairs)
            {
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

/// Computes one register tile. See [`IntTile`].
///
/// # Safety
/// As for [`Simd`]. The tile's pointers are valid for the memory that its documentation describes.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
pub(crate) unsafe fn tile<N: Ints, F: Format, A: Asks, const R: usize, const P: usize>(tile: &IntTile<A>) {
    // SAFETY: the caller's contract. r stays below R, p below P.
    unsafe {
        let totals = chains::<N, F, A, R, P>(tile);
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

/// Computes the chains of a tile, from their start values to the end of its spans.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn chains<N: Ints, F: Format, A: Asks, const R: usize, const P: usize>(
    tile: &IntTile<A>,
) -> [[<N::F as Simd>::V; P]; R] {
    // SAFETY: the caller's contract. p stays below P, spans below `tile.spans`.
    unsafe {
        let mut totals = start::<N, A, R, P>(tile);
        let mut at = [std::ptr::null(); P];
        at.copy_from_slice(&tile.panels[..P]);
        let (mut x, mut facts, mut asks) = (tile.codes, tile.facts, tile.asks);
        for span in 0..tile.spans {
            let ahead = asks.bytes(span);
            for group in 0..F::SPAN / GROUP {
                asks.group::<N, F, P>(&at, group, ahead);
                group_of::<N, F, A, R, P>(&mut totals, &at, group, x, facts, ahead);
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

/// Adds a group of 32 inputs to the chains. If lines are prefetched, requests those `ahead` bytes after it.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn group_of<N: Ints, F: Format, A: Asks, const R: usize, const P: usize>(
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
            lines!(F, N, R, P, 0, at, group, x, sums, A, ahead);
            let scale = scales::<N, F, P, 0>(at, group);
            add_scaled::<N, R, P>(totals, &sums, &scale, facts);
            let mut sums = zero_sums::<N, F, R, P>(facts.add(R), Some(facts.add(2 * R)));
            lines!(F, N, R, P, 1, at, group, x, sums, A, ahead);
            let scale = scales::<N, F, P, 1>(at, group);
            add_scaled::<N, R, P>(totals, &sums, &scale, facts);
        } else {
            let mut sums = zero_sums::<N, F, R, P>(facts.add(R), None);
            lines!(F, N, R, P, 0, at, group, x, sums, A, ahead);
            lines!(F, N, R, P, 1, at, group, x, sums, A, ahead);
            let scale = scales::<N, F, P, 0>(at, group);
            add_scaled::<N, R, P>(totals, &sums, &scale, facts);
        }
        if F::OFFSET && F::HALVES {
            for p in 0..P {
                let (first, second) = (F::offset::<N, 0>(at[p], group), F::offset::<N, 1>(at[p], group));
                for r in 0..R {
                    let (all, half) =
                        (N::splat_at(facts.add(R + r).cast()), N::splat_at(facts.add(2 * R + r).cast()));
                    let scale = N::F::splat(-*facts.add(r));
                    let sum = N::F::mul(scale, N::to_f32(half));
                    totals[r][p] = N::F::fma(first, sum, totals[r][p]);
                    let sum = N::F::mul(scale, N::to_f32(N::sub(all, half)));
                    totals[r][p] = N::F::fma(second, sum, totals[r][p]);
                }
            }
        } else if F::OFFSET {
            for p in 0..P {
                let offset = F::offset::<N, 0>(at[p], group);
                for r in 0..R {
                    let negated = N::to_f32(N::splat_at(facts.add(R + r).cast()));
                    let sum = N::F::mul(N::F::splat(-*facts.add(r)), negated);
                    totals[r][p] = N::F::fma(offset, sum, totals[r][p]);
                }
            }
        }
    }
}

/// Prefetches the lines of `bytes` after `at`.
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

/// Loads the first `count` (below 16) lanes from memory. The other lanes are zero.
///
/// # Safety
/// As for [`Simd`]. `at` points to `count` elements.
#[inline(always)]
unsafe fn load_first<S: Simd>(at: *const f32, count: usize) -> S::V {
    let mut held = [0.0_f32; LANES];
    // SAFETY: the caller's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(at, held.as_mut_ptr(), count.min(LANES));
        S::load(held.as_ptr())
    }
}

/// Stores the first `count` (below 16) lanes to memory.
///
/// # Safety
/// As for [`Simd`]. `at` has room for `count` elements.
#[inline(always)]
unsafe fn store_first<S: Simd>(at: *mut f32, value: S::V, count: usize) {
    let mut lanes = [0.0_f32; LANES];
    // SAFETY: the caller's contract.
    unsafe {
        S::store(lanes.as_mut_ptr(), value);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, count.min(LANES));
    }
}

/// Returns the start values of a tile's chains.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn start<N: Ints, A, const R: usize, const P: usize>(
    tile: &IntTile<A>,
) -> [[<N::F as Simd>::V; P]; R] {
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

/// Returns the scales of a group (or half a group) of P panels.
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

/// Returns the integer sums at the start of a group (or half a group): minus zero times the sum of the activations'
/// codes.
///
/// # Safety
/// As for [`tile`]. `negated` points to R negated sums. `less`, if set, points to R sums that are subtracted from
/// them.
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
/// As for [`tile`]. `facts` points to R scales of activations.
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
