//! Computes one item of attention: scores, weights and weighted values for each split of its keys. Also merges the
//! partial results of items that cover only some splits. Must not know: how the work was cut, or which thread does
//! it.

use std::ops::Range;

use headrace_kv_layout::{BLOCK_TOKENS, FREED};

use crate::attention::plan::{Item, MAX_ITEM_ROWS, Shape};
use crate::attention::softmax::{self, Peak, Scales};
use crate::attention::store::{KvStore, KvType, Layout};
use crate::attention::widen::widen_shared;
use crate::attention::{SPLIT, Span};
use crate::shapes::{LANES, group, group_count};
use crate::simd::Simd;
use crate::tile_attention::{Bf16, Element, F16, F32, KvTile, Q8, Wide, X_STRIDE};
use crate::tiles::Tiles;

// One row of weights is one split.
const _: () = assert!(X_STRIDE == SPLIT);

/// Blocks in a split.
const BLOCKS: usize = SPLIT / BLOCK_TOKENS;
/// Most rows in a register tile of any instruction set.
const MAX_TILE_ROWS: usize = 12;
/// An item with at most this many register tiles widens keys and values again for each tile. An item with more tiles
/// widens them once, into scratch.
const TILES_WITHOUT_SCRATCH: usize = 2;
/// How many blocks ahead of the current one the widening loop prefetches.
const WIDEN_AHEAD: usize = 2;

/// One attention operation, shared by its items.
pub(crate) struct Job<'a> {
    pub(crate) store: &'a KvStore,
    pub(crate) layer: usize,
    pub(crate) spans: &'a [Span<'a>],
    /// Row-major queries. The query heads are at the start of a row.
    pub(crate) queries: *const f32,
    /// Elements from one query row to the next.
    pub(crate) query_stride: usize,
    /// Row-major output: a value for each query head.
    pub(crate) out: *mut f32,
    /// Query heads.
    pub(crate) heads: usize,
    /// Factor applied to the scores.
    pub(crate) scale: f32,
    /// Scores become `cap · tanh(score / cap)`.
    pub(crate) cap: Option<f32>,
    /// One further score for each query head, which has no value. Empty if there are none.
    pub(crate) sinks: &'a [f32],
    /// Partial results of items that cover only some splits.
    pub(crate) partials: *mut f32,
}

/// Returns the f32 elements of scratch that one worker needs.
pub(crate) fn scratch_floats(store: &KvStore) -> usize {
    let Layout { key_dim, value_dim, shares_keys, .. } = store.layout();
    let is_read_in_place = store.kv_type() == KvType::F32 && !shares_keys;
    let wide = if is_read_in_place { 0 } else { SPLIT * (key_dim + value_dim) };
    let rows = MAX_ITEM_ROWS * (key_dim.next_multiple_of(X_STRIDE) + value_dim);
    rows + MAX_TILE_ROWS * (SPLIT + value_dim) + wide
}

/// The scratch memory of one item.
struct Scratch<'s> {
    /// `[key_dim / X_STRIDE][rows][X_STRIDE]`, scaled.
    queries: &'s mut [f32],
    /// `[tile rows][SPLIT]`: first the scores, then the weights.
    scores: &'s mut [f32],
    /// `[tile rows][value_dim]`: the weighted values of one split.
    split: &'s mut [f32],
    /// `[rows][value_dim]`: the weighted values, merged over splits.
    merged: &'s mut [f32],
    /// The keys and values of one split in f32, block after block.
    wide: &'s mut [f32],
}

