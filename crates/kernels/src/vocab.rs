//! Finds the likeliest token in a row of logits and computes its log-sum-exp. All code uses these, so a
//! log-probability has one value.
//! Must not know: sampling parameters.

use crate::entry::dispatch;
use crate::flush::FlushGuard;
use crate::isa::Isa;

/// Returns ln Σ exp(xᵢ): minus infinity for an empty slice, NaN if any element is NaN. The bits depend on `isa` only.
pub fn logsumexp(isa: Isa, x: &[f32]) -> f32 {
    let _flush = FlushGuard::new();
    dispatch!(isa, logsumexp(x))
}

/// Returns the index of the largest element, the lowest such index on ties. NaN elements are never chosen. `None` if
/// there is no other element. The result is the same on every instruction set.
pub fn argmax(isa: Isa, x: &[f32]) -> Option<usize> {
    let best = dispatch!(isa, largest(x));
    x.iter().position(|&value| value == best)
}

/// Returns the index of the largest allowed element, the lowest such index on ties. Element `i` is allowed if bit
/// `i % 32` of `allowed[i / 32]` is set. NaN elements are never chosen. `None` if no allowed element is above minus
/// infinity. The result is the same on every instruction set.
pub fn argmax_allowed(isa: Isa, x: &[f32], allowed: &[u32]) -> Option<usize> {
    dispatch!(isa, largest_allowed(x, allowed))
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

    #[test]
    fn the_largest_that_is_allowed_is_the_largest_without_the_others_on_every_instruction_set() {
        let mut state = 7_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        // Few distinct values, so that many elements are equal. They include zeros of both signs.
        let values = [-2.0, -0.0, 0.0, 1.5, 3.0, f32::NEG_INFINITY, f32::NAN];
        let mut found = 0;
        for round in 0..2_000 {
            let size = next(if round % 10 == 0 { 5_000 } else { 200 });
            let kinds = 1 + next(values.len());
            let x: Vec<f32> = (0..size).map(|_| values[next(kinds)]).collect();
            let words = [0, 0, u32::MAX, 0x8000_0001, 1 << next(32), next(1 << 31) as u32];
            let allowed: Vec<u32> = (0..next(size / 32 + 3)).map(|_| words[next(words.len())]).collect();
            let is_allowed = |at: usize| allowed.get(at / 32).is_some_and(|word| word >> (at % 32) & 1 == 1);
            let left = |at: &usize| is_allowed(*at) && x[*at] > f32::NEG_INFINITY;
            let want = (0..size).filter(left).reduce(|best, at| if x[at] > x[best] { at } else { best });
            for isa in Isa::supported() {
                assert_eq!(argmax_allowed(isa, &x, &allowed), want, "{isa} {x:?} {allowed:x?}");
            }
            found += usize::from(want.is_some());
        }
        assert!(found > 1_000, "{found}");
    }
}
