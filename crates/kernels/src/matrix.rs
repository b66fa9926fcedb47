//! Weights, repacked once at load into panels of 16 output columns, in their stored type.
//! Must not know: what a matrix means to a model, or where its bytes come from.

use crate::entry_ints::dispatch_ints;
use crate::error::KernelError;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::section::{Section, panel_bytes};
use crate::shapes::LANES;
pub use crate::weight_type::{Part, WeightType};

/// `n × k` weights (n outputs, k inputs) with an optional bias: `y = W·x + b`.
///
/// Consecutive parts of one type share one [`Section`].
pub struct Matrix {
    sections: Vec<Section>,
    n: usize,
    k: usize,
}

impl Matrix {
    /// Packs `parts`, one below the other, on the pool's threads. Fails if a part's length is not `rows` rows of `k`,
    /// if blocks do not divide `k`, or if there is no memory.
    pub fn pack(pool: &mut Pool, parts: &[Part<'_>], k: usize) -> Result<Matrix, KernelError> {
        let mut matrix = Matrix { sections: Vec::new(), n: 0, k };
        for run in parts.chunk_by(|a, b| a.weight_type == b.weight_type) {
            let section = Section::pack(pool, run, k, matrix.n)?;
            matrix.n += section.n();
            matrix.sections.push(section);
        }
        Ok(matrix)
    }

    /// Returns the packed size in bytes of parts with these types and row counts and with `k` inputs.
    pub fn packed_bytes(parts: &[(WeightType, usize)], k: usize) -> usize {
        let runs = parts.chunk_by(|a, b| a.0 == b.0).filter_map(|run| {
            let &(weight_type, _) = run.first()?;
            let n: usize = run.iter().map(|&(_, rows)| rows).sum();
            Some(n.div_ceil(LANES).saturating_mul(panel_bytes(weight_type, k)))
        });
        runs.fold(0, usize::saturating_add)
    }

    /// Returns the number of outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the number of inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the weight type of each run of outputs, with the number of outputs in the run.
    pub fn weight_types(&self) -> impl Iterator<Item = (WeightType, usize)> {
        self.sections.iter().map(|section| (section.weight_type(), section.n()))
    }

    /// Returns the bytes of memory held.
    pub fn bytes(&self) -> usize {
        self.sections.iter().map(Section::bytes).sum()
    }

    /// Returns the bytes of weights that a product reads: the memory held, without the gaps between panels.
    pub fn read_bytes(&self) -> usize {
        self.sections.iter().map(|section| section.panels() * section.filled_bytes()).sum()
    }

    /// Writes row `row` (the weights of one output) to `out`, widened to f32. This is a token's embedding lookup.
    /// Fails if `row` is not below `n` or `out` is not `k` long.
    pub fn row(&self, isa: Isa, row: usize, out: &mut [f32]) -> Result<(), KernelError> {
        let section = self.sections.iter().rev().find(|section| section.first() <= row && row < self.n);
        let Some(section) = section.filter(|_| out.len() == self.k) else {
            let (n, found, k) = (self.n, out.len(), self.k);
            return Err(KernelError::shape(format!("row {row} of {n}, {found} of {k} long")));
        };
        let row = row - section.first();
        if let WeightType::Block(kind) = section.weight_type() {
            dispatch_ints!(isa, expand_row(section, kind, row, out));
            return Ok(());
        }
        for (i, value) in out.iter_mut().enumerate() {
            *value = section.element(row, i);
        }
        Ok(())
    }

    pub(crate) fn sections(&self) -> &[Section] {
        &self.sections
    }
}