impl<'s> Scratch<'s> {
    fn cut(all: &'s mut [f32], layout: Layout) -> Scratch<'s> {
        let (queries, all) = all.split_at_mut(MAX_ITEM_ROWS * layout.key_dim.next_multiple_of(X_STRIDE));
        let (scores, all) = all.split_at_mut(MAX_TILE_ROWS * SPLIT);
        let (split, all) = all.split_at_mut(MAX_TILE_ROWS * layout.value_dim);
        let (merged, wide) = all.split_at_mut(MAX_ITEM_ROWS * layout.value_dim);
        Scratch { queries, scores, split, merged, wide }
    }
}

/// Computes one item. `next` is probably this thread's next item, so its first keys are prefetched.
///
/// # Safety
/// As for [`Tiles`]. The job's pointers are valid for the item's span. Every block id of the span exists in the store
/// and is not written meanwhile. Nothing else accesses the item's outputs or its parts of `partials`. `scratch` has
/// the length [`scratch_floats`].
#[inline(always)]
pub(crate) unsafe fn attend<S: Tiles>(job: &Job<'_>, item: &Item, next: Option<&Item>, scratch: &mut [f32]) {
    // SAFETY: the caller's contract. The element type is the store's.
    unsafe {
        match job.store.kv_type() {
            KvType::F32 => attend_as::<S, F32>(job, item, next, scratch),
            KvType::F16 => attend_as::<S, F16>(job, item, next, scratch),
            KvType::Bf16 => attend_as::<S, Bf16>(job, item, next, scratch),
            KvType::Q8 => attend_as::<S, Q8>(job, item, next, scratch),
        }
    }
}

/// One split of an item's keys.
struct Split<'a> {
    /// The split's first position.
    from: usize,
    /// The split's blocks in the store, as far as the item sees them.
    blocks: &'a [*const u8],
    /// The blocks that the tiles read, with their layout in `layout`.
    read: &'a [*const u8; BLOCKS],
    layout: Layout,
    /// The blocks that are read next.
    ahead: &'a [*const u8; BLOCKS],
    /// The layout of `blocks` in the store, which is needed for their scales.
    stored: Layout,
}

/// # Safety
/// As for [`attend`]. The store holds `E`s.
#[inline(always)]
unsafe fn attend_as<S: Tiles, E: Element>(
    job: &Job<'_>,
    item: &Item,
    next: Option<&Item>,
    scratch: &mut [f32],
) {
    let span = &job.spans[item.span];
    let stored = job.store.layout();
    let rows = item.rows();
    let tiles = group_count(rows, S::ROWS);
    // Values within keys are no operand of the register tile: widening transposes them.
    let widen = stored.shares_keys || E::BYTES < 4 && tiles > TILES_WITHOUT_SCRATCH;
    let mut scratch = Scratch::cut(scratch, stored);
    let mut peaks: [Option<Peak>; MAX_ITEM_ROWS] = [None; MAX_ITEM_ROWS];
    let last = item.seen(span, rows - 1).end;
    // SAFETY: the caller's contract, here and in the functions below.
    unsafe {
        pack_queries(job, item, span, scratch.queries);
        let mut table = blocks_of(job, item, item.from);
        for split in item.from..item.to {
            let from = split * SPLIT;
            let next = match next {
                _ if split + 1 < item.to => blocks_of(job, item, split + 1),
                Some(next) => blocks_of(job, next, next.from),
                None => table,
            };
            let blocks = &table[..(last - from).min(SPLIT).div_ceil(BLOCK_TOKENS)];
            // The blocks before those that the first row sees may be freed. They are never read.
            let skipped = item.seen(span, 0).start.saturating_sub(from).min(SPLIT) / BLOCK_TOKENS;
            if widen {
                let layout = stored.widened();
                let read = widen_blocks::<S, E>(blocks, skipped, stored, layout, scratch.wide);
                let part = Split { from, blocks, read: &read, layout, ahead: &read, stored };
                attend_split::<S, Wide, E>(job, item, &part, &mut scratch, &mut peaks);
            } else {
                let part = Split { from, blocks, read: &table, layout: stored, ahead: &next, stored };
                attend_split::<S, E, E>(job, item, &part, &mut scratch, &mut peaks);
            }
            table = next;
        }
        if item.partial.is_none() {
            finish::<S>(job, item, span, scratch.merged, &peaks);
        }
    }
}

