//! Norms over whole rows: weights and application. Must not know where a norm is applied.

use headrace_kernels::{KernelError, Kernels, RowNorm};

/// A norm over whole rows.
pub(crate) struct NormWeights {
    pub(crate) kind: RowNorm,
    pub(crate) eps: f32,
    pub(crate) weight: Vec<f32>,
    /// Empty if the norm has no bias.
    pub(crate) bias: Vec<f32>,
}

impl NormWeights {
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.weight.len() + self.bias.len())
    }

    /// Normalizes each row of `x` into `out`.
    pub(crate) fn apply(&self, kernels: &mut Kernels, x: &[f32], out: &mut [f32]) -> Result<(), KernelError> {
        match self.kind {
            RowNorm::Rms => kernels.rms_norm(x, &self.weight, self.eps, out),
            RowNorm::Layer => kernels.layer_norm(x, &self.weight, &self.bias, self.eps, out),
        }
    }
}
