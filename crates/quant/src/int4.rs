//! Matrices of 4-bit codes in 32-bit words, with scales and zeros apart: AWQ (`gemm`), GPTQ, and compressed-tensors
//! (`pack-quantized`). Makes rows of `W4` blocks or of f32, without loss. Must not know: files, or how tensors are named.
//!
//! A weight is `(q − z) · s` in f32, with the code `q`, and the zero `z` and scale `s` of its row and its group of
//! columns. Words are little-endian, and code 0 of a word is in its lowest bits.

use crate::scales::{ScaleType, check_length};
use crate::{BlockType, QuantError};

/// Rows that are unpacked at a time. Their words lie side by side in a few cache lines.
const TILE_ROWS: usize = 128;
/// Codes in a word.
const WORD_CODES: usize = 8;
/// The zero of a matrix that stores none.
const MIDDLE: u8 = 8;
/// For each of eight rows in a word of AWQ, the position of its code.
const AWQ_POSITIONS: [usize; WORD_CODES] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Which eight codes share a word, and how words, scales and zeros are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WordOrder {
    /// AWQ: words `[columns][rows / 8]` of eight rows in the order 0 2 4 6 1 3 5 7, zeros `[groups][rows / 8]` alike,
    /// scales `[groups][rows]`.
    Awq,
    /// GPTQ: words `[columns / 8][rows]` of eight columns, zeros `[groups][rows / 8]`, scales `[groups][rows]`.
    Gptq,
    /// compressed-tensors: words `[rows][columns / 8]` of eight columns, zeros `[rows / 8][groups]`, scales
    /// `[rows][groups]`. Numbers of words are rounded up.
    Rows,
}

/// A matrix as it is stored. See [`WordOrder`] for the shapes.
#[derive(Debug, Clone, Copy)]
pub struct Int4Matrix<'a> {
    /// The arrangement.
    pub order: WordOrder,
    /// Rows (outputs). A multiple of 8, except in [`WordOrder::Rows`].
    pub rows: usize,
    /// Columns (inputs). A multiple of 8 in [`WordOrder::Gptq`].
    pub columns: usize,
    /// Columns in a group. Divides `columns`.
    pub group: usize,
    /// Words of codes.
    pub codes: &'a [u8],
    /// Scales.
    pub scales: &'a [u8],
    /// Element type of the scales.
    pub scale_type: ScaleType,
    /// Words of zeros. `None` if every zero is 8.
    pub zeros: Option<&'a [u8]>,
    /// Whether a stored zero is one less than the zero, modulo 16.
    pub zeros_less_one: bool,
    /// The group of each column, as 32-bit words. `None` if groups are consecutive columns.
    pub group_index: Option<&'a [u8]>,
}

