//! The paged KV store and attention over it, one arithmetic for prefill and decode.
//! Must not know: which sequence a block belongs to, or who shares it.
//!
//! **Same bits.** A query takes its keys in splits that stand at absolute multiples of [`SPLIT`] positions. Within a split:
//! scores, their maximum, e^(score − maximum), and the weighted values summed block by block in ascending order.
//! Splits merge in ascending order (Milakov and Gimelshein 2018, arXiv 1805.02867). A query's result depends on its own row and
//! on the stored keys and values up to its position: not on which queries stand beside it.

use crate::error::KernelError;
use crate::forward::BLOCK_TOKENS;
use crate::gemm::{F32, MAX_PANELS, Tile};
use crate::math;
use crate::memory::Region;
use crate::simd::{self, LANES, Simd};

/// Positions in one split. Part of the numerics: changing it changes bits.
const SPLIT: usize = 256;
/// The most rows that any instruction set's register tile holds.
const MAX_ROWS: usize = 16;

/// The shape of the keys and values of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// Key/value heads per layer.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

impl KvShape {
    /// Bytes of one block of 16 tokens over all layers.
    pub fn bytes_per_block(&self) -> usize {
        self.layers.saturating_mul(self.kv_heads).saturating_mul(self.head_floats()).saturating_mul(4)
    }

    /// Values are stored in whole vectors.
    fn padded(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn head_floats(&self) -> usize {
        BLOCK_TOKENS * (self.head_dim + self.padded())
    }
}

/// f32 keys and values of every layer in blocks of 16 tokens.
///
/// Layout `[layer][block][kv head]`, then keys `[head_dim][16 tokens]`, then values `[head_dim/16][16 tokens][16]`: both are
/// panels of the register tile, so that scores and weighted sums need no horizontal addition.
pub struct KvStore {
    region: Region,
    shape: KvShape,
    blocks: usize,
}

impl KvStore {
    /// Room for `blocks` blocks, committed by the system as they are first written. Errors when it refuses.
    pub fn new(shape: KvShape, blocks: usize) -> Result<KvStore, KernelError> {
        let bytes = shape.bytes_per_block().saturating_mul(blocks);
        Ok(KvStore { region: Region::zeroed(bytes)?, shape, blocks })
    }

    /// What it is shaped for.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// How many blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The keys of a head in a block; its values follow.
    fn keys(&self, layer: usize, block: u32, kv_head: usize) -> *mut f32 {
        let head = (layer * self.blocks + block as usize) * self.shape.kv_heads + kv_head;
        debug_assert!(
            layer < self.shape.layers && (block as usize) < self.blocks && kv_head < self.shape.kv_heads
        );
        self.region.start().cast::<f32>().wrapping_add(head * self.shape.head_floats())
    }

    fn values(&self, layer: usize, block: u32, kv_head: usize) -> *mut f32 {
        self.keys(layer, block, kv_head).wrapping_add(BLOCK_TOKENS * self.shape.head_dim)
    }

    /// Stores one token's key and value of one head.
    ///
    /// # Safety
    /// `layer`, `block` and `kv_head` exist, `key` and `value` are `head_dim` long, and nobody else touches this head of this
    /// block meanwhile.
    pub(crate) unsafe fn write(
        &self,
        layer: usize,
        slot: KvSlot,
        kv_head: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let (keys, values) = (self.keys(layer, slot.block, kv_head), self.values(layer, slot.block, kv_head));
        for (d, (&key, &value)) in key.iter().zip(value).enumerate() {
            // SAFETY: d < head_dim and the slot is below 16, so both are inside the head's part of the block.
            unsafe {
                *keys.add(d * BLOCK_TOKENS + slot.offset) = key;
                *values.add((d / LANES * BLOCK_TOKENS + slot.offset) * LANES + d % LANES) = value;
            }
        }
    }
}

/// Where a token's keys and values are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvSlot {
    /// The physical block.
    pub block: u32,
    /// The token's place in it, below 16.
    pub offset: usize,
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
}

/// One attention operation, as its items see it.
pub(crate) struct Job<'a> {
    pub(crate) store: &'a KvStore,
    pub(crate) layer: usize,
    /// Row-major queries, heads first in a row.
    pub(crate) queries: *const f32,
    /// Elements between two rows of them.
    pub(crate) query_stride: usize,
    /// Row-major output, `heads · head_dim` wide.
    pub(crate) out: *mut f32,
    /// Query heads.
    pub(crate) heads: usize,
    /// Factor on the scores.
    pub(crate) scale: f32,
}

