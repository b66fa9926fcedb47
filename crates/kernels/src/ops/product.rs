//! `out = x · Wᵀ + b`: selects the kernel for each weight type and splits the work into tasks.
//! Must not know: architectures.

use headrace_quant::BlockType;

use crate::entry::dispatch;
use crate::entry_ints::{dispatch_ints, dispatch_pairs};
use crate::error::KernelError;
use crate::formats::with_format;
use crate::gemm::Product;
use crate::gemm_bf16::PairProduct;
use crate::gemm_int::IntProduct;
use crate::inputs::{Layout, grow};
use crate::isa::Isa;
use crate::kernels::Kernels;
use crate::matrix::{Matrix, WeightType};
use crate::memory::Shared;
use crate::mode::ComputeMode;
use crate::packed::Format;
use crate::section::Section;
use crate::shapes::{FACTS, GROUP, LANES, SERIAL_ELEMENTS};

/// A product with at most this many multiply-adds is not worth waking other threads for.
const SERIAL_PRODUCT: usize = 1 << 16;
/// Panels per task of a memory-bound product: the most that one tile reads side by side.
const FEW_ROW_PANELS: usize = 4;
/// Panels per task of a product with many rows.
const MANY_ROW_PANELS: usize = 8;
/// A product has many rows from this number on.
const MANY_ROWS: usize = 32;

/// How a product's result is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// The result replaces the output.
    Set,
    /// The result is added to the output (the residual).
    Add,
}

/// The kernel that multiplies a section.
#[derive(Clone, Copy)]
enum Path {
    Dense,
    Pairs,
    Widened(BlockType),
    Ints(BlockType, usize),
}

impl Path {
    fn of(section: &Section, mode: ComputeMode) -> Path {
        match (section.weight_type(), mode) {
            (WeightType::Block(kind), ComputeMode::Exact) => Path::Widened(kind),
            (WeightType::Block(kind), ComputeMode::Fast) if with_format!(kind, F => F::FLOATS) => {
                Path::Widened(kind)
            }
            (WeightType::Block(kind), ComputeMode::Fast) => {
                Path::Ints(kind, with_format!(kind, F => section.k().next_multiple_of(F::SPAN)))
            }
            (WeightType::Bf16, ComputeMode::Fast) => Path::Pairs,
            _ => Path::Dense,
        }
    }

    fn layout(self) -> Layout {
        match self {
            Path::Dense | Path::Widened(_) => Layout::Plain,
            Path::Pairs => Layout::Pairs,
            Path::Ints(_, padded) => Layout::Ints(padded),
        }
    }
}

