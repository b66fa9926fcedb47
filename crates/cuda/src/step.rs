//! A pass over a batch in the kernels' input format: one array of 32-bit words. Its sections hold tokens, positions,
//! slots, tables and attention entries. Must not know: weights, or how the array gets to the device.

use headrace_kernels::forward::{LogitsWanted, SequenceChunk};
use headrace_kv_layout::{KvGroup, KvLayout};
use headrace_model::batch::Rows;

use crate::attention::{ENTRY_ROWS, Entries, Heads, MANY_ROWS, SPLIT};
use crate::device::{Buffer, DeviceError};

/// Words per entry.
const ENTRY_WORDS: usize = 8;
/// Chunks with at most this many tokens have their splits computed in parallel. Otherwise their few rows would not fill
/// a device.
const FEW_TOKENS: usize = 4;

/// The capacity of each section of the array. Two passes with the same shape have the same memory layout, so that a
/// recording of one can be replayed for the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) wanted: usize,
    few: usize,
    many: usize,
    pub(crate) splits: usize,
    full: GroupShape,
    window: GroupShape,
}

/// The capacity of the sections of one cache group. All 0 if the model has no such group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct GroupShape {
    slots: usize,
    table: usize,
}

impl GroupShape {
    fn new(group: &KvGroup, slots: usize, table: usize) -> GroupShape {
        if group.is_used() { GroupShape { slots, table } } else { GroupShape::default() }
    }
}

/// The start of each section, in words.
struct SectionBegins {
    few: usize,
    many: usize,
    tokens: usize,
    angles: usize,
    wanted: usize,
    full_slots: usize,
    window_slots: usize,
    full_table: usize,
    window_table: usize,
    end: usize,
}

impl Shape {
    /// The shape of a decode step: one token of each of at most `rows` sequences, each with at most `splits` splits.
    pub(crate) fn decode(rows: usize, splits: usize, heads: &Heads, layout: &KvLayout) -> Shape {
        let few = rows * heads.group().div_ceil(ENTRY_ROWS);
        let table = rows * splits * SPLIT.div_ceil(layout.block_tokens());
        Shape { rows, wanted: rows, few, many: 0, splits, ..Shape::default() }.with_groups(layout, table)
    }

    /// Adds the sections of the cache groups. The tables of each group have `table` entries.
    fn with_groups(self, layout: &KvLayout, table: usize) -> Shape {
        let group = |group| GroupShape::new(group, self.rows, table);
        Shape { full: group(layout.groups().full()), window: group(layout.groups().window()), ..self }
    }

    fn begins(&self) -> SectionBegins {
        let mut end = 0;
        let mut next = |words: usize| {
            let begin = end;
            // Entries are read 16 bytes at a time.
            end += words.next_multiple_of(4);
            begin
        };
        SectionBegins {
            few: next(self.few * ENTRY_WORDS),
            many: next(self.many * ENTRY_WORDS),
            tokens: next(self.rows),
            angles: next(self.rows),
            wanted: next(self.wanted),
            full_slots: next(self.full.slots),
            window_slots: next(self.window.slots),
            full_table: next(self.full.table),
            window_table: next(self.window.table),
            end: next(0),
        }
    }

    /// Size of the whole array in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.begins().end * 4
    }

    /// Returns the sections within `buffer`.
    pub(crate) fn within(&self, buffer: Buffer) -> Result<Sections, DeviceError> {
        let begins = self.begins();
        let part = |begin: usize, words: usize| buffer.part(begin * 4, words * 4);
        Ok(Sections {
            tokens: part(begins.tokens, self.rows)?,
            angles: part(begins.angles, self.rows)?,
            wanted: part(begins.wanted, self.wanted)?,
            entries: Entries {
                few: part(begins.few, self.few * ENTRY_WORDS)?,
                few_count: self.few,
                splits: self.splits,
                many: part(begins.many, self.many * ENTRY_WORDS)?,
                many_count: self.many,
            },
            full: GroupSections {
                slots: part(begins.full_slots, self.full.slots)?,
                tables: part(begins.full_table, self.full.table)?,
            },
            window: GroupSections {
                slots: part(begins.window_slots, self.window.slots)?,
                tables: part(begins.window_table, self.window.table)?,
            },
        })
    }
}

