//! Reductions over a row of logits, in fixed pieces and one order.
//! Must not know: sampling parameters, or which instruction set it is compiled for.

use crate::math;
use crate::shapes::LANES;
use crate::simd::{self, Simd};

/// Logits that are summed together before the f64 total. Part of the numerics: changing it changes bits.
const PIECE: usize = 4096;

/// The largest element that is not NaN; minus infinity if there is none.
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
            // `max` returns its second operand where one is NaN: the best so far.
            best = S::max(S::load(chunk.as_ptr()), best);
        }
        best = S::max(simd::load_part::<S>(rest, f32::NEG_INFINITY), best);
        simd::largest::<S>(best)
    }
}

/// ln Σ exp(xᵢ); minus infinity for an empty slice, NaN if any element is NaN.
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
