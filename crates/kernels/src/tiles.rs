//! The shapes of register tiles of each instruction set. Compiles a tile for each shape and calls it by its shape.
//! Must not know: how the loop over a product works, or what the result is used for.

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::packed::Format;
use crate::simd::{Scalar, Simd};
use crate::simd_bf16::Pairs;
use crate::simd_int::Ints;
use crate::tile::{self, Ahead, Tile, Weight};
use crate::tile_attention::{self as kv, Element, KvTile};
use crate::tile_bf16;
use crate::tile_int::{self, IntTile, Share};

/// The register tiles of f32 lanes.
///
/// # Safety
/// As for [`Simd`]. A tile's pointers are valid for the memory that its documentation describes.
pub(crate) trait Tiles: Simd {
    /// Most rows in a register tile.
    const ROWS: usize;

    /// Returns the panels (of 16 columns) in a register tile of `rows` rows.
    fn panels(rows: usize) -> usize;
    /// Computes one register tile of a matrix product, compiled for this instruction set. See `tile::tile`.
    unsafe fn tile<W: Weight>(rows: usize, panels: usize, tile: &Tile);
    /// Computes one register tile of attention, compiled for this instruction set. See `tile_attention::tile`. `panels` is
    /// a power of two up to [`Tiles::panels`].
    unsafe fn kv_tile<E: Element>(rows: usize, panels: usize, tile: &KvTile);
}

/// The register tiles of bf16 pairs.
///
/// # Safety
/// As for [`Tiles`].
pub(crate) trait PairTiles: Pairs<F: Tiles> {
    /// Computes one register tile, compiled for this instruction set. See `tile_bf16::tile`.
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile);
}

/// The register tiles of integer lanes.
///
/// # Safety
/// As for [`Tiles`].
pub(crate) trait IntTiles: Ints<F: Tiles> {
    /// Returns the most rows in a register tile of a product of `m` rows.
    fn rows(m: usize) -> usize;
    /// Returns the panels (of 16 columns) in a register tile of `rows` rows.
    fn panels(rows: usize) -> usize;
    /// From this number of rows on, unpacking four-bit weights once for several groups of rows is faster. See
    /// `opened`.
    const OPENS_NIBBLES: usize;
    /// Computes the register tile of a product whose rows are a single group, compiled for this instruction set. See
    /// `tile_int::tile`.
    unsafe fn alone<F: Format>(rows: usize, panels: usize, tile: &IntTile<Ahead>);
    /// Computes a register tile of one of several groups of rows, compiled for this instruction set. Rows are cut
    /// evenly, so each group has at least half of the rows that a tile can have.
    unsafe fn among<F: Format>(rows: usize, panels: usize, tile: &IntTile<Share>);
}

/// Compiles a register tile for an instruction set and calls it by its shape. `$tile` uses the rows R, the panels P
/// and `$T`.
macro_rules! by_shape {
    (
        $features:literal, <$T:ident: $Bound:path = $Given:ty>, $tile:expr, $Work:ty,
        ($rows:expr, $panels:expr, $work:expr), [$(($r:literal, $p:literal)),* $(,)?]
    ) => {{
        #[target_feature(enable = $features)]
        unsafe fn compiled<$T: $Bound, const R: usize, const P: usize>(work: &$Work) {
            // SAFETY: the caller's contract. This function is compiled for the instruction set.
            unsafe { $tile(work) }
        }
        // SAFETY: the caller's contract. The arms cover all row and panel counts that `ROWS` and `panels` produce.
        unsafe {
            match ($rows, $panels) {
                $(($r, $p) => compiled::<$Given, $r, $p>($work),)*
                _ => debug_assert!(false, "no register tile of that shape"),
            }
        }
    }};
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use by_shape;

impl Tiles for Scalar {
    const ROWS: usize = 2;

    fn panels(_rows: usize) -> usize {
        1
    }

    #[inline(always)]
    unsafe fn tile<W: Weight>(rows: usize, _panels: usize, tile: &Tile) {
        // SAFETY: the caller's contract. The scalar lanes need no special instructions.
        unsafe {
            match rows {
                1 => tile::tile::<Scalar, W, 1, 1>(tile),
                _ => tile::tile::<Scalar, W, 2, 1>(tile),
            }
        }
    }

    #[inline(always)]
    unsafe fn kv_tile<E: Element>(rows: usize, _panels: usize, tile: &KvTile) {
        // SAFETY: the caller's contract. The scalar lanes need no special instructions.
        unsafe {
            match rows {
                1 => kv::tile::<Scalar, E, 1, 1>(tile),
                _ => kv::tile::<Scalar, E, 2, 1>(tile),
            }
        }
    }
}

impl PairTiles for Scalar {
    #[inline(always)]
    unsafe fn tile(rows: usize, _panels: usize, tile: &Tile) {
        // SAFETY: the caller's contract. The scalar lanes need no special instructions.
        unsafe {
            match rows {
                1 => tile_bf16::tile::<Scalar, 1, 1>(tile),
                _ => tile_bf16::tile::<Scalar, 2, 1>(tile),
            }
        }
    }
}

impl IntTiles for Scalar {
    const OPENS_NIBBLES: usize = 3;

    fn rows(_m: usize) -> usize {
        2
    }

    fn panels(_rows: usize) -> usize {
        1
    }

    #[inline(always)]
    unsafe fn alone<F: Format>(rows: usize, _panels: usize, tile: &IntTile<Ahead>) {
        // SAFETY: the caller's contract.
        unsafe { plain_int_tile::<F>(rows, &tile.asking(())) }
    }

    #[inline(always)]
    unsafe fn among<F: Format>(rows: usize, _panels: usize, tile: &IntTile<Share>) {
        // SAFETY: the caller's contract.
        unsafe { plain_int_tile::<F>(rows, &tile.asking(())) }
    }
}

/// # Safety
/// As for [`tile_int::tile`].
unsafe fn plain_int_tile<F: Format>(rows: usize, tile: &IntTile<()>) {
    // SAFETY: the caller's contract. The scalar lanes need no special instructions.
    unsafe {
        match rows {
            1 => tile_int::tile::<Scalar, F, (), 1, 1>(tile),
            _ => tile_int::tile::<Scalar, F, (), 2, 1>(tile),
        }
    }
}
