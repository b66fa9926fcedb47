//! The sixteen f32 lanes on AVX-512 (one register) and AVX2 (two registers).
//! Must not know: what a kernel computes.

use std::arch::x86_64::*;

use crate::simd::{EXP_HIGH, EXP_LOW, ROUND, Simd};

/// One 512-bit register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

macro_rules! op512 {
    ($name:ident($($arg:ident),*) = $intrinsic:ident) => {
        #[inline(always)]
        unsafe fn $name($($arg: __m512),*) -> __m512 {
            // SAFETY: the trait's contract: the processor has AVX-512.
            unsafe { $intrinsic($($arg),*) }
        }
    };
}

impl Simd for Avx512 {
    type V = __m512;

    op512!(add(a, b) = _mm512_add_ps);
    op512!(sub(a, b) = _mm512_sub_ps);
    op512!(mul(a, b) = _mm512_mul_ps);
    op512!(div(a, b) = _mm512_div_ps);
    op512!(fma(a, b, c) = _mm512_fmadd_ps);
    op512!(max(a, b) = _mm512_max_ps);
    op512!(min(a, b) = _mm512_min_ps);

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> __m512 {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn store(at: *mut f32, value: __m512) {
        // SAFETY: the trait's contract: 16 writable elements.
        unsafe { _mm512_storeu_ps(at, value) }
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> __m512 {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u16) -> __m512 {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn low_bf16(at: *const u16) -> __m512 {
        // SAFETY: the trait's contract: 32 readable elements.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn high_bf16(at: *const u16) -> __m512 {
        // SAFETY: the trait's contract: 32 readable elements.
        unsafe {
            let mask = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(at.cast()), mask))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const i8) -> __m512 {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(p: __m512, n: __m512, _t: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_scalef_ps(p, n) }
    }

    #[inline(always)]
    unsafe fn exp_scale(p: __m512, t: __m512, x: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe {
            let n = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(ROUND.to_bits() as i32));
            let scaled = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32::<23>(n));
            let y = _mm512_castsi512_ps(scaled);
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(EXP_LOW));
            let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, _mm512_set1_ps(EXP_HIGH));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            let y = _mm512_mask_mov_ps(y, below, _mm512_setzero_ps());
            let y = _mm512_mask_mov_ps(y, above, _mm512_set1_ps(f32::INFINITY));
            _mm512_mask_mov_ps(y, nan, x)
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// Two 256-bit registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

macro_rules! op256 {
    ($name:ident($($arg:ident),*) = $intrinsic:ident) => {
        #[inline(always)]
        unsafe fn $name($($arg: (__m256, __m256)),*) -> (__m256, __m256) {
            // SAFETY: the trait's contract: the processor has AVX2 and FMA.
            unsafe { ($intrinsic($($arg.0),*), $intrinsic($($arg.1),*)) }
        }
    };
}

/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn exp_scale_256(p: __m256, t: __m256, x: __m256) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe {
        let n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(ROUND.to_bits() as i32));
        let scaled = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32::<23>(n));
        let y = _mm256_castsi256_ps(scaled);
        let below = _mm256_cmp_ps::<_CMP_LT_OQ>(x, _mm256_set1_ps(EXP_LOW));
        let above = _mm256_cmp_ps::<_CMP_GT_OQ>(x, _mm256_set1_ps(EXP_HIGH));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
        let y = _mm256_blendv_ps(y, _mm256_setzero_ps(), below);
        let y = _mm256_blendv_ps(y, _mm256_set1_ps(f32::INFINITY), above);
        _mm256_blendv_ps(y, x, nan)
    }
}

/// # Safety
/// Needs AVX2 and 8 readable elements.
#[inline(always)]
unsafe fn load_bf16_256(at: *const u16) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
}

/// # Safety
/// Needs AVX2 and 16 readable elements.
#[inline(always)]
unsafe fn low_bf16_256(at: *const u16) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(at.cast()))) }
}

/// # Safety
/// Needs AVX2 and 16 readable elements.
#[inline(always)]
unsafe fn high_bf16_256(at: *const u16) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe {
        let mask = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
        _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(at.cast()), mask))
    }
}

/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn times_power_of_two_256(p: __m256, t: __m256) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe {
        // Multiplies instead of adding exponents, because the bits that a NaN leaves in `t` must not turn it into a
        // number.
        let n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(ROUND.to_bits() as i32 - 127));
        _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n)))
    }
}

impl Simd for Avx2 {
    type V = (__m256, __m256);

    op256!(add(a, b) = _mm256_add_ps);
    op256!(sub(a, b) = _mm256_sub_ps);
    op256!(mul(a, b) = _mm256_mul_ps);
    op256!(div(a, b) = _mm256_div_ps);
    op256!(fma(a, b, c) = _mm256_fmadd_ps);
    op256!(max(a, b) = _mm256_max_ps);
    op256!(min(a, b) = _mm256_min_ps);
    op256!(exp_scale(p, t, x) = exp_scale_256);

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { (_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self::V {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe { (_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(at: *mut f32, value: Self::V) {
        // SAFETY: the trait's contract: 16 writable elements.
        unsafe {
            _mm256_storeu_ps(at, value.0);
            _mm256_storeu_ps(at.add(8), value.1);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> Self::V {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe { (load_bf16_256(at), load_bf16_256(at.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u16) -> Self::V {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe {
            (_mm256_cvtph_ps(_mm_loadu_si128(at.cast())), _mm256_cvtph_ps(_mm_loadu_si128(at.add(8).cast())))
        }
    }

    #[inline(always)]
    unsafe fn low_bf16(at: *const u16) -> Self::V {
        // SAFETY: the trait's contract: 32 readable elements.
        unsafe { (low_bf16_256(at), low_bf16_256(at.add(16))) }
    }

    #[inline(always)]
    unsafe fn high_bf16(at: *const u16) -> Self::V {
        // SAFETY: the trait's contract: 32 readable elements.
        unsafe { (high_bf16_256(at), high_bf16_256(at.add(16))) }
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const i8) -> Self::V {
        // SAFETY: the trait's contract: 16 readable elements.
        unsafe {
            let bytes = _mm_loadu_si128(at.cast());
            let (low, high) = (_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes)));
            (_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(p: Self::V, _n: Self::V, t: Self::V) -> Self::V {
        // SAFETY: the trait's contract.
        unsafe { (times_power_of_two_256(p.0, t.0), times_power_of_two_256(p.1, t.1)) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
