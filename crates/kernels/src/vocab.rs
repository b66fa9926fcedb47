//! Reductions over a row of logits, in fixed pieces, so that a logprob has one value whatever computed it.
//! Must not know: sampling parameters.

use crate::isa::Isa;
use crate::math;
use crate::simd::{self, LANES, Simd};

/// Logits that are summed together before the f64 total. Part of the numerics: changing it changes bits.
const PIECE: usize = 4096;

/// ln Σ exp(xᵢ). Minus infinity for an empty slice; NaN if any element is NaN. Bits depend on `isa` only.
pub fn logsumexp(isa: Isa, x: &[f32]) -> f32 {
    let _flush = crate::flush::FlushGuard::new();
    crate::entry::dispatch!(isa, logsumexp(x))
}

/// The index of the largest element, the lowest such index on ties. NaN elements are never chosen; `None` if
/// there is no other element. The same on every instruction set.
pub fn argmax(isa: Isa, x: &[f32]) -> Option<usize> {
    let best = crate::entry::dispatch!(isa, largest(x));
    x.iter().position(|&value| value == best)
}

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

/// See [`logsumexp`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_agree_with_f64_on_every_instruction_set() {
        for isa in Isa::supported() {
            for n in [1, 2, 15, 16, 17, 1000, 4096, 4097, 40_000] {
                let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1009) as f32 * 0.03 - 12.0).collect();
                let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = x.iter().map(|&v| f64::from(v - max).exp()).sum();
                let want = f64::from(max) + sum.ln();
                assert!((f64::from(logsumexp(isa, &x)) - want).abs() < 3e-6, "{isa} {n}");
                assert_eq!(argmax(isa, &x), x.iter().position(|&v| v == max), "{isa} {n}");
            }
            assert_eq!(argmax(isa, &[]), None);
            assert_eq!(argmax(isa, &[f32::NAN]), None);
            assert_eq!(argmax(isa, &[f32::NAN, 1.0, 3.0, 3.0, f32::NAN]), Some(2));
            assert_eq!(argmax(isa, &[f32::NEG_INFINITY; 3]), Some(0));
            assert_eq!(logsumexp(isa, &[]), f32::NEG_INFINITY);
            assert_eq!(logsumexp(isa, &[f32::NEG_INFINITY; 20]), f32::NEG_INFINITY);
            assert_eq!(logsumexp(isa, &[f32::NEG_INFINITY, 2.0]), 2.0);
            assert!(logsumexp(isa, &[1.0, f32::NAN]).is_nan());
        }
    }
}
