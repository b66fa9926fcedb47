//! Cuts attention into items that threads take in turn. Must not know: what an item computes. The cut changes no
//! result bits, so it may depend on the batch and on the number of threads.

use std::ops::Range;

use crate::attention::{SPLIT, Span};

/// Most rows (queries × query heads) in an item.
pub(crate) const MAX_ITEM_ROWS: usize = 96;
/// Items per thread to aim for, so that the last items balance the load.
const ITEMS_PER_THREAD: usize = 8;

/// Some queries of one span, some query heads of one key/value head, and some splits of their keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// Index of the span.
    pub(crate) span: usize,
    pub(crate) kv_head: usize,
    /// The first query head, and the number of query heads.
    pub(crate) head: usize,
    pub(crate) heads: usize,
    /// The first query within the span, and the number of queries.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// The first split, and the index after the last split.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Index of the item's results in `partials`, to be merged later. `None` if the item covers all splits and merges
    /// them itself.
    pub(crate) partial: Option<usize>,
}

impl Item {
    /// Returns the number of rows: queries × query heads.
    pub(crate) fn rows(&self) -> usize {
        self.count * self.heads
    }

    /// Returns the positions that a row sees.
    #[inline(always)]
    pub(crate) fn seen(&self, span: &Span<'_>, row: usize) -> Range<usize> {
        span.seen(self.first + row / self.heads)
    }
}

/// The sizes of the operation to cut.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Query heads.
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Elements of a value, rounded up to whole vectors.
    pub(crate) value_dim: usize,
    /// Most rows in a register tile.
    pub(crate) tile_rows: usize,
    pub(crate) threads: usize,
}

impl Shape {
    /// Returns the f32 elements of the partial results for `rows` rows of one split: weighted values, maxima and
    /// sums.
    pub(crate) fn partial_floats(value_dim: usize, rows: usize) -> usize {
        (rows * (value_dim + 2)).next_multiple_of(16)
    }
}

/// The items of an operation. Reused between operations to avoid allocation.
#[derive(Default)]
pub(crate) struct Plan {
    /// All items. Those of the most expensive span come first.
    pub(crate) items: Vec<Item>,
    /// Items that cover all splits and merge the partial results of `items`.
    pub(crate) merges: Vec<Item>,
    /// f32 elements that the partial results take.
    pub(crate) partial_floats: usize,
    /// The cost and index of each span, in descending order of cost.
    order: Vec<(usize, usize)>,
}

