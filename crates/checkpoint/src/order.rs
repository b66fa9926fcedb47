//! Orders in which a file stores the rows or columns of a tensor, where they differ from those of Hugging Face's
//! checkpoints, and the way back. Must not know files, or what a tensor is used for.

use crate::tensor::DType;

/// An order of rows or columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredOrder {
    /// The rows of each head of `head` rows are neighbouring pairs. Checkpoints have the first half of each pair, then
    /// the second half.
    Pairs {
        /// Rows of a head. Even.
        head: usize,
    },
    /// Heads of rows that share a key head are not neighbours.
    TiledRows(TiledHeads),
    /// The same of columns.
    TiledColumns(TiledHeads),
}

/// Heads that are stored by their number within a group: the first of each group, then the second of each, and so on.
/// Checkpoints store them group by group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TiledHeads {
    /// Rows or columns before the heads, which stay where they are.
    pub(crate) first: usize,
    /// Number of groups.
    pub(crate) groups: usize,
    /// Heads of a group.
    pub(crate) each: usize,
    /// Rows or columns of a head.
    pub(crate) width: usize,
}

impl StoredOrder {
    /// Whether a tensor of this shape can have this order.
    pub(crate) fn fits(self, shape: &[usize]) -> bool {
        let rows = shape.first().copied().unwrap_or(0);
        match self {
            Self::Pairs { head } => {
                head.is_multiple_of(2) && rows.is_multiple_of(head.max(1)) && shape.len() <= 2
            }
            Self::TiledRows(heads) => heads.end() == Some(rows),
            Self::TiledColumns(heads) => shape.len() == 2 && heads.end() == shape.last().copied(),
        }
    }

    /// Whether elements of this type can be reordered as they are stored. Columns cannot if a block holds weights of two
    /// heads.
    pub(crate) fn keeps_type(self, stored: DType) -> bool {
        match (self, stored) {
            (Self::TiledColumns(heads), DType::Block(kind)) => {
                heads.width.is_multiple_of(kind.block_weights())
                    && heads.first.is_multiple_of(kind.block_weights())
            }
            _ => true,
        }
    }

    /// Returns the bytes of a tensor in the order of Hugging Face's checkpoints. `None` if the shape or the type does not
    /// fit.
    pub(crate) fn restore(self, bytes: &[u8], stored: DType, shape: &[usize]) -> Option<Vec<u8>> {
        if !self.fits(shape) || !self.keeps_type(stored) {
            return None;
        }
        let (rows, inner) = shape.split_first()?;
        let columns = inner.iter().try_fold(1_usize, |product, n| product.checked_mul(*n))?;
        let row_bytes = stored.row_bytes(columns)?;
        match self {
            Self::Pairs { head } => halves(bytes, row_bytes, *rows, head),
            Self::TiledRows(heads) => {
                let mut out = Vec::with_capacity(bytes.len());
                heads.restore(bytes, row_bytes, &mut out)?;
                Some(out)
            }
            Self::TiledColumns(heads) => match stored {
                DType::Block(kind) => {
                    let weights = kind.block_weights();
                    let blocks =
                        TiledHeads { first: heads.first / weights, width: heads.width / weights, ..heads };
                    restore_rows(bytes, row_bytes, blocks, stored.row_bytes(weights)?)
                }
                dense => restore_rows(bytes, row_bytes, heads, dense.row_bytes(1)?),
            },
        }
    }
}

impl TiledHeads {
    /// The row or column in the order of Hugging Face's checkpoints that is stored at `stored`.
    pub(crate) fn original(self, stored: usize) -> usize {
        let Some(place) = stored.checked_sub(self.first) else { return stored };
        let (head, within) = (place / self.width.max(1), place % self.width.max(1));
        let (member, group) = (head / self.groups.max(1), head % self.groups.max(1));
        self.first + (group * self.each + member) * self.width + within
    }

    /// Rows or columns of the whole.
    fn end(self) -> Option<usize> {
        self.groups.checked_mul(self.each)?.checked_mul(self.width)?.checked_add(self.first)
    }

    /// Appends `bytes` to `out`, with the heads in groups. A row or column has `each` bytes.
    fn restore(self, bytes: &[u8], each: usize, out: &mut Vec<u8>) -> Option<()> {
        let head = self.width.checked_mul(each)?;
        let (before, heads) = bytes.split_at_checked(self.first.checked_mul(each)?)?;
        out.extend_from_slice(before);
        for (group, member) in (0..self.groups).flat_map(|group| (0..self.each).map(move |m| (group, m))) {
            let start = member.checked_mul(self.groups)?.checked_add(group)?.checked_mul(head)?;
            out.extend_from_slice(heads.get(start..start.checked_add(head)?)?);
        }
        Some(())
    }
}