impl Kernels {
    /// `out = x · Wᵀ + b`: `x` is `m × k`, `out` is `m × n`, both row-major. An output's bits depend only on its row
    /// of `x` and on its weights.
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
        let (isa, mode) = (self.isa(), self.mode());
        self.inputs.ready.clear();
        for section in matrix.sections() {
            let path = Path::of(section, mode);
            let (pool, inputs) = self.pool_and_inputs();
            inputs.lay_out(pool, isa, (x, m, k), path.layout())?;
            let rows = if m == 1 { x.as_ptr() } else { inputs.plain.as_ptr() };
            let panels = section.panels();
            let per_task = panels_per_task(m, section);
            let per_worker = m * per_task * LANES;
            if matches!(path, Path::Ints(..)) {
                grow(&mut inputs.waiting, per_worker * pool.threads());
            }
            let task = Task {
                path,
                isa,
                section,
                plain: Shared(rows.cast_mut()),
                codes: Shared(inputs.codes.as_mut_ptr()),
                facts: Shared(inputs.facts.as_mut_ptr()),
                pairs: Shared(inputs.pairs.as_mut_ptr()),
                waiting: Shared(inputs.waiting.as_mut_ptr()),
                per_worker,
                m,
                out: Shared(out.as_mut_ptr().wrapping_add(section.first())),
                out_stride: n,
                accumulate: write == Write::Add,
            };
            pool.run_in_stretches(panels.div_ceil(per_task), |index, worker| {
                let first = index * per_task;
                task.run(worker, first, per_task.min(panels - first));
            })?;
        }
        Ok(())
    }

    /// Multiplies each head of `m` rows by a matrix of its own. A row of `x` begins with `k` inputs for each of the
    /// matrices. A row of `out` has a head for each of them, all of one width, and each head begins with the `n` outputs;
    /// the rest of it stays as it is. The matrices have the same shape and weight type. An output's bits depend only on
    /// its head of `x` and on its weights.
    pub fn matmul_heads(
        &mut self,
        x: &[f32],
        m: usize,
        matrices: &[Matrix],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let heads = matrices.len();
        let Some(section) = matrices.first().and_then(|matrix| matrix.sections().first()) else {
            return Ok(());
        };
        if m == 0 {
            return Ok(());
        }
        let (n, k, weight_type) = (section.n(), section.k(), section.weight_type());
        let (stride, step) = (x.len() / m, out.len() / m / heads);
        let is_alike = |matrix: &Matrix| match matrix.sections() {
            [only] => (only.n(), only.k(), only.weight_type()) == (n, k, weight_type),
            _ => false,
        };
        let fits = stride * m == x.len() && heads * step * m == out.len() && step >= n;
        let fits = fits && k > 0 && stride / heads >= k;
        if !fits || !matrices.iter().all(is_alike) {
            let (x, out) = (x.len(), out.len());
            return Err(KernelError::shape(format!(
                "{x} inputs, {out} outputs for {heads} heads of {k} → {n}"
            )));
        }
        let (isa, mode) = (self.isa(), self.mode());
        let path = Path::of(section, mode);
        let (pool, inputs) = self.pool_and_inputs();
        // Taken out, because the layout is made from it.
        let mut by_head = std::mem::take(&mut inputs.by_head);
        grow(&mut by_head, heads * m * k);
        let gathered = Shared(by_head.as_mut_ptr());
        let gather = |head: usize| {
            // SAFETY: the memory was grown for `heads` pieces of `m · k` elements, and each head has its own.
            let rows = unsafe { std::slice::from_raw_parts_mut(gathered.get().add(head * m * k), m * k) };
            for (row, to) in rows.chunks_exact_mut(k).enumerate() {
                let from = row * stride + head * k;
                to.copy_from_slice(&x[from..from + k]);
            }
        };
        let gathering = match heads * m * k <= SERIAL_ELEMENTS {
            true => pool.run(1, |_, _| (0..heads).for_each(gather)),
            false => pool.run(heads, |head, _| gather(head)),
        };
        inputs.ready.clear();
        let laid_out = gathering
            .and_then(|()| inputs.lay_out(pool, isa, (&by_head[..heads * m * k], m, k), path.layout()));
        let rows = if m == 1 { by_head.as_mut_ptr() } else { inputs.plain.as_mut_ptr() };
        let panels = section.panels();
        let per_worker = m * MANY_ROW_PANELS * LANES;
        if matches!(path, Path::Ints(..)) {
            grow(&mut inputs.waiting, per_worker * pool.threads());
        }
        let starts = (Shared(rows), Shared(inputs.codes.as_mut_ptr()), Shared(inputs.facts.as_mut_ptr()));
        let (pairs, waiting) = (Shared(inputs.pairs.as_mut_ptr()), Shared(inputs.waiting.as_mut_ptr()));
        let to = Shared(out.as_mut_ptr());
        let pieces = panels.div_ceil(MANY_ROW_PANELS);
        let run = |index: usize, worker: usize| {
            let (head, first) = (index / pieces, index % pieces * MANY_ROW_PANELS);
            let (before, padded) = (head * m, if let Path::Ints(_, padded) = path { padded } else { 0 });
            let task = Task {
                path,
                isa,
                section: &matrices[head].sections()[0],
                plain: Shared(starts.0.get().wrapping_add(before * k)),
                codes: Shared(starts.1.get().wrapping_add(before * padded / 4)),
                facts: Shared(starts.2.get().wrapping_add(before * padded / GROUP * FACTS)),
                pairs: Shared(pairs.get().wrapping_add(before * k.div_ceil(2))),
                waiting: Shared(waiting.get()),
                per_worker,
                m,
                out: Shared(to.get().wrapping_add(head * step)),
                out_stride: heads * step,
                accumulate: false,
            };
            task.run(worker, first, MANY_ROW_PANELS.min(panels - first));
        };
        let tasks = heads * pieces;
        let work = heads.saturating_mul(m).saturating_mul(n).saturating_mul(k);
        let done = laid_out.and_then(|()| match work <= SERIAL_PRODUCT {
            true => pool.run(1, |_, worker| (0..tasks).for_each(|index| run(index, worker))),
            false => pool.run_in_stretches(tasks, run),
        });
        inputs.by_head = by_head;
        done
    }
}

fn panels_per_task(m: usize, section: &Section) -> usize {
    let work = m.saturating_mul(section.n()).saturating_mul(section.k());
    match work <= SERIAL_PRODUCT {
        true => section.panels().max(1),
        false if m < MANY_ROWS => FEW_ROW_PANELS,
        false => MANY_ROW_PANELS,
    }
}

/// The product of one section, shared by all tasks.
struct Task<'a> {
    path: Path,
    isa: Isa,
    section: &'a Section,
    plain: Shared<f32>,
    codes: Shared<i32>,
    facts: Shared<f32>,
    pairs: Shared<u32>,
    waiting: Shared<f32>,
    /// Elements of `waiting` per worker.
    per_worker: usize,
    m: usize,
    out: Shared<f32>,
    out_stride: usize,
    accumulate: bool,
}

impl Task<'_> {
    /// Computes the columns of `count` panels, starting at panel `first`. Sound: `matmul` checked the lengths, and
    /// the rows are laid out for the path. Each task has its own columns of `out`, and each worker its own piece of
    /// `waiting`.
    fn run(&self, worker: usize, first: usize, count: usize) {
        let Task { path, isa, section, m, out_stride, accumulate, .. } = *self;
        let out = self.out.get();
        let dense = || Product { section, x: self.plain.get(), m, out, out_stride, accumulate };
        match path {
            Path::Dense => dispatch!(isa, columns(&dense(), first, count)),
            Path::Widened(kind) => dispatch_ints!(isa, expand_columns(&dense(), kind, first, count)),
            Path::Pairs => {
                let (x, pairs) = (self.pairs.get().cast_const(), section.k().div_ceil(2));
                let product = PairProduct { section, x, pairs, m, out, out_stride, accumulate };
                dispatch_pairs!(isa, pair_columns(&product, first, count));
            }
            Path::Ints(kind, padded_k) => {
                let (codes, facts) = (self.codes.get().cast_const(), self.facts.get().cast_const());
                let waiting = self.waiting.get().wrapping_add(worker * self.per_worker);
                let product =
                    IntProduct { section, codes, facts, padded_k, m, out, out_stride, accumulate, waiting };
                dispatch_ints!(isa, int_columns(&product, kind, first, count));
            }
        }
    }
}