impl Plan {
    /// Cuts the spans into items.
    pub(crate) fn make(&mut self, spans: &[Span<'_>], shape: Shape) {
        self.items.clear();
        self.merges.clear();
        self.order.clear();
        self.partial_floats = 0;
        let keys = |span: &Span<'_>| span.count.saturating_mul(span.start + span.count);
        self.order.extend(spans.iter().enumerate().map(|(index, span)| (keys(span), index)));
        self.order.sort_unstable_by(|a, b| b.cmp(a));
        let cost = spans.iter().fold(0_usize, |sum, span| sum.saturating_add(keys(span)));
        // An item that costs more than this is worth cutting.
        let bound = (cost.saturating_mul(shape.heads) / (shape.threads * ITEMS_PER_THREAD)).max(1);
        let rows = spans.iter().map(|span| span.count).sum::<usize>().saturating_mul(shape.heads);
        let rows = (rows / (shape.threads * ITEMS_PER_THREAD)).clamp(shape.tile_rows, MAX_ITEM_ROWS);
        for at in 0..self.order.len() {
            let index = self.order[at].1;
            self.cut(index, &spans[index], shape, rows, bound);
        }
    }

    fn cut(&mut self, index: usize, span: &Span<'_>, shape: Shape, rows: usize, bound: usize) {
        let per_kv = shape.heads / shape.kv_heads.max(1);
        let heads = per_kv.clamp(1, MAX_ITEM_ROWS);
        let queries = (rows / heads).max(1);
        // The last queries come first, because they have the most keys.
        for tile in (0..span.count.div_ceil(queries)).rev() {
            let first = tile * queries;
            let count = queries.min(span.count - first);
            // The first query decides where the keys start, the last query where they end.
            let keys = span.seen(first).start..span.seen(first + count - 1).end;
            for kv_head in 0..shape.kv_heads {
                for head in (0..per_kv).step_by(heads) {
                    let whole = Item {
                        span: index,
                        kv_head,
                        head: kv_head * per_kv + head,
                        heads: heads.min(per_kv - head),
                        first,
                        count,
                        from: keys.start / SPLIT,
                        to: keys.end.div_ceil(SPLIT),
                        partial: None,
                    };
                    // Long prompts have enough rows to share out. Their partial results are not worth the memory.
                    let few = span.count.saturating_mul(per_kv) <= MAX_ITEM_ROWS;
                    let cost = whole.rows().saturating_mul(keys.len());
                    let from_all = !span.sees.skips_first_keys();
                    if shape.threads > 1 && few && from_all && cost > bound && whole.to > 1 {
                        self.cut_keys(whole, cost.div_ceil(bound), shape.value_dim);
                    } else {
                        self.items.push(whole);
                    }
                }
            }
        }
    }

    /// Cuts an item into about `pieces` items of whole splits.
    fn cut_keys(&mut self, whole: Item, pieces: usize, value_dim: usize) {
        let whole = Item { partial: Some(self.partial_floats), ..whole };
        let step = whole.to.div_ceil(pieces.max(1)).max(1);
        for from in (0..whole.to).step_by(step) {
            self.items.push(Item { from, to: (from + step).min(whole.to), ..whole });
        }
        self.merges.push(whole);
        self.partial_floats += whole.to * Shape::partial_floats(value_dim, whole.rows());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::Sees;

    #[test]
    fn items_cover_every_query_head_and_split_once_however_they_are_cut() {
        let blocks = [0_u32; 0];
        let span = |start, count| Span {
            query_row: 0,
            out_row: 0,
            count,
            start,
            blocks: &blocks,
            sees: Sees::Before,
        };
        let batches = [
            vec![span(0, 1)],
            vec![span(16_383, 1)],
            vec![span(40, 300), span(9000, 1), span(300, 5)],
            vec![span(511, 1); 40],
            vec![span(5000, 12), span(0, 1000)],
        ];
        let mut plan = Plan::default();
        for (heads, kv_heads) in [(1, 1), (14, 2), (32, 8), (200, 1)] {
            for threads in [1, 2, 7] {
                for spans in &batches {
                    let shape = Shape { heads, kv_heads, value_dim: 64, tile_rows: 12, threads };
                    plan.make(spans, shape);
                    let mut seen = std::collections::BTreeMap::new();
                    for item in &plan.items {
                        assert!(item.rows() > 0 && item.rows() <= MAX_ITEM_ROWS && item.from < item.to);
                        for query in item.first..item.first + item.count {
                            for head in item.head..item.head + item.heads {
                                assert_eq!(head / (heads / kv_heads), item.kv_head);
                                for split in item.from..item.to {
                                    let times = seen.entry((item.span, query, head, split)).or_insert(0);
                                    *times += 1;
                                }
                            }
                        }
                    }
                    assert!(seen.values().all(|&times| times == 1));
                    for (index, span) in spans.iter().enumerate() {
                        for query in 0..span.count {
                            for head in 0..heads {
                                let splits = (span.start + query + 1).div_ceil(SPLIT);
                                assert!((0..splits).all(|s| seen.contains_key(&(index, query, head, s))));
                            }
                        }
                    }
                    let parts: usize =
                        plan.merges.iter().map(|m| m.to * Shape::partial_floats(64, m.rows())).sum();
                    assert_eq!(parts, plan.partial_floats);
                }
            }
        }
        plan.make(
            &[span(16_383, 1)],
            Shape { heads: 2, kv_heads: 2, value_dim: 64, tile_rows: 12, threads: 2 },
        );
        assert!(plan.items.len() >= 16 && plan.merges.len() == 2, "a lone long sequence is shared out");
    }
}
