//! The register tiles compiled for NEON, by shape.
//! Must not know: how the loop over a product works.

use crate::packed::Format;
use crate::simd_bf16::Pairs;
use crate::simd_int_neon::NeonDot;
use crate::simd_neon::Neon;
use crate::tile::{self, Ahead, Tile, Weight};
use crate::tile_attention::{self as kv, Element, KvTile};
use crate::tile_bf16;
use crate::tile_int::{self, IntTile, Share};
use crate::tiles::{IntTiles, PairTiles, Tiles, by_shape};

impl Tiles for Neon {
    const ROWS: usize = 6;

    #[inline(always)]
    fn panels(rows: usize) -> usize {
        if rows <= 2 { 2 } else { 1 }
    }

    #[inline(always)]
    unsafe fn tile<W: Weight>(rows: usize, panels: usize, tile: &Tile) {
        by_shape!(
            "neon",
            <T: Weight = W>,
            tile::tile::<Neon, T, R, P>,
            Tile,
            (rows, panels, tile),
            [(1, 2), (2, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
        )
    }

    #[inline(always)]
    unsafe fn kv_tile<E: Element>(rows: usize, panels: usize, tile: &KvTile) {
        by_shape!(
            "neon",
            <T: Element = E>,
            kv::tile::<Neon, T, R, P>,
            KvTile,
            (rows, panels, tile),
            [(1, 2), (2, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
        )
    }
}

impl PairTiles for Neon {
    #[inline(always)]
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile) {
        by_shape!(
            "neon",
            <T: Pairs = Neon>,
            tile_bf16::tile::<T, R, P>,
            Tile,
            (rows, panels, tile),
            [(1, 2), (2, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]
        )
    }
}

/// The integer tiles for NEON, with and without dot products.
macro_rules! four_registers {
    ($name:ty, $features:literal) => {
        impl IntTiles for $name {
            const OPENS_NIBBLES: usize = 13;

            fn rows(_m: usize) -> usize {
                4
            }

            fn panels(rows: usize) -> usize {
                if rows == 1 { 2 } else { 1 }
            }

            #[inline(always)]
            unsafe fn alone<F: Format>(rows: usize, panels: usize, tile: &IntTile<Ahead>) {
                by_shape!(
                    $features,
                    <T: Format = F>,
                    tile_int::tile::<$name, T, Ahead, R, P>,
                    IntTile<Ahead>,
                    (rows, panels, tile),
                    [(1, 2), (1, 1), (2, 1), (3, 1), (4, 1)]
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
                    [(2, 1), (3, 1), (4, 1)]
                )
            }
        }
    };
}

four_registers!(NeonDot, "neon,dotprod");
four_registers!(Neon, "neon");
