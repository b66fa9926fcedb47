//! Reduces hidden states to the result: a vector or a score for each sequence. Must not know: how the states were
//! computed.

use std::ops::Range;

use headrace_checkpoint::{Pooling, ScoreActivation};
use headrace_kernels::encode::Vectors;
use headrace_kernels::matrix::Matrix;
use headrace_kernels::{Activation, KernelError, Kernels, Write, math};

use super::layers::Norm;
use crate::scratch::room;

/// Vectors are divided by at least this length, like in torch's `normalize`.
const LEAST_LENGTH: f64 = 1e-12;

/// The output stage, with its weights and working memory.
pub(crate) struct Output {
    pub(crate) hidden: usize,
    pub(crate) pooling: Pooling,
    pub(crate) kind: Kind,
    /// Pooled states, one row per sequence. `dense` and `normed` hold the head's activations.
    pub(crate) pooled: Vec<f32>,
    pub(crate) dense: Vec<f32>,
    pub(crate) normed: Vec<f32>,
}

/// The kind of result.
pub(crate) enum Kind {
    /// The pooled states, scaled to length 1 if `normalize` is set.
    Vector { normalize: bool },
    /// One number per sequence.
    Score(Head),
}

/// A dense layer over the pooled states, and a projection to one value.
pub(crate) struct Head {
    /// `hidden × hidden`.
    pub(crate) dense: Matrix,
    pub(crate) act: Activation,
    /// Norm after the activation.
    pub(crate) norm: Option<Norm>,
    /// `1 × hidden`.
    pub(crate) row: Matrix,
    pub(crate) activation: ScoreActivation,
}

impl Head {
    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        self.dense.bytes() + self.row.bytes() + self.norm.as_ref().map_or(0, Norm::bytes)
    }
}

impl Output {
    pub(crate) fn new(hidden: usize, pooling: Pooling, kind: Kind) -> Output {
        Output { hidden, pooling, kind, pooled: Vec::new(), dense: Vec::new(), normed: Vec::new() }
    }

    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Vector { .. } => 0,
            Kind::Score(head) => head.bytes(),
        }
    }

    /// Number of values per sequence.
    pub(crate) fn width(&self) -> usize {
        match self.kind {
            Kind::Vector { .. } => self.hidden,
            Kind::Score(_) => 1,
        }
    }

    /// Whether only the last state of each sequence is needed.
    pub(crate) fn wants_last_alone(&self) -> bool {
        self.pooling == Pooling::Last
    }

    /// Writes one row of `out` for each sequence. `ranges` gives the rows of `states` that belong to each sequence.
    pub(crate) fn finish(
        &mut self,
        kernels: &mut Kernels,
        states: &[f32],
        ranges: &[Range<usize>],
        out: &mut Vectors,
    ) -> Result<(), KernelError> {
        let hidden = self.hidden;
        let pooled = room(&mut self.pooled, ranges.len() * hidden);
        for (range, out) in ranges.iter().zip(pooled.chunks_exact_mut(hidden)) {
            pool(self.pooling, states, hidden, range, out);
        }
        match &self.kind {
            Kind::Vector { normalize } => {
                for (index, vector) in pooled.chunks_exact_mut(hidden).enumerate() {
                    if *normalize {
                        to_length_one(vector);
                    }
                    if let Some(row) = out.row_mut(index) {
                        row.copy_from_slice(vector);
                    }
                }
                Ok(())
            }
            Kind::Score(head) => {
                let dense = room(&mut self.dense, ranges.len() * hidden);
                kernels.matmul(pooled, ranges.len(), &head.dense, dense, Write::Set)?;
                kernels.activate(head.act, dense, hidden)?;
                let last = match &head.norm {
                    None => dense,
                    Some(norm) => {
                        let normed = room(&mut self.normed, ranges.len() * hidden);
                        kernels.layer_norm(dense, &norm.weight, &norm.bias, norm.eps, normed)?;
                        normed
                    }
                };
                let scores = room(&mut self.pooled, ranges.len());
                kernels.matmul(last, ranges.len(), &head.row, scores, Write::Set)?;
                for (index, &score) in scores.iter().enumerate() {
                    if let Some([out]) = out.row_mut(index) {
                        *out = activated(head.activation, score);
                    }
                }
                Ok(())
            }
        }
    }
}

fn activated(activation: ScoreActivation, score: f32) -> f32 {
    match activation {
        ScoreActivation::Identity => score,
        ScoreActivation::Sigmoid => (1.0 / (1.0 + math::exp(-f64::from(score)))) as f32,
    }
}

/// Pools the states in `range` into one row. Sums are in ascending order of rows.
fn pool(pooling: Pooling, states: &[f32], hidden: usize, range: &Range<usize>, out: &mut [f32]) {
    let row = |row: usize| states.get(row * hidden..(row + 1) * hidden).unwrap_or_default();
    match pooling {
        Pooling::Cls => out.copy_from_slice(row(range.start)),
        Pooling::Last => out.copy_from_slice(row(range.end.saturating_sub(1))),
        Pooling::Mean => {
            out.fill(0.0);
            for at in range.clone() {
                for (sum, &value) in out.iter_mut().zip(row(at)) {
                    *sum += value;
                }
            }
            let count = range.len() as f32;
            out.iter_mut().for_each(|sum| *sum /= count);
        }
    }
}

/// Divides a vector by its length. The squares are summed in f64.
fn to_length_one(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
    let length = square.sqrt().max(LEAST_LENGTH);
    vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooling_takes_the_rows_it_says() {
        let states = [9.0, 9.0, 1.0, 2.0, 3.0, 5.0, 5.0, 2.0, 9.0, 9.0];
        for (pooling, expected) in
            [(Pooling::Cls, [1.0, 2.0]), (Pooling::Last, [5.0, 2.0]), (Pooling::Mean, [3.0, 3.0])]
        {
            let mut out = [0.0; 2];
            pool(pooling, &states, 2, &(1..4), &mut out);
            assert_eq!(out, expected, "{pooling:?}");
        }
    }

    #[test]
    fn vectors_come_to_length_one_save_the_empty_one() {
        let mut vector = [3.0, 4.0];
        to_length_one(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zero = [0.0; 2];
        to_length_one(&mut zero);
        assert_eq!(zero, [0.0; 2]);
        assert_eq!(activated(ScoreActivation::Sigmoid, 0.0), 0.5);
        assert_eq!(activated(ScoreActivation::Identity, -3.0), -3.0);
    }
}
