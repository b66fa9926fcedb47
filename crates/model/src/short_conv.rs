//! Short convolutions within a layer: with gates before and after (LFM2), and as a part of other recurrent mixers. Must not
//! know: files, or which layer this is.

use headrace_kernels::matrix::Matrix;
use headrace_kernels::{KernelError, Kernels, ProjectedRows, ShortConvolution, Write};

use crate::scratch::{LatentScratch, Scratch, room};
use crate::states::LayerState;

/// A depthwise convolution. See [`headrace_checkpoint::decoder::ConvolutionConfig`].
pub(crate) struct ConvolutionWeights {
    pub(crate) channels: usize,
    /// `[taps][channels]`, each tap padded to a multiple of 16 elements.
    pub(crate) weight: Vec<f32>,
    /// One addend for each channel, padded likewise. Empty if there is no bias.
    pub(crate) bias: Vec<f32>,
}

/// A short convolution with gates.
pub(crate) struct ShortConvWeights {
    /// `3·channels × hidden`: the gate of the inputs, the gate of the outputs, the inputs.
    pub(crate) input: Matrix,
    pub(crate) convolution: ConvolutionWeights,
    /// `hidden × channels`.
    pub(crate) output: Matrix,
}

impl ConvolutionWeights {
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.weight.len() + self.bias.len())
    }
}

impl ShortConvWeights {
    pub(crate) fn bytes(&self) -> usize {
        self.input.bytes() + self.convolution.bytes() + self.output.bytes()
    }

    /// Computes the gated convolution of `rows` rows of `input` into `scratch.attended`, before the output projection.
    pub(crate) fn mix(
        &self,
        kernels: &mut Kernels,
        (input, rows): (&[f32], usize),
        state: &mut LayerState<'_>,
        scratch: &mut MixScratch<'_>,
    ) -> Result<(), KernelError> {
        let channels = self.convolution.channels;
        let stride = self.input.n();
        let projected = room(scratch.projected, rows * stride);
        kernels.matmul(input, rows, &self.input, projected, Write::Set)?;
        let convolution = ShortConvolution {
            input: 2 * channels,
            input_factor: Some(0),
            weight: &self.convolution.weight,
            bias: &self.convolution.bias,
            silu: false,
            output_factor: Some(channels),
        };
        let projections = ProjectedRows { rows: projected, stride };
        let out = room(scratch.out, rows * channels);
        kernels.convolve(state.store, (state.layer, state.plan), &convolution, projections, out)
    }
}

/// Memory of a mixer, reused between steps.
pub(crate) struct MixScratch<'a> {
    /// The projections of the input.
    pub(crate) projected: &'a mut Vec<f32>,
    /// The outputs of the convolution.
    pub(crate) convolved: &'a mut Vec<f32>,
    /// The outputs of the recurrence, before a norm.
    pub(crate) unnormed: &'a mut Vec<f32>,
    /// The outputs of the mixer, before its projection.
    pub(crate) out: &'a mut Vec<f32>,
    /// Memory of latent attention.
    pub(crate) latent: &'a mut LatentScratch,
}

impl Scratch {
    /// Returns the input of a mixer, which is the stream or its norm, and the memory that the mixer writes.
    pub(crate) fn for_mixer(&mut self, is_normed: bool) -> (&mut Vec<f32>, MixScratch<'_>) {
        let Scratch { stream, normed, qkv, convolved, unnormed, attended, latent, .. } = self;
        let memory = MixScratch { projected: qkv, convolved, unnormed, out: attended, latent };
        (if is_normed { normed } else { stream }, memory)
    }
}
