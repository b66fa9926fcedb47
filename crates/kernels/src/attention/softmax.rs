//! Softmax in pieces: the weights of one split of a row, and the merge of a split into the splits before it (Milakov
//! and Gimelshein 2018, arXiv 1805.02867). Scores are in units of log₂, so that no exponential with base e is needed.
//! Must not know: keys, values, blocks.

use crate::shapes::LANES;
use crate::simd::{self, ROUND, Simd};

/// Smaller exponents are raised to this one, because their weights would be denormal. The largest weight of a split
/// is 1, so such a weight changes no sum.
const LEAST_EXPONENT: f32 = -126.0;
/// (2ʳ − 1)/r for |r| ≤ 1/2, highest power first (Cephes `exp2f`).
const EXP2_POLY: [f32; 6] =
    [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 0.240_226_48, std::f32::consts::LN_2];

/// Returns 2ˣ for x ≤ 0 or NaN, 16 lanes at a time. Exactly 1 for 0. The error is below 2 units in the last place.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp2<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        // This order of operands preserves a NaN.
        let x = S::max(S::splat(LEAST_EXPONENT), x);
        let t = S::add(x, S::splat(ROUND));
        let n = S::sub(t, S::splat(ROUND));
        let r = S::sub(x, n);
        let mut p = S::splat(EXP2_POLY[0]);
        for &coefficient in &EXP2_POLY[1..] {
            p = S::fma(p, r, S::splat(coefficient));
        }
        S::times_power_of_two(S::fma(p, r, S::splat(1.0)), n, t)
    }
}

/// The maximum of a row's scores in one split, and the sum of 2^(score − maximum).
#[derive(Clone, Copy)]
pub(crate) struct Peak {
    pub(crate) max: f32,
    pub(crate) sum: f32,
}

/// Where to find the scales of the 16 keys and 16 values of each block.
#[derive(Clone, Copy)]
pub(crate) struct Scales<'a> {
    /// The blocks of the split.
    pub(crate) blocks: &'a [*const u8],
    /// `None` if the scores have their keys' scales already.
    pub(crate) key_offset: Option<usize>,
    pub(crate) value_offset: usize,
}

impl Scales<'_> {
    /// The scales of the blocks after the first `skipped` ones.
    pub(crate) fn after(self, skipped: usize) -> Self {
        Self { blocks: self.blocks.get(skipped..).unwrap_or(&[]), ..self }
    }
}

/// Replaces the first `keys` (at least one) scores of a row by 2^(score − maximum). With scales, each score is first
/// multiplied by its key's scale, and each resulting weight by its value's scale. The returned sum covers the weights
/// without value scales. The elements after the first `keys`, up to a whole vector, are unspecified before and after.
///
/// # Safety
/// As for [`Simd`]. The blocks exist and have scales.
#[inline(always)]
pub(crate) unsafe fn weights<S: Simd>(scores: &mut [f32], keys: usize, scales: Option<Scales<'_>>) -> Peak {
    let padded = keys.next_multiple_of(LANES);
    let scale = |chunk: usize, offset: fn(&Scales<'_>) -> Option<usize>| {
        let scales = scales.as_ref()?;
        Some(scales.blocks[chunk].wrapping_add(offset(scales)?).cast::<f32>())
    };
    // SAFETY: the caller's contract; every load and store is of a whole chunk, or of a block's 16 scales.
    unsafe {
        if scales.is_some() {
            for (at, chunk) in scores[..padded].as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                if let Some(by) = scale(at, |scales| scales.key_offset) {
                    S::store(chunk.as_mut_ptr(), S::mul(S::load(chunk.as_ptr()), S::load(by)));
                }
            }
        }
        scores[keys..padded].fill(f32::NEG_INFINITY);
        let chunks = scores[..padded].as_chunks_mut::<LANES>().0;
        let mut most = S::splat(f32::NEG_INFINITY);
        for chunk in chunks.iter() {
            // This order of operands skips a NaN. The sum will be NaN instead.
            most = S::max(S::load(chunk.as_ptr()), most);
        }
        let max = largest(simd::lanes::<S>(most));
        let shift = S::splat(max);
        let mut sums = S::splat(0.0);
        for (at, chunk) in chunks.iter_mut().enumerate() {
            let weight = exp2::<S>(S::sub(S::load(chunk.as_ptr()), shift));
            sums = S::add(sums, weight);
            let left = match scale(at, |scales| Some(scales.value_offset)) {
                Some(by) => S::mul(weight, S::load(by)),
                None => weight,
            };
            S::store(chunk.as_mut_ptr(), left);
        }
        Peak { max, sum: simd::sum::<S>(sums) }
    }
}

