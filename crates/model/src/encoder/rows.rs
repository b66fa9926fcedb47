//! A checked batch of whole sequences, flattened into rows. Also assigns the blocks that hold keys and values while a
//! layer is computed. Must not know: weights.

use std::ops::Range;

use headrace_kernels::attention::{KvSlot, Sees, Span};
use headrace_kernels::encode::{EncodeShape, Sequence};
use headrace_kernels::forward::ForwardError;

/// The rows of a batch. Reused between batches.
#[derive(Default)]
pub(crate) struct Rows {
    /// The token of each row.
    pub(crate) tokens: Vec<u32>,
    /// Whether each row belongs to the second of two texts.
    pub(crate) second: Vec<bool>,
    /// The position of each row in its sequence.
    pub(crate) positions: Vec<usize>,
    /// The KV slot of each row.
    pub(crate) slots: Vec<KvSlot>,
    /// The rows of each sequence.
    ranges: Vec<Range<usize>>,
    /// The KV blocks of all sequences, one sequence after the other.
    blocks: Vec<u32>,
    /// The range of `blocks` of each sequence.
    block_ranges: Vec<Range<usize>>,
}

impl Rows {
    /// Checks `batch` against `shape` and flattens it.
    pub(crate) fn fill(&mut self, batch: &[Sequence<'_>], shape: &EncodeShape) -> Result<(), ForwardError> {
        self.tokens.clear();
        self.second.clear();
        self.positions.clear();
        self.slots.clear();
        self.ranges.clear();
        self.blocks.clear();
        self.block_ranges.clear();
        let block_tokens = shape.block_tokens;
        let most_blocks = shape.max_batch_tokens / block_tokens;
        for (index, sequence) in batch.iter().enumerate() {
            let count = sequence.tokens.len();
            let first_block = self.blocks.len();
            let end_block = first_block + count.div_ceil(block_tokens);
            check(sequence, shape, end_block <= most_blocks)
                .map_err(|message| ForwardError::BadBatch { chunk: index, message })?;
            let first = self.tokens.len();
            self.tokens.extend_from_slice(sequence.tokens);
            self.second.extend((0..count).map(|at| at >= sequence.second));
            self.positions.extend(0..count);
            self.blocks.extend((first_block..end_block).map(|block| block as u32));
            let slot = |at: usize| KvSlot {
                block: (first_block + at / block_tokens) as u32,
                offset: at % block_tokens,
            };
            self.slots.extend((0..count).map(slot));
            self.ranges.push(first..first + count);
            self.block_ranges.push(first_block..end_block);
        }
        Ok(())
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The rows of each sequence.
    pub(crate) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// The blocks of each sequence.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &[u32]> {
        self.block_ranges.iter().map(|range| self.blocks.get(range.clone()).unwrap_or_default())
    }

    /// Returns one attention span per sequence, over the whole sequence.
    pub(crate) fn spans(&self, sees: Sees) -> Vec<Span<'_>> {
        let both = self.ranges.iter().zip(self.blocks());
        both.map(|(rows, blocks)| Span {
            query_row: rows.start,
            out_row: rows.start,
            count: rows.len(),
            start: 0,
            blocks,
            sees,
        })
        .collect()
    }
}

fn check(sequence: &Sequence<'_>, shape: &EncodeShape, fits: bool) -> Result<(), String> {
    let Sequence { tokens, second } = *sequence;
    if tokens.is_empty() {
        return Err("has no tokens".to_owned());
    }
    if tokens.len() > shape.max_tokens {
        return Err(format!("{} tokens, the most is {}", tokens.len(), shape.max_tokens));
    }
    if !fits {
        return Err(format!("passes the {} tokens that a batch may have", shape.max_batch_tokens));
    }
    if second > tokens.len() {
        return Err(format!("its second text begins at {second} of {}", tokens.len()));
    }
    match tokens.iter().find(|&&token| token as usize >= shape.vocab) {
        Some(token) => Err(format!("token {token} of a vocabulary of {}", shape.vocab)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: EncodeShape = EncodeShape {
        vocab: 100,
        max_tokens: 20,
        max_batch_tokens: 64,
        block_tokens: 16,
        width: 4,
        weight_bytes: 1,
    };

    #[test]
    fn a_sequence_that_breaks_the_contract_is_refused_by_number() {
        let cases: [(&[u32], usize, &str); 5] = [
            (&[], 0, "no tokens"),
            (&[1; 21], 21, "21 tokens, the most is 20"),
            (&[1; 20], 20, "passes the 64 tokens"),
            (&[1], 2, "second text begins at 2"),
            (&[100], 1, "token 100"),
        ];
        for (tokens, second, expected) in cases {
            let batch =
                [Sequence { tokens: &[7; 33 - 13], second: 20 }, Sequence { tokens: &[7], second: 1 }];
            let batch: Vec<_> = batch.into_iter().chain([Sequence { tokens, second }]).collect();
            let error = Rows::default().fill(&batch, &SHAPE).unwrap_err();
            let ForwardError::BadBatch { chunk: 2, message } = error else { panic!("{error}") };
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn rows_blocks_and_spans_follow_the_batch() {
        let (long, short) = ([3; 17], [5, 6]);
        let batch = [Sequence { tokens: &long, second: 17 }, Sequence { tokens: &short, second: 1 }];
        let mut rows = Rows::default();
        rows.fill(&batch, &SHAPE).unwrap();
        assert_eq!((rows.len(), rows.ranges()), (19, &[0..17, 17..19][..]));
        assert_eq!(rows.positions[15..], [15, 16, 0, 1]);
        assert_eq!(rows.second[16..], [false, false, true]);
        assert_eq!(rows.slots[16], KvSlot { block: 1, offset: 0 });
        assert_eq!(rows.slots[17], KvSlot { block: 2, offset: 0 });
        let spans = rows.spans(Sees::All);
        assert_eq!((spans[1].query_row, spans[1].count, spans[1].blocks), (17, 2, &[2][..]));
        assert_eq!(spans[0].blocks, [0, 1]);
    }
}
