//! The activation rows of a product, laid out once for each way in which its weights are multiplied.
//! Must not know: weights.

use crate::entry::dispatch;
use crate::entry_ints::{dispatch_ints, dispatch_pairs};
use crate::error::KernelError;
use crate::gemm::pack_group;
use crate::isa::Isa;
use crate::memory::Shared;
use crate::pool::Pool;
use crate::shapes::{FACTS, GROUP, cut_rows, group, group_count};

/// Activation rows laid out for the register tiles. The memory is kept between products.
#[derive(Default)]
pub(crate) struct Inputs {
    /// f32 rows, in groups.
    pub(crate) plain: Vec<f32>,
    /// int8 codes, and the metadata of their groups.
    pub(crate) codes: Vec<i32>,
    pub(crate) facts: Vec<f32>,
    /// bf16 pairs.
    pub(crate) pairs: Vec<u32>,
    /// Partial sums that wait between blocks of inputs, one piece per worker.
    pub(crate) waiting: Vec<f32>,
    /// The layouts that are ready for the current product.
    pub(crate) ready: Vec<Layout>,
    /// The rows of each head of a product of heads, one head after the other.
    pub(crate) by_head: Vec<f32>,
}

/// A layout of rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Plain,
    /// int8 codes, with the inputs padded to this number.
    Ints(usize),
    Pairs,
}

impl Inputs {
    /// Lays out `x`, rows of `k` inputs, in groups as `layout` specifies. Does nothing if this product has that
    /// layout already. Each `m` rows are grouped by themselves: those of one matrix, if there are several.
    pub(crate) fn lay_out(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        (x, m, k): (&[f32], usize, usize),
        layout: Layout,
    ) -> Result<(), KernelError> {
        let all = x.len() / k.max(1);
        // A single plain row needs no layout.
        if self.ready.contains(&layout) || layout == Layout::Plain && m == 1 {
            return Ok(());
        }
        self.ready.push(layout);
        let limit = match layout {
            Layout::Plain => dispatch!(isa, row_limit()),
            Layout::Ints(_) => dispatch_ints!(isa, row_limit(m)),
            Layout::Pairs => dispatch_pairs!(isa, row_limit()),
        };
        match layout {
            Layout::Plain => grow(&mut self.plain, x.len()),
            Layout::Ints(padded) => {
                grow(&mut self.codes, all * padded / 4);
                grow(&mut self.facts, all * padded / GROUP * FACTS);
            }
            Layout::Pairs => grow(&mut self.pairs, all * k.div_ceil(2)),
        }
        let per_matrix = group_count(m, limit).max(1);
        let groups = all / m.max(1) * per_matrix;
        let (plain, pairs) = (Shared(self.plain.as_mut_ptr()), Shared(self.pairs.as_mut_ptr()));
        let (codes, facts) = (Shared(self.codes.as_mut_ptr()), Shared(self.facts.as_mut_ptr()));
        let (tasks, per_task) = cut_rows(groups, x.len() / groups.max(1));
        pool.run(tasks, |task, _| {
            for index in task * per_task..((task + 1) * per_task).min(groups) {
                let (row, rows) = group(m, per_matrix, index % per_matrix);
                let row = index / per_matrix * m + row;
                let x = &x[row * k..(row + rows) * k];
                // SAFETY: the groups' ranges are disjoint and lie inside memory that was grown for all rows above.
                match layout {
                    Layout::Plain => {
                        // SAFETY: as above.
                        let plain = unsafe { piece(&plain, row * k, rows * k) };
                        pack_group(x, k, rows, plain);
                    }
                    Layout::Pairs => {
                        let words = k.div_ceil(2);
                        // SAFETY: as above.
                        let pairs = unsafe { piece(&pairs, row * words, rows * words) };
                        dispatch_pairs!(isa, pair_rows(x, k, rows, pairs));
                    }
                    Layout::Ints(padded) => {
                        let (words, notes) = (padded / 4, padded / GROUP * FACTS);
                        // SAFETY: as above.
                        let codes = unsafe { piece(&codes, row * words, rows * words) };
                        // SAFETY: as above.
                        let facts = unsafe { piece(&facts, row * notes, rows * notes) };
                        dispatch_ints!(isa, quantize(x, k, rows, codes, facts));
                    }
                }
            }
        })
    }
}

/// Grows `memory` to at least `length` elements.
pub(crate) fn grow<T: Clone + Default>(memory: &mut Vec<T>, length: usize) {
    if memory.len() < length {
        memory.resize(length, T::default());
    }
}

/// # Safety
/// `length` elements from `first` on exist, and nothing else accesses them while the piece lives.
unsafe fn piece<'a, T>(memory: &Shared<T>, first: usize, length: usize) -> &'a mut [T] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(memory.get().add(first), length) }
}