impl Int4Matrix<'_> {
    /// Returns the `W4` format that holds such a matrix. `None` if only f32 does.
    pub fn block_type(scale_type: ScaleType, group: usize) -> Option<BlockType> {
        match (scale_type, group.is_multiple_of(128), group.is_multiple_of(32)) {
            _ if group == 0 => None,
            (ScaleType::F16, true, _) => Some(BlockType::W4F16G128),
            (ScaleType::F16, _, true) => Some(BlockType::W4F16G32),
            (ScaleType::Bf16, true, _) => Some(BlockType::W4Bf16G128),
            (ScaleType::Bf16, _, true) => Some(BlockType::W4Bf16G32),
            _ => None,
        }
    }

    /// Makes rows of `W4` blocks: the format is that of [`Int4Matrix::block_type`].
    ///
    /// # Errors
    /// Fails if the buffers do not fit the sizes, if there is no such format, if the groups are not consecutive columns,
    /// or if a scale is NaN or infinite.
    pub fn to_blocks(&self) -> Result<Vec<u8>, QuantError> {
        let kind = Self::block_type(self.scale_type, self.group).filter(|_| self.group_index.is_none());
        let row_bytes = kind.and_then(|kind| Some((kind, kind.row_bytes(self.columns)?)));
        let Some((kind, row_bytes)) = row_bytes else {
            return Err(QuantError::NoBlockType { group: self.group });
        };
        let groups = self.check()?;
        let per_group = self.group / kind.block_weights();
        let mut out = Vec::with_capacity(row_bytes.saturating_mul(self.rows));
        self.each_row(|row, codes| {
            let blocks = codes.chunks_exact(kind.block_weights());
            for (block, codes) in blocks.enumerate() {
                let group = block / per_group.max(1);
                let index = self.scale_index(row, group, groups);
                self.scale_type.read(self.scales, index)?;
                out.extend_from_slice(self.scales.get(2 * index..2 * index + 2).unwrap_or_default());
                out.push(self.zero(row, group, groups));
                out.extend(codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4));
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Makes rows of little-endian f32.
    ///
    /// # Errors
    /// Fails if the buffers do not fit the sizes, if a column's group does not exist, or if a scale is NaN or infinite.
    pub fn to_floats(&self) -> Result<Vec<u8>, QuantError> {
        let groups = self.check()?;
        let of_columns = self.groups_of_columns(groups)?;
        let mut out = Vec::with_capacity(self.rows.saturating_mul(self.columns).saturating_mul(4));
        let mut of_groups = vec![(0, 0.0); groups];
        self.each_row(|row, codes| {
            for (group, pair) in of_groups.iter_mut().enumerate() {
                let scale = self.scale_type.read(self.scales, self.scale_index(row, group, groups))?;
                *pair = (i32::from(self.zero(row, group, groups)), scale);
            }
            for (column, &code) in codes.iter().enumerate() {
                let group = of_columns.get(column).copied().unwrap_or(column / self.group);
                let (zero, scale) = of_groups.get(group).copied().unwrap_or_default();
                let weight = (i32::from(code) - zero) as f32 * scale;
                out.extend_from_slice(&weight.to_le_bytes());
            }
            Ok(())
        })?;
        Ok(out)
    }

    /// Returns whether every column is in the group of its position. `false` if a word is missing.
    pub fn is_in_order(group_index: &[u8], columns: usize, group: usize) -> bool {
        let words = group_index.as_chunks::<4>().0;
        words.len() == columns
            && words
                .iter()
                .enumerate()
                .all(|(column, word)| usize::try_from(u32::from_le_bytes(*word)) == Ok(column / group.max(1)))
    }

    /// Checks the lengths of all buffers, and returns the number of groups.
    fn check(&self) -> Result<usize, QuantError> {
        let Self { rows, columns, group, .. } = *self;
        if group == 0 || !columns.is_multiple_of(group) {
            return Err(QuantError::Groups { columns, group });
        }
        let groups = columns / group;
        let product = |a: usize, b: usize, each: usize| a.checked_mul(b).and_then(|n| n.checked_mul(each));
        let eighth = |n: usize| n.div_ceil(WORD_CODES);
        let (codes, zeros) = match self.order {
            WordOrder::Awq => (product(columns, eighth(rows), 4), product(groups, eighth(rows), 4)),
            WordOrder::Gptq => (product(eighth(columns), rows, 4), product(groups, eighth(rows), 4)),
            WordOrder::Rows => (product(rows, eighth(columns), 4), product(eighth(rows), groups, 4)),
        };
        let whole = match self.order {
            WordOrder::Awq => rows.is_multiple_of(WORD_CODES),
            WordOrder::Gptq => rows.is_multiple_of(WORD_CODES) && columns.is_multiple_of(WORD_CODES),
            WordOrder::Rows => true,
        };
        check_length("codes", codes.filter(|_| whole), self.codes.len())?;
        check_length("scales", product(rows, groups, self.scale_type.bytes()), self.scales.len())?;
        if let Some(stored) = self.zeros {
            check_length("zeros", zeros, stored.len())?;
        }
        if let Some(index) = self.group_index {
            check_length("groups of columns", columns.checked_mul(4), index.len())?;
        }
        Ok(groups)
    }

    /// Returns the group of each column. Empty if groups are consecutive columns.
    fn groups_of_columns(&self, groups: usize) -> Result<Vec<usize>, QuantError> {
        let words = self.group_index.unwrap_or_default().as_chunks::<4>().0.iter().enumerate();
        let group_of = |(column, word): (usize, &[u8; 4])| {
            let group = u32::from_le_bytes(*word);
            let known = usize::try_from(group).ok().filter(|group| *group < groups);
            known.ok_or(QuantError::Group { column, group, groups })
        };
        words.map(group_of).collect()
    }

    /// Index of the scale of a row and a group.
    fn scale_index(&self, row: usize, group: usize, groups: usize) -> usize {
        match self.order {
            WordOrder::Awq | WordOrder::Gptq => group * self.rows + row,
            WordOrder::Rows => row * groups + group,
        }
    }

    /// The zero of a row and a group: 0 to 15.
    fn zero(&self, row: usize, group: usize, groups: usize) -> u8 {
        let Some(zeros) = self.zeros else { return MIDDLE };
        let (word, position) = match self.order {
            WordOrder::Awq => (group * (self.rows / 8) + row / 8, AWQ_POSITIONS[row % 8]),
            WordOrder::Gptq => (group * (self.rows / 8) + row / 8, row % 8),
            WordOrder::Rows => (row / 8 * groups + group, row % 8),
        };
        let zero = code_of(word_at(zeros, word), position);
        if self.zeros_less_one { (zero + 1) & 15 } else { zero }
    }

    /// Calls `take` with the number and the codes of each row.
    fn each_row(
        &self,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), QuantError>,
    ) -> Result<(), QuantError> {
        let mut codes = vec![0; self.columns.saturating_mul(TILE_ROWS.min(self.rows))];
        for first in (0..self.rows).step_by(TILE_ROWS) {
            self.unpack(first, &mut codes);
            let rows = codes.chunks_exact(self.columns.max(1)).take(self.rows - first);
            for (row, codes) in rows.enumerate() {
                take(first + row, codes)?;
            }
        }
        Ok(())
    }

    /// Unpacks the codes of the rows from `first` on, one row after another, as many as there are and `out` has room
    /// for.
    fn unpack(&self, first: usize, out: &mut [u8]) {
        let (words, _) = self.codes.as_chunks::<4>();
        let columns = self.columns.max(1);
        let rows = (out.len() / columns).min(self.rows - first);
        let mut put = |at: usize, code: u8| {
            if let Some(to) = out.get_mut(at) {
                *to = code;
            }
        };
        match self.order {
            WordOrder::Awq => {
                for (column, line) in words.chunks_exact((self.rows / WORD_CODES).max(1)).enumerate() {
                    let line = line.iter().skip(first / WORD_CODES).take(rows / WORD_CODES);
                    for (eight, word) in line.enumerate() {
                        let word = u32::from_le_bytes(*word);
                        for (row, position) in AWQ_POSITIONS.into_iter().enumerate() {
                            put((WORD_CODES * eight + row) * columns + column, code_of(word, position));
                        }
                    }
                }
            }
            WordOrder::Gptq => {
                for (eight, line) in words.chunks_exact(self.rows.max(1)).enumerate() {
                    for (row, word) in line.iter().skip(first).take(rows).enumerate() {
                        let word = u32::from_le_bytes(*word);
                        for position in 0..WORD_CODES {
                            put(row * columns + WORD_CODES * eight + position, code_of(word, position));
                        }
                    }
                }
            }
            WordOrder::Rows => {
                let lines = words.chunks_exact(columns.div_ceil(WORD_CODES)).skip(first);
                for (line, out) in lines.zip(out.chunks_exact_mut(columns)) {
                    for (word, codes) in line.iter().zip(out.chunks_mut(WORD_CODES)) {
                        let word = u32::from_le_bytes(*word);
                        for (position, code) in codes.iter_mut().enumerate() {
                            *code = code_of(word, position);
                        }
                    }
                }
            }
        }
    }
}

/// Returns code `position` (0 to 7) of a word.
fn code_of(word: u32, position: usize) -> u8 {
    (word >> (4 * position) & 15) as u8
}

/// Returns a word. The caller has checked the length.
fn word_at(words: &[u8], index: usize) -> u32 {
    words.as_chunks().0.get(index).map_or(0, |word| u32::from_le_bytes(*word))
}

/// Makes GGUF's MXFP4 blocks from blocks of 16 bytes in the order of the weights, low code first, and one scale (e8m0)
/// for each, as safetensors files store them. The weights are the same.
///
/// # Errors
/// Fails if there is not one scale for each block, or if a scale is 255, which means NaN.
pub fn mxfp4_blocks(codes: &[u8], scales: &[u8]) -> Result<Vec<u8>, QuantError> {
    check_length("codes", scales.len().checked_mul(16), codes.len())?;
    let mut out = Vec::with_capacity(scales.len().saturating_mul(17));
    for (index, (bytes, &scale)) in codes.as_chunks::<16>().0.iter().zip(scales).enumerate() {
        if scale == u8::MAX {
            return Err(QuantError::Scale { index, value: f32::NAN });
        }
        out.push(scale);
        // Byte `j` of a block has code `j` below code `j + 16`.
        let (first, second) = bytes.split_at(8);
        for (low, high) in first.iter().zip(second) {
            out.push(low & 15 | high << 4);
            out.push(low >> 4 | high & 0xF0);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
