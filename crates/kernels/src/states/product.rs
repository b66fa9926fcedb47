//! Small products of matrices in plain rows: `out = x·w`, or `out = factor·before + x·w`. Must not know: what the
//! matrices are.
//!
//! **Same bits.** Each element is one chain of multiply-adds over the inner dimension, in ascending order. It does not
//! depend on the number of rows, or on the shape of the register tile that computes it.

use crate::shapes::LANES;
use crate::tiles::Tiles;

/// A product. Every pointer is valid for its matrix. `out` may be `before`, and overlaps no other matrix.
pub(crate) struct StateProduct {
    /// `[rows][inner]`.
    pub(crate) x: *const f32,
    pub(crate) x_stride: usize,
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    /// `[inner][columns]`.
    pub(crate) w: *const f32,
    pub(crate) w_stride: usize,
    /// A multiple of 16.
    pub(crate) columns: usize,
    /// A matrix of the shape of `out`, and a factor. `None` counts as zeros.
    pub(crate) before: Option<(*const f32, f32)>,
    /// `[rows][columns]`.
    pub(crate) out: *mut f32,
    pub(crate) out_stride: usize,
}

/// Computes a product.
///
/// # Safety
/// As for [`Tiles`], and the pointers are valid as [`StateProduct`] describes.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Tiles>(product: &StateProduct) {
    let mut row = 0;
    // SAFETY: the caller's contract. Each call covers rows that exist.
    unsafe {
        if S::ROWS > 6 {
            // Registers hold the sums of 16 vectors beside their inputs.
            while product.rows - row >= 8 {
                row_tile::<S, 8, 2, 1>(product, row);
                row += 8;
            }
            while product.rows - row >= 2 {
                row_tile::<S, 2, 8, 4>(product, row);
                row += 2;
            }
            if product.rows > row {
                row_tile::<S, 1, 8, 4>(product, row);
            }
        } else {
            while product.rows - row >= 4 {
                row_tile::<S, 4, 1, 1>(product, row);
                row += 4;
            }
            while product.rows - row >= 2 {
                row_tile::<S, 2, 2, 1>(product, row);
                row += 2;
            }
            if product.rows > row {
                row_tile::<S, 1, 4, 2>(product, row);
            }
        }
    }
}

/// Computes `R` rows: `MANY` vectors of columns at a time, then `SOME`, and the rest one by one.
///
/// # Safety
/// As for [`multiply`]. `R` rows from `row` on exist.
#[inline(always)]
unsafe fn row_tile<S: Tiles, const R: usize, const MANY: usize, const SOME: usize>(
    product: &StateProduct,
    row: usize,
) {
    let mut column = 0;
    // SAFETY: the caller's contract. The columns exist.
    unsafe {
        while product.columns - column >= MANY * LANES {
            tile::<S, R, MANY>(product, row, column);
            column += MANY * LANES;
        }
        if SOME > 1 {
            while product.columns - column >= SOME * LANES {
                tile::<S, R, SOME>(product, row, column);
                column += SOME * LANES;
            }
        }
        if MANY > 1 {
            while product.columns > column {
                tile::<S, R, 1>(product, row, column);
                column += LANES;
            }
        }
    }
}

/// Computes one register tile of `R` rows and `C` vectors of columns.
///
/// # Safety
/// As for [`multiply`]. The rows and columns exist.
#[inline(always)]
unsafe fn tile<S: Tiles, const R: usize, const C: usize>(product: &StateProduct, row: usize, column: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[S::splat(0.0); C]; R];
        if let Some((before, factor)) = product.before {
            let factor = S::splat(factor);
            for (r, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    let at = (row + r) * product.out_stride + column + c * LANES;
                    *sum = S::mul(factor, S::load(before.add(at)));
                }
            }
        }
        let x = product.x.add(row * product.x_stride);
        let mut w = product.w.add(column);
        for inner in 0..product.inner {
            let mut weights = [S::splat(0.0); C];
            for (c, weight) in weights.iter_mut().enumerate() {
                *weight = S::load(w.add(c * LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let factor = S::splat(*x.add(r * product.x_stride + inner));
                for (sum, &weight) in sums.iter_mut().zip(&weights) {
                    *sum = S::fma(factor, weight, *sum);
                }
            }
            w = w.wrapping_add(product.w_stride);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (c, &sum) in sums.iter().enumerate() {
                S::store(product.out.add((row + r) * product.out_stride + column + c * LANES), sum);
            }
        }
    }
}
