//! Takes the rows of a part out of the bytes of a stored tensor: slices of fused tensors, interleaved and transposed ones.
//! Must not know what the rows mean.

use std::borrow::Cow;

use headrace_checkpoint::decoder::{RotaryPairs, RowPick, RowSource};

/// Returns the rows that `source` takes, as `bytes` stores them: rows of `row_bytes`, each of elements of
/// `element_bytes` if the type is dense. `bytes` are those of the tensor, or of the expert's part. `None` if the shape
/// does not fit the bytes, or blocks would have to be transposed.
pub fn picked<'t>(
    bytes: &Cow<'t, [u8]>,
    source: &RowSource,
    (row_bytes, element_bytes): (usize, Option<usize>),
) -> Option<Cow<'t, [u8]>> {
    let rows = match source.pick {
        RowPick::All => bytes.clone(),
        RowPick::Grouped { group, first, count } => grouped(bytes, row_bytes, group, first, count)?,
        RowPick::Transposed { first, step, count } => {
            let columns = *source.tensor.shape.last()?;
            Cow::Owned(transposed(bytes, element_bytes?, columns, (first, step, count))?)
        }
        RowPick::Columns { first, count } => {
            let columns = *source.tensor.shape.last()?;
            let rows = first.checked_mul(row_bytes)?..first.checked_add(count)?.checked_mul(row_bytes)?;
            let slice = bytes.get(rows)?;
            Cow::Owned(transposed(slice, element_bytes?, columns, (0, 1, columns))?)
        }
    };
    match source.pairs {
        None => Some(rows),
        Some(pairs) => {
            Some(Cow::Owned(halves(&rows, row_bytes_after(source, row_bytes, element_bytes)?, pairs)?))
        }
    }
}

/// Bytes of a row after the pick.
fn row_bytes_after(source: &RowSource, row_bytes: usize, element_bytes: Option<usize>) -> Option<usize> {
    match source.pick {
        RowPick::Transposed { .. } => source.tensor.shape.iter().rev().nth(1)?.checked_mul(element_bytes?),
        RowPick::Columns { count, .. } => count.checked_mul(element_bytes?),
        RowPick::All | RowPick::Grouped { .. } => Some(row_bytes),
    }
}

fn grouped<'t>(
    bytes: &Cow<'t, [u8]>,
    row_bytes: usize,
    group: usize,
    first: usize,
    count: usize,
) -> Option<Cow<'t, [u8]>> {
    let group_bytes = group.checked_mul(row_bytes).filter(|bytes| *bytes > 0)?;
    let taken = first.checked_mul(row_bytes)?..first.checked_add(count)?.checked_mul(row_bytes)?;
    if taken.end > group_bytes || !bytes.len().is_multiple_of(group_bytes) {
        return None;
    }
    if let (Cow::Borrowed(bytes), true) = (bytes, bytes.len() == group_bytes) {
        return bytes.get(taken).map(Cow::Borrowed);
    }
    let mut out = Vec::with_capacity(bytes.len() / group_bytes * taken.len());
    for group in bytes.chunks_exact(group_bytes) {
        out.extend_from_slice(group.get(taken.clone())?);
    }
    Some(Cow::Owned(out))
}

fn transposed(
    bytes: &[u8],
    element: usize,
    columns: usize,
    (first, step, count): (usize, usize, usize),
) -> Option<Vec<u8>> {
    let row_bytes = columns.checked_mul(element).filter(|bytes| *bytes > 0)?;
    let mut out = Vec::with_capacity(bytes.len() / columns * count);
    for taken in 0..count {
        let column = first.checked_add(taken.checked_mul(step)?)?;
        for row in bytes.chunks_exact(row_bytes) {
            out.extend_from_slice(row.get(column * element..(column + 1) * element)?);
        }
    }
    Some(out)
}

