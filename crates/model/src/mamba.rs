//! Mamba2 within a layer: projection, convolution, recurrence, gate and norm. Must not know: files, or which layer this is.

use headrace_kernels::matrix::Matrix;
use headrace_kernels::{
    GroupNorm, HeadRecurrence, HeadSharing, KernelError, Kernels, ProjectedRows, RecurrenceRule,
    ShortConvolution, Write,
};

use crate::scratch::room;
use crate::short_conv::{ConvolutionWeights, MixScratch};
use crate::states::LayerState;

/// Mamba2. See [`headrace_checkpoint::decoder::MambaConfig`].
pub(crate) struct MambaWeights {
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) groups: usize,
    pub(crate) state_dim: usize,
    /// Gates, x, B, C and step sizes: one below the other, `× hidden`.
    pub(crate) input: Matrix,
    pub(crate) convolution: ConvolutionWeights,
    /// One for each head.
    pub(crate) step_bias: Vec<f32>,
    /// Bounds of the step sizes.
    pub(crate) steps: (f32, f32),
    /// For each head, the logarithm of the decay for each unit of the step size.
    pub(crate) rates: Vec<f32>,
    /// For each head, D.
    pub(crate) skips: Vec<f32>,
    /// Factors of the norm over each group, for all heads.
    pub(crate) norm: Vec<f32>,
    pub(crate) eps: f32,
    /// `hidden × heads·head_dim`.
    pub(crate) output: Matrix,
}

impl MambaWeights {
    pub(crate) fn bytes(&self) -> usize {
        let vectors = self.step_bias.len() + self.rates.len() + self.skips.len() + self.norm.len();
        self.input.bytes() + self.convolution.bytes() + self.output.bytes() + 4 * vectors
    }

    /// Computes the outputs of `rows` rows of `input` into `scratch.out`, before the output projection.
    pub(crate) fn mix(
        &self,
        kernels: &mut Kernels,
        (input, rows): (&[f32], usize),
        state: &mut LayerState<'_>,
        scratch: &mut MixScratch<'_>,
    ) -> Result<(), KernelError> {
        let (inner, shared) = (self.heads * self.head_dim, self.groups * self.state_dim);
        let (stride, channels) = (self.input.n(), self.convolution.channels);
        let projected = room(scratch.projected, rows * stride);
        kernels.matmul(input, rows, &self.input, projected, Write::Set)?;
        let projections = ProjectedRows { rows: projected, stride };
        let convolution = ShortConvolution {
            input: inner,
            input_factor: None,
            weight: &self.convolution.weight,
            bias: &self.convolution.bias,
            silu: true,
            output_factor: None,
        };
        let convolved = room(scratch.convolved, rows * channels);
        let place = (state.layer, state.plan);
        kernels.convolve(state.store, place, &convolution, projections, convolved)?;
        let recurrence = HeadRecurrence {
            rule: RecurrenceRule::Sum { skips: &self.skips, steps: self.steps },
            query: inner + shared,
            key: inner,
            value: 0,
            sharing: HeadSharing::Runs(self.heads / self.groups.max(1)),
            step: inner + channels,
            step_bias: &self.step_bias,
            rates: &self.rates,
        };
        let mixed = ProjectedRows { rows: convolved, stride: channels };
        let unnormed = room(scratch.unnormed, rows * inner);
        kernels.recur(state.store, place, &recurrence, (mixed, projections), unnormed)?;
        let norm = GroupNorm { weight: &self.norm, groups: self.groups, eps: self.eps };
        let out = room(scratch.out, rows * inner);
        kernels.gated_group_norm(unnormed, (projections, 0), norm, out)
    }
}