/// Restores the order of the columns of each row. A column, or a block of columns, has `each` bytes.
fn restore_rows(bytes: &[u8], row_bytes: usize, heads: TiledHeads, each: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    for row in bytes.chunks_exact(row_bytes.max(1)) {
        heads.restore(row, each, &mut out)?;
    }
    Some(out)
}

/// Reorders rows to the halves-rotated order. In the input, the pairs of each head of `head` rows are adjacent.
fn halves(bytes: &[u8], row_bytes: usize, rows: usize, head: usize) -> Option<Vec<u8>> {
    let half = head / 2;
    if half == 0 {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len());
    for first in (0..rows).step_by(head) {
        for (side, pair) in (0..2).flat_map(|side| (0..half).map(move |pair| (side, pair))) {
            let start = row_bytes.checked_mul(first + 2 * pair + side)?;
            out.extend_from_slice(bytes.get(start..start.checked_add(row_bytes)?)?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use headrace_quant::{BlockType, quantize_row};

    use super::*;

    #[test]
    fn interleaved_pairs_come_back_as_halves() {
        // Two heads of four rows, two bytes per row. Within a head, the rows are stored in the order 0 2 1 3.
        let stored: Vec<u8> = (0..8u8).flat_map(|row| [row, 100 + row]).collect();
        let expected: Vec<u8> =
            [0u8, 2, 1, 3, 4, 6, 5, 7].into_iter().flat_map(|row| [row, 100 + row]).collect();
        let pairs = |head| StoredOrder::Pairs { head };
        assert_eq!(pairs(4).restore(&stored, DType::F16, &[8, 1]).unwrap(), expected);
        assert_eq!(pairs(4).restore(&stored, DType::BF16, &[8]).unwrap(), expected);
        for (shape, head) in [(&[6, 1][..], 4), (&[8, 1], 3), (&[8, 1], 0), (&[8, 1, 1], 4), (&[], 2)] {
            assert_eq!(pairs(head).restore(&stored, DType::F16, shape), None, "{shape:?} {head}");
        }
    }

    #[test]
    fn tiled_heads_come_back_in_groups() {
        // Two groups of three heads of two rows after one row. Head `member` of group `group` is `10·group + member`.
        let heads = TiledHeads { first: 1, groups: 2, each: 3, width: 2 };
        let stored = [99, 0, 0, 10, 10, 1, 1, 11, 11, 2, 2, 12, 12];
        let expected = [99, 0, 0, 1, 1, 2, 2, 10, 10, 11, 11, 12, 12];
        let wide = |numbers: &[u8]| numbers.iter().flat_map(|&n| [n, n, n, n]).collect::<Vec<u8>>();
        let rows = StoredOrder::TiledRows(heads);
        for shape in [&[13, 2][..], &[13, 1, 2]] {
            assert_eq!(rows.restore(&wide(&stored), DType::F16, shape).unwrap(), wide(&expected));
        }
        let columns = StoredOrder::TiledColumns(heads);
        let (two, wanted) = ([wide(&stored), wide(&stored)].concat(), [wide(&expected), wide(&expected)]);
        assert_eq!(columns.restore(&two, DType::F32, &[2, 13]).unwrap(), wanted.concat());
        for shape in [&[12, 2][..], &[14, 2], &[]] {
            assert!(!rows.fits(shape) && !columns.fits(shape), "{shape:?}");
        }
        assert!(!columns.fits(&[13]));
    }

    #[test]
    fn blocks_move_whole_or_not_at_all() {
        // Heads of 32 columns: a block of Q8_0 is one head. A head of 16 is half a block.
        let values = |heads: &[u8], width: usize| {
            heads.iter().flat_map(|&head| vec![f32::from(head); width]).collect::<Vec<f32>>()
        };
        let block = |row: &[f32]| {
            let mut bytes = vec![0; BlockType::Q8_0.row_bytes(row.len()).unwrap()];
            quantize_row(BlockType::Q8_0, row, &mut bytes).unwrap();
            bytes
        };
        let order = |width| StoredOrder::TiledColumns(TiledHeads { first: 0, groups: 2, each: 2, width });
        let stored = DType::Block(BlockType::Q8_0);
        let (tiled, grouped) = ([127, 64, 32, 16], [127, 32, 64, 16]);
        let whole = order(32).restore(&block(&values(&tiled, 32)), stored, &[1, 128]).unwrap();
        assert_eq!(whole, block(&values(&grouped, 32)));
        assert!(order(32).keeps_type(stored) && !order(16).keeps_type(stored));
        assert_eq!(order(16).restore(&block(&values(&tiled, 16)), stored, &[1, 64]), None);
    }
}