/// Returns the head in each block of a split, as far as the item sees them. Unused entries repeat the first block. The
/// entries of freed blocks are null.
#[inline(always)]
fn blocks_of(job: &Job<'_>, item: &Item, split: usize) -> [*const u8; BLOCKS] {
    let span = &job.spans[item.span];
    let last = item.seen(span, item.rows() - 1).end;
    let from = split * BLOCKS;
    let ids = &span.blocks[from..last.div_ceil(BLOCK_TOKENS).min(from + BLOCKS)];
    let head = |id: u32| match id {
        FREED => std::ptr::null(),
        id => job.store.head(job.layer, id, item.kv_head).cast_const(),
    };
    let mut out = [ids.first().map_or(std::ptr::null(), |&id| head(id)); BLOCKS];
    for (slot, &id) in out.iter_mut().zip(ids) {
        *slot = head(id);
    }
    out
}

/// Packs the queries of an item, multiplied by the scale and by log₂ e.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn pack_queries(job: &Job<'_>, item: &Item, span: &Span<'_>, out: &mut [f32]) {
    let (head_dim, key_dim) = (job.store.shape().head_dim, job.store.layout().key_dim);
    let scale = job.scale * std::f32::consts::LOG2_E;
    for row in 0..item.rows() {
        let query_row = span.query_row + item.first + row / item.heads;
        let head = item.head + row % item.heads;
        // SAFETY: the row and the head exist.
        let query = unsafe {
            std::slice::from_raw_parts(
                job.queries.add(query_row * job.query_stride + head * head_dim),
                head_dim,
            )
        };
        for (piece, part) in query.chunks(X_STRIDE).enumerate() {
            let at = (piece * MAX_ITEM_ROWS + row) * X_STRIDE;
            let out = &mut out[at..at + X_STRIDE];
            for (out, &x) in out.iter_mut().zip(part) {
                *out = x * scale;
            }
            if piece * X_STRIDE + part.len() == head_dim && key_dim > head_dim {
                // The row of zeros after an odd number of elements. The number is odd, so `part` is not full.
                out[part.len()] = 0.0;
            }
        }
    }
}

/// Widens a split's keys and values to f32, in the layout of an f32 store. Without their scales, except of values within
/// keys. Leaves out the first `skipped` blocks.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn widen_blocks<S: Simd, E: Element>(
    blocks: &[*const u8],
    skipped: usize,
    stored: Layout,
    wide: Layout,
    scratch: &mut [f32],
) -> [*const u8; BLOCKS] {
    let start = scratch.as_mut_ptr().cast::<u8>();
    let mut out = [start.cast_const(); BLOCKS];
    for (at, slot) in out.iter_mut().enumerate().take(blocks.len()).skip(skipped) {
        if let Some(ahead) = blocks.get(at + WIDEN_AHEAD) {
            for line in (0..stored.head_bytes).step_by(64) {
                // SAFETY: a prefetch never faults.
                unsafe { S::prefetch(ahead.wrapping_add(line)) };
            }
        }
        let to = start.wrapping_add(at * wide.head_bytes);
        *slot = to.cast_const();
        if stored.shares_keys {
            // SAFETY: the block exists, and the scratch has room for a split.
            unsafe { widen_shared::<S, E>(blocks[at], stored, to.cast(), wide) };
            continue;
        }
        let parts = [
            (0, 0, stored.key_dim / 2),
            (stored.values, wide.values, stored.value_dim * BLOCK_TOKENS / LANES / 2),
        ];
        for (source, target, pairs) in parts {
            let (source, target) = (blocks[at].wrapping_add(source), to.wrapping_add(target).cast::<f32>());
            for pair in 0..pairs {
                // SAFETY: keys and values have `pairs` pairs of rows, and the scratch has room for a split of them.
                unsafe {
                    let (even, odd) = E::pair::<S>(source, pair);
                    S::store(target.add(2 * pair * LANES), even);
                    S::store(target.add((2 * pair + 1) * LANES), odd);
                }
            }
        }
    }
    out
}

