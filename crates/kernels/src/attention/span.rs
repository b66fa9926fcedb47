//! The words of attention: splits of positions, and the spans of queries that it is asked for.
//! Must not know: how either is worked on.

/// Positions in one split. Part of the numerics: changing it changes bits.
pub(crate) const SPLIT: usize = 256;

/// Consecutive queries of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The first query's row in the query matrix.
    pub query_row: usize,
    /// The row of the output that it fills.
    pub out_row: usize,
    /// How many queries.
    pub count: usize,
    /// Absolute position of the first.
    pub start: usize,
    /// Block table of the sequence, covering `start + count` positions.
    pub blocks: &'a [u32],
}
