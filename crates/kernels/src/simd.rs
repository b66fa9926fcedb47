//! Sixteen f32 lanes, the same on every instruction set, so that each kernel is written once.
//! Must not know: what a kernel computes. `Scalar` is the reference. The other instruction sets are in `simd_x86` and
//! `simd_neon`.

use crate::shapes::LANES;

/// exp is exactly zero below this argument (the result would be denormal) and infinite above [`EXP_HIGH`].
pub(crate) const EXP_LOW: f32 = -87.336_54;
/// The largest argument whose exp is finite.
pub(crate) const EXP_HIGH: f32 = 88.722_83;
/// 1.5·2²³. Adding it rounds to an integer, which is then in the low mantissa bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// The vector operations of one instruction set.
///
/// # Safety
/// Every method needs a processor with the instruction set, and must be inlined into a function compiled for it.
/// Pointers must be valid for the 16 elements that a load or store accesses. `entry` ensures the first two
/// conditions.
pub(crate) trait Simd: Copy + 'static {
    /// 16 f32 lanes.
    type V: Copy;
    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(at: *const f32) -> Self::V;
    unsafe fn store(at: *mut f32, value: Self::V);
    unsafe fn load_bf16(at: *const u16) -> Self::V;
    unsafe fn load_f16(at: *const u16) -> Self::V;
    unsafe fn load_i8(at: *const i8) -> Self::V;
    /// Loads 16 bf16, every second one starting at `at`.
    unsafe fn low_bf16(at: *const u16) -> Self::V;
    /// Loads 16 bf16, every second one starting at `at + 1`. Reads the same 32 elements as [`Simd::low_bf16`].
    unsafe fn high_bf16(at: *const u16) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a·b + c`, fused if the instruction set has a fused multiply-add.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger value. `b` if either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller value. `b` if either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `p · 2ⁿ` with `t = n + ROUND`. Zero if `x < EXP_LOW`, infinite if `x > EXP_HIGH`, `x` if `x` is NaN.
    unsafe fn exp_scale(p: Self::V, t: Self::V, x: Self::V) -> Self::V;
    /// `p · 2ⁿ` with `t = n + ROUND` and −126 ≤ n ≤ 0. `p` if `p` is NaN.
    unsafe fn times_power_of_two(p: Self::V, n: Self::V, t: Self::V) -> Self::V;
    /// Prefetches the cache line at an address that may lie outside any allocation.
    unsafe fn prefetch(at: *const u8);
}

/// Returns eˣ, 16 lanes at a time. The error is below 2 units in the last place (tested over the whole range).
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let bounded = S::min(S::splat(EXP_HIGH), S::max(S::splat(EXP_LOW), x));
        let t = S::fma(bounded, S::splat(std::f32::consts::LOG2_E), S::splat(ROUND));
        let n = S::sub(t, S::splat(ROUND));
        let r = S::fma(n, S::splat(-LN2_HIGH), bounded);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let mut p = S::splat(EXP_POLY[0]);
        for &coefficient in &EXP_POLY[1..] {
            p = S::fma(p, r, S::splat(coefficient));
        }
        let p = S::add(S::fma(S::mul(r, r), p, r), S::splat(1.0));
        S::exp_scale(p, t, x)
    }
}

/// ln 2 in two parts. The first has 9 bits, so that its product with n is exact.
pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
/// The rest of ln 2.
pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
/// (eʳ − 1 − r)/r² for |r| ≤ ln 2 / 2, highest power first (Cephes `expf`).
pub(crate) const EXP_POLY: [f32; 6] =
    [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.500_000_06];

/// Returns the lanes of a vector as an array.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn lanes<S: Simd>(value: S::V) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    // SAFETY: the caller's contract; `out` has 16 elements.
    unsafe { S::store(out.as_mut_ptr(), value) };
    out
}

/// Loads the first lanes from a slice (at most 16). The other lanes are `fill`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn load_part<S: Simd>(from: &[f32], fill: f32) -> S::V {
    let mut lanes = [fill; LANES];
    for (lane, &value) in lanes.iter_mut().zip(from) {
        *lane = value;
    }
    // SAFETY: the caller's contract; `lanes` has 16 elements.
    unsafe { S::load(lanes.as_ptr()) }
}

/// Returns the sum of the lanes, by one fixed tree.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn sum<S: Simd>(value: S::V) -> f32 {
    // SAFETY: the caller's contract.
    let mut v = unsafe { lanes::<S>(value) };
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            v[i] += v[i + width];
        }
        width /= 2;
    }
    v[0]
}

/// Returns the largest lane. NaN lanes are skipped.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn largest<S: Simd>(value: S::V) -> f32 {
    // SAFETY: the caller's contract.
    let v = unsafe { lanes::<S>(value) };
    v.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Widens an f16 bit pattern to f32. No intermediate value is a denormal f32, because a thread that flushes denormals
/// would lose it.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let mantissa = u32::from(bits & 0x3ff);
    let magnitude = match exponent {
        0 => (mantissa as f32 * (1.0 / 16_777_216.0)).to_bits(),
        31 => 0x7f80_0000 | (mantissa << 13),
        _ => ((exponent + 112) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// Widens a bf16 bit pattern to f32.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Sixteen lanes in plain Rust: the reference, and the fallback for processors without a specific implementation.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

macro_rules! lanewise {
    ($name:ident($($arg:ident),*) = |$($x:ident),*| $body:expr) => {
        #[inline(always)]
        unsafe fn $name($($arg: [f32; LANES]),*) -> [f32; LANES] {
            std::array::from_fn(|i| { $(let $x = $arg[i];)* $body })
        }
    };
}

impl Simd for Scalar {
    type V = [f32; LANES];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self::V {
        // SAFETY: the caller provides 16 readable elements. No alignment is assumed.
        unsafe { at.cast::<Self::V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(at: *mut f32, value: Self::V) {
        // SAFETY: the caller provides 16 writable elements. No alignment is assumed.
        unsafe { at.cast::<Self::V>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> Self::V {
        // SAFETY: the caller provides 16 readable elements. No alignment is assumed.
        unsafe { at.cast::<[u16; LANES]>().read_unaligned() }.map(bf16_to_f32)
    }

    #[inline(never)]
    unsafe fn load_f16(at: *const u16) -> Self::V {
        // SAFETY: the caller provides 16 readable elements. No alignment is assumed.
        unsafe { at.cast::<[u16; LANES]>().read_unaligned() }.map(f16_to_f32)
    }

    #[inline(always)]
    unsafe fn low_bf16(at: *const u16) -> Self::V {
        // SAFETY: the caller provides 32 readable elements.
        let pairs = unsafe { at.cast::<[[u16; 2]; LANES]>().read_unaligned() };
        pairs.map(|pair| bf16_to_f32(pair[0]))
    }

    #[inline(always)]
    unsafe fn high_bf16(at: *const u16) -> Self::V {
        // SAFETY: the caller provides 32 readable elements.
        let pairs = unsafe { at.cast::<[[u16; 2]; LANES]>().read_unaligned() };
        pairs.map(|pair| bf16_to_f32(pair[1]))
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const i8) -> Self::V {
        // SAFETY: the caller provides 16 readable elements.
        unsafe { at.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }

    lanewise!(add(a, b) = |x, y| x + y);
    lanewise!(sub(a, b) = |x, y| x - y);
    lanewise!(mul(a, b) = |x, y| x * y);
    lanewise!(div(a, b) = |x, y| x / y);
    lanewise!(fma(a, b, c) = |x, y, z| x * y + z);
    lanewise!(max(a, b) = |x, y| if x > y { x } else { y });
    lanewise!(min(a, b) = |x, y| if x < y { x } else { y });
    lanewise!(exp_scale(p, t, x) = |pp, tt, xx| scale_by_power(pp, tt, xx));
    lanewise!(times_power_of_two(p, _n, t) = |pp, _nn, tt| pp * power_of_two(tt));

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
}

/// Returns 2ⁿ with `t = n + ROUND`, if 2ⁿ is a normal number. Unspecified for other `t`.
#[inline(always)]
fn power_of_two(t: f32) -> f32 {
    f32::from_bits(t.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23)
}

/// One lane of [`Simd::exp_scale`].
#[inline(always)]
pub(crate) fn scale_by_power(p: f32, t: f32, x: f32) -> f32 {
    if x < EXP_LOW {
        0.0
    } else if x > EXP_HIGH {
        f32::INFINITY
    } else if x.is_nan() {
        x
    } else {
        let n = t.to_bits().wrapping_sub(ROUND.to_bits());
        f32::from_bits(p.to_bits().wrapping_add(n << 23))
    }
}
