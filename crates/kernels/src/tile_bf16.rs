//! The register tile of a product of bf16 pairs. Each step of its chains takes two inputs.
//! Must not know: how the loop over a product works, or threads.

use crate::shapes::LANES;
use crate::simd::Simd;
use crate::simd_bf16::Pairs;
use crate::tile::{self, Tile};

/// Bytes of two inputs × 16 outputs.
pub(crate) const PAIR_BYTES: usize = 4 * LANES;

/// Computes one register tile. `tile.x` points to `[pairs][R]` words, and `tile.k` counts pairs.
///
/// # Safety
/// As for [`Simd`]. The tile's pointers are valid for the memory that its documentation describes.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
pub(crate) unsafe fn tile<D: Pairs, const R: usize, const P: usize>(tile: &Tile) {
    // SAFETY: the caller's contract. `pair` stays below `tile.k`, `r` below R and `p` below P.
    unsafe {
        let mut sums = [[D::F::splat(0.0); P]; R];
        let mut panels = [std::ptr::null(); P];
        panels.copy_from_slice(&tile.panels[..P]);
        let mut x = tile.x.cast::<u32>();
        for pair in 0..tile.k {
            let ahead = if pair < tile.ahead.units { tile.ahead.near } else { tile.ahead.then };
            for p in 0..P {
                D::F::prefetch(panels[p].wrapping_add(ahead));
            }
            let mut weights = [D::load(panels[0]); P];
            for p in 1..P {
                weights[p] = D::load(panels[p]);
            }
            for r in 0..R {
                for p in 0..P {
                    sums[r][p] = D::dot(sums[r][p], weights[p], x.add(r));
                }
            }
            x = x.add(R);
            for p in 0..P {
                panels[p] = panels[p].add(PAIR_BYTES);
            }
        }
        let mut done = [[[0.0_f32; LANES]; P]; R];
        for r in 0..R {
            for p in 0..P {
                D::F::store(done[r][p].as_mut_ptr(), sums[r][p]);
            }
        }
        for (r, row) in done.iter().enumerate() {
            for (p, sum) in row.iter().enumerate() {
                let at = tile.out.add(r * tile.out_stride + p * LANES);
                tile::finish::<D::F>(tile, at, p, p + 1 == P, sum);
            }
        }
    }
}
