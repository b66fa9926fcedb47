//! Products of bf16 pairs: AVX-512's dedicated instruction, or two f32 multiply-adds on other processors.
//! Must not know: how a product is cut.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::simd::{Scalar, Simd};
#[cfg(target_arch = "aarch64")]
use crate::simd_neon::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd_x86::{Avx2, Avx512};

/// The pair product of one instruction set.
///
/// # Safety
/// As for [`Simd`].
pub(crate) trait Pairs: Copy + 'static {
    /// The matching f32 lanes.
    type F: Simd;
    /// Two weights for each of 16 outputs.
    type W: Copy;

    unsafe fn load(at: *const u8) -> Self::W;
    /// Returns `sum + w₀·x₀ + w₁·x₁`. Both x are in the word at `x`.
    unsafe fn dot(sum: <Self::F as Simd>::V, weights: Self::W, x: *const u32) -> <Self::F as Simd>::V;
}

/// The implementation with two f32 multiply-adds, for instruction sets without an instruction for pairs.
macro_rules! widened {
    ($name:ty) => {
        type F = $name;
        type W = (<$name as Simd>::V, <$name as Simd>::V);

        #[inline(always)]
        unsafe fn load(at: *const u8) -> Self::W {
            // SAFETY: the caller's contract: 32 readable bf16.
            unsafe { (<$name>::low_bf16(at.cast()), <$name>::high_bf16(at.cast())) }
        }

        #[inline(always)]
        unsafe fn dot(sum: <$name as Simd>::V, weights: Self::W, x: *const u32) -> <$name as Simd>::V {
            // SAFETY: the caller's contract: one readable word.
            unsafe {
                let word = x.read_unaligned();
                let first = <$name>::splat(f32::from_bits(word << 16));
                let second = <$name>::splat(f32::from_bits(word & 0xffff_0000));
                <$name>::fma(second, weights.1, <$name>::fma(first, weights.0, sum))
            }
        }
    };
}

impl Pairs for Scalar {
    widened!(Scalar);
}

#[cfg(target_arch = "aarch64")]
impl Pairs for Neon {
    widened!(Neon);
}

#[cfg(target_arch = "x86_64")]
impl Pairs for Avx2 {
    widened!(Avx2);
}

#[cfg(target_arch = "x86_64")]
impl Pairs for Avx512 {
    widened!(Avx512);
}

/// AVX-512 with BF16.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Bf16Dot;

#[cfg(target_arch = "x86_64")]
impl Pairs for Bf16Dot {
    type F = Avx512;
    type W = __m512i;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract: 64 readable bytes.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn dot(sum: __m512, weights: __m512i, x: *const u32) -> __m512 {
        // SAFETY: the trait's contract: one readable word. Each vector holds 32 bf16.
        unsafe {
            let x = _mm512_set1_epi32(x.read_unaligned().cast_signed());
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512i, __m512bh>(weights),
                std::mem::transmute::<__m512i, __m512bh>(x),
            )
        }
    }
}
