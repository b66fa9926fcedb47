//! A decoder used as an encoder: returns its last hidden states, with causal attention. The layers are those of the
//! decoder. Batches contain whole sequences only, so the KV store holds one layer at a time. Must not know: how the
//! states are used.

use headrace_checkpoint::ModelConfig;
use headrace_kernels::encode::Sequence;
use headrace_kernels::forward::{ForwardShape, LogitsWanted, SequenceChunk};
use headrace_kernels::{KernelError, Kernels};
use headrace_kv_layout::BlockTables;

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

    /// Computes the last hidden states of every row, or only of the last row of each sequence.
    pub(crate) fn states(
        &mut self,
        batch: &[Sequence<'_>],
        rows: &Rows,
        last_alone: bool,
    ) -> Result<(), KernelError> {
        let logits = if last_alone { LogitsWanted::Last } else { LogitsWanted::All };
        let both = batch.iter().zip(rows.blocks());
        let chunks: Vec<SequenceChunk<'_>> = both
            .map(|(sequence, blocks)| SequenceChunk {
                tokens: sequence.tokens,
                start: 0,
                tables: BlockTables::single(blocks),
                logits,
                long_context: self.shape.is_long(sequence.tokens.len()),
            })
            .collect();
        // The batch was already checked against the encoder's shape.
        self.rows
            .fill(&chunks, &self.shape)
            .map_err(|error| KernelError::Shape { message: error.to_string() })?;
        self.core.states(&self.config, &chunks, &self.rows)
    }

    /// Returns the kernels for further computation, and the states.
    pub(crate) fn computed(&mut self) -> (&mut Kernels, &[f32]) {
        (&mut self.core.kernels, &self.core.scratch.normed)
    }
}
