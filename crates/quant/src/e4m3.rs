//! FP8 matrices (e4m3) with their scales: makes rows of `F8` blocks or of f32, without loss. Must not know: files, or
//! how tensors are named.
//!
//! A code has a sign bit, four bits of exponent with a bias of 7, and three of mantissa. There is no infinity, and 0x7F
//! and 0xFF are NaN. Source: the OCP 8-bit Floating Point Specification, E4M3.

use crate::scales::{ScaleType, check_length};
use crate::{BlockType, QuantError};

/// The values of e4m3's 256 codes.
pub const E4M3_VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = value_of(code as u32);
        code += 1;
    }
    values
};

const fn value_of(code: u32) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, code & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        // 2⁻⁹ for each step.
        (0, _) => mantissa as f32 * f32::from_bits((127 - 9) << 23),
        _ => (8 + mantissa) as f32 * f32::from_bits((127 - 10 + exponent) << 23),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// A row-major matrix of codes, whose scales are in tiles. A tile at the right or lower edge may be cut off. A weight is
/// the value of its code times the scale of its tile, in f32.
#[derive(Debug, Clone, Copy)]
pub struct E4m3Matrix<'a> {
    /// One byte for each weight.
    pub codes: &'a [u8],
    /// Columns (inputs) of the matrix. At least 1.
    pub columns: usize,
    /// The scales of the tiles, row by row.
    pub scales: &'a [u8],
    /// Element type of the scales.
    pub scale_type: ScaleType,
    /// Rows of a tile. At least 1.
    pub tile_rows: usize,
    /// Columns of a tile. At least 1.
    pub tile_columns: usize,
}

