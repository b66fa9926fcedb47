//! Reductions over a row of logits, in pieces of fixed size and in one order.
//! Must not know: sampling parameters, or which instruction set this is compiled for.

use crate::math;
use crate::shapes::LANES;
use crate::simd::{self, Simd};

/// Logits that are summed in f32 before they are added to the f64 total. Part of the numerics: a change here changes
/// result bits.
const PIECE: usize = 4096;

/// Returns the largest element that is not NaN, or minus infinity if there is none.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn largest<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: the caller's contract; every load is of a whole chunk.
    unsafe {
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut best = simd::load_part::<S>(&[], f32::NEG_INFINITY);
        for chunk in chunks {
            // `max` returns its second operand if either is NaN, which is the largest value so far.
            best = S::max(S::load(chunk.as_ptr()), best);
        }
        best = S::max(simd::load_part::<S>(rest, f32::NEG_INFINITY), best);
        simd::largest::<S>(best)
    }
}

/// Elements that one word of bits covers.
const WORD: usize = u32::BITS as usize;
/// Words between two checks whether an element is the largest so far.
const WORDS: usize = 32;
/// The masks of the bits of a word, from the first to the last.
const BITS: [u32; WORD] = {
    let mut bits = [1; WORD];
    let mut at = 1;
    while at < WORD {
        bits[at] = bits[at - 1] << 1;
        at += 1;
    }
    bits
};

/// Returns the index of the largest element whose bit is set, the first one on ties. `None` if none of them is above
/// minus infinity. NaN elements are skipped. There is no branch within a word, because the processor cannot predict
/// which elements are allowed.
#[inline(always)]
pub(crate) fn largest_allowed(x: &[f32], allowed: &[u32]) -> Option<usize> {
    let better = |best: f32, value: f32| if value > best { value } else { best };
    let allowed_or_least =
        |value: f32, word: u32, bit: u32| if word & bit == 0 { f32::NEG_INFINITY } else { value };
    let (whole, rest) = x.as_chunks::<WORD>();
    let (mut top, mut at) = (f32::NEG_INFINITY, None);
    for (part, (elements, words)) in whole.chunks(WORDS).zip(allowed.chunks(WORDS)).enumerate() {
        let mut lanes = [f32::NEG_INFINITY; WORD];
        for (elements, word) in elements.iter().zip(words) {
            for ((lane, value), bit) in lanes.iter_mut().zip(elements).zip(&BITS) {
                *lane = better(*lane, allowed_or_least(*value, *word, *bit));
            }
        }
        let best = lanes.into_iter().fold(f32::NEG_INFINITY, better);
        if best > top {
            (top, at) = (best, Some(part * WORDS));
        }
    }
    let last = allowed.get(whole.len()).copied().unwrap_or_default();
    let of_rest = rest.iter().zip(&BITS).map(|(value, bit)| allowed_or_least(*value, last, *bit));
    let best = of_rest.fold(f32::NEG_INFINITY, better);
    if best > top {
        (top, at) = (best, Some(whole.len()));
    }
    let first = at?;
    let words = x.get(first * WORD..)?.chunks(WORD).zip(allowed.get(first..)?);
    let mut elements =
        words.flat_map(|(elements, word)| elements.iter().zip(&BITS).map(move |of| (of, word)));
    elements.position(|((value, bit), word)| word & bit != 0 && *value == top).map(|at| first * WORD + at)
}

/// Returns ln Σ exp(xᵢ): minus infinity for an empty slice, NaN if any element is NaN.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn log_sum_exp<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: the caller's contract; every load is of a whole chunk.
    unsafe {
        let max = largest::<S>(x);
        if max == f32::NEG_INFINITY && !x.iter().any(|value| value.is_nan()) {
            return max;
        }
        let shift = S::splat(max);
        let mut total = 0.0_f64;
        for piece in x.chunks(PIECE) {
            let (chunks, rest) = piece.as_chunks::<LANES>();
            let mut sums = S::splat(0.0);
            for chunk in chunks {
                sums = S::add(sums, simd::exp::<S>(S::sub(S::load(chunk.as_ptr()), shift)));
            }
            if !rest.is_empty() {
                let last = simd::load_part::<S>(rest, f32::NEG_INFINITY);
                sums = S::add(sums, simd::exp::<S>(S::sub(last, shift)));
            }
            total += f64::from(simd::sum::<S>(sums));
        }
        (f64::from(max) + math::ln(total)) as f32
    }
}
