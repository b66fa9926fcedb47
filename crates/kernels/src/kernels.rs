//! The handle that a model computes with: an instruction set, a thread pool and the scratch memory of the operations.
//! Must not know: architectures. Every operation checks its shapes, then cuts itself into tasks.

use crate::attention::{self, Cut, Item, Job, KvShape, KvSlot, KvStore, Span};
use crate::entry::dispatch;
use crate::error::KernelError;
use crate::gemm::{self, Product};
use crate::isa::{Isa, IsaError};
use crate::matrix::Matrix;
use crate::memory::Shared;
use crate::pool::Pool;
use crate::rows::HeadRow;

/// The version of the arithmetic: raised whenever any kernel's bits change.
pub const KERNEL_VERSION: u32 = 1;

/// Multiply-adds below which a product is not worth waking other threads for.
const SERIAL_PRODUCT: usize = 1 << 16;
/// Elements below which a row operation is not.
const SERIAL_ELEMENTS: usize = 1 << 14;
/// Panels in one task of a product that is bound by memory: as many streams as one thread reads side by side.
const FEW_ROW_PANELS: usize = 4;
/// Panels in one task of a product with many rows.
const MANY_ROW_PANELS: usize = 8;
/// Rows from which a product counts as having many.
const MANY_ROWS: usize = 32;

/// What becomes of a product's output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// It replaces what is there.
    Set,
    /// It is added to what is there (the residual).
    Add,
}

/// Query and key heads at the start of each row, and what is done to them.
#[derive(Clone, Copy)]
pub struct HeadRows<'a> {
    /// Query heads; the key heads follow.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Elements of a head; even.
    pub head_dim: usize,
    /// Elements between two rows.
    pub stride: usize,
    /// RMSNorm weights over each query head, if the architecture has them.
    pub query_norm: Option<&'a [f32]>,
    /// The same over each key head.
    pub key_norm: Option<&'a [f32]>,
    /// The norms' epsilon.
    pub eps: f32,
}

/// cos and sin of the rotary angles, `[position][head_dim / 2]` each.
#[derive(Default)]
pub struct RopeTable {
    /// Half a head.
    pub half: usize,
    /// The cosines.
    pub cos: Vec<f32>,
    /// The sines.
    pub sin: Vec<f32>,
}

impl RopeTable {
    fn at(&self, position: usize) -> Option<(&[f32], &[f32])> {
        let range = position.checked_mul(self.half)?..position.checked_add(1)?.checked_mul(self.half)?;
        Some((self.cos.get(range.clone())?, self.sin.get(range)?))
    }
}

/// An instruction set, a pool of threads and scratch memory. One operation runs at a time.
pub struct Kernels {
    isa: Isa,
    pool: Pool,
    /// Rows of a product in groups.
    packed: Vec<f32>,
    /// Attention's, one piece per worker.
    scratch: Vec<f32>,
    /// Attention's: the first item of each span.
    starts: Vec<usize>,
}

