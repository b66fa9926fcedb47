//! A decoder-only model, computed step by step over paged KV blocks: embedding, layers, output projection. Must not know:
//! who owns a block, why a chunk has its length, or how the logits are used.

use std::panic::{AssertUnwindSafe, catch_unwind};

use headrace_checkpoint::ModelConfig;
use headrace_kernels::forward::{Forward, ForwardError, ForwardShape, Logits, SequenceChunk};
use headrace_kernels::pool::panic_message;
use headrace_kernels::{KernelError, Kernels, RopeTable, Write};

use crate::batch::{LayerSpans, Rows, SeenKeys, wanted_spans};
use crate::layer::{Layer, MixerWeights};
use crate::layer_step::{LayerMemory, LayerStep};
use crate::memory::KvStores;
use crate::scratch::{Scratch, room};
use crate::states::RecurrentStates;
use crate::weights::Weights;

/// A loaded model.
pub struct Model {
    config: ModelConfig,
    shape: ForwardShape,
    numerics: String,
    core: Core,
    rows: Rows,
}

/// Everything that the arithmetic of a step reads or writes.
pub(crate) struct Core {
    pub(crate) kernels: Kernels,
    pub(crate) weights: Weights,
    pub(crate) kv: KvStores,
    pub(crate) recurrent: RecurrentStates,
    /// One for each rotary embedding of the configuration.
    pub(crate) tables: Vec<RopeTable>,
    pub(crate) scratch: Scratch,
}

impl Model {
    pub(crate) fn new(
        config: ModelConfig,
        kernels: Kernels,
        weights: Weights,
        (kv, recurrent): (KvStores, RecurrentStates),
        tables: Vec<RopeTable>,
        shape: ForwardShape,
    ) -> Model {
        let mut numerics = kernels.numerics(kv.kv_type());
        // An engine whose context is short uses the first list of factors where this one may use the second.
        if shape.short_positions.is_some() {
            numerics.push_str("/longrope");
        }
        let core = Core { kernels, weights, kv, recurrent, tables, scratch: Scratch::default() };
        Model { config, shape, numerics, core, rows: Rows::default() }
    }

    /// The configuration of the loaded checkpoint.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
}

impl Forward for Model {
    fn shape(&self) -> &ForwardShape {
        &self.shape
    }

    fn numerics(&self) -> &str {
        &self.numerics
    }

    fn step(&mut self, batch: &[SequenceChunk<'_>], out: &mut Logits) -> Result<(), ForwardError> {
        out.reset(0, self.shape.vocab);
        self.rows.fill(batch, &self.shape)?;
        if self.rows.is_empty() {
            return Ok(());
        }
        let (core, config, rows) = (&mut self.core, &self.config, &self.rows);
        core.kernels.pool().begin();
        let step = contained(|| core.step(config, batch, rows, out));
        core.kernels.pool().end();
        if step.is_err() {
            out.reset(0, self.shape.vocab);
        }
        step
    }
}

/// Runs a step and turns a panic into an error.
pub(crate) fn contained(step: impl FnOnce() -> Result<(), KernelError>) -> Result<(), ForwardError> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(KernelError::Panicked { message })) => Err(ForwardError::Panicked { message }),
        Ok(Err(error)) => Err(ForwardError::Failed { message: error.to_string() }),
        Err(payload) => Err(ForwardError::Panicked { message: panic_message(&*payload) }),
    }
}

impl Core {
    fn step(
        &mut self,
        config: &ModelConfig,
        batch: &[SequenceChunk<'_>],
        rows: &Rows,
        out: &mut Logits,
    ) -> Result<(), KernelError> {
        self.states(config, batch, rows)?;
        let wanted = rows.wanted.len();
        if wanted == 0 {
            return Ok(());
        }
        out.reset(wanted, config.vocab_size);
        let Core { kernels, weights, scratch, .. } = self;
        let states = room(&mut scratch.normed, wanted * config.hidden_size);
        kernels.matmul(states, wanted, weights.head(), out.values_mut(), Write::Set)?;
        if weights.logit_scale != 1.0 || weights.logit_cap.is_some() {
            let (scale, cap) = (weights.logit_scale, weights.logit_cap);
            kernels.scale_and_cap(out.values_mut(), config.vocab_size, scale, cap)?;
        }
        Ok(())
    }

    /// Computes the normalized last hidden states of the wanted rows. Leaves them in `scratch.normed`, in ascending
    /// order of rows.
    pub(crate) fn states(
        &mut self,
        config: &ModelConfig,
        batch: &[SequenceChunk<'_>],
        rows: &Rows,
    ) -> Result<(), KernelError> {
        let hidden = config.hidden_size;
        self.embed(hidden, rows)?;
        let seen_by = |kv: &KvStores, (index, layer): (usize, &Layer)| {
            layer.sees().map(|sees| SeenKeys { sees, in_window: kv.is_in_window(index) })
        };
        let layers = self.weights.layers.iter().enumerate();
        let spans = LayerSpans::of(batch, layers.filter_map(|layer| seen_by(&self.kv, layer)));
        self.recurrent.plan(batch)?;
        let Core { kernels, weights, kv, recurrent, tables, scratch } = self;
        let last = weights.layers.len().saturating_sub(1);
        let mut step = LayerStep { kernels, tables, scratch, rows, hidden };
        for (index, layer) in weights.layers.iter().enumerate() {
            // From the last layer's mixer on, only rows that need logits matter.
            let wanted = (index == last).then_some(rows.wanted.as_slice());
            let wanted_alone;
            let memory = match (seen_by(kv, (index, layer)), &layer.mixer) {
                (_, MixerWeights::None) => LayerMemory::None,
                (Some(seen), _) => {
                    let Some(kv) = kv.of_layer(index) else { continue };
                    let spans = match index == last {
                        true => {
                            wanted_alone = wanted_spans(batch, seen);
                            wanted_alone.as_slice()
                        }
                        false => spans.of_layer(seen),
                    };
                    LayerMemory::Keys(kv, spans)
                }
                (None, _) => match recurrent.of_layer(index) {
                    Some(state) => LayerMemory::State(state),
                    None => continue,
                },
            };
            step.layer(layer, memory, wanted)?;
        }
        let wanted = rows.wanted.len();
        if wanted == 0 {
            return Ok(());
        }
        let normed = room(&mut step.scratch.normed, wanted * hidden);
        let stream = room(&mut step.scratch.stream, wanted * hidden);
        weights.final_norm.apply(step.kernels, stream, normed)
    }

    /// Writes the embedding of every row's token to the stream.
    fn embed(&mut self, hidden: usize, rows: &Rows) -> Result<(), KernelError> {
        let Core { kernels, weights, scratch, .. } = self;
        let stream = room(&mut scratch.stream, rows.len() * hidden);
        kernels.rows(&weights.embedding, &rows.tokens, stream)?;
        if weights.embedding_scale != 1.0 {
            kernels.scale_and_cap(stream, hidden, weights.embedding_scale, None)?;
        }
        if !weights.positions.is_empty() {
            for (row, &position) in stream.chunks_exact_mut(hidden).zip(&rows.positions) {
                let learned = weights.positions.get(position * hidden..(position + 1) * hidden);
                row.iter_mut().zip(learned.unwrap_or_default()).for_each(|(x, learned)| *x += learned);
            }
        }
        match &weights.layer_inputs {
            Some(inputs) => inputs.compute(kernels, &rows.tokens, stream, &mut scratch.layer_inputs),
            None => Ok(()),
        }
    }
}
