//! The integer lanes on AVX-512 with VNNI (one register) and on AVX2 (two registers), with and without AVX-VNNI.
//! Must not know: block formats or products.

use std::arch::x86_64::*;

use crate::quantized_group::{self, QuantizedGroup};
use crate::shapes::GROUP;
use crate::simd_int::{E4M3_BIAS, E4M3_NORMAL, Ints};
use crate::simd_x86::{Avx2, Avx512};

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Vnni512;

impl Ints for Vnni512 {
    type F = Avx512;
    type I = __m512i;
    type B = __m512i;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn splat(value: i32) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn splat_at(at: *const i32) -> __m512i {
        // SAFETY: the trait's contract: one readable integer.
        unsafe { _mm512_set1_epi32(at.read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn shift_left<const SHIFT: u32>(value: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_slli_epi32::<SHIFT>(value) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn to_f32(value: __m512i) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtepi32_ps(value) }
    }

    #[inline(always)]
    unsafe fn widen_u8(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract: 16 readable bytes.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn widen_i8(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract: 16 readable bytes.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract: 64 readable bytes.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn store(at: *mut u8, bytes: __m512i) {
        // SAFETY: the trait's contract: room for 64 bytes.
        unsafe { _mm512_storeu_si512(at.cast(), bytes) }
    }

    #[inline(always)]
    unsafe fn low_nibbles(bytes: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_and_si512(bytes, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    unsafe fn high_nibbles(bytes: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    unsafe fn look_up(bytes: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: the trait's contract. The table has 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, bytes)
        }
    }

    #[inline(always)]
    unsafe fn add_bit_plane(bytes: __m512i, plane: *const u8) -> __m512i {
        // SAFETY: the trait's contract: 8 readable bytes.
        unsafe {
            let bits = plane.cast::<u64>().read_unaligned();
            _mm512_mask_add_epi8(bytes, bits, bytes, _mm512_set1_epi8(16))
        }
    }

    #[inline(always)]
    unsafe fn add_pair_plane<const PAIR: u32>(bytes: __m512i, plane: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let moved = match PAIR {
                0 => _mm512_slli_epi16::<4>(plane),
                1 => _mm512_slli_epi16::<2>(plane),
                2 => plane,
                _ => _mm512_srli_epi16::<2>(plane),
            };
            _mm512_or_si512(bytes, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)))
        }
    }

    #[inline(always)]
    unsafe fn byte<const BYTE: u32>(bytes: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe {
            let moved = match BYTE {
                0 => bytes,
                1 => _mm512_srli_epi32::<8>(bytes),
                2 => _mm512_srli_epi32::<16>(bytes),
                _ => _mm512_srli_epi32::<24>(bytes),
            };
            _mm512_and_si512(moved, _mm512_set1_epi32(255))
        }
    }

    #[inline(always)]
    unsafe fn e4m3(codes: __m512i) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe {
            let magnitude = _mm512_slli_epi32::<20>(_mm512_and_si512(codes, _mm512_set1_epi32(0x7F)));
            let t = _mm512_castsi512_ps(_mm512_add_epi32(magnitude, _mm512_set1_epi32(E4M3_BIAS)));
            let other = _mm512_fmsub_ps(t, _mm512_set1_ps(2.0), _mm512_set1_ps(E4M3_NORMAL));
            let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(codes, _mm512_set1_epi32(0x80)));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(_mm512_min_ps(t, other)), sign))
        }
    }

    #[inline(always)]
    unsafe fn dot<const WIDE: bool>(sums: __m512i, codes: __m512i, x: *const i32) -> __m512i {
        // SAFETY: the trait's contract: one readable word.
        unsafe { _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(x.read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn quantize(x: &[f32; GROUP]) -> QuantizedGroup {
        // SAFETY: the trait's contract. Both halves of the group and of its codes have 16 elements.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16)));
            let (a, b) = (_mm512_abs_ps(low), _mm512_abs_ps(high));
            // Values that are not below infinity are infinite or NaN.
            let limit = _mm512_set1_ps(f32::INFINITY);
            let wild =
                _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, limit) | _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(b, limit);
            if wild != 0 {
                return QuantizedGroup { codes: [0; GROUP], scale: f32::NAN, sums: [0; 2] };
            }
            let (scale, inverse) = quantized_group::scale_of(_mm512_reduce_max_ps(_mm512_max_ps(a, b)));
            let inverse = _mm512_set1_ps(inverse);
            let low = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
            let high = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
            let mut codes = [0_i8; GROUP];
            _mm_storeu_si128(codes.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(low));
            _mm_storeu_si128(codes.as_mut_ptr().add(16).cast(), _mm512_cvtsepi32_epi8(high));
            let sums = [_mm512_reduce_add_epi32(low), _mm512_reduce_add_epi32(high)];
            QuantizedGroup { codes, scale, sums }
        }
    }
}

