//! Matrix products of bf16 activations with bf16 weights: the register tile and the walk over one task's columns.
//! Must not know: threads.
//!
//! **One reduction shape.** As in `gemm`: blocks of 512 inputs, each one chain from zero in ascending order, added up in
//! ascending order; a link of the chain takes two inputs, with the rounding of the instruction set's pair product.

use crate::gemm::{self, Ahead, BLOCK_K, MAX_PANELS, NEAR_BYTES, Tile, group, group_count};
use crate::matrix::Section;
use crate::simd::{LANES, Scalar, Simd};

/// Bytes of two inputs × 16 outputs.
const PAIR_BYTES: usize = 4 * LANES;

/// The pair product of one instruction set.
///
/// # Safety
/// As for [`Simd`].
pub(crate) trait Pairs: Copy + 'static {
    /// The f32 lanes.
    type F: Simd;
    /// Two weights of each of 16 outputs.
    type W: Copy;

    unsafe fn load(at: *const u8) -> Self::W;
    /// `sum + w₀·x₀ + w₁·x₁`, the two x in the word at `x`.
    unsafe fn dot(sum: <Self::F as Simd>::V, weights: Self::W, x: *const u32) -> <Self::F as Simd>::V;
    /// One register tile, compiled for this instruction set; see [`tile`].
    unsafe fn tile(rows: usize, panels: usize, tile: &Tile);
}

/// Two multiply-adds in f32 where there is no instruction for the pair.
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
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use widened;

impl Pairs for Scalar {
    widened!(Scalar);

    #[inline(always)]
    unsafe fn tile(rows: usize, _panels: usize, work: &Tile) {
        // SAFETY: the caller's contract; the plain lanes need no special instructions.
        unsafe {
            match rows {
                1 => tile::<Scalar, 1, 1>(work),
                _ => tile::<Scalar, 2, 1>(work),
            }
        }
    }
}

/// One register tile; `tile.x` points to `[pairs][R]` words, `tile.k` counts pairs.
///
/// # Safety
/// As for [`Simd`]; the tile's pointers are valid for what its documentation says they hold.
#[allow(clippy::needless_range_loop, reason = "constant bounds, which the compiler unrolls into registers")]
#[inline(always)]
pub(crate) unsafe fn tile<D: Pairs, const R: usize, const P: usize>(tile: &Tile) {
    // SAFETY: the caller's contract; `i` stays below the pairs, `r` below R and `p` below P.
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
                gemm::finish::<D::F>(tile, at, p, p + 1 == P, sum);
            }
        }
    }
}

/// A whole product, as its tasks see it.
pub(crate) struct PairProduct<'a> {
    pub(crate) section: &'a Section,
    /// The rows in groups, as `activations::pair_bf16` leaves them: a group at `x + first row · pairs`.
    pub(crate) x: *const u32,
    /// Pairs of inputs in a row.
    pub(crate) pairs: usize,
    /// How many rows.
    pub(crate) m: usize,
    /// The section's first column of the first row.
    pub(crate) out: *mut f32,
    /// Elements between two rows of the output.
    pub(crate) out_stride: usize,
    pub(crate) accumulate: bool,
}

/// Computes `count` panels of columns, from panel `first` on, of every row.
///
/// # Safety
/// As for [`Simd`]; the product's pointers are valid, the panels exist, and nobody else touches these columns.
#[inline(always)]
pub(crate) unsafe fn columns<D: Pairs>(product: &PairProduct<'_>, first: usize, count: usize) {
    let section = product.section;
    let (m, pairs) = (product.m, product.pairs);
    let groups = group_count(m, D::F::ROWS);
    for from in (0..pairs).step_by(BLOCK_K / 2) {
        let depth = (BLOCK_K / 2).min(pairs - from);
        for index in 0..groups {
            let (row, rows) = group(m, groups, index);
            let mut panel = first;
            while panel < first + count {
                let wide = D::F::panels(rows);
                let width = if panel + wide <= first + count { wide } else { 1 };
                let mut panels = [std::ptr::null(); MAX_PANELS];
                for (p, slot) in panels.iter_mut().enumerate().take(width) {
                    *slot = section.panel(panel + p).wrapping_add(from * PAIR_BYTES);
                }
                let bias = section.bias().filter(|_| from == 0);
                let ahead = match groups {
                    1 => Ahead::walk(section, width, count, PAIR_BYTES, from * PAIR_BYTES),
                    _ => Ahead::always(NEAR_BYTES),
                };
                // SAFETY: columns `panel·16 ..` of rows `row ..` lie inside `out`; `x` holds the group at `row · pairs`;
                // the bias is padded to whole panels.
                unsafe {
                    let tile = Tile {
                        k: depth,
                        x: product.x.add(row * pairs + from * rows).cast(),
                        panels,
                        out: product.out.add(row * product.out_stride + panel * LANES),
                        out_stride: product.out_stride,
                        bias: bias.map_or(std::ptr::null(), |bias| bias.as_ptr().add(panel * LANES)),
                        accumulate: product.accumulate || from > 0,
                        valid: (section.n() - (panel + width - 1) * LANES).min(LANES),
                        ahead,
                    };
                    D::tile(rows, width, &tile);
                }
                panel += width;
            }
        }
    }
}