/// Some queries of one span and some query heads of one key/value head: together at most as many rows as a register tile
/// holds.
#[derive(Clone, Copy)]
pub(crate) struct Item<'a> {
    pub(crate) span: Span<'a>,
    pub(crate) kv_head: usize,
    /// First query head, and how many.
    pub(crate) head: usize,
    pub(crate) heads: usize,
    /// First query within the span, and how many.
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// How a span is cut into items.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    kv_heads: usize,
    /// Query heads per key/value head.
    per_kv: usize,
    /// Query heads in an item.
    heads: usize,
    /// Queries in an item.
    queries: usize,
}

impl Cut {
    pub(crate) fn new(heads: usize, kv_heads: usize, rows: usize) -> Cut {
        let rows = rows.min(MAX_ROWS);
        let per_kv = heads / kv_heads.max(1);
        let item_heads = per_kv.min(rows).max(1);
        Cut { kv_heads, per_kv, heads: item_heads, queries: (rows / item_heads).max(1) }
    }

    fn head_groups(&self) -> usize {
        self.per_kv.div_ceil(self.heads)
    }

    /// Items of a span.
    pub(crate) fn items(&self, span: &Span<'_>) -> usize {
        self.kv_heads * self.head_groups() * span.count.div_ceil(self.queries)
    }

    /// Item `index` of a span. The last queries, which have the most keys, come first.
    pub(crate) fn item<'a>(&self, span: &Span<'a>, index: usize) -> Item<'a> {
        let (tiles, groups) = (span.count.div_ceil(self.queries), self.head_groups());
        let (tile, rest) = (tiles - 1 - index / (groups * self.kv_heads), index % (groups * self.kv_heads));
        let (kv_head, group) = (rest / groups, rest % groups);
        let (first, head) = (tile * self.queries, group * self.heads);
        Item {
            span: *span,
            kv_head,
            head: kv_head * self.per_kv + head,
            heads: self.heads.min(self.per_kv - head),
            first,
            count: self.queries.min(span.count - first),
        }
    }
}

/// f32 elements of scratch that one worker needs.
pub(crate) fn scratch_floats(shape: KvShape) -> usize {
    MAX_ROWS * (shape.head_dim + SPLIT + BLOCK_TOKENS + 2 * shape.padded() + 2)
}

/// The scratch of one item: `rows` of everything.
struct Scratch<'s> {
    /// `[head_dim][rows]`, scaled.
    queries: &'s mut [f32],
    /// `[rows][SPLIT]`: scores, then their exponentials.
    scores: &'s mut [f32],
    /// `[16][rows]`: one block's exponentials.
    weights: &'s mut [f32],
    /// `[rows][padded]`: one split's weighted values.
    split: &'s mut [f32],
    /// `[rows][padded]`: the merged weighted values.
    merged: &'s mut [f32],
    /// Merged maximum per row.
    max: &'s mut [f32],
    /// Merged sum of exponentials per row.
    sum: &'s mut [f32],
}

