//! Products of bf16 pairs on x86: AVX-512's own instruction, and two f32 multiply-adds where it is missing.
//! Must not know: how a product is cut.

use std::arch::x86_64::*;

use crate::gemm::Tile;
use crate::gemm_bf16::{self, Pairs, widened};
use crate::simd::Simd;
use crate::simd_x86::{Avx2, Avx512};

/// AVX-512 with BF16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Dot;

macro_rules! pair_tiles {
    ($pairs:ty, $features:literal, $rows:expr, $panels:expr, $tile:expr, [$(($r:literal, $p:literal)),* $(,)?]) => {{
        #[target_feature(enable = $features)]
        unsafe fn compiled<const R: usize, const P: usize>(tile: &Tile) {
            // SAFETY: the caller's contract, and this function is compiled for the instruction set.
            unsafe { gemm_bf16::tile::<$pairs, R, P>(tile) }
        }
        // SAFETY: the caller's contract. Row and panel counts come from `ROWS` and `panels`, which the arms cover.
        unsafe {
            match ($rows, $panels) {
                $(($r, $p) => compiled::<$r, $p>($tile),)*
                _ => debug_assert!(false, "no register tile of that shape"),
            }
        }
    }};
}

/// The shapes of [`Avx512`]'s tiles.
macro_rules! tiles_512 {
    ($pairs:ty, $features:literal, $rows:expr, $panels:expr, $tile:expr) => {
        pair_tiles!(
            $pairs,
            $features,
            $rows,
            $panels,
            $tile,
            [
                (1, 4),
                (2, 4),
                (3, 4),
                (4, 4),
                (5, 4),
                (6, 4),
                (7, 2),
                (8, 2),
                (9, 2),
                (10, 2),
                (11, 2),
                (12, 2),
                (1, 1),
                (2, 1),
                (3, 1),
                (4, 1),
                (5, 1),
                (6, 1),
                (7, 1),
                (8, 1),
                (9, 1),
                (10, 1),
                (11, 1),
                (12, 1),
            ]
        )
    };
}

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
        tiles_512!(Bf16Dot, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c", rows, panels, tile)
    }
}

impl Pairs for Avx512 {
    widened!(Avx512);

    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        tiles_512!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", rows, panels, tile)
    }
}

impl Pairs for Avx2 {
    widened!(Avx2);

    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        pair_tiles!(
            Avx2,
            "avx2,fma,f16c",
            rows,
            panels,
            tile,
            [(1, 4), (2, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
        )
    }
}
