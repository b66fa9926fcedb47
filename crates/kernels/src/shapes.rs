//! The numbers that the lanes, the tiles and the walks agree on, and how rows are cut. The floor of this room.
//! Must not know: anything else of it.

/// f32 lanes in a vector, on every instruction set. Also the columns of a panel.
pub(crate) const LANES: usize = 16;
/// Bytes in a line of codes: four for each lane.
pub(crate) const LINE: usize = 4 * LANES;
/// Inputs in a group: those that activations share a scale over.
pub(crate) const GROUP: usize = 32;
/// Words of codes in a group: four codes each.
pub(crate) const WORDS: usize = GROUP / 4;
/// Words of a group of 32 inputs and one row: their scale, and the negated sums of all codes and of the first 16.
pub(crate) const FACTS: usize = 3;
/// The most panels in a tile.
pub(crate) const MAX_PANELS: usize = 4;
/// Elements below which a row operation is not worth waking other threads for.
pub(crate) const SERIAL_ELEMENTS: usize = 1 << 14;

/// How `m` rows are cut into groups of at most `most`, as evenly as possible: (number of groups).
pub(crate) fn group_count(m: usize, most: usize) -> usize {
    m.div_ceil(most)
}

/// The first row of a group and how many rows it has.
pub(crate) fn group(m: usize, groups: usize, index: usize) -> (usize, usize) {
    let (base, extra) = (m / groups, m % groups);
    (index * base + index.min(extra), base + usize::from(index < extra))
}

/// How `rows` rows of `width` elements are cut into tasks: (tasks, rows in a task).
pub(crate) fn cut_rows(rows: usize, width: usize) -> (usize, usize) {
    let per_task = (SERIAL_ELEMENTS / width.max(1)).max(1);
    (rows.div_ceil(per_task), per_task)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The register tiles of one group among several are compiled for no others.
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