/// Computes one split, tile by tile: scores, weights and weighted values. Merges the result or stores it as a partial
/// result.
///
/// # Safety
/// As for [`attend`]. The tiles read `E`s, and the store holds `T`s.
#[inline(always)]
unsafe fn attend_split<S: Tiles, E: Element, T: Element>(
    job: &Job<'_>,
    item: &Item,
    split: &Split<'_>,
    scratch: &mut Scratch<'_>,
    peaks: &mut [Option<Peak>; MAX_ITEM_ROWS],
) {
    let span = &job.spans[item.span];
    let tiles = group_count(item.rows(), S::ROWS);
    let value_dim = split.layout.value_dim;
    // Values within keys have their scales already, and so have their keys.
    let stored = (T::SCALED && !split.stored.shares_keys).then_some(Scales {
        blocks: split.blocks,
        key_offset: Some(split.stored.key_scales),
        value_offset: split.stored.value_scales,
    });
    // Capped scores have their keys' scales already.
    let scales = match job.cap {
        None => stored,
        Some(_) => stored.map(|scales| Scales { key_offset: None, ..scales }),
    };
    for tile in 0..tiles {
        let (first, rows) = group(item.rows(), tiles, tile);
        let seen = |row: usize| {
            let seen = item.seen(span, first + row);
            let within = |at: usize| at.saturating_sub(split.from).min(SPLIT);
            within(seen.start)..within(seen.end)
        };
        let visible = |row: usize| seen(row).end;
        if visible(rows - 1) == 0 || seen(0).start == SPLIT {
            continue;
        }
        // The first block that a row of the tile sees.
        let first_block = seen(0).start / BLOCK_TOKENS;
        let keys = first_block * BLOCK_TOKENS..visible(rows - 1);
        let mut now = [None; MAX_TILE_ROWS];
        // SAFETY: the caller's contract.
        unsafe {
            let queries = scratch.queries[first * X_STRIDE..].as_ptr();
            score::<S, E>(split, queries, rows, keys.clone(), scratch.scores);
            if let Some(cap) = job.cap {
                for scores in scratch.scores.chunks_exact_mut(SPLIT).take(rows) {
                    let (scores, stored) =
                        (&mut scores[keys.start..], stored.map(|all| all.after(first_block)));
                    softmax::cap::<S>(scores, keys.len(), cap * std::f32::consts::LOG2_E, stored);
                }
            }
            let near = span.sees.skips_first_keys();
            for (row, now) in now.iter_mut().enumerate().take(rows) {
                let scores = &mut scratch.scores[row * SPLIT..(row + 1) * SPLIT];
                if near {
                    let skipped = seen(row).start.min(seen(row).end) / BLOCK_TOKENS;
                    *now = weights_near::<S>(
                        scores,
                        seen(row),
                        keys.end,
                        skipped,
                        scales.map(|all| all.after(skipped)),
                    );
                } else if visible(row) > 0 {
                    *now = Some(softmax::weights::<S>(scores, visible(row), scales));
                }
            }
            if near {
                let (weights, out) = (scratch.scores.as_ptr(), scratch.split.as_mut_ptr());
                weigh_keys::<S, E>(split, weights, rows, keys, false, out);
            } else {
                weigh::<S, E>(split, scratch.scores, rows, visible, scratch.split);
            }
            for (row, now) in now.iter().enumerate().take(rows) {
                let Some(now) = *now else { continue };
                let (values, at) = (&scratch.split[row * value_dim..(row + 1) * value_dim], first + row);
                match item.partial {
                    None => {
                        let merged = &mut scratch.merged[at * value_dim..(at + 1) * value_dim];
                        peaks[at] = Some(softmax::merge::<S>(merged, peaks[at], values, now));
                    }
                    Some(start) => leave(job, item, start, split.from / SPLIT, at, values, now),
                }
            }
        }
    }
}

