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
use crate::shapes::LANES;

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
            inputs.lay_out(pool, isa, x, k, path.layout())?;
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