/// Caps the first `keys` scores of a row: `cap · tanh(score / cap)`. With scales, each score is first multiplied by its
/// key's scale. Scores and cap are in units of log₂.
///
/// # Safety
/// As for [`weights`].
#[inline(always)]
pub(crate) unsafe fn cap<S: Simd>(scores: &mut [f32], keys: usize, cap: f32, scales: Option<Scales<'_>>) {
    let chunks = scores[..keys.next_multiple_of(LANES)].as_chunks_mut::<LANES>().0;
    for (at, chunk) in chunks.iter_mut().enumerate() {
        let scale =
            scales.and_then(|scales| Some(scales.blocks[at].wrapping_add(scales.key_offset?).cast::<f32>()));
        // SAFETY: the caller's contract; every load and store is of a whole chunk, or of a block's 16 scales.
        unsafe {
            let mut x = S::load(chunk.as_ptr());
            if let Some(scale) = scale {
                x = S::mul(x, S::load(scale));
            }
            // tanh(y) = 2·σ(2y) − 1.
            let twice = S::mul(S::div(x, S::splat(cap)), S::splat(-2.0));
            let sigmoid = S::div(S::splat(2.0), S::add(S::splat(1.0), simd::exp::<S>(twice)));
            S::store(chunk.as_mut_ptr(), S::mul(S::sub(sigmoid, S::splat(1.0)), S::splat(cap)));
        }
    }
}

/// Adds a score without a value to a row: rescales the weighted values if the score is the largest, and returns the sum
/// to divide by.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn with_sink<S: Simd>(merged: &mut [f32], peak: Peak, sink: f32) -> f32 {
    let max = if sink > peak.max { sink } else { peak.max };
    // SAFETY: the caller's contract; every load and store is of a whole chunk.
    unsafe {
        let old = exp2::<S>(S::splat(peak.max - max));
        for chunk in merged.as_chunks_mut::<LANES>().0 {
            S::store(chunk.as_mut_ptr(), S::mul(S::load(chunk.as_ptr()), old));
        }
        let sum = S::fma(S::splat(peak.sum), old, exp2::<S>(S::splat(sink - max)));
        simd::lanes::<S>(sum)[0]
    }
}

/// Returns the largest of 16 values by a tree. None of them is NaN.
#[inline(always)]
fn largest(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] { lanes[i + width] } else { lanes[i] };
        }
        width /= 2;
    }
    lanes[0]
}

/// Merges a row's weighted values of one split (`split`) into those of the splits before it. Returns the combined
/// peak. Both slices have the same length, a multiple of a vector.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn merge<S: Simd>(
    merged: &mut [f32],
    before: Option<Peak>,
    split: &[f32],
    now: Peak,
) -> Peak {
    let Some(before) = before else {
        merged.copy_from_slice(split);
        return now;
    };
    let max = if now.max > before.max { now.max } else { before.max };
    let (merged, split) = (merged.as_chunks_mut::<LANES>().0, split.as_chunks::<LANES>().0);
    // SAFETY: the caller's contract; every load and store is of a whole chunk.
    unsafe {
        let old = exp2::<S>(S::splat(before.max - max));
        let new = exp2::<S>(S::splat(now.max - max));
        for (merged, split) in merged.iter_mut().zip(split) {
            let part = S::mul(S::load(split.as_ptr()), new);
            S::store(merged.as_mut_ptr(), S::fma(S::load(merged.as_ptr()), old, part));
        }
        let sum = S::fma(S::splat(before.sum), old, S::mul(S::splat(now.sum), new));
        Peak { max, sum: simd::lanes::<S>(sum)[0] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Scalar;

    #[test]
    fn exp2_is_within_two_units_in_the_last_place() {
        let at = |x: f32| {
            // SAFETY: plain Rust lanes.
            unsafe { simd::lanes::<Scalar>(exp2::<Scalar>(Scalar::splat(x)))[0] }
        };
        let (mut x, mut worst) = (-125.5_f32, 0.0_f64);
        while x <= 0.0 {
            let (got, want) = (f64::from(at(x)), f64::from(x).exp2());
            let unit = f64::from(f32::EPSILON) * 2.0_f64.powf(want.log2().floor());
            worst = worst.max((got - want).abs() / unit);
            x += 0.000_917;
        }
        assert!(worst < 2.0, "{worst} units in the last place");
        assert_eq!((at(0.0), at(-1.0), at(-100.0)), (1.0, 0.5, (-100.0_f32).exp2()));
        assert_eq!(at(f32::NEG_INFINITY), 2.0_f32.powi(-126));
        assert!(at(f32::NAN).is_nan());
    }
}
