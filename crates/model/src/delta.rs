//! The gated delta rule within a layer: projections, convolution, recurrence with its norm and gate. Must not know: files,
//! or which layer this is.

use headrace_kernels::matrix::Matrix;
use headrace_kernels::{
    HeadRecurrence, HeadSharing, KernelError, Kernels, ProjectedRows, RecurrenceRule, ShortConvolution, Write,
};

use crate::scratch::room;
use crate::short_conv::{ConvolutionWeights, MixScratch};
use crate::states::LayerState;

/// The gated delta rule. See [`headrace_checkpoint::decoder::DeltaConfig`].
pub(crate) struct DeltaWeights {
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    /// The value heads that share a query and a key.
    pub(crate) sharing: HeadSharing,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Queries, keys, values, gates, logits of β, step sizes: one below the other, `× hidden`.
    pub(crate) input: Matrix,
    pub(crate) convolution: ConvolutionWeights,
    /// One for each value head.
    pub(crate) step_bias: Vec<f32>,
    /// For each value head, the logarithm of the decay for each unit of the step size.
    pub(crate) rates: Vec<f32>,
    /// Factors of the norm of each head's output.
    pub(crate) norm: Vec<f32>,
    pub(crate) eps: f32,
    /// `hidden × value_heads·value_dim`.
    pub(crate) output: Matrix,
}

impl DeltaWeights {
    pub(crate) fn bytes(&self) -> usize {
        let vectors = self.step_bias.len() + self.rates.len() + self.norm.len();
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
        let (keys, values) = (self.key_heads * self.key_dim, self.value_heads * self.value_dim);
        let (stride, channels) = (self.input.n(), self.convolution.channels);
        let projected = room(scratch.projected, rows * stride);
        kernels.matmul(input, rows, &self.input, projected, Write::Set)?;
        let projections = ProjectedRows { rows: projected, stride };
        let convolution = ShortConvolution {
            input: 0,
            input_factor: None,
            weight: &self.convolution.weight,
            bias: &self.convolution.bias,
            silu: true,
            output_factor: None,
        };
        let convolved = room(scratch.convolved, rows * channels);
        let place = (state.layer, state.plan);
        kernels.convolve(state.store, place, &convolution, projections, convolved)?;
        let gate = channels;
        let recurrence = HeadRecurrence {
            rule: RecurrenceRule::Delta { beta: gate + values, gate, norm: &self.norm, eps: self.eps },
            query: 0,
            key: keys,
            value: 2 * keys,
            sharing: self.sharing,
            step: gate + values + self.value_heads,
            step_bias: &self.step_bias,
            rates: &self.rates,
        };
        let mixed = ProjectedRows { rows: convolved, stride: channels };
        let out = room(scratch.out, rows * values);
        kernels.recur(state.store, place, &recurrence, (mixed, projections), out)
    }
}
