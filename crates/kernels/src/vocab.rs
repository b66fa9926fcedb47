//! The likeliest token and the logarithm of the sum over a row of logits: one value for a logprob, whatever computed it.
//! Must not know: sampling parameters.

use crate::entry::dispatch;
use crate::flush::FlushGuard;
use crate::isa::Isa;

/// ln Σ exp(xᵢ). Minus infinity for an empty slice; NaN if any element is NaN. Bits depend on `isa` only.
pub fn logsumexp(isa: Isa, x: &[f32]) -> f32 {
    let _flush = FlushGuard::new();
    dispatch!(isa, logsumexp(x))
}

/// The index of the largest element, the lowest such index on ties. NaN elements are never chosen; `None` if
/// there is no other element. The same on every instruction set.
pub fn argmax(isa: Isa, x: &[f32]) -> Option<usize> {
    let best = dispatch!(isa, largest(x));
    x.iter().position(|&value| value == best)
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
