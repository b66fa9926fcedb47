//! Products of bf16 pairs on x86: AVX-512's own instruction, and two f32 multiply-adds where it is missing.
//! Must not know: how a product is cut.

use std::arch::x86_64::*;

use crate::gemm::Tile;
use crate::gemm_bf16::{self, Pairs, widened};
use crate::simd::{Simd, by_shape};
use crate::simd_x86::{Avx2, Avx512, by_shape_256, by_shape_512};

/// AVX-512 with BF16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Dot;

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
        // SAFETY: the trait's contract: one readable word; the vectors are 32 bf16 each.
        unsafe {
            let x = _mm512_set1_epi32(x.read_unaligned().cast_signed());
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512i, __m512bh>(weights),
                std::mem::transmute::<__m512i, __m512bh>(x),
            )
        }
    }

    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        by_shape_512!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c", <T: Pairs = Bf16Dot>, gemm_bf16::tile::<T, R, P>, Tile, (rows, panels, tile))
    }
}

impl Pairs for Avx512 {
    widened!(Avx512);

    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        by_shape_512!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", <T: Pairs = Avx512>, gemm_bf16::tile::<T, R, P>, Tile, (rows, panels, tile))
    }
}

impl Pairs for Avx2 {
    widened!(Avx2);

    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        by_shape_256!("avx2,fma,f16c", <T: Pairs = Avx2>, gemm_bf16::tile::<T, R, P>, Tile, (rows, panels, tile))
    }
}