impl E4m3Matrix<'_> {
    /// Returns the format that holds rows of `columns` weights in tiles of `tile_columns`. `None` if a block would lie
    /// in two tiles, or end before the row.
    pub fn block_type(columns: usize, tile_columns: usize) -> Option<BlockType> {
        let fits = |kind: &BlockType| {
            let block = kind.block_weights();
            columns.is_multiple_of(block) && (tile_columns >= columns || tile_columns.is_multiple_of(block))
        };
        [BlockType::F8G128, BlockType::F8G32].into_iter().find(fits)
    }

    /// Makes rows of blocks: the format is that of [`E4m3Matrix::block_type`].
    ///
    /// # Errors
    /// Fails if there is no such format, if the codes are not whole rows, if the scales are not one for each tile, or if
    /// a scale or a weight is NaN or infinite.
    pub fn to_blocks(&self) -> Result<Vec<u8>, QuantError> {
        let Some(kind) = Self::block_type(self.columns, self.tile_columns) else {
            return Err(QuantError::NoBlockType { group: self.tile_columns });
        };
        let mut out = Vec::with_capacity(self.codes.len() / kind.block_weights() * kind.block_bytes());
        self.each_piece(kind.block_weights(), |scale, codes| {
            out.extend_from_slice(&scale.to_le_bytes());
            out.extend_from_slice(codes);
        })?;
        Ok(out)
    }

    /// Makes rows of little-endian f32.
    ///
    /// # Errors
    /// As for [`E4m3Matrix::to_blocks`], in any tiles.
    pub fn to_floats(&self) -> Result<Vec<u8>, QuantError> {
        let mut out = Vec::with_capacity(self.codes.len().saturating_mul(4));
        self.each_piece(self.tile_columns.max(1), |scale, codes| {
            let weights = codes.iter().map(|&code| (E4M3_VALUES[usize::from(code)] * scale).to_le_bytes());
            weights.for_each(|weight| out.extend_from_slice(&weight));
        })?;
        Ok(out)
    }

    /// Calls `take` with the scale and the codes of each piece of `length` columns, row by row. Each lies in one tile.
    fn each_piece(&self, length: usize, mut take: impl FnMut(f32, &[u8])) -> Result<(), QuantError> {
        let Self { codes, columns, scales, scale_type, .. } = *self;
        let (tile_rows, tile_columns) = (self.tile_rows.max(1), self.tile_columns.max(1));
        let rows = codes.len() / columns.max(1);
        check_length("codes", rows.checked_mul(columns), codes.len())?;
        let (across, down) = (columns.div_ceil(tile_columns), rows.div_ceil(tile_rows));
        let bytes = across.checked_mul(down).and_then(|count| count.checked_mul(scale_type.bytes()));
        check_length("scales", bytes, scales.len())?;
        for (row, codes) in codes.chunks_exact(columns.max(1)).enumerate() {
            for (piece, codes) in codes.chunks(length).enumerate() {
                let first = piece * length;
                let scale = scale_type.read(scales, row / tile_rows * across + first / tile_columns)?;
                let value_of = |code: u8| E4M3_VALUES[usize::from(code)] * scale;
                if let Some(at) = codes.iter().position(|&code| !value_of(code).is_finite()) {
                    let value = codes.get(at).map_or(f32::NAN, |&code| value_of(code));
                    return Err(QuantError::Weight { row, column: first + at, value });
                }
                take(scale, codes);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::dequantize_row;

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn codes_have_the_values_of_the_specification() {
        // Smallest subnormal, largest subnormal, smallest normal, one, largest.
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3C, 1.5),
            (0x40, 2.0),
            (0x77, 240.0),
            (0x7E, 448.0),
            (0xB8, -1.0),
            (0xFE, -448.0),
        ] {
            assert_eq!(E4M3_VALUES[code], value, "{code:#x}");
        }
        assert!(E4M3_VALUES[0x80] == 0.0 && E4M3_VALUES[0x80].is_sign_negative());
        let nans: Vec<usize> = (0..256).filter(|&code| E4M3_VALUES[code].is_nan()).collect();
        assert_eq!(nans, [0x7F, 0xFF]);
        assert!(E4M3_VALUES[..0x7F].is_sorted());
    }

    #[test]
    fn tiles_at_the_edges_are_cut_off() {
        // 3 × 5 weights of one, in tiles of 2 × 2: scales 1 to 6.
        let scales: Vec<u8> = (1..=6_u8).flat_map(|n| bf16::from_f32(f32::from(n)).to_le_bytes()).collect();
        let matrix = E4m3Matrix {
            codes: &[0x38; 15],
            columns: 5,
            scales: &scales,
            scale_type: ScaleType::Bf16,
            tile_rows: 2,
            tile_columns: 2,
        };
        let weights = floats(&matrix.to_floats().unwrap());
        assert_eq!(weights[..5], [1.0, 1.0, 2.0, 2.0, 3.0]);
        assert_eq!(weights[5..10], [1.0, 1.0, 2.0, 2.0, 3.0]);
        assert_eq!(weights[10..], [4.0, 4.0, 5.0, 5.0, 6.0]);
        assert!(matrix.to_blocks().is_err());
    }

    #[test]
    fn blocks_hold_the_same_weights_as_floats() {
        // Every code but NaN, in tiles that end at 128, at the row, or at 32.
        let codes: Vec<u8> = (0..=255_u8).filter(|code| code & 0x7F != 0x7F).cycle().take(7 * 320).collect();
        for (columns, tile, kind) in [
            (160, [2, 128], Some(BlockType::F8G32)),
            (320, [128, 64], Some(BlockType::F8G32)),
            (160, [1, 160], Some(BlockType::F8G32)),
            (64, [1, 1 << 20], Some(BlockType::F8G32)),
            (320, [3, 20], None),
            (40, [7, 40], None),
        ]
        .into_iter()
        .chain([(128, [2, 128], Some(BlockType::F8G128)), (128, [1, 999], Some(BlockType::F8G128))])
        {
            let codes = &codes[..7 * columns];
            let [tile_rows, tile_columns] = tile;
            let count = 7_usize.div_ceil(tile_rows) * columns.div_ceil(tile_columns);
            let scales: Vec<u8> = (1..=count).flat_map(|n| (n as f32 / 3.0).to_le_bytes()).collect();
            let scale_type = ScaleType::F32;
            let matrix = E4m3Matrix { codes, columns, scales: &scales, scale_type, tile_rows, tile_columns };
            let floats = floats(&matrix.to_floats().unwrap());
            for (at, weight) in floats.iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let tile = row / tile_rows * columns.div_ceil(tile_columns) + column / tile_columns;
                let scale = (tile + 1) as f32 / 3.0;
                assert_eq!(*weight, E4M3_VALUES[usize::from(codes[at])] * scale, "{columns} {tile}");
            }
            assert_eq!(E4m3Matrix::block_type(columns, tile_columns), kind, "{columns} in {tile:?}");
            let Some(kind) = kind else {
                assert!(matrix.to_blocks().is_err());
                continue;
            };
            let mut weights = vec![0.0; floats.len()];
            dequantize_row(kind, &matrix.to_blocks().unwrap(), &mut weights).unwrap();
            assert_eq!(weights, floats, "{columns} in {tile:?}");
        }
    }

    #[test]
    fn what_cannot_be_a_matrix_is_refused() {
        let one = 1.0_f32.to_le_bytes();
        fn matrix<'a>(codes: &'a [u8], columns: usize, scales: &'a [u8]) -> E4m3Matrix<'a> {
            E4m3Matrix { codes, columns, scales, scale_type: ScaleType::F32, tile_rows: 99, tile_columns: 99 }
        }
        assert!(matrix(&[0x38; 6][..], 3, &one[..]).to_floats().is_ok());
        let refused = |codes: &[u8], columns, scales: &[u8]| {
            matrix(codes, columns, scales).to_floats().unwrap_err().to_string()
        };
        assert!(refused(&[0x38; 6], 4, &one).contains("codes"));
        assert!(refused(&[0x38; 6], 0, &one).contains("codes"));
        assert!(refused(&[0x38; 6], 3, &one[..2]).contains("scales"));
        assert!(refused(&[0x38; 6], 3, &f32::NAN.to_le_bytes()).contains("scale 0 is NaN"));
        assert!(refused(&[0x38, 0x38, 0x38, 0x7F], 2, &one).contains("row 1, column 1 is NaN"));
        assert!(refused(&[0x7E], 1, &f32::MAX.to_le_bytes()).contains("row 0, column 0 is inf"));
        let mut codes = [0x38; 64];
        codes[40] = 0xFF;
        let error = matrix(&codes, 32, &one).to_blocks().unwrap_err();
        assert!(matches!(error, QuantError::Weight { row: 1, column: 8, .. }), "{error}");
    }
}
