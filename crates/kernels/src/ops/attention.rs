//! Stores keys and values and computes attention over them: shape checks and the split of the work into tasks.
//! Must not know: which sequence a block belongs to, or which sequences share it.

use headrace_kv_layout::BLOCK_TOKENS;

use crate::attention::attend::{Job, scratch_floats};
use crate::attention::plan::{Plan, Shape};
use crate::attention::{KvShape, KvSlot, KvStore, KvValues, Span};
use crate::entry::dispatch;
use crate::error::KernelError;
use crate::kernels::Kernels;
use crate::memory::Shared;
use crate::shapes::{LANES, SERIAL_ELEMENTS};

/// Tokens per task when keys and values are stored.
const STORE_TOKENS: usize = 64;

/// The queries of an attention operation.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// The query rows.
    pub rows: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
    /// Query heads at the start of a row. A multiple of the number of key/value heads.
    pub heads: usize,
    /// Factor applied to the scores.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`, before the mask.
    pub cap: Option<f32>,
    /// One further score for each query head that takes part in the softmax without a value. Empty if there are none.
    pub sinks: &'a [f32],
}

impl Kernels {
    /// Stores the keys and values of each row, rounded to the store's type. The keys start at `key_offset` in a row,
    /// and the values follow them. If the values are the first elements of the keys, there are only keys.
    pub fn store_kv(
        &mut self,
        store: &mut KvStore,
        layer: usize,
        rows: &[f32],
        key_offset: usize,
        slots: &[KvSlot],
    ) -> Result<(), KernelError> {
        let KvShape { layers, kv_heads, head_dim, values } = store.shape();
        let width = kv_heads * head_dim;
        let value_dim = if values == KvValues::Own { head_dim } else { 0 };
        let stride = rows.len() / slots.len().max(1);
        let fits = layer < layers
            && rows.len() == stride * slots.len()
            && key_offset.checked_add(width + kv_heads * value_dim).is_some_and(|end| end <= stride)
            && slots.iter().all(|slot| (slot.block as usize) < store.blocks() && slot.offset < BLOCK_TOKENS);
        if slots.is_empty() {
            return Ok(());
        }
        if !fits {
            return Err(KernelError::shape(format!("{} keys and values of layer {layer}", slots.len())));
        }
        let store = &*store;
        let pieces = match rows.len() <= SERIAL_ELEMENTS {
            true => 1,
            false => slots.len().div_ceil(STORE_TOKENS).min(self.pool.threads()),
        };
        let write = |kv_head: usize, piece: usize| {
            for (row, &slot) in rows.chunks_exact(stride).zip(slots) {
                if slot.block as usize % pieces == piece {
                    let key = key_offset + kv_head * head_dim;
                    let value = key_offset + width + kv_head * value_dim;
                    let (keys, values) = (&row[key..key + head_dim], &row[value..value + value_dim]);
                    // SAFETY: layer, block and offset were checked above. The store is borrowed exclusively, and each
                    // task writes one head of its own blocks.
                    unsafe { store.write(layer, slot, kv_head, keys, values) };
                }
            }
        };
        if pieces == 1 && rows.len() <= SERIAL_ELEMENTS {
            (0..kv_heads).for_each(|kv_head| write(kv_head, 0));
            return Ok(());
        }
        self.pool.run(kv_heads * pieces, |task, _| write(task % kv_heads, task / kv_heads))
    }

