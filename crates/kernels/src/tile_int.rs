//! The register tile of a product of int8 activations with block-quantized weights.
//! Must not know: how a product is walked, or threads.

use std::ops::Range;

use crate::packed::{Codes, Format};
use crate::shapes::{FACTS, GROUP, LANES, LINE, MAX_PANELS, WORDS};
use crate::simd::Simd;
use crate::simd_int::Ints;
use crate::tile::Ahead;

/// What one register tile computes: for R rows and P panels of 16 columns, the chains over `spans` spans.
pub(crate) struct IntTile<A> {
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
    /// Which weights it asks for before they are needed.
    pub(crate) asks: A,
}

impl<A> IntTile<A> {
    /// The same tile, which asks for other weights.
    pub(crate) fn asking<B>(&self, asks: B) -> IntTile<B> {
        let IntTile { spans, codes, facts, panels, from, from_stride, bias, out, out_stride, valid, .. } =
            *self;
        IntTile { spans, codes, facts, panels, from, from_stride, bias, out, out_stride, valid, asks }
    }
}

/// Which weights a tile asks for before they are needed. A burst of requests would itself wait for room in the processor.
pub(crate) trait Asks: Copy {
    /// Whether it asks for every line of codes where it reads one.
    const LINES: bool;

    /// How many bytes behind what it reads in this span the lines stand that it asks for.
    fn bytes(self, _span: usize) -> usize {
        0
    }

    /// Before a group of inputs of the panels `at`: asks for what is no line of codes.
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

/// A tile that waits for memory asks for what it reads soon, line by line.
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

/// A tile's share of the weights that are read next: the tiles of several groups of rows ask for them together.
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

/// Nothing, where there is no such instruction.
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

/// Walks one half of a group, four lines, with everything about a line a constant. Asks for each line `$ahead` bytes behind it
/// where `$A` asks for lines.
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
            // The other half of four-bit codes stands in the same lines.
            if $A::LINES && ($half == 0 || matches!($F::CODES, Codes::Bytes)) {
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
pub(crate) unsafe fn tile<N: Ints, F: Format, A: Asks, const R: usize, const P: usize>(tile: &IntTile<A>) {
    // SAFETY: the caller's contract; r stays below R, p below P.
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

/// The chains of a tile, from their starts to the end of its spans.
///
/// # Safety
/// As for [`tile`].
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
unsafe fn chains<N: Ints, F: Format, A: Asks, const R: usize, const P: usize>(
    tile: &IntTile<A>,
) -> [[<N::F as Simd>::V; P]; R] {
    // SAFETY: the caller's contract; p stays below P, spans below `tile.spans`.
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

/// Adds a group of 32 inputs to the chains. Where lines are asked for, those `ahead` bytes behind it.
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
