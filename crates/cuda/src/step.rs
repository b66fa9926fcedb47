//! A pass over a batch in the kernels' input format: one array of 32-bit words. Its sections hold tokens, positions,
//! slots, tables and attention entries. Must not know: weights, or how the array gets to the device.

use headrace_kernels::forward::{LogitsWanted, SequenceChunk};
use headrace_kv_layout::KvGroup;
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
    table: usize,
}

impl Shape {
    /// The shape of a decode step: one token of each of at most `rows` sequences, each with at most `splits` splits.
    pub(crate) fn decode(rows: usize, splits: usize, heads: &Heads, group: &KvGroup) -> Shape {
        let few = rows * heads.group().div_ceil(ENTRY_ROWS);
        Shape { rows, wanted: rows, few, many: 0, splits, table: rows * splits * group.blocks_for(SPLIT) }
    }

    /// Start of each section, in words: few, many, tokens, positions, slots, wanted, tables. The last value is the end.
    fn begins(&self) -> [usize; 8] {
        let sizes = [
            self.few * ENTRY_WORDS,
            self.many * ENTRY_WORDS,
            self.rows,
            self.rows,
            self.rows,
            self.wanted,
            self.table,
        ];
        let mut begins = [0; 8];
        let mut end = 0;
        for (begin, size) in begins.iter_mut().zip(sizes) {
            *begin = end;
            // Entries are read 16 bytes at a time.
            end += size.next_multiple_of(4);
        }
        begins[7] = end;
        begins
    }

    /// Size of the whole array in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.begins()[7] * 4
    }

    /// Returns the sections within `buffer`.
    pub(crate) fn within(&self, buffer: Buffer) -> Result<Sections, DeviceError> {
        let [few, many, tokens, positions, slots, wanted, tables, _] = self.begins();
        let part = |begin: usize, words: usize| buffer.part(begin * 4, words * 4);
        Ok(Sections {
            tokens: part(tokens, self.rows)?,
            positions: part(positions, self.rows)?,
            slots: part(slots, self.rows)?,
            wanted: part(wanted, self.wanted)?,
            entries: Entries {
                few: part(few, self.few * ENTRY_WORDS)?,
                few_count: self.few,
                splits: self.splits,
                many: part(many, self.many * ENTRY_WORDS)?,
                many_count: self.many,
                tables: part(tables, self.table)?,
            },
        })
    }
}

/// The sections of a pass in the device's memory.
pub(crate) struct Sections {
    pub(crate) tokens: Buffer,
    pub(crate) positions: Buffer,
    pub(crate) slots: Buffer,
    pub(crate) wanted: Buffer,
    pub(crate) entries: Entries,
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
        group: &KvGroup,
        shape: &Shape,
    ) {
        let [few, many, tokens, positions, slots, wanted, tables, end] = shape.begins();
        self.words.clear();
        self.words.resize(end, 0);
        let words = &mut self.words;
        put(words, tokens, rows.tokens.iter().map(|&token| word(token as usize)));
        put(words, positions, rows.positions.iter().map(|&position| word(position)));
        put(words, slots, (0..shape.rows).map(|_| -1));
        let places =
            rows.slots.iter().map(|slot| word(slot.block as usize * group.block_tokens + slot.offset));
        put(words, slots, places);
        put(words, wanted, rows.wanted.iter().map(|&row| word(row)));
        let (mut row, mut table, mut few_at, mut many_at) = (0, 0, few, many);
        for chunk in batch {
            let count = chunk.tokens.len();
            let needed = group.blocks_for(chunk.start + count);
            let blocks = chunk.tables.full.iter().take(needed);
            put(words, tables + table, blocks.map(|&block| word(block as usize)));
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
        self.used = tables + table;
    }

    /// Returns the bytes to upload. The rest of the array is never read.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words.iter().take(self.used).flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Returns the smallest shape for a batch.
pub(crate) fn shape_of(batch: &[SequenceChunk<'_>], rows: &Rows, heads: &Heads, group: &KvGroup) -> Shape {
    let mut shape = Shape { rows: rows.len(), wanted: rows.wanted.len(), ..Shape::default() };
    for chunk in batch {
        let (count, end) = (chunk.tokens.len(), chunk.start + chunk.tokens.len());
        let all = count * heads.group();
        shape.table += group.blocks_for(end);
        if count <= FEW_TOKENS {
            shape.few += all.div_ceil(ENTRY_ROWS);
            shape.splits = shape.splits.max(end.div_ceil(SPLIT));
        } else {
            shape.many += all.div_ceil(MANY_ROWS);
        }
    }
    shape
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
    use headrace_kv_layout::{BlockTables, KvLayout};

    const GROUP: KvGroup = KvGroup::full(64, 1);
    const FORWARD: ForwardShape = ForwardShape {
        vocab: 100,
        max_positions: 1024,
        kv: KvLayout::single(GROUP),
        weight_bytes: 1,
        short_positions: None,
    };

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
        let shape = shape_of(&batch, &rows, &heads, &GROUP);
        // 20 tokens of a group of 4 are 80 rows: two blocks of 64. Position 300 is in the second split.
        assert_eq!(shape, Shape { rows: 21, wanted: 1, few: 1, many: 2, splits: 2, table: 19 + 2 });
        let mut step = Step::default();
        step.fill(&batch, &rows, &heads, &GROUP, &shape);
        let [few, many, tokens, _, slots, wanted, table, end] = shape.begins();
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
        let wide = Shape { rows: 24, ..shape };
        step.fill(&batch, &rows, &heads, &GROUP, &wide);
        let slots = wide.begins()[4];
        assert_eq!(step.words[slots + 21..slots + 24], [-1, -1, -1]);
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
