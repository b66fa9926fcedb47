//! The inputs of attention: splits of positions, and spans of queries.
//! Must not know: how either is processed.

use std::ops::Range;

use headrace_kv_layout::BLOCK_TOKENS;

/// Positions in one split. Part of the numerics: a change here changes result bits.
pub(crate) const SPLIT: usize = 256;

/// The keys of its sequence that a query sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sees {
    /// The keys up to the query's own position, as in a decoder.
    Before,
    /// The keys up to the query's own position, and of those the last ones, as many as this says. At least 1.
    Window(usize),
    /// All keys of the sequence, as in an encoder. The sequence ends with the span's last query.
    All,
    /// The keys of the sequence that are at most this many positions away, on either side.
    Near(usize),
}

/// Consecutive queries of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Row of the first query in the query matrix.
    pub query_row: usize,
    /// Output row of the first query.
    pub out_row: usize,
    /// Number of queries.
    pub count: usize,
    /// Absolute position of the first query.
    pub start: usize,
    /// Block table of the sequence, covering `start + count` positions. The blocks before those that the first query
    /// sees may be [`headrace_kv_layout::FREED`].
    pub blocks: &'a [u32],
    /// The keys that each query sees.
    pub sees: Sees,
}

impl Sees {
    /// Whether a query may skip keys at the start of its sequence.
    pub(crate) fn skips_first_keys(self) -> bool {
        matches!(self, Sees::Window(_) | Sees::Near(_))
    }
}

impl Span<'_> {
    /// Returns the ids of the blocks that the queries see.
    pub(crate) fn needed_blocks(&self) -> &[u32] {
        self.blocks.get(self.seen(0).start / BLOCK_TOKENS..).unwrap_or(&[])
    }

    /// Returns the positions that query `query` of the span sees. From one query to the next, neither end decreases.
    #[inline(always)]
    pub(crate) fn seen(&self, query: usize) -> Range<usize> {
        let (position, all) = (self.start + query, self.start + self.count);
        match self.sees {
            Sees::Before => 0..position + 1,
            Sees::Window(keys) => (position + 1).saturating_sub(keys)..position + 1,
            Sees::All => 0..all,
            Sees::Near(reach) => {
                position.saturating_sub(reach)..position.saturating_add(reach).saturating_add(1).min(all)
            }
        }
    }
}
