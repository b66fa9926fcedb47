//! Operations on one row of activations: norms, rotary positions, SiLU·mul.
//! Must not know: threads, or the number of rows. Each operation reduces over its own row only, in one fixed order.

use crate::shapes::LANES;
use crate::simd::{self, Simd};

/// `out = x / √(mean(x²) + eps) · weight` (Zhang and Sennrich 2019, arXiv 1910.07467).
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn rms_norm<S: Simd>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    // SAFETY: the caller's contract.
    let scale = unsafe { inverse_rms::<S>(x, eps) };
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn inverse_rms<S: Simd>(x: &[f32], eps: f32) -> f32 {
    // SAFETY: the caller's contract.
    let sum = unsafe { sum_of_squares::<S>(x) };
    1.0 / (sum / x.len() as f32 + eps).sqrt()
}

/// Returns the sum of the squares of all elements.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn sum_of_squares<S: Simd>(x: &[f32]) -> f32 {
    // SAFETY: the caller's contract; every load is of a whole chunk.
    unsafe {
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut sums = S::splat(0.0);
        for chunk in chunks {
            let value = S::load(chunk.as_ptr());
            sums = S::fma(value, value, sums);
        }
        let value = simd::load_part::<S>(rest, 0.0);
        simd::sum::<S>(S::fma(value, value, sums))
    }
}

/// `out = (x − mean) / √(variance + eps) · weight + bias` (Ba, Kiros and Hinton 2016, arXiv 1607.06450). An empty
/// `bias` means no bias. A second pass computes the variance from the differences to the mean.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn layer_norm<S: Simd>(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    // SAFETY: the caller's contract.
    let (mean, scale) = unsafe { moments::<S>(x, eps) };
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x - mean) * scale * weight;
    }
    for (out, &bias) in out.iter_mut().zip(bias) {
        *out += bias;
    }
}

/// Returns the mean of `x`, and `1 / √(variance + eps)`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn moments<S: Simd>(x: &[f32], eps: f32) -> (f32, f32) {
    let (chunks, rest) = x.as_chunks::<LANES>();
    // SAFETY: the caller's contract; every load is of a whole chunk.
    unsafe {
        let mut sums = S::splat(0.0);
        for chunk in chunks {
            sums = S::add(sums, S::load(chunk.as_ptr()));
        }
        let sum = simd::sum::<S>(S::add(sums, simd::load_part::<S>(rest, 0.0)));
        let mean = sum / x.len() as f32;
        let mut squares = S::splat(0.0);
        for chunk in chunks {
            let apart = S::sub(S::load(chunk.as_ptr()), S::splat(mean));
            squares = S::fma(apart, apart, squares);
        }
        let apart = S::sub(simd::load_part::<S>(rest, mean), S::splat(mean));
        let variance = simd::sum::<S>(S::fma(apart, apart, squares)) / x.len() as f32;
        (mean, 1.0 / (variance + eps).sqrt())
    }
}

/// The statistics that a norm divides by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowNorm {
    /// Root mean square.
    Rms,
    /// Mean and variance.
    Layer,
}

/// Normalizes `x` in place, without a bias. Same bits as [`rms_norm`] and [`layer_norm`].
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn norm_in_place<S: Simd>(kind: RowNorm, x: &mut [f32], weight: &[f32], eps: f32) {
    // SAFETY: the caller's contract.
    let (mean, scale) = unsafe {
        match kind {
            RowNorm::Rms => (0.0, inverse_rms::<S>(x, eps)),
            RowNorm::Layer => moments::<S>(x, eps),
        }
    };
    for (x, &weight) in x.iter_mut().zip(weight) {
        *x = (*x - mean) * scale * weight;
    }
}

/// The operations to apply to each query or key head of one row.
#[derive(Clone, Copy)]
pub(crate) struct HeadRow<'a> {
    /// RMSNorm weights over the head, if the architecture has them.
    pub(crate) norm: Option<&'a [f32]>,
    /// The norm's epsilon.
    pub(crate) eps: f32,
    /// cos of the angles at this row's position, as many as there are pairs.
    pub(crate) cos: &'a [f32],
    /// sin of the same angles.
    pub(crate) sin: &'a [f32],
}

/// Normalizes a head if `row` has norm weights, then rotates its first elements. The pairs are (i, i + half), as in
/// Hugging Face checkpoints, where `half` is the number of angles.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn rope_head<S: Simd>(head: &mut [f32], row: &HeadRow<'_>) {
    if let Some(weight) = row.norm {
        // SAFETY: the caller's contract.
        let scale = unsafe { inverse_rms::<S>(head, row.eps) };
        for (value, &weight) in head.iter_mut().zip(weight) {
            *value = *value * scale * weight;
        }
    }
    let (low, high) = head.split_at_mut(row.cos.len());
    for (((low, high), &cos), &sin) in low.iter_mut().zip(high).zip(row.cos).zip(row.sin) {
        let (a, b) = (*low, *high);
        *low = a * cos - b * sin;
        *high = b * cos + a * sin;
    }
}

/// `out = gate / (1 + e^−gate) · up`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn silu_mul<S: Simd>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    // SAFETY: the caller's contract; every load and store is of a whole chunk.
    unsafe {
        let (gates, gate_rest) = gate.as_chunks::<LANES>();
        let (ups, up_rest) = up.as_chunks::<LANES>();
        let (outs, out_rest) = out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            let value = silu::<S>(S::load(gate.as_ptr()), S::load(up.as_ptr()));
            S::store(out.as_mut_ptr(), value);
        }
        if !gate_rest.is_empty() {
            let value = silu::<S>(simd::load_part::<S>(gate_rest, 0.0), simd::load_part::<S>(up_rest, 0.0));
            for (out, value) in out_rest.iter_mut().zip(simd::lanes::<S>(value)) {
                *out = value;
            }
        }
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn silu<S: Simd>(gate: S::V, up: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let minus = S::sub(S::splat(0.0), gate);
        let divisor = S::add(S::splat(1.0), simd::exp::<S>(minus));
        S::mul(S::div(gate, divisor), up)
    }
}