/// Computes the weights of a row that sees only `seen` of the split. The other weights up to `keys` become zero, so
/// that all rows of a tile can be weighted together. A product with zero changes no sum, so a row's bits do not
/// depend on the other rows in the tile. `scales` are those of the blocks from number `skipped` on, which is the first
/// that the row sees. Returns `None` if the row sees nothing of the split.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn weights_near<S: Simd>(
    scores: &mut [f32],
    seen: Range<usize>,
    keys: usize,
    skipped: usize,
    scales: Option<Scales<'_>>,
) -> Option<Peak> {
    if seen.is_empty() {
        scores[..keys].fill(0.0);
        return None;
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    let first = skipped * BLOCK_TOKENS;
    // SAFETY: the caller's contract.
    let peak = unsafe { softmax::weights::<S>(&mut scores[first..], seen.end - first, scales) };
    scores[..seen.start].fill(0.0);
    scores[seen.end..keys.max(seen.end)].fill(0.0);
    Some(peak)
}

/// Computes the scores of a tile's rows against these keys of the split, which begin with a block.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn score<S: Tiles, E: Element>(
    split: &Split<'_>,
    queries: *const f32,
    rows: usize,
    keys: Range<usize>,
    scores: &mut [f32],
) {
    let (blocks, widest) = (keys.end.div_ceil(BLOCK_TOKENS), S::panels(rows));
    let key_dim = split.layout.key_dim;
    let mut block = keys.start / BLOCK_TOKENS;
    while block < blocks {
        let width = fitting(widest, blocks - block);
        for from in (0..key_dim).step_by(X_STRIDE) {
            let tile = KvTile {
                x: queries.wrapping_add(from * MAX_ITEM_ROWS),
                count: X_STRIDE.min(key_dim - from),
                first: from,
                segment: key_dim,
                table: split.read[block..].as_ptr(),
                segment_step: 0,
                panel_step: 1,
                offset: 0,
                panel_bytes: 0,
                // The values of the same blocks are read next.
                ahead: split.read[block..].as_ptr(),
                ahead_offset: split.layout.values,
                out: scores[block * BLOCK_TOKENS..].as_mut_ptr(),
                out_stride: SPLIT,
                accumulate: from > 0,
            };
            // SAFETY: the blocks exist. `scores` has SPLIT columns per row.
            unsafe { S::kv_tile::<E>(rows, width, &tile) };
        }
        block += width;
    }
}

/// Returns the largest of `widest`, `widest` / 2, … that is at most `left`. At least 1.
#[inline(always)]
fn fitting(widest: usize, left: usize) -> usize {
    let mut width = widest;
    while width > left {
        width /= 2;
    }
    width.max(1)
}

/// Sums the weighted values of the split. Keys that only some rows of the tile see are added for those rows alone.
/// Keys after a row's position (stale, or of another chunk) therefore never enter its sum.
///
/// # Safety
/// As for [`attend`]. `visible(row)` is the number of keys that a row sees, and never decreases from one row to the
/// next.
#[inline(always)]
unsafe fn weigh<S: Tiles, E: Element>(
    split: &Split<'_>,
    weights: &[f32],
    rows: usize,
    visible: impl Fn(usize) -> usize + Copy,
    out: &mut [f32],
) {
    let common = visible(0);
    // SAFETY: the caller's contract.
    unsafe {
        if common > 0 {
            weigh_keys::<S, E>(split, weights.as_ptr(), rows, 0..common, false, out.as_mut_ptr());
        }
        let mut row = 0;
        while row < rows {
            let keys = visible(row);
            let alike = (row..rows).take_while(|&other| visible(other) == keys).count();
            if keys > common {
                let out = out[row * split.layout.value_dim..].as_mut_ptr();
                let weights = weights[row * SPLIT..].as_ptr();
                weigh_keys::<S, E>(split, weights, alike, common..keys, common > 0, out);
            }
            row += alike;
        }
    }
}

/// # Safety
/// As for [`weigh`]. `out` has `rows` rows. With `accumulate`, the result is added to them.
#[inline(always)]
unsafe fn weigh_keys<S: Tiles, E: Element>(
    split: &Split<'_>,
    weights: *const f32,
    rows: usize,
    keys: Range<usize>,
    accumulate: bool,
    out: *mut f32,
) {
    let (panels, widest) = (split.layout.value_dim / LANES, S::panels(rows));
    let block = keys.start / BLOCK_TOKENS;
    let mut panel = 0;
    while panel < panels {
        let width = fitting(widest, panels - panel);
        let within = panel * split.layout.value_panel_bytes;
        let tile = KvTile {
            x: weights.wrapping_add(keys.start),
            count: keys.end - keys.start,
            first: keys.start % BLOCK_TOKENS,
            segment: BLOCK_TOKENS,
            table: split.read[block..].as_ptr(),
            segment_step: 1,
            panel_step: 0,
            offset: split.layout.values + within,
            panel_bytes: split.layout.value_panel_bytes,
            // The keys of the next split are read next.
            ahead: split.ahead[block..].as_ptr(),
            ahead_offset: within,
            out: out.wrapping_add(panel * LANES),
            out_stride: split.layout.value_dim,
            accumulate,
        };
        // SAFETY: the blocks and panels exist. The rows of `out` have `panels` panels.
        unsafe { S::kv_tile::<E>(rows, width, &tile) };
        panel += width;
    }
}

