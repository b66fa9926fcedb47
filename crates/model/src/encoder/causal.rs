//! A decoder read as an encoder: its last hidden states, where each token sees those before it. The layers are the decoder's own;
//! only whole sequences come, so that keys and values of one layer at a time are kept. Must not know: what becomes of the states.

use headrace_checkpoint::ModelConfig;
use headrace_kernels::encode::Sequence;
use headrace_kernels::forward::{ForwardShape, LogitsWanted, SequenceChunk};
use headrace_kernels::{KernelError, Kernels};

use super::rows::Rows;
use crate::batch;
use crate::model::Core;

/// The decoder.
pub(crate) struct Causal {
    pub(crate) config: ModelConfig,
    pub(crate) shape: ForwardShape,
    pub(crate) core: Core,
    pub(crate) rows: batch::Rows,
}

impl Causal {
    pub(crate) fn kernels(&mut self) -> &mut Kernels {
        &mut self.core.kernels
    }

    /// Computes the last hidden states of every row, or of each sequence's last one alone.
    pub(crate) fn states(
        &mut self,
        batch: &[Sequence<'_>],
        rows: &Rows,
        last_alone: bool,
    ) -> Result<(), KernelError> {
        let logits = if last_alone { LogitsWanted::Last } else { LogitsWanted::All };
        let both = batch.iter().zip(rows.blocks());
        let chunks: Vec<SequenceChunk<'_>> = both
            .map(|(sequence, blocks)| SequenceChunk { tokens: sequence.tokens, start: 0, blocks, logits })
            .collect();
        // Checked against the encoder's shape before.
        self.rows
            .fill(&chunks, &self.shape)
            .map_err(|error| KernelError::Shape { message: error.to_string() })?;
        self.core.states(&self.config, &chunks, &self.rows)
    }

    /// What to go on computing with, and the states.
    pub(crate) fn computed(&mut self) -> (&mut Kernels, &[f32]) {
        (&mut self.core.kernels, &self.core.scratch.normed)
    }
}
