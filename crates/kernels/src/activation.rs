//! Elementwise activation functions of encoders. Each element's bits depend on that element alone.
//! Must not know: threads, or the number of rows.

use crate::shapes::LANES;
use crate::simd::{self, Simd};

/// An activation function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x·Φ(x)`, where Φ is the normal distribution (Hendrycks and Gimpel 2016, arXiv 1606.08415). The error is below
    /// 2⁻²⁰ of |x|.
    Gelu,
    /// The approximation of GELU by the hyperbolic tangent.
    GeluTanh,
    /// The approximation of GELU by `x·σ(1.702·x)`.
    QuickGelu,
    /// `x·σ(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
    /// The hyperbolic tangent.
    Tanh,
}

/// `erfc(z) = t·Q(t)·e^(−z²)` with `t = 1/(1 + SLOPE·z)`, z ≥ 0. Q is a Chebyshev fit over 0 ≤ z ≤ 14, highest power
/// first. The fit is within 7e-9 of Q.
const SLOPE: f32 = 0.327;
const ERFC_POLY: [f32; 10] = [
    0.054_891_024,
    -0.308_483_97,
    0.608_034_1,
    -0.530_198,
    0.472_813_7,
    -0.032_464_463,
    0.198_617_48,
    0.167_108_2,
    0.185_222_66,
    0.184_459_25,
];
/// √(2/π).
const TANH_SLOPE: f32 = 0.797_884_6;
const TANH_CUBE: f32 = 0.044_715;
const QUICK_SLOPE: f32 = 1.702;

/// Applies the activation function to every element of `x` in place.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn activate<S: Simd>(kind: Activation, x: &mut [f32]) {
    // SAFETY: the caller's contract; every load and store is of a whole chunk.
    unsafe {
        let (chunks, rest) = x.as_chunks_mut::<LANES>();
        for chunk in chunks {
            S::store(chunk.as_mut_ptr(), of::<S>(kind, S::load(chunk.as_ptr())));
        }
        if !rest.is_empty() {
            let values = simd::lanes::<S>(of::<S>(kind, simd::load_part::<S>(rest, 0.0)));
            for (out, value) in rest.iter_mut().zip(values) {
                *out = value;
            }
        }
    }
}

/// `out = activation(x) · gate`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn gated<S: Simd>(kind: Activation, x: &[f32], gates: &[f32], out: &mut [f32]) {
    out.copy_from_slice(x);
    // SAFETY: the caller's contract.
    unsafe { activate::<S>(kind, out) };
    for (out, &gate) in out.iter_mut().zip(gates) {
        *out *= gate;
    }
}

/// `out = (up + 1) · gate · σ(slope · gate)`, with gates of at most `limit` and ups within plus and minus `limit`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn clamped_gated<S: Simd>(
    gates: &[f32],
    ups: &[f32],
    (limit, slope): (f32, f32),
    out: &mut [f32],
) {
    // This order of operands preserves a NaN.
    let bounded = |gates: &[f32]| -> [f32; LANES] {
        std::array::from_fn(|at| gates.get(at).map_or(0.0, |gate| if *gate > limit { limit } else { *gate }))
    };
    let chunks = out.chunks_mut(LANES).zip(gates.chunks(LANES).zip(ups.chunks(LANES)));
    for (out, (gates, ups)) in chunks {
        let gates = bounded(gates);
        // SAFETY: the caller's contract; the load is of a whole chunk.
        let swish = unsafe {
            let gate = S::load(gates.as_ptr());
            simd::lanes::<S>(sigmoid_times::<S>(gate, S::mul(gate, S::splat(slope))))
        };
        for ((out, swish), up) in out.iter_mut().zip(swish).zip(ups) {
            *out = (up.clamp(-limit, limit) + 1.0) * swish;
        }
    }
}

/// `x = cap · tanh(factor · x / cap)` for every element, or `x = factor · x` without a cap.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn scale_and_cap<S: Simd>(x: &mut [f32], factor: f32, cap: Option<f32>) {
    x.iter_mut().for_each(|x| *x *= factor);
    let Some(cap) = cap else { return };
    x.iter_mut().for_each(|x| *x /= cap);
    // SAFETY: the caller's contract.
    unsafe { activate::<S>(Activation::Tanh, x) };
    x.iter_mut().for_each(|x| *x *= cap);
}

/// `x = x · σ(gate)` for every element.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn sigmoid_gated<S: Simd>(x: &mut [f32], gates: &[f32]) {
    for (x, gates) in x.chunks_mut(LANES).zip(gates.chunks(LANES)) {
        // SAFETY: the caller's contract.
        let values = unsafe {
            let (value, gate) = (simd::load_part::<S>(x, 0.0), simd::load_part::<S>(gates, 0.0));
            simd::lanes::<S>(sigmoid_times::<S>(value, gate))
        };
        for (x, value) in x.iter_mut().zip(values) {
            *x = value;
        }
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn of<S: Simd>(kind: Activation, x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            Activation::Gelu => gelu::<S>(x),
            Activation::GeluTanh => {
                let cubed = S::mul(S::mul(S::mul(x, x), x), S::splat(TANH_CUBE));
                sigmoid_times::<S>(x, S::mul(S::add(x, cubed), S::splat(2.0 * TANH_SLOPE)))
            }
            Activation::QuickGelu => sigmoid_times::<S>(x, S::mul(x, S::splat(QUICK_SLOPE))),
            Activation::Silu => sigmoid_times::<S>(x, x),
            // This order of operands preserves a NaN.
            Activation::Relu => S::max(S::splat(0.0), x),
            Activation::ReluSquared => {
                let positive = S::max(S::splat(0.0), x);
                S::mul(positive, positive)
            }
            // tanh(x) = 2·σ(2x) − 1.
            Activation::Tanh => {
                let twice = sigmoid_times::<S>(S::splat(2.0), S::add(x, x));
                S::sub(twice, S::splat(1.0))
            }
        }
    }
}

/// `x·σ(y)`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn sigmoid_times<S: Simd>(x: S::V, y: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe { S::div(x, S::add(S::splat(1.0), simd::exp::<S>(S::sub(S::splat(0.0), y)))) }
}

/// `max(x, 0) − |x|·erfc(|x|/√2)/2`. This form never subtracts nearly equal numbers, on either side of zero.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn gelu<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let size = S::max(S::sub(S::splat(0.0), x), x);
        let z = S::mul(size, S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let t = S::div(S::splat(1.0), S::fma(z, S::splat(SLOPE), S::splat(1.0)));
        let mut q = S::splat(ERFC_POLY[0]);
        for &coefficient in &ERFC_POLY[1..] {
            q = S::fma(q, t, S::splat(coefficient));
        }
        let decay = simd::exp::<S>(S::mul(S::mul(size, size), S::splat(-0.5)));
        let tail = S::mul(S::mul(S::mul(q, t), decay), S::splat(0.5));
        S::sub(S::max(S::splat(0.0), x), S::mul(size, tail))
    }
}