    /// Computes attention of the spans' queries over the stored keys and values that they see, with `queries.scale`
    /// on the scores. A row of queries (`queries.stride` elements apart) begins with `heads` heads. A row of `out` holds a
    /// value for each head. Each span fills its own rows.
    pub fn attention(
        &mut self,
        store: &KvStore,
        layer: usize,
        queries: Queries<'_>,
        spans: &[Span<'_>],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        check(store, layer, &queries, spans, out.len())?;
        let (isa, threads) = (self.isa, self.pool.threads());
        let KvShape { kv_heads, head_dim, .. } = store.shape();
        let shape = Shape {
            heads: queries.heads,
            kv_heads,
            value_dim: store.layout().value_dim,
            tile_rows: dispatch!(isa, row_limit()),
            threads,
        };
        self.attention.plan.make(spans, shape);
        let per_worker = scratch_floats(store).next_multiple_of(LANES);
        let floats = self.attention.floats(per_worker * threads + self.attention.plan.partial_floats);
        let (scratch, partials) = (Shared(floats), Shared(floats.wrapping_add(per_worker * threads)));
        let (inputs, outputs) = (Shared(queries.rows.as_ptr().cast_mut()), Shared(out.as_mut_ptr()));
        let job = || Job {
            store,
            layer,
            spans,
            queries: inputs.get(),
            query_stride: queries.stride,
            out: outputs.get(),
            heads: queries.heads,
            scale: queries.scale,
            cap: queries.cap,
            sinks: queries.sinks,
            partials: partials.get(),
        };
        // SAFETY: each worker has its own piece of scratch and runs one task at a time.
        let scratch_of = |worker: usize| unsafe {
            std::slice::from_raw_parts_mut(scratch.get().wrapping_add(worker * per_worker), per_worker)
        };
        let Plan { items, merges, .. } = &self.attention.plan;
        // Sound: rows and blocks were checked above. No two items share the same rows, heads and splits.
        let attend = |index: usize, worker: usize| {
            // Threads take items in turn, and neighbouring items cost about the same, so `index + threads` is
            // probably this thread's next item.
            dispatch!(isa, attend(&job(), &items[index], items.get(index + threads), scratch_of(worker)));
        };
        // Sound: as above. No other item writes these rows. `run` has returned, so the parts are complete.
        let merge = |index: usize, worker: usize| {
            dispatch!(isa, merge_parts(&job(), &merges[index], scratch_of(worker)));
        };
        let touched: usize = spans.iter().map(|span| span.count * (span.start + span.count)).sum();
        if touched.saturating_mul(queries.heads * head_dim) <= SERIAL_ELEMENTS {
            return self.pool.run(1, |_, worker| {
                (0..items.len()).for_each(|index| attend(index, worker));
                (0..merges.len()).for_each(|index| merge(index, worker));
            });
        }
        self.pool.run(items.len(), attend)?;
        if merges.is_empty() {
            return Ok(());
        }
        self.pool.run(merges.len(), merge)
    }
}

fn check(
    store: &KvStore,
    layer: usize,
    queries: &Queries<'_>,
    spans: &[Span<'_>],
    out: usize,
) -> Result<(), KernelError> {
    let KvShape { layers, kv_heads, head_dim, .. } = store.shape();
    let out_width = queries.heads.saturating_mul(store.shape().value_width());
    let width = queries.heads.saturating_mul(head_dim);
    if layer >= layers
        || kv_heads == 0
        || !queries.heads.is_multiple_of(kv_heads)
        || width > queries.stride
        || !(queries.sinks.is_empty() || queries.sinks.len() == queries.heads)
    {
        return Err(KernelError::shape(format!("attention of {} heads in layer {layer}", queries.heads)));
    }
    let mut next = 0;
    for span in spans {
        let Span { query_row, out_row, count, start, blocks, .. } = *span;
        let covered = blocks.len() * BLOCK_TOKENS;
        let fits = out_row >= next
            && end_of(out_row, count, out_width).is_some_and(|end| end <= out)
            && end_of(query_row, count, queries.stride).is_some_and(|end| end <= queries.rows.len())
            && start.checked_add(count).is_some_and(|end| end <= covered)
            && span.needed_blocks().iter().all(|&id| (id as usize) < store.blocks());
        if !fits {
            return Err(KernelError::shape(format!("attention span of {count} queries at {start}")));
        }
        next = out_row + count;
    }
    Ok(())
}

/// Returns the index of the element after `count` rows that start at `row`. `None` on overflow.
fn end_of(row: usize, count: usize, width: usize) -> Option<usize> {
    row.checked_add(count)?.checked_mul(width)
}
