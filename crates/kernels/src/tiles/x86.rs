//! The register tiles compiled for AVX-512 and AVX2, by shape.
//! Must not know: how the loop over a product works.

use crate::packed::Format;
use crate::simd_bf16::{Bf16Dot, Pairs};
use crate::simd_int_x86::{Vnni256, Vnni512};
use crate::simd_x86::{Avx2, Avx512};
use crate::tile::{self, Ahead, Tile, Weight};
use crate::tile_attention::{self as kv, Element, KvTile};
use crate::tile_bf16;
use crate::tile_int::{self, IntTile, Share};
use crate::tiles::{IntTiles, PairTiles, Tiles, by_shape};

/// [`by_shape`] with the shapes of the f32 register tiles on AVX-512. They match [`Tiles`] for [`Avx512`].
macro_rules! by_shape_512 {
    ($($call:tt)*) => {
        by_shape!(
            $($call)*,
            [
                (1, 4), (2, 4), (3, 4), (4, 4), (5, 4), (6, 4), (7, 2), (8, 2), (9, 2), (10, 2), (11, 2), (12, 2),
                (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1), (10, 1), (11, 1), (12, 1),
            ]
        )
    };
}

/// [`by_shape`] with the shapes of the f32 register tiles on AVX2.
macro_rules! by_shape_256 {
    ($($call:tt)*) => {
        by_shape!($($call)*, [(1, 4), (2, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)])
    };
}

impl Tiles for Avx512 {
    const ROWS: usize = 12;

    #[inline(always)]
    fn panels(rows: usize) -> usize {
        if rows <= 6 { 4 } else { 2 }
    }

    #[inline(always)]
    unsafe fn tile<W: Weight>(rows: usize, panels: usize, tile: &Tile) {
        by_shape_512!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", <T: Weight = W>, tile::tile::<Avx512, T, R, P>, Tile, (rows, panels, tile))
    }

    #[inline(always)]
    unsafe fn kv_tile<E: Element>(rows: usize, panels: usize, tile: &KvTile) {
        by_shape!(
            "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
            <T: Element = E>,
            kv::tile::<Avx512, T, R, P>,
            KvTile,
            (rows, panels, tile),
            [(1, 4), (1, 2), (1, 1), (2, 4), (2, 2), (2, 1), (3, 4), (3, 2), (3, 1), (4, 4), (4, 2), (4, 1), (5, 4), (5, 2), (5, 1), (6, 4), (6, 2), (6, 1), (7, 2), (7, 1), (8, 2), (8, 1), (9, 2), (9, 1), (10, 2), (10, 1), (11, 2), (11, 1), (12, 2), (12, 1)]
        )
    }
}

impl Tiles for Avx2 {
    const ROWS: usize = 6;

    #[inline(always)]
    fn panels(rows: usize) -> usize {
        match rows {
            1 => 4,
            2 => 2,
            _ => 1,
        }
    }

    #[inline(always)]
    unsafe fn tile<W: Weight>(rows: usize, panels: usize, tile: &Tile) {
        by_shape_256!("avx2,fma,f16c", <T: Weight = W>, tile::tile::<Avx2, T, R, P>, Tile, (rows, panels, tile))
    }

    #[inline(always)]
    unsafe fn kv_tile<E: Element>(rows: usize, panels: usize, tile: &KvTile) {
        by_shape!(
            "avx2,fma,f16c",
            <T: Element = E>,
            kv::tile::<Avx2, T, R, P>,
            KvTile,
            (rows, panels, tile),
            [(1, 4), (1, 2), (1, 1), (2, 2), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
        )
    }
}

impl PairTiles for Bf16Dot {
    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        by_shape_512!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c", <T: Pairs = Bf16Dot>, tile_bf16::tile::<T, R, P>, Tile, (rows, panels, tile))
    }
}

impl PairTiles for Avx512 {
    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        by_shape_512!("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", <T: Pairs = Avx512>, tile_bf16::tile::<T, R, P>, Tile, (rows, panels, tile))
    }
}

impl PairTiles for Avx2 {
    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        by_shape_256!("avx2,fma,f16c", <T: Pairs = Avx2>, tile_bf16::tile::<T, R, P>, Tile, (rows, panels, tile))
    }
}

impl IntTiles for Vnni512 {
    const OPENS_NIBBLES: usize = 19;

    // A product of up to eight rows is bound by memory, so one pass over the weights is fastest.
    fn rows(m: usize) -> usize {
        if m <= 8 { 8 } else { 6 }
    }

    fn panels(rows: usize) -> usize {
        if rows <= 6 { 2 } else { 1 }
    }

    #[inline(always)]
    unsafe fn alone<F: Format>(rows: usize, panels: usize, tile: &IntTile<Ahead>) {
        by_shape!(
            "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
            <T: Format = F>,
            tile_int::tile::<Vnni512, T, Ahead, R, P>,
            IntTile<Ahead>,
            (rows, panels, tile),
            [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1)]
        )
    }

    // Nine or more rows form several groups, and each of them has at least four rows.
    #[inline(always)]
    unsafe fn among<F: Format>(rows: usize, panels: usize, tile: &IntTile<Share>) {
        by_shape!(
            "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
            <T: Format = F>,
            tile_int::tile::<Vnni512, T, Share, R, P>,
            IntTile<Share>,
            (rows, panels, tile),
            [(4, 2), (5, 2), (6, 2), (4, 1), (5, 1), (6, 1)]
        )
    }
}

/// The integer tiles for AVX2, with and without AVX-VNNI.
macro_rules! two_registers {
    ($name:ty, $features:literal) => {
        impl IntTiles for $name {
            const OPENS_NIBBLES: usize = 19;

            fn rows(_m: usize) -> usize {
                6
            }

            fn panels(rows: usize) -> usize {
                if rows == 1 { 4 } else { 1 }
            }

            #[inline(always)]
            unsafe fn alone<F: Format>(rows: usize, panels: usize, tile: &IntTile<Ahead>) {
                by_shape!(
                    $features,
                    <T: Format = F>,
                    tile_int::tile::<$name, T, Ahead, R, P>,
                    IntTile<Ahead>,
                    (rows, panels, tile),
                    [(1, 4), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
                )
            }

            #[inline(always)]
            unsafe fn among<F: Format>(rows: usize, panels: usize, tile: &IntTile<Share>) {
                by_shape!(
                    $features,
                    <T: Format = F>,
                    tile_int::tile::<$name, T, Share, R, P>,
                    IntTile<Share>,
                    (rows, panels, tile),
                    [(3, 1), (4, 1), (5, 1), (6, 1)]
                )
            }
        }
    };
}

two_registers!(Vnni256, "avx2,avxvnni,fma,f16c");
two_registers!(Avx2, "avx2,fma,f16c");