/// The sections of a pass in the device's memory.
pub(crate) struct Sections {
    pub(crate) tokens: Buffer,
    /// The row of the rotary tables for each row.
    pub(crate) angles: Buffer,
    pub(crate) wanted: Buffer,
    pub(crate) entries: Entries,
    /// The group of the layers that keep every position.
    pub(crate) full: GroupSections,
    /// The group of the layers with a window.
    pub(crate) window: GroupSections,
}

/// The sections of one cache group.
#[derive(Clone, Copy)]
pub(crate) struct GroupSections {
    /// The slot of each row: block · 16 + offset.
    pub(crate) slots: Buffer,
    /// The block tables of the sequences. They begin at the same places in every group.
    pub(crate) tables: Buffer,
}

/// The words of a pass, reused between steps.
#[derive(Default)]
pub(crate) struct Step {
    words: Vec<i32>,
    used: usize,
}

impl Step {
    /// Writes a checked batch in the `shape` that [`shape_of`] returned, or in a larger one. Additional rows have slot
    /// −1, and no entry refers to them.
    pub(crate) fn fill(
        &mut self,
        batch: &[SequenceChunk<'_>],
        rows: &Rows,
        heads: &Heads,
        layout: &KvLayout,
        shape: &Shape,
    ) {
        let begins = shape.begins();
        self.words.clear();
        self.words.resize(begins.end, 0);
        let words = &mut self.words;
        put(words, begins.tokens, rows.tokens.iter().map(|&token| word(token as usize)));
        put(words, begins.angles, rows.angles().iter().map(|&angle| word(angle)));
        put(words, begins.wanted, rows.wanted.iter().map(|&row| word(row)));
        for (begin, group, slots) in [
            (begins.full_slots, shape.full, &rows.slots),
            (begins.window_slots, shape.window, &rows.window_slots),
        ] {
            put(words, begin, (0..group.slots).map(|_| -1));
            let tokens = layout.block_tokens();
            put(words, begin, slots.iter().map(|slot| word(slot.block as usize * tokens + slot.offset)));
        }
        let (mut row, mut table, mut few_at, mut many_at) = (0, 0, begins.few, begins.many);
        for chunk in batch {
            let count = chunk.tokens.len();
            let needed = (chunk.start + count).div_ceil(layout.block_tokens());
            for (begin, group, blocks) in [
                (begins.full_table, shape.full, chunk.tables.full),
                (begins.window_table, shape.window, chunk.tables.window),
            ] {
                let blocks = blocks.iter().take(needed.min(group.table));
                put(words, begin + table, blocks.map(|&block| word(block as usize)));
            }
            let all = count * heads.group();
            let (at, each) = match count <= FEW_TOKENS {
                true => (&mut few_at, ENTRY_ROWS),
                false => (&mut many_at, MANY_ROWS),
            };
            for from in (0..all).step_by(each) {
                put(words, *at, [row, from, all, chunk.start, table].into_iter().map(word));
                *at += ENTRY_WORDS;
            }
            row += count;
            table += needed;
        }
        // The last table that is used is the last section.
        let last = if shape.window.table > 0 { begins.window_table } else { begins.full_table };
        self.used = last + table;
    }

    /// Returns the bytes to upload. The rest of the array is never read.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words.iter().take(self.used).flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Returns the smallest shape for a batch.
pub(crate) fn shape_of(batch: &[SequenceChunk<'_>], rows: &Rows, heads: &Heads, layout: &KvLayout) -> Shape {
    let mut shape = Shape { rows: rows.len(), wanted: rows.wanted.len(), ..Shape::default() };
    let mut table = 0;
    for chunk in batch {
        let (count, end) = (chunk.tokens.len(), chunk.start + chunk.tokens.len());
        let all = count * heads.group();
        table += end.div_ceil(layout.block_tokens());
        if count <= FEW_TOKENS {
            shape.few += all.div_ceil(ENTRY_ROWS);
            shape.splits = shape.splits.max(end.div_ceil(SPLIT));
        } else {
            shape.many += all.div_ceil(MANY_ROWS);
        }
    }
    shape.with_groups(layout, table)
}

/// Returns whether each sequence has one token and wants its logits.
pub(crate) fn is_decode(batch: &[SequenceChunk<'_>]) -> bool {
    batch.iter().all(|chunk| chunk.tokens.len() == 1 && chunk.logits != LogitsWanted::None)
}

/// Rounds the rows of a decode batch up to a size that is recorded, so that a few sizes serve all batches.
pub(crate) fn bucket(rows: usize) -> usize {
    match rows {
        0..=8 => rows.next_power_of_two(),
        9..=64 => rows.next_multiple_of(8),
        _ => rows.next_multiple_of(32),
    }
}

/// Splits a batch into passes of at most `rows` rows. The position of a cut does not change a sequence's bits.
pub(crate) fn passes<'a>(batch: &[SequenceChunk<'a>], rows: usize) -> Vec<Vec<SequenceChunk<'a>>> {
    let (mut passes, mut pass, mut left) = (Vec::new(), Vec::new(), rows);
    for chunk in batch {
        let mut done = 0;
        while done < chunk.tokens.len() {
            if left == 0 {
                passes.push(std::mem::take(&mut pass));
                left = rows;
            }
            let count = left.min(chunk.tokens.len() - done);
            let is_last = done + count == chunk.tokens.len();
            let logits = match chunk.logits {
                LogitsWanted::Last if !is_last => LogitsWanted::None,
                wanted => wanted,
            };
            let tokens = chunk.tokens.get(done..done + count).unwrap_or_default();
            pass.push(SequenceChunk {
                tokens,
                start: chunk.start + done,
                tables: chunk.tables,
                logits,
                long_context: chunk.long_context,
            });
            done += count;
            left -= count;
        }
    }
    if !pass.is_empty() {
        passes.push(pass);
    }
    passes
}

fn put(words: &mut [i32], at: usize, values: impl Iterator<Item = i32>) {
    for (to, value) in words.iter_mut().skip(at).zip(values) {
        *to = value;
    }
}

/// Every number here is below a size that was checked against `i32` when the model was loaded.
fn word(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrace_kernels::forward::ForwardShape;
    use headrace_kv_layout::{BlockTables, FREED, KvGroupKind};

    const LAYOUT: KvLayout = KvLayout::single(KvGroup::full(64, 1));
    const FORWARD: ForwardShape =
        ForwardShape { vocab: 100, max_positions: 1024, kv: LAYOUT, weight_bytes: 1, short_positions: None };

    fn heads(heads: usize, kv_heads: usize) -> Heads {
        Heads::new(heads, kv_heads, 16).unwrap()
    }

    fn chunk<'a>(
        tokens: &'a [u32],
        start: usize,
        table: &'a [u32],
        logits: LogitsWanted,
    ) -> SequenceChunk<'a> {
        SequenceChunk { tokens, start, tables: BlockTables::single(table), logits, long_context: false }
    }

    #[test]
    fn a_mixed_batch_is_written_section_by_section() {
        let tables: [Vec<u32>; 2] = [(0..20).map(|b| 63 - b).collect(), vec![7, 5]];
        let prompt: Vec<u32> = (0..20).collect();
        let batch = [
            chunk(&[9], 300, &tables[0], LogitsWanted::Last),
            chunk(&prompt, 3, &tables[1], LogitsWanted::None),
        ];
        let mut rows = Rows::default();
        rows.fill(&batch, &FORWARD).unwrap();
        let heads = heads(8, 2);
        let shape = shape_of(&batch, &rows, &heads, &LAYOUT);
        // 20 tokens of a group of 4 are 80 rows: two blocks of 64. Position 300 is in the second split.
        let full = GroupShape { slots: 21, table: 19 + 2 };
        let window = GroupShape::default();
        assert_eq!(shape, Shape { rows: 21, wanted: 1, few: 1, many: 2, splits: 2, full, window });
        let mut step = Step::default();
        step.fill(&batch, &rows, &heads, &LAYOUT, &shape);
        let SectionBegins { few, many, tokens, full_slots: slots, wanted, full_table: table, end, .. } =
            shape.begins();
        let words = &step.words;
        assert_eq!(words[few..few + 5], [0, 0, 4, 300, 0]);
        assert_eq!(words[many..many + 5], [1, 0, 80, 3, 19]);
        assert_eq!(words[many + 8..many + 13], [1, 64, 80, 3, 19]);
        assert_eq!(words[tokens..tokens + 3], [9, 0, 1]);
        assert_eq!(words[slots..slots + 2], [(63 - 18) * 16 + 12, 7 * 16 + 3]);
        assert_eq!((words[wanted], words[table], words[table + 19]), (0, 63, 7));
        assert_eq!(step.bytes().len(), (table + 21) * 4);
        assert!(end * 4 == shape.bytes() && [few, many].iter().all(|at| at.is_multiple_of(4)));
        // A shape with room for more rows: the additional rows have no slot.
        let wide = Shape { rows: 24, full: GroupShape { slots: 24, ..full }, ..shape };
        step.fill(&batch, &rows, &heads, &LAYOUT, &wide);
        let slots = wide.begins().full_slots;
        assert_eq!(step.words[slots + 21..slots + 24], [-1, -1, -1]);
    }

    #[test]
    fn each_group_has_its_slots_and_its_tables_at_the_same_places() {
        let window = KvGroup::new(KvGroupKind::Window(20), 8, 1);
        let layouts = [KvLayout::new(&[KvGroup::full(64, 1), window]), KvLayout::single(window)];
        let (full, kept) = ([10, 11, 12, 13], [FREED, 5, 4, 3]);
        for (layout, has_full) in layouts.into_iter().zip([true, false]) {
            let tables =
                BlockTables { full: if has_full { &full } else { &[] }, window: &kept, states: None };
            let (start, logits) = (50, LogitsWanted::Last);
            let batch = [SequenceChunk { tokens: &[1, 2], start, tables, logits, long_context: false }; 2];
            let mut rows = Rows::default();
            rows.fill(&batch, &ForwardShape { kv: layout, ..FORWARD }).unwrap();
            let heads = heads(2, 1);
            let shape = shape_of(&batch, &rows, &heads, &layout);
            let used = GroupShape { slots: 4, table: 8 };
            let unused = GroupShape::default();
            assert_eq!((shape.full, shape.window), (if has_full { used } else { unused }, used));
            let mut step = Step::default();
            step.fill(&batch, &rows, &heads, &layout, &shape);
            let SectionBegins { few, full_slots, window_slots, full_table, window_table, .. } =
                shape.begins();
            let words = &step.words;
            assert_eq!(words[few + 8..few + 13], [2, 0, 4, 50, 4]);
            assert_eq!(words[window_slots..window_slots + 2], [3 * 16 + 2, 3 * 16 + 3]);
            assert_eq!(words[window_table + 4..window_table + 8], [i32::MAX, 5, 4, 3]);
            assert_eq!(step.bytes().len(), (window_table + 8) * 4);
            if has_full {
                assert_eq!(words[full_slots..full_slots + 2], [13 * 16 + 2, 13 * 16 + 3]);
                assert_eq!(words[full_table + 4..full_table + 8], [10, 11, 12, 13]);
            }
            // Recordings are kept apart by the groups' sections too.
            assert_ne!(
                Shape::decode(4, 1, &heads, &layout),
                Shape { window: unused, ..Shape::decode(4, 1, &heads, &layout) }
            );
        }
    }

    #[test]
    fn passes_keep_order_positions_and_what_is_wanted() {
        let tokens: Vec<u32> = (0..10).collect();
        let chunk = |logits| chunk(&tokens, 5, &[0], logits);
        let cut =
            passes(&[chunk(LogitsWanted::Last), chunk(LogitsWanted::All), chunk(LogitsWanted::None)], 12);
        let seen: Vec<Vec<_>> = cut
            .iter()
            .map(|pass| pass.iter().map(|c| (c.start, c.tokens.len(), c.tokens[0], c.logits)).collect())
            .collect();
        use LogitsWanted::{All, Last, None};
        assert_eq!(
            seen,
            [
                vec![(5, 10, 0, Last), (5, 2, 0, All)],
                vec![(7, 8, 2, All), (5, 4, 0, None)],
                vec![(9, 6, 4, None)]
            ]
        );
        let cut = passes(&[chunk(LogitsWanted::Last)], 4);
        let wanted: Vec<_> = cut.iter().map(|pass| pass[0].logits).collect();
        assert_eq!(wanted, [None, None, Last]);
    }

    #[test]
    fn buckets_hold_their_rows() {
        for rows in 1..600 {
            assert!(bucket(rows) >= rows && bucket(bucket(rows)) == bucket(rows), "{rows}");
        }
    }
}