impl Kernels {
    /// Kernels on `isa` with `threads` threads, the caller included. Errors when the machine lacks the instruction set or a
    /// thread cannot be started.
    pub fn new(isa: Isa, threads: usize) -> Result<Kernels, KernelError> {
        if !isa.is_supported() {
            return Err(IsaError::Unsupported { asked: isa, supported: Isa::supported() }.into());
        }
        let pool = Pool::new(threads)?;
        Ok(Kernels { isa, pool, packed: Vec::new(), scratch: Vec::new(), starts: Vec::new() })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The pool, for work that is not a kernel (packing weights at load).
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// What decides the bits: instruction set, compute mode, KV type, version.
    pub fn numerics(&self) -> String {
        format!("{}/exact/kv-f32/v{KERNEL_VERSION}", self.isa)
    }

    /// `out = x · Wᵀ + b`: `x` is `m × k`, `out` is `m × n`, both row-major. Each output's bits depend on its own row of `x` and its own
    /// weights only.
    pub fn matmul(
        &mut self,
        x: &[f32],
        m: usize,
        matrix: &Matrix,
        out: &mut [f32],
        write: Write,
    ) -> Result<(), KernelError> {
        let (n, k) = (matrix.n(), matrix.k());
        if Some(x.len()) != m.checked_mul(k) || Some(out.len()) != m.checked_mul(n) {
            let (x, out) = (x.len(), out.len());
            return Err(KernelError::shape(format!("{x} inputs, {out} outputs for {m} rows of {k} → {n}")));
        }
        if m == 0 || n == 0 {
            return Ok(());
        }
        self.pack_inputs(x, m, k)?;
        let inputs = Shared(if m == 1 { x.as_ptr() } else { self.packed.as_ptr() }.cast_mut());
        let outputs = Shared(out.as_mut_ptr());
        let panels = matrix.panels();
        let serial = m.saturating_mul(n).saturating_mul(k) <= SERIAL_PRODUCT;
        let per_task = match serial {
            true => panels,
            false if m < MANY_ROWS => FEW_ROW_PANELS,
            false => MANY_ROW_PANELS,
        };
        let isa = self.isa;
        self.pool.run(panels.div_ceil(per_task), |task, _| {
            let product =
                Product { matrix, x: inputs.get(), m, out: outputs.get(), accumulate: write == Write::Add };
            let first = task * per_task;
            // Sound: lengths were checked above, and each task has its columns of `out` to itself.
            dispatch!(isa, columns(&product, first, per_task.min(panels - first)));
        })
    }

    /// Lays `x` out for the register tiles. One row is laid out already.
    fn pack_inputs(&mut self, x: &[f32], m: usize, k: usize) -> Result<(), KernelError> {
        if m == 1 {
            return Ok(());
        }
        if self.packed.len() < x.len() {
            self.packed.resize(x.len(), 0.0);
        }
        let groups = gemm::group_count(m, dispatch!(self.isa, row_limit()));
        let packed = Shared(self.packed.as_mut_ptr());
        let (tasks, per_task) = cut_rows(groups, x.len() / groups.max(1));
        self.pool.run(tasks, |task, _| {
            for index in task * per_task..((task + 1) * per_task).min(groups) {
                let (row, rows) = gemm::group(m, groups, index);
                // SAFETY: the groups' ranges are disjoint and inside `packed`, which is at least m·k long.
                let out = unsafe { std::slice::from_raw_parts_mut(packed.get().add(row * k), rows * k) };
                gemm::pack_group(&x[row * k..(row + rows) * k], k, rows, out);
            }
        })
    }

    /// RMSNorm of each row of `weight.len()` elements from `x` into `out`.
    pub fn rms_norm(
        &mut self,
        x: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let width = weight.len();
        if x.len() != out.len() || width == 0 || !x.len().is_multiple_of(width) {
            return Err(KernelError::shape(format!("norm of {} into {} by {width}", x.len(), out.len())));
        }
        let isa = self.isa;
        self.each_row(x.len() / width, width, out, |row, out| {
            dispatch!(isa, rms_norm(&x[row * width..(row + 1) * width], weight, eps, out));
        })
    }

    /// `out = silu(gate) · up`, where each row of `gate_up` has `width` gates and then `width` ups.
    pub fn silu_mul(&mut self, gate_up: &[f32], width: usize, out: &mut [f32]) -> Result<(), KernelError> {
        if width == 0 || gate_up.len() != out.len() * 2 || !out.len().is_multiple_of(width) {
            return Err(KernelError::shape(format!(
                "silu of {} into {} by {width}",
                gate_up.len(),
                out.len()
            )));
        }
        let isa = self.isa;
        self.each_row(out.len() / width, width, out, |row, out| {
            let (gate, up) = gate_up[2 * row * width..2 * (row + 1) * width].split_at(width);
            dispatch!(isa, silu_mul(gate, up, out));
        })
    }

    /// Normalizes (if asked) and rotates the query and key heads of each row by its position.
    pub fn rope(
        &mut self,
        rows: &mut [f32],
        shape: HeadRows<'_>,
        positions: &[usize],
        table: &RopeTable,
    ) -> Result<(), KernelError> {
        let HeadRows { heads, kv_heads, head_dim, stride, query_norm, key_norm, eps } = shape;
        let used = heads.checked_add(kv_heads).and_then(|all| all.checked_mul(head_dim));
        let fits = positions.len().checked_mul(stride) == Some(rows.len())
            && used.is_some_and(|used| used <= stride)
            && table.half * 2 == head_dim
            && positions.iter().all(|&position| table.at(position).is_some())
            && [query_norm, key_norm].iter().flatten().all(|norm| norm.len() == head_dim);
        if !fits {
            return Err(KernelError::shape(format!(
                "rope of {} elements, {} rows",
                rows.len(),
                positions.len()
            )));
        }
        let isa = self.isa;
        self.each_row(positions.len(), stride, rows, |row, out| {
            let Some((cos, sin)) = table.at(positions[row]) else { return };
            let (queries, rest) = out.split_at_mut(heads * head_dim);
            for head in queries.chunks_exact_mut(head_dim) {
                dispatch!(isa, rope_head(head, &HeadRow { norm: query_norm, eps, cos, sin }));
            }
            for head in rest.chunks_exact_mut(head_dim).take(kv_heads) {
                dispatch!(isa, rope_head(head, &HeadRow { norm: key_norm, eps, cos, sin }));
            }
        })
    }

    /// Widened rows of a matrix, one below the other: the embeddings of tokens.
    pub fn rows(&mut self, matrix: &Matrix, ids: &[u32], out: &mut [f32]) -> Result<(), KernelError> {
        let width = matrix.k();
        if Some(out.len()) != ids.len().checked_mul(width) || ids.iter().any(|&id| id as usize >= matrix.n())
        {
            return Err(KernelError::shape(format!("{} rows of {width} into {}", ids.len(), out.len())));
        }
        self.each_row(ids.len(), width, out, |row, out| {
            // Cannot fail: id and length were checked above.
            let _ = matrix.row(ids[row] as usize, out);
        })
    }

    /// Stores the keys and values of each row: keys at `key_offset` in a row, values behind them.
    pub fn store_kv(
        &mut self,
        store: &mut KvStore,
        layer: usize,
        rows: &[f32],
        key_offset: usize,
        slots: &[KvSlot],
    ) -> Result<(), KernelError> {
        let KvShape { layers, kv_heads, head_dim } = store.shape();
        let width = kv_heads * head_dim;
        let stride = rows.len() / slots.len().max(1);
        let fits = layer < layers
            && rows.len() == stride * slots.len()
            && key_offset.checked_add(2 * width).is_some_and(|end| end <= stride)
            && slots.iter().all(|slot| {
                (slot.block as usize) < store.blocks() && slot.offset < crate::forward::BLOCK_TOKENS
            });
        if !fits && !slots.is_empty() {
            return Err(KernelError::shape(format!("{} keys and values of layer {layer}", slots.len())));
        }
        let store = &*store;
        let write_head = |kv_head: usize| {
            for (row, &slot) in rows.chunks_exact(stride.max(1)).zip(slots) {
                let key = key_offset + kv_head * head_dim;
                let (keys, values) = (&row[key..key + head_dim], &row[key + width..key + width + head_dim]);
                // SAFETY: layer, block and offset were checked above; a task has its head to itself, in whatever blocks,
                // and the store is borrowed exclusively.
                unsafe { store.write(layer, slot, kv_head, keys, values) };
            }
        };
        if rows.len() <= SERIAL_ELEMENTS {
            (0..kv_heads).for_each(write_head);
            return Ok(());
        }
        self.pool.run(kv_heads, |kv_head, _| write_head(kv_head))
    }

    /// Causal attention of the spans' queries over the stored keys and values, `scale` on the scores. A row of `queries`
    /// (`query_stride` apart) begins with `heads` heads; a row of `out` is `heads · head_dim` wide. Spans fill different rows.
    pub fn attention(
        &mut self,
        store: &KvStore,
        layer: usize,
        queries: Queries<'_>,
        spans: &[Span<'_>],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let shape = store.shape();
        check_attention(store, layer, &queries, spans, out.len())?;
        let cut = Cut::new(queries.heads, shape.kv_heads, dispatch!(self.isa, row_limit()));
        self.starts.clear();
        let mut items = 0;
        for span in spans {
            self.starts.push(items);
            items += cut.items(span);
        }
        let per_worker = attention::scratch_floats(shape);
        if self.scratch.len() < per_worker * self.pool.threads() {
            self.scratch.resize(per_worker * self.pool.threads(), 0.0);
        }
        let scratch = Shared(self.scratch.as_mut_ptr());
        let outputs = Shared(out.as_mut_ptr());
        let inputs = Shared(queries.rows.as_ptr().cast_mut());
        let (isa, starts) = (self.isa, &self.starts);
        let work = |index: usize, worker: usize| {
            let at = starts.partition_point(|&start| start <= index).saturating_sub(1);
            let item: Item<'_> = cut.item(&spans[at], index - starts[at]);
            let job = Job {
                store,
                layer,
                queries: inputs.get(),
                query_stride: queries.stride,
                out: outputs.get(),
                heads: queries.heads,
                scale: queries.scale,
            };
            // SAFETY: one piece of scratch per worker, which runs one task at a time.
            let scratch =
                unsafe { std::slice::from_raw_parts_mut(scratch.get().add(worker * per_worker), per_worker) };
            // Sound: rows and blocks were checked above; an item has its rows and heads of `out` to itself.
            dispatch!(isa, attend(&job, &item, scratch));
        };
        let touched: usize = spans.iter().map(|span| span.count * (span.start + span.count)).sum();
        if touched.saturating_mul(queries.heads * shape.head_dim) <= SERIAL_ELEMENTS {
            return self.pool.run(1, |_, worker| (0..items).for_each(|index| work(index, worker)));
        }
        self.pool.run(items, work)
    }

    /// Runs `work(row, its slice of out)` for every row.
    fn each_row(
        &mut self,
        rows: usize,
        width: usize,
        out: &mut [f32],
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<(), KernelError> {
        let (tasks, per_task) = cut_rows(rows, width);
        let out = Shared(out.as_mut_ptr());
        self.pool.run(tasks, |task, _| {
            for row in task * per_task..((task + 1) * per_task).min(rows) {
                // SAFETY: the callers checked that `out` has `rows · width` elements; each row is one task's.
                work(row, unsafe { std::slice::from_raw_parts_mut(out.get().add(row * width), width) });
            }
        })
    }
}

/// The queries of an attention.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// The rows.
    pub rows: &'a [f32],
    /// Elements between two rows.
    pub stride: usize,
    /// Query heads at the start of a row; a multiple of the key/value heads.
    pub heads: usize,
    /// Factor on the scores.
    pub scale: f32,
}

fn check_attention(
    store: &KvStore,
    layer: usize,
    queries: &Queries<'_>,
    spans: &[Span<'_>],
    out: usize,
) -> Result<(), KernelError> {
    let KvShape { layers, kv_heads, head_dim } = store.shape();
    let width = queries.heads.saturating_mul(head_dim);
    if layer >= layers || kv_heads == 0 || !queries.heads.is_multiple_of(kv_heads) || width > queries.stride {
        return Err(KernelError::shape(format!("attention of {} heads in layer {layer}", queries.heads)));
    }
    let mut next = 0;
    for span in spans {
        let Span { query_row, out_row, count, start, blocks } = *span;
        let covered = blocks.len() * crate::forward::BLOCK_TOKENS;
        let fits = out_row >= next
            && end_of(out_row, count, width).is_some_and(|end| end <= out)
            && end_of(query_row, count, queries.stride).is_some_and(|end| end <= queries.rows.len())
            && start.checked_add(count).is_some_and(|end| end <= covered)
            && blocks.iter().all(|&block| (block as usize) < store.blocks());
        if !fits {
            return Err(KernelError::shape(format!("attention span of {count} queries at {start}")));
        }
        next = out_row + count;
    }
    Ok(())
}

/// The element behind `count` rows from `row` on.
fn end_of(row: usize, count: usize, width: usize) -> Option<usize> {
    row.checked_add(count)?.checked_mul(width)
}

/// How `rows` rows of `width` elements are cut: (tasks, rows in a task).
fn cut_rows(rows: usize, width: usize) -> (usize, usize) {
    let per_task = (SERIAL_ELEMENTS / width.max(1)).max(1);
    (rows.div_ceil(per_task), per_task)
}