/// AVX2 with AVX-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Vnni256;

/// One of the two registers of a vector.
type Half = __m256i;

/// # Safety
/// Needs AVX2 and AVX-VNNI.
#[inline(always)]
unsafe fn dot_vnni(sums: Half, codes: Half, x: Half) -> Half {
    // SAFETY: the caller's contract.
    unsafe { _mm256_dpbusd_avx_epi32(sums, codes, x) }
}

/// Computes the same sums without VNNI. Pairs of products are added as saturating i16. Codes of up to 63 cannot reach
/// the limit. Wider codes are split at bit 7.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn dot_plain<const WIDE: bool>(sums: Half, codes: Half, x: Half) -> Half {
    // SAFETY: the caller's contract.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let high = _mm256_set1_epi8(-128);
        let low = if WIDE { _mm256_andnot_si256(high, codes) } else { codes };
        let sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(low, x), ones));
        if !WIDE {
            return sums;
        }
        let top = _mm256_maddubs_epi16(_mm256_and_si256(codes, high), x);
        _mm256_add_epi32(sums, _mm256_madd_epi16(top, ones))
    }
}

macro_rules! two_registers {
    ($name:ty, |$sums:ident, $codes:ident, $x:ident| $dot:expr) => {
        impl Ints for $name {
            type F = Avx2;
            type I = (Half, Half);
            type B = (Half, Half);

            #[inline(always)]
            unsafe fn zero() -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { (_mm256_setzero_si256(), _mm256_setzero_si256()) }
            }

            #[inline(always)]
            unsafe fn splat(value: i32) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { (_mm256_set1_epi32(value), _mm256_set1_epi32(value)) }
            }

            #[inline(always)]
            unsafe fn splat_at(at: *const i32) -> Self::I {
                // SAFETY: the trait's contract: one readable integer.
                let value = unsafe { _mm256_set1_epi32(at.read_unaligned()) };
                (value, value)
            }

            #[inline(always)]
            unsafe fn shift_left<const SHIFT: u32>(value: Self::I) -> Self::I {
                let shift = SHIFT as i32;
                // SAFETY: the trait's contract.
                unsafe {
                    let count = _mm_cvtsi32_si128(shift);
                    (_mm256_sll_epi32(value.0, count), _mm256_sll_epi32(value.1, count))
                }
            }

            #[inline(always)]
            unsafe fn add(a: Self::I, b: Self::I) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { (_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
            }

            #[inline(always)]
            unsafe fn sub(a: Self::I, b: Self::I) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { (_mm256_sub_epi32(a.0, b.0), _mm256_sub_epi32(a.1, b.1)) }
            }

            #[inline(always)]
            unsafe fn to_f32(value: Self::I) -> (__m256, __m256) {
                // SAFETY: the trait's contract.
                unsafe { (_mm256_cvtepi32_ps(value.0), _mm256_cvtepi32_ps(value.1)) }
            }

            #[inline(always)]
            unsafe fn widen_u8(at: *const u8) -> Self::I {
                // SAFETY: the trait's contract: 16 readable bytes.
                unsafe {
                    let bytes = _mm_loadu_si128(at.cast());
                    (_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)))
                }
            }

            #[inline(always)]
            unsafe fn widen_i8(at: *const u8) -> Self::I {
                // SAFETY: the trait's contract: 16 readable bytes.
                unsafe {
                    let bytes = _mm_loadu_si128(at.cast());
                    (_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes)))
                }
            }

            #[inline(always)]
            unsafe fn load(at: *const u8) -> Self::B {
                // SAFETY: the trait's contract: 64 readable bytes.
                unsafe { (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())) }
            }

            #[inline(always)]
            unsafe fn store(at: *mut u8, bytes: Self::B) {
                // SAFETY: the trait's contract: room for 64 bytes.
                unsafe {
                    _mm256_storeu_si256(at.cast(), bytes.0);
                    _mm256_storeu_si256(at.add(32).cast(), bytes.1);
                }
            }

            #[inline(always)]
            unsafe fn low_nibbles(bytes: Self::B) -> Self::B {
                // SAFETY: the trait's contract.
                unsafe {
                    let mask = _mm256_set1_epi8(15);
                    (_mm256_and_si256(bytes.0, mask), _mm256_and_si256(bytes.1, mask))
                }
            }

            #[inline(always)]
            unsafe fn high_nibbles(bytes: Self::B) -> Self::B {
                // SAFETY: the trait's contract.
                unsafe {
                    let mask = _mm256_set1_epi8(15);
                    (
                        _mm256_and_si256(_mm256_srli_epi16::<4>(bytes.0), mask),
                        _mm256_and_si256(_mm256_srli_epi16::<4>(bytes.1), mask),
                    )
                }
            }

            #[inline(always)]
            unsafe fn look_up(bytes: Self::B, table: &[u8; 16]) -> Self::B {
                // SAFETY: the trait's contract. The table has 16 bytes.
                unsafe {
                    let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                    (_mm256_shuffle_epi8(table, bytes.0), _mm256_shuffle_epi8(table, bytes.1))
                }
            }

            #[inline(always)]
            unsafe fn add_bit_plane(bytes: Self::B, plane: *const u8) -> Self::B {
                // SAFETY: the trait's contract: 8 readable bytes.
                unsafe {
                    let bits = plane.cast::<[i32; 2]>().read_unaligned();
                    (add_bits(bytes.0, bits[0]), add_bits(bytes.1, bits[1]))
                }
            }

            #[inline(always)]
            unsafe fn add_pair_plane<const PAIR: u32>(bytes: Self::B, plane: Self::B) -> Self::B {
                // SAFETY: the trait's contract.
                unsafe { (add_pairs::<PAIR>(bytes.0, plane.0), add_pairs::<PAIR>(bytes.1, plane.1)) }
            }

            #[inline(always)]
            unsafe fn byte<const BYTE: u32>(bytes: Self::B) -> Self::I {
                // SAFETY: the trait's contract.
                unsafe { (byte_of::<BYTE>(bytes.0), byte_of::<BYTE>(bytes.1)) }
            }

            #[inline(always)]
            unsafe fn e4m3(codes: Self::I) -> (__m256, __m256) {
                // SAFETY: the trait's contract.
                unsafe { (e4m3_of(codes.0), e4m3_of(codes.1)) }
            }

            #[inline(always)]
            unsafe fn dot<const WIDE: bool>(sums: Self::I, codes: Self::B, x: *const i32) -> Self::I {
                // SAFETY: the trait's contract: one readable word.
                unsafe {
                    let $x = _mm256_set1_epi32(x.read_unaligned());
                    let first = {
                        let ($sums, $codes) = (sums.0, codes.0);
                        $dot
                    };
                    let second = {
                        let ($sums, $codes) = (sums.1, codes.1);
                        $dot
                    };
                    (first, second)
                }
            }
        }
    };
}

