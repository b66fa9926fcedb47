//! Inputs that each layer has of its own, computed once for the tokens of a step, and the network that adds a layer's part
//! to the stream. Must not know: files, architectures, or how attention is computed.

use headrace_kernels::{HeadColumns, KernelError, Kernels, Write};

use crate::layer::{LayerInputWeights, LayerInputs};
use crate::norm::NormWeights;
use crate::scratch::{LayerInputScratch, room};

impl LayerInputs {
    /// Computes the inputs of all layers for every row of `stream`, the rows' embeddings.
    pub(crate) fn compute(
        &self,
        kernels: &mut Kernels,
        tokens: &[u32],
        stream: &[f32],
        scratch: &mut LayerInputScratch,
    ) -> Result<(), KernelError> {
        let (rows, columns) = (tokens.len(), self.words.k());
        let words = room(&mut scratch.words, rows * columns);
        kernels.rows(&self.words, tokens, words)?;
        kernels.scale_and_cap(words, columns, self.word_scale, None)?;
        let inputs = room(&mut scratch.inputs, rows * columns);
        kernels.matmul(stream, rows, &self.projection, inputs, Write::Set)?;
        kernels.scale_and_cap(inputs, columns, self.projection_scale, None)?;
        let NormWeights { kind, eps, weight, .. } = &self.norm;
        let layers = HeadColumns { first: 0, heads: columns / self.width.max(1), head_dim: self.width };
        kernels.norm_heads(inputs, columns, layers, (*kind, weight, *eps))?;
        kernels.add_scaled(words, columns, 1.0, inputs)?;
        kernels.scale_and_cap(inputs, columns, self.scale, None)
    }
}

impl LayerInputWeights {
    /// Adds the network's output for each row of `stream` to it. `wanted` are the rows of the step that `stream` holds, if
    /// it does not hold all. `hidden` is the width of the stream.
    pub(crate) fn add(
        &self,
        kernels: &mut Kernels,
        (stream, hidden): (&mut [f32], usize),
        wanted: Option<&[usize]>,
        scratch: &mut LayerInputScratch,
    ) -> Result<(), KernelError> {
        let (count, width) = (stream.len() / hidden.max(1), self.gate.n());
        let LayerInputScratch { inputs, gates, output, output_normed, .. } = scratch;
        let gates = room(gates, count * width);
        kernels.matmul(stream, count, &self.gate, gates, Write::Set)?;
        kernels.activate(self.activation, gates, width)?;
        for (row, gates) in gates.chunks_exact_mut(width).enumerate() {
            let row = wanted.and_then(|wanted| wanted.get(row).copied()).unwrap_or(row);
            let first = row * self.stride + self.first;
            let input = inputs.get(first..first + width).unwrap_or_default();
            gates.iter_mut().zip(input).for_each(|(gate, x)| *gate *= x);
        }
        let output = room(output, count * hidden);
        kernels.matmul(gates, count, &self.projection, output, Write::Set)?;
        let normed = room(output_normed, count * hidden);
        self.norm.apply(kernels, output, normed)?;
        kernels.add_scaled(normed, hidden, 1.0, stream)
    }
}