impl<'s> Scratch<'s> {
    fn cut(all: &'s mut [f32], shape: KvShape) -> Scratch<'s> {
        let (queries, all) = all.split_at_mut(MAX_ROWS * shape.head_dim);
        let (scores, all) = all.split_at_mut(MAX_ROWS * SPLIT);
        let (weights, all) = all.split_at_mut(MAX_ROWS * BLOCK_TOKENS);
        let (split, all) = all.split_at_mut(MAX_ROWS * shape.padded());
        let (merged, all) = all.split_at_mut(MAX_ROWS * shape.padded());
        let (max, all) = all.split_at_mut(MAX_ROWS);
        Scratch { queries, scores, weights, split, merged, max, sum: &mut all[..MAX_ROWS] }
    }
}

/// Computes one item.
///
/// # Safety
/// As for [`Simd`]; the job's pointers are valid for the span's rows, every block id of the span exists in the store and is
/// not written meanwhile, nobody else touches the item's outputs, and `scratch` is as long as [`scratch_floats`] says.
#[inline(always)]
pub(crate) unsafe fn attend<S: Simd>(job: &Job<'_>, item: &Item<'_>, scratch: &mut [f32]) {
    let shape = job.store.shape;
    let (head_dim, padded) = (shape.head_dim, shape.padded());
    let rows = item.heads * item.count;
    let mut scratch = Scratch::cut(scratch, shape);
    // SAFETY: the caller's contract, here and in the steps below.
    unsafe {
        pack_queries(job, item, scratch.queries);
        let last = item.span.start + item.first + item.count - 1;
        for from in (0..=last).step_by(SPLIT) {
            score_split::<S>(job, item, from, &mut scratch);
            let mut sums = [(0.0, 0.0); MAX_ROWS];
            for (row, sum) in sums.iter_mut().enumerate().take(rows) {
                let keys = visible(item, row, from).min(SPLIT);
                *sum = exponentials::<S>(&mut scratch.scores[row * SPLIT..(row + 1) * SPLIT], keys);
            }
            weigh_split::<S>(job, item, from, &mut scratch);
            for (row, &(max, sum)) in sums.iter().enumerate().take(rows) {
                if visible(item, row, from) > 0 {
                    merge::<S>(&mut scratch, row, padded, from == 0, max, sum);
                }
            }
        }
        for row in 0..rows {
            let out_row = item.span.out_row + item.first + row / item.heads;
            let head = item.head + row % item.heads;
            let out = job.out.add((out_row * job.heads + head) * head_dim);
            let sum = scratch.sum[row];
            for (d, &value) in scratch.merged[row * padded..row * padded + head_dim].iter().enumerate() {
                *out.add(d) = value / sum;
            }
        }
    }
}

/// Keys from position `from` on that a row may see.
#[inline(always)]
fn visible(item: &Item<'_>, row: usize, from: usize) -> usize {
    (item.span.start + item.first + row / item.heads + 1).saturating_sub(from)
}

/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn pack_queries(job: &Job<'_>, item: &Item<'_>, out: &mut [f32]) {
    let (head_dim, rows) = (job.store.shape.head_dim, item.heads * item.count);
    for row in 0..rows {
        let query_row = item.span.query_row + item.first + row / item.heads;
        let head = item.head + row % item.heads;
        // SAFETY: the row and the head exist.
        let query = unsafe { job.queries.add(query_row * job.query_stride + head * head_dim) };
        for (d, target) in out.iter_mut().skip(row).step_by(rows).enumerate().take(head_dim) {
            // SAFETY: d < head_dim.
            *target = unsafe { *query.add(d) } * job.scale;
        }
    }
}

/// Scores of every row against every key of the split that any row sees. Those that a row must not see are
/// overwritten by `exponentials`.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn score_split<S: Simd>(job: &Job<'_>, item: &Item<'_>, from: usize, scratch: &mut Scratch<'_>) {
    let rows = item.heads * item.count;
    let keys = visible(item, rows - 1, from).min(SPLIT);
    let blocks = &item.span.blocks[from / BLOCK_TOKENS..(from + keys).div_ceil(BLOCK_TOKENS)];
    let mut block = 0;
    while block < blocks.len() {
        let wide = S::panels(rows);
        let width = if block + wide <= blocks.len() { wide } else { 1 };
        let mut panels = [std::ptr::null(); MAX_PANELS];
        for (panel, &id) in panels.iter_mut().zip(&blocks[block..block + width]) {
            *panel = job.store.keys(job.layer, id, item.kv_head).cast_const().cast();
        }
        let tile = Tile {
            k: job.store.shape.head_dim,
            x: scratch.queries.as_ptr(),
            panels,
            out: scratch.scores[block * BLOCK_TOKENS..].as_mut_ptr(),
            out_stride: SPLIT,
            bias: std::ptr::null(),
            accumulate: false,
            valid: LANES,
        };
        // SAFETY: the blocks exist; `scores` has SPLIT columns per row and the split at most SPLIT / 16 blocks.
        unsafe { S::tile::<F32>(rows, width, &tile) };
        block += width;
    }
}

/// Replaces the first `keys` scores of a row by e^(score − maximum), the rest of the last vector by zero; returns the
/// maximum and the sum.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn exponentials<S: Simd>(scores: &mut [f32], keys: usize) -> (f32, f32) {
    let padded = keys.next_multiple_of(LANES);
    scores[keys..padded].fill(f32::NEG_INFINITY);
    let chunks = scores[..padded].as_chunks_mut::<LANES>().0;
    // SAFETY: the caller's contract; every load and store is of a whole chunk.
    unsafe {
        let mut max = S::splat(f32::NEG_INFINITY);
        for chunk in chunks.iter() {
            max = S::max(S::load(chunk.as_ptr()), max);
        }
        let max = simd::largest::<S>(max);
        let shift = S::splat(max);
        let mut sums = S::splat(0.0);
        for chunk in chunks {
            let value = simd::exp::<S>(S::sub(S::load(chunk.as_ptr()), shift));
            S::store(chunk.as_mut_ptr(), value);
            sums = S::add(sums, value);
        }
        (max, simd::sum::<S>(sums))
    }
}

