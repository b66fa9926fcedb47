//! The words of attention: splits of positions, and the spans of queries that it is asked for.
//! Must not know: how either is worked on.

use std::ops::Range;

/// Positions in one split. Part of the numerics: changing it changes bits.
pub(crate) const SPLIT: usize = 256;

/// Which keys of its sequence a query sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sees {
    /// Those up to its own position: a decoder.
    Before,
    /// All of the sequence: an encoder. What is behind the span's last query is not part of it.
    All,
    /// Of all of the sequence, those at most so many positions away, on either side.
    Near(usize),
}

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
    /// What each query sees.
    pub sees: Sees,
}

impl Span<'_> {
    /// The positions that the span's query number `query` sees. Neither end ever goes back from one query to the next.
    #[inline(always)]
    pub(crate) fn seen(&self, query: usize) -> Range<usize> {
        let (position, all) = (self.start + query, self.start + self.count);
        match self.sees {
            Sees::Before => 0..position + 1,
            Sees::All => 0..all,
            Sees::Near(reach) => {
                position.saturating_sub(reach)..position.saturating_add(reach).saturating_add(1).min(all)
            }
        }
    }
}
