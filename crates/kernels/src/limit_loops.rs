//! The loops that measure a machine's limits: interleaved reads, and multiplications in registers.
//! Must not know: threads, or how long a loop takes.

use crate::shapes::{LANES, LINE};
use crate::simd::{self, Simd};
use crate::simd_bf16::Pairs;
use crate::simd_int::Ints;

/// Streams that each thread reads side by side.
pub(crate) const STREAMS: usize = 8;
/// Accumulator registers of the bf16 loop: enough to hide the latency of the products.
pub(crate) const REGISTERS: usize = 12;

/// Sums `STREAMS` streams of `lines` cache lines each, read side by side. The streams follow each other in memory.
///
/// # Safety
/// As for [`Simd`]. The streams are readable.
#[inline(always)]
pub(crate) unsafe fn read_streams<S: Simd>(first: *const u8, lines: usize) -> f32 {
    // SAFETY: the caller's contract: line < lines in each stream.
    unsafe {
        let mut sums = [S::splat(0.0); STREAMS];
        for line in 0..lines {
            for (stream, sum) in sums.iter_mut().enumerate() {
                let at = first.add((stream * lines + line) * LINE);
                S::prefetch(at.wrapping_add(2048));
                *sum = S::add(*sum, S::load(at.cast()));
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += simd::sum::<S>(sum);
        }
        total
    }
}

/// Does `rounds` multiply-adds in each of `R` independent registers.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn multiply_add<S: Simd, const R: usize>(rounds: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let (factor, term) = (S::splat(std::hint::black_box(0.999)), S::splat(std::hint::black_box(0.5)));
        let mut sums = [S::splat(std::hint::black_box(1.0)); R];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = S::fma(*sum, factor, term);
            }
        }
        let mut total = 0.0;
        for sum in sums {
            total += simd::sum::<S>(sum);
        }
        total
    }
}

/// Does `rounds` integer dot products in each of `R` independent sums.
///
/// # Safety
/// As for [`Ints`].
#[inline(always)]
pub(crate) unsafe fn multiply_ints<N: Ints, const R: usize>(rounds: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let codes = N::load(std::hint::black_box([3_u8; LINE]).as_ptr());
        let word = std::hint::black_box(0x0102_0304);
        let mut sums = [N::zero(); R];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = N::dot::<false>(*sum, codes, &raw const word);
            }
        }
        sums.into_iter().map(|sum| simd::sum::<N::F>(N::to_f32(sum))).sum()
    }
}

/// Does `rounds` products of bf16 pairs in each of [`REGISTERS`] independent registers.
///
/// # Safety
/// As for [`Pairs`].
#[inline(always)]
pub(crate) unsafe fn multiply_pairs<D: Pairs>(rounds: usize) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let weights = D::load(std::hint::black_box([0_u8; 4 * LANES]).as_ptr());
        let word = std::hint::black_box(0x3f80_3f80);
        let mut sums = [D::F::splat(0.0); REGISTERS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = D::dot(*sum, weights, &raw const word);
            }
        }
        sums.into_iter().map(|sum| simd::sum::<D::F>(sum)).sum()
    }
}