/// The weighted values of the split, block by block. A block that some row sees only in part is taken row by row, so that
/// what stands behind a row's position (stale, or another chunk's) never enters its sum.
///
/// # Safety
/// As for [`attend`].
#[inline(always)]
unsafe fn weigh_split<S: Simd>(job: &Job<'_>, item: &Item<'_>, from: usize, scratch: &mut Scratch<'_>) {
    let rows = item.heads * item.count;
    let padded = job.store.shape.padded();
    let keys = visible(item, rows - 1, from).min(SPLIT);
    let blocks = &item.span.blocks[from / BLOCK_TOKENS..(from + keys).div_ceil(BLOCK_TOKENS)];
    for (block, &id) in blocks.iter().enumerate() {
        let at = block * BLOCK_TOKENS;
        let values: *const f32 = job.store.values(job.layer, id, item.kv_head);
        if visible(item, 0, from) >= at + BLOCK_TOKENS {
            for row in 0..rows {
                let weights = &scratch.scores[row * SPLIT + at..row * SPLIT + at + BLOCK_TOKENS];
                for (target, &weight) in scratch.weights[row..].iter_mut().step_by(rows).zip(weights) {
                    *target = weight;
                }
            }
            let part =
                Weighted { x: scratch.weights.as_ptr(), keys: BLOCK_TOKENS, out: scratch.split.as_mut_ptr() };
            // SAFETY: the block exists; `split` has `padded` columns for each row.
            unsafe { weigh_block::<S>(rows, padded, values, block > 0, &part) };
            continue;
        }
        for row in 0..rows {
            let keys = visible(item, row, from + at).min(BLOCK_TOKENS);
            if keys > 0 {
                let part = Weighted {
                    x: scratch.scores[row * SPLIT + at..].as_ptr(),
                    keys,
                    out: scratch.split[row * padded..].as_mut_ptr(),
                };
                // SAFETY: as above, for one row.
                unsafe { weigh_block::<S>(1, padded, values, block > 0, &part) };
            }
        }
    }
}

/// One block's share of the weighted values.
struct Weighted {
    /// `[keys][rows]` weights.
    x: *const f32,
    keys: usize,
    /// `[rows][padded]`.
    out: *mut f32,
}

/// # Safety
/// As for [`attend`]; `values` is a block's.
#[inline(always)]
unsafe fn weigh_block<S: Simd>(
    rows: usize,
    padded: usize,
    values: *const f32,
    accumulate: bool,
    part: &Weighted,
) {
    let columns = padded / LANES;
    let mut column = 0;
    while column < columns {
        let wide = S::panels(rows);
        let width = if column + wide <= columns { wide } else { 1 };
        let mut panels = [std::ptr::null(); MAX_PANELS];
        for (p, panel) in panels.iter_mut().enumerate().take(width) {
            *panel = values.wrapping_add((column + p) * BLOCK_TOKENS * LANES).cast();
        }
        let tile = Tile {
            k: part.keys,
            x: part.x,
            panels,
            out: part.out.wrapping_add(column * LANES),
            out_stride: padded,
            bias: std::ptr::null(),
            accumulate,
            valid: LANES,
        };
        // SAFETY: the caller's contract.
        unsafe { S::tile::<F32>(rows, width, &tile) };
        column += width;
    }
}

/// Merges a row's split into what the splits before it gave.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn merge<S: Simd>(
    scratch: &mut Scratch<'_>,
    row: usize,
    padded: usize,
    first: bool,
    max: f32,
    sum: f32,
) {
    let split = &scratch.split[row * padded..(row + 1) * padded];
    let merged = &mut scratch.merged[row * padded..(row + 1) * padded];
    if first {
        merged.copy_from_slice(split);
        (scratch.max[row], scratch.sum[row]) = (max, sum);
        return;
    }
    let top = if max > scratch.max[row] { max } else { scratch.max[row] };
    let (before, now) = (math::exp_f32(scratch.max[row] - top), math::exp_f32(max - top));
    for (merged, &split) in merged.iter_mut().zip(split) {
        *merged = *merged * before + split * now;
    }
    scratch.sum[row] = scratch.sum[row] * before + sum * now;
    scratch.max[row] = top;
}
