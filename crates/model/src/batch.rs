//! A checked batch, flattened into rows: token, position and KV slot of each row, and the rows that need logits. Must
//! not know: weights.

use headrace_kernels::attention::{KvSlot, Sees, Span};
use headrace_kernels::forward::{ForwardError, ForwardShape, LogitsWanted, SequenceChunk};
use headrace_kv_layout::KvGroup;

/// The rows of a checked batch. Reused between steps.
#[derive(Default)]
pub struct Rows {
    /// The token of each row.
    pub tokens: Vec<u32>,
    /// The absolute position of each row.
    pub positions: Vec<usize>,
    /// The row of the rotary tables for each row. Empty if it is the position.
    long_angles: Vec<usize>,
    /// The KV slot of each row in layers that keep every position. Empty if there are none.
    pub slots: Vec<KvSlot>,
    /// The KV slot of each row in layers with a window. Empty if there are none.
    pub window_slots: Vec<KvSlot>,
    /// The rows that need logits, in ascending order.
    pub wanted: Vec<usize>,
}

impl Rows {
    /// Checks `batch` against `shape` and flattens it.
    ///
    /// # Errors
    /// [`ForwardError::BadBatch`], which names the chunk that breaks the contract.
    pub fn fill(&mut self, batch: &[SequenceChunk<'_>], shape: &ForwardShape) -> Result<(), ForwardError> {
        self.tokens.clear();
        self.positions.clear();
        self.long_angles.clear();
        self.slots.clear();
        self.window_slots.clear();
        self.wanted.clear();
        let (block_tokens, groups) = (shape.kv.block_tokens(), shape.kv.groups());
        for (index, chunk) in batch.iter().enumerate() {
            check(chunk, shape).map_err(|message| ForwardError::BadBatch { chunk: index, message })?;
            let first_wanted = self.tokens.len() + chunk.tokens.len() - chunk.logits.rows(chunk.tokens.len());
            self.tokens.extend_from_slice(chunk.tokens);
            let positions = chunk.start..chunk.start + chunk.tokens.len();
            self.positions.extend(positions.clone());
            if let Some(short) = shape.short_positions {
                let before = if chunk.long_context { short } else { 0 };
                self.long_angles.extend(positions.clone().map(|position| before + position));
            }
            for (group, table, slots) in [
                (groups.full(), chunk.tables.full, &mut self.slots),
                (groups.window(), chunk.tables.window, &mut self.window_slots),
            ] {
                if group.is_used() {
                    slots.extend(positions.clone().map(|position| KvSlot {
                        block: table.get(position / block_tokens).copied().unwrap_or_default(),
                        offset: position % block_tokens,
                    }));
                }
            }
            self.wanted.extend(first_wanted..self.tokens.len());
        }
        Ok(())
    }

    /// The KV slots of the rows in a layer of one of the two groups.
    pub(crate) fn slots_of(&self, in_window: bool) -> &[KvSlot] {
        if in_window { &self.window_slots } else { &self.slots }
    }

    /// The row of the rotary tables for each row.
    pub fn angles(&self) -> &[usize] {
        if self.long_angles.is_empty() { &self.positions } else { &self.long_angles }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// The keys that a layer's queries see, and the cache group that holds them.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct SeenKeys {
    pub(crate) sees: Sees,
    /// Whether the layer belongs to the cache group of the window.
    pub(crate) in_window: bool,
}

/// Attention spans of every token of the batch, for each kind of attention that the layers have.
pub(crate) struct LayerSpans<'a>(Vec<(SeenKeys, Vec<Span<'a>>)>);

impl<'a> LayerSpans<'a> {
    pub(crate) fn of(batch: &[SequenceChunk<'a>], layers: impl Iterator<Item = SeenKeys>) -> Self {
        let mut kinds: Vec<(SeenKeys, Vec<Span<'a>>)> = Vec::with_capacity(2);
        for seen in layers {
            if !kinds.iter().any(|(known, _)| *known == seen) {
                kinds.push((seen, spans(batch, seen, |_| LogitsWanted::All)));
            }
        }
        Self(kinds)
    }

    /// The spans of a layer whose queries see these keys.
    pub(crate) fn of_layer(&self, seen: SeenKeys) -> &[Span<'a>] {
        self.0.iter().find(|(known, _)| *known == seen).map_or(&[], |(_, spans)| spans)
    }
}

/// Attention spans of the tokens that need logits. Their output rows are consecutive.
pub(crate) fn wanted_spans<'a>(batch: &[SequenceChunk<'a>], seen: SeenKeys) -> Vec<Span<'a>> {
    spans(batch, seen, |chunk| chunk.logits)
}