two_registers!(Vnni256, |sums, codes, x| dot_vnni(sums, codes, x));
two_registers!(Avx2, |sums, codes, x| if WIDE {
    dot_plain::<true>(sums, codes, x)
} else {
    dot_plain::<false>(sums, codes, x)
});

/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn add_bits(bytes: Half, bits: i32) -> Half {
    // SAFETY: the caller's contract.
    unsafe {
        // Each byte of the register selects its own bit: byte i selects bit i % 8 of byte i / 8.
        let spread = _mm256_setr_epi8(
            0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3,
        );
        let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), own);
        let set = _mm256_cmpeq_epi8(spread, own);
        _mm256_add_epi8(bytes, _mm256_and_si256(set, _mm256_set1_epi8(16)))
    }
}

/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn add_pairs<const PAIR: u32>(bytes: Half, plane: Half) -> Half {
    // SAFETY: the caller's contract.
    unsafe {
        let moved = match PAIR {
            0 => _mm256_slli_epi16::<4>(plane),
            1 => _mm256_slli_epi16::<2>(plane),
            2 => plane,
            _ => _mm256_srli_epi16::<2>(plane),
        };
        _mm256_or_si256(bytes, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)))
    }
}

/// # Safety
/// Needs AVX2 and FMA.
#[inline(always)]
unsafe fn e4m3_of(codes: Half) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe {
        let magnitude = _mm256_slli_epi32::<20>(_mm256_and_si256(codes, _mm256_set1_epi32(0x7F)));
        let t = _mm256_castsi256_ps(_mm256_add_epi32(magnitude, _mm256_set1_epi32(E4M3_BIAS)));
        let other = _mm256_fmsub_ps(t, _mm256_set1_ps(2.0), _mm256_set1_ps(E4M3_NORMAL));
        let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)));
        _mm256_castsi256_ps(_mm256_or_si256(_mm256_castps_si256(_mm256_min_ps(t, other)), sign))
    }
}

/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn byte_of<const BYTE: u32>(bytes: Half) -> Half {
    // SAFETY: the caller's contract.
    unsafe {
        let moved = match BYTE {
            0 => bytes,
            1 => _mm256_srli_epi32::<8>(bytes),
            2 => _mm256_srli_epi32::<16>(bytes),
            _ => _mm256_srli_epi32::<24>(bytes),
        };
        _mm256_and_si256(moved, _mm256_set1_epi32(255))
    }
}