/// Reorders the rotated rows of each head from neighbouring pairs to pairs that are half of the rotated width apart.
fn halves(bytes: &[u8], row_bytes: usize, pairs: RotaryPairs) -> Option<Vec<u8>> {
    let RotaryPairs { head, rotated } = pairs;
    let head_bytes = head.checked_mul(row_bytes).filter(|bytes| *bytes > 0)?;
    if rotated > head || !rotated.is_multiple_of(2) || !bytes.len().is_multiple_of(head_bytes) {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(head_bytes) {
        for side in 0..2 {
            for pair in 0..rotated / 2 {
                let row = 2 * pair + side;
                out.extend_from_slice(head.get(row * row_bytes..(row + 1) * row_bytes)?);
            }
        }
        out.extend_from_slice(head.get(rotated * row_bytes..)?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use headrace_checkpoint::decoder::TensorSpec;

    use super::*;

    fn source(shape: &[usize], pick: RowPick, pairs: Option<RotaryPairs>) -> RowSource {
        let fields = vec!["size"; shape.len()];
        let tensor = TensorSpec { name: "t".to_owned(), shape: shape.to_vec(), fields };
        RowSource { tensor, expert: None, pick, pairs, otherwise: None }
    }

    #[test]
    fn rows_are_taken_as_the_source_says() {
        // Six rows of two bytes: row r is [r, 10 + r].
        let bytes: Vec<u8> = (0..6u8).flat_map(|row| [row, 10 + row]).collect();
        let rows_of = |bytes: &[u8]| bytes.chunks(2).map(|row| row[0]).collect::<Vec<_>>();
        let pairs = |head, rotated| Some(RotaryPairs { head, rotated });
        let grouped = |group, first, count| RowPick::Grouped { group, first, count };
        for (pick, pairs, expected) in [
            (RowPick::All, None, vec![0, 1, 2, 3, 4, 5]),
            (grouped(6, 2, 3), None, vec![2, 3, 4]),
            (grouped(2, 1, 1), None, vec![1, 3, 5]),
            (grouped(3, 0, 2), None, vec![0, 1, 3, 4]),
            (RowPick::All, pairs(6, 4), vec![0, 2, 1, 3, 4, 5]),
            (grouped(6, 0, 4), pairs(4, 4), vec![0, 2, 1, 3]),
        ] {
            let source = source(&[6, 2], pick, pairs);
            for bytes in [Cow::Borrowed(&bytes[..]), Cow::Owned(bytes.clone())] {
                assert_eq!(
                    rows_of(&picked(&bytes, &source, (2, Some(1))).unwrap()),
                    expected,
                    "{pick:?} {pairs:?}"
                );
            }
        }
        // Stored as 6 inputs × 2 outputs.
        let column = source(&[6, 2], RowPick::Transposed { first: 1, step: 1, count: 1 }, None);
        let taken = picked(&Cow::Borrowed(&bytes[..]), &column, (2, Some(1))).unwrap();
        assert_eq!(&taken[..], [10, 11, 12, 13, 14, 15]);
        assert_eq!(picked(&Cow::Borrowed(&bytes[..]), &column, (2, None)), None, "blocks are not transposed");
        // The columns of rows 2 and 3.
        let columns = |first, count| source(&[6, 2], RowPick::Columns { first, count }, None);
        let taken = picked(&Cow::Borrowed(&bytes[..]), &columns(2, 2), (2, Some(1))).unwrap();
        assert_eq!(&taken[..], [2, 3, 12, 13]);
        assert_eq!(picked(&Cow::Borrowed(&bytes[..]), &columns(2, 2), (2, None)), None, "no blocks either");
        assert_eq!(
            picked(&Cow::Borrowed(&bytes[..]), &columns(5, 2), (2, Some(1))),
            None,
            "out of the tensor"
        );
        for pick in [grouped(4, 0, 4), grouped(6, 4, 3), grouped(0, 0, 0)] {
            assert_eq!(picked(&Cow::Borrowed(&bytes[..]), &source(&[6, 2], pick, None), (2, Some(1))), None);
        }
    }
}