fn spans<'a>(
    batch: &[SequenceChunk<'a>],
    SeenKeys { sees, in_window }: SeenKeys,
    of: impl Fn(&SequenceChunk<'a>) -> LogitsWanted,
) -> Vec<Span<'a>> {
    let (mut row, mut out_row) = (0, 0);
    let mut spans = Vec::with_capacity(batch.len());
    for chunk in batch {
        let (tokens, count) = (chunk.tokens.len(), of(chunk).rows(chunk.tokens.len()));
        let skipped = tokens - count;
        if count > 0 {
            spans.push(Span {
                query_row: row + skipped,
                out_row,
                count,
                start: chunk.start + skipped,
                blocks: if in_window { chunk.tables.window } else { chunk.tables.full },
                sees,
            });
        }
        row += tokens;
        out_row += count;
    }
    spans
}

fn check(chunk: &SequenceChunk<'_>, shape: &ForwardShape) -> Result<(), String> {
    if chunk.tokens.is_empty() {
        return Err("has no tokens".to_owned());
    }
    let end = chunk.start.checked_add(chunk.tokens.len()).filter(|&end| end <= shape.max_positions);
    let Some(end) = end else {
        let (start, tokens) = (chunk.start, chunk.tokens.len());
        return Err(format!("{tokens} tokens at {start} pass position {}", shape.max_positions));
    };
    if let Some(short) = shape.short_positions.filter(|&short| end > short && !chunk.long_context) {
        return Err(format!("a short context passes position {short}"));
    }
    check_table(chunk.tables.full, chunk.start, end, shape.kv.groups().full())?;
    check_table(chunk.tables.window, chunk.start, end, shape.kv.groups().window())?;
    if let Some(token) = chunk.tokens.iter().find(|&&token| token as usize >= shape.vocab) {
        return Err(format!("token {token} of a vocabulary of {}", shape.vocab));
    }
    Ok(())
}

/// Checks that a block table covers the positions before `end` that a chunk from `start` on reads or writes.
fn check_table(table: &[u32], start: usize, end: usize, group: &KvGroup) -> Result<(), String> {
    let (needed, blocks) = (group.blocks_for(end), table.len());
    if blocks < needed {
        return Err(format!("{blocks} blocks for {end} positions, which need {needed}"));
    }
    let held = table.get(group.blocks_outside(start)..needed).unwrap_or(&[]);
    if let Some(block) = held.iter().find(|&&block| block as usize >= group.block_count) {
        return Err(format!("block {block} of {}", group.block_count));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use headrace_kv_layout::{BlockTables, KvLayout};

    use super::*;

    const SHAPE: ForwardShape = ForwardShape {
        vocab: 100,
        max_positions: 64,
        kv: KvLayout::single(KvGroup::full(8, 1)),
        weight_bytes: 1,
        short_positions: None,
    };

    const BEFORE: SeenKeys = SeenKeys { sees: Sees::Before, in_window: false };

    fn chunk<'a>(
        tokens: &'a [u32],
        start: usize,
        blocks: &'a [u32],
        logits: LogitsWanted,
    ) -> SequenceChunk<'a> {
        SequenceChunk { tokens, start, tables: BlockTables::single(blocks), logits, long_context: false }
    }

    #[test]
    fn a_chunk_that_breaks_the_contract_is_refused_by_number() {
        let cases: [(&[u32], usize, &[u32], &str); 6] = [
            (&[], 0, &[0], "no tokens"),
            (&[1], 64, &[0, 1, 2, 3, 4], "pass position 64"),
            (&[1], usize::MAX, &[0], "pass position 64"),
            (&[1], 16, &[0], "1 blocks for 17 positions"),
            (&[100], 0, &[0], "token 100"),
            (&[1], 0, &[8], "block 8"),
        ];
        for (tokens, start, blocks, expected) in cases {
            let good = chunk(&[1], 0, &[7], LogitsWanted::Last);
            let batch = [good, chunk(tokens, start, blocks, LogitsWanted::Last)];
            let error = Rows::default().fill(&batch, &SHAPE).unwrap_err();
            let ForwardError::BadBatch { chunk: 1, message } = error else { panic!("{error}") };
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn rows_and_spans_follow_the_batch() {
        let batch = [
            chunk(&[1, 2, 3], 15, &[5, 6], LogitsWanted::Last),
            chunk(&[4, 5], 0, &[7], LogitsWanted::None),
            chunk(&[6, 7], 2, &[3], LogitsWanted::All),
        ];
        let mut rows = Rows::default();
        rows.fill(&batch, &SHAPE).unwrap();
        assert_eq!(rows.tokens, [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(rows.positions, [15, 16, 17, 0, 1, 2, 3]);
        assert_eq!(rows.slots[0], KvSlot { block: 5, offset: 15 });
        assert_eq!(rows.slots[1], KvSlot { block: 6, offset: 0 });
        assert_eq!(rows.wanted, [2, 5, 6]);
        let places = |spans: Vec<Span<'_>>| -> Vec<_> {
            spans.iter().map(|span| (span.query_row, span.out_row, span.count, span.start)).collect()
        };
        assert_eq!(
            places(spans(&batch, BEFORE, |_| LogitsWanted::All)),
            [(0, 0, 3, 15), (3, 3, 2, 0), (5, 5, 2, 2)]
        );
        assert_eq!(places(wanted_spans(&batch, BEFORE)), [(2, 0, 1, 17), (5, 1, 2, 2)]);
    }
}
