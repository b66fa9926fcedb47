//! Sizes that the SIMD lanes, the register tiles and the GEMM loops share, and how rows are cut into groups. The
//! lowest module of this crate: it imports no other.

/// f32 lanes of a vector, on every instruction set. Also the number of columns in a panel.
pub(crate) const LANES: usize = 16;
/// Bytes in a line of codes: four codes for each lane.
pub(crate) const LINE: usize = 4 * LANES;
/// Inputs in a group. The activations of a group share one scale.
pub(crate) const GROUP: usize = 32;
/// Words of codes in a group, with four codes in each word.
pub(crate) const WORDS: usize = GROUP / 4;
/// Words of metadata per group of 32 inputs and row: the scale, the negated sum of all codes, and the negated sum of
/// the first 16 codes.
pub(crate) const FACTS: usize = 3;
/// Most panels in a register tile.
pub(crate) const MAX_PANELS: usize = 4;
/// A row operation with fewer elements than this is not worth waking other threads for.
pub(crate) const SERIAL_ELEMENTS: usize = 1 << 14;

/// Returns the number of groups when `m` rows are cut as evenly as possible into groups of at most `most`.
pub(crate) fn group_count(m: usize, most: usize) -> usize {
    m.div_ceil(most)
}

/// Returns the first row of group `index` and its number of rows.
pub(crate) fn group(m: usize, groups: usize, index: usize) -> (usize, usize) {
    let (base, extra) = (m / groups, m % groups);
    (index * base + index.min(extra), base + usize::from(index < extra))
}

/// Cuts `rows` rows of `width` elements into tasks. Returns the number of tasks and the rows per task.
pub(crate) fn cut_rows(rows: usize, width: usize) -> (usize, usize) {
    let per_task = (SERIAL_ELEMENTS / width.max(1)).max(1);
    (rows.div_ceil(per_task), per_task)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Register tiles for one of several groups are compiled only for the row counts that this test allows.
    #[test]
    fn several_groups_have_half_of_the_most_rows_or_more() {
        for most in [2, 4, 6, 12] {
            for m in most + 1..3_000 {
                let groups = group_count(m, most);
                let mut next = 0;
                for index in 0..groups {
                    let (first, rows) = group(m, groups, index);
                    assert_eq!(first, next, "{m} rows");
                    assert!(rows <= most && 2 * rows >= most, "{rows} of {m} rows, at most {most}");
                    assert!(most != 6 || m <= 8 || rows >= 4, "{rows} of {m} rows");
                    next = first + rows;
                }
                assert_eq!(next, m);
            }
        }
    }
}