/// Returns the indices of a row's weighted values and of its peak among the partial results of a split.
#[inline(always)]
fn place(item: &Item, start: usize, split: usize, row: usize, value_dim: usize) -> (usize, usize) {
    let start = start + split * Shape::partial_floats(value_dim, item.rows());
    (start + row * value_dim, start + item.rows() * value_dim + 2 * row)
}

/// Stores a split's partial result for one row. [`merge_parts`] merges it later.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn leave(
    job: &Job<'_>,
    item: &Item,
    start: usize,
    split: usize,
    row: usize,
    values: &[f32],
    peak: Peak,
) {
    let (values_at, peak_at) = place(item, start, split, row, values.len());
    // SAFETY: the plan gave the item this part of `partials`, and each split has its own.
    unsafe {
        std::ptr::copy_nonoverlapping(values.as_ptr(), job.partials.add(values_at), values.len());
        job.partials.add(peak_at).write(peak.max);
        job.partials.add(peak_at + 1).write(peak.sum);
    }
}

/// Merges the partial results of all splits of `item`, in ascending order, and finishes its rows.
///
/// # Safety
/// As for [`attend`]. All items that produce these partial results are done.
#[inline(always)]
pub(crate) unsafe fn merge_parts<S: Simd>(job: &Job<'_>, item: &Item, scratch: &mut [f32]) {
    let Some(start) = item.partial else { return };
    let (span, layout) = (&job.spans[item.span], job.store.layout());
    let scratch = Scratch::cut(scratch, layout);
    let mut peaks: [Option<Peak>; MAX_ITEM_ROWS] = [None; MAX_ITEM_ROWS];
    // SAFETY: the caller's contract. Every split that a row sees has stored its partial result.
    unsafe {
        for (row, peak) in peaks.iter_mut().enumerate().take(item.rows()) {
            let merged = &mut scratch.merged[row * layout.value_dim..(row + 1) * layout.value_dim];
            for split in 0..item.seen(span, row).end.div_ceil(SPLIT) {
                let (values_at, peak_at) = place(item, start, split, row, layout.value_dim);
                let values = std::slice::from_raw_parts(job.partials.add(values_at), layout.value_dim);
                let now = Peak { max: *job.partials.add(peak_at), sum: *job.partials.add(peak_at + 1) };
                *peak = Some(softmax::merge::<S>(merged, *peak, values, now));
            }
        }
        finish::<S>(job, item, span, scratch.merged, &peaks);
    }
}

/// Divides by the sums and writes the output rows.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn finish<S: Simd>(
    job: &Job<'_>,
    item: &Item,
    span: &Span<'_>,
    merged: &mut [f32],
    peaks: &[Option<Peak>; MAX_ITEM_ROWS],
) {
    let Layout { value_width, value_dim, .. } = job.store.layout();
    for (row, merged) in merged.chunks_exact_mut(value_dim).enumerate().take(item.rows()) {
        let out_row = span.out_row + item.first + row / item.heads;
        let head = item.head + row % item.heads;
        let mut sum = peaks[row].map_or(1.0, |peak| peak.sum);
        // SAFETY: the output has this row and head, and they belong to the item.
        unsafe {
            if let (Some(&sink), Some(peak)) = (job.sinks.get(head), peaks[row]) {
                sum = softmax::with_sink::<S>(merged, peak, sink * std::f32::consts::LOG2_E);
            }
            for chunk in merged.as_chunks_mut::<LANES>().0 {
                S::store(chunk.as_mut_ptr(), S::div(S::load(chunk.as_ptr()), S::splat(sum)));
            }
            let out = job.out.add((out_row * job.heads + head) * value_width);
            std::ptr::copy_nonoverlapping(merged.as_ptr(), out, value_width);
        }
    }
}
