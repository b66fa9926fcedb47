//! A decoder-only transformer with grouped-query attention and SwiGLU, computed step by step over paged KV blocks. Must
//! not know: who owns a block, why a chunk has its length, or how the logits are used.

use std::panic::{AssertUnwindSafe, catch_unwind};

use headrace_checkpoint::ModelConfig;
use headrace_kernels::attention::{KvStore, Span};
use headrace_kernels::forward::{Forward, ForwardError, ForwardShape, Logits, SequenceChunk};
use headrace_kernels::pool::panic_message;
use headrace_kernels::{HeadRows, KernelError, Kernels, Queries, RopeTable, Write};

use crate::batch::{Rows, all_spans, wanted_spans};
use crate::weights::{Layer, Weights};

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
    /// Has as many layers as the model, or only one if each step computes whole sequences.
    pub(crate) kv: KvStore,
    pub(crate) rope: RopeTable,
    pub(crate) scratch: Scratch,
}

/// Activations, reused between steps.
#[derive(Default)]
pub(crate) struct Scratch {
    /// The residual stream, `rows × hidden`.
    stream: Vec<f32>,
    /// Normalized rows, `rows × hidden`.
    pub(crate) normed: Vec<f32>,
    /// Query, key and value heads, `rows × (heads + 2·kv_heads)·head_dim`.
    qkv: Vec<f32>,
    /// Attention's output, `rows × heads·head_dim`.
    attended: Vec<f32>,
    /// Outputs of the gate and up projections, `rows × 2·intermediate`.
    gate_up: Vec<f32>,
    /// Products of gate and up, `rows × intermediate`.
    inner: Vec<f32>,
}

impl Model {
    pub(crate) fn new(
        config: ModelConfig,
        kernels: Kernels,
        weights: Weights,
        kv: KvStore,
        rope: RopeTable,
        shape: ForwardShape,
    ) -> Model {
        let numerics = kernels.numerics(kv.kv_type());
        let core = Core { kernels, weights, kv, rope, scratch: Scratch::default() };
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
        let states = room(&mut self.scratch.normed, wanted * config.hidden_size);
        self.kernels.matmul(states, wanted, self.weights.head(), out.values_mut(), Write::Set)
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
        let stream = room(&mut self.scratch.stream, rows.len() * hidden);
        self.kernels.rows(&self.weights.embedding, &rows.tokens, stream)?;
        let everything = all_spans(batch);
        let last = config.layers.saturating_sub(1);
        for index in 0..last {
            self.heads(config, index, rows)?;
            self.attend(config, index, rows.len(), &everything)?;
            self.finish_layer(config, index, rows.len())?;
        }
        // From the last layer's attention on, only rows that need logits matter.
        self.heads(config, last, rows)?;
        let wanted = rows.wanted.len();
        if wanted == 0 {
            return Ok(());
        }
        self.attend(config, last, rows.len(), &wanted_spans(batch))?;
        for (to, &from) in rows.wanted.iter().enumerate() {
            self.scratch.stream.copy_within(from * hidden..(from + 1) * hidden, to * hidden);
        }
        self.finish_layer(config, last, wanted)?;
        let normed = room(&mut self.scratch.normed, wanted * hidden);
        let stream = room(&mut self.scratch.stream, wanted * hidden);
        self.kernels.rms_norm(stream, &self.weights.final_norm, config.rms_norm_eps, normed)
    }

    /// The layer of the KV store that holds the keys and values of layer `index`.
    fn stored_in(&self, index: usize) -> usize {
        index % self.kv.shape().layers.max(1)
    }

    /// Computes the query, key and value heads of every row, rotates queries and keys, and stores keys and values.
    fn heads(&mut self, config: &ModelConfig, index: usize, rows: &Rows) -> Result<(), KernelError> {
        let stored_in = self.stored_in(index);
        let Core { kernels, weights, kv, rope, scratch } = self;
        let Some(layer) = weights.layers.get(index) else { return Ok(()) };
        let count = rows.len();
        let stream = room(&mut scratch.stream, count * config.hidden_size);
        let normed = room(&mut scratch.normed, count * config.hidden_size);
        kernels.rms_norm(stream, &layer.attention_norm, config.rms_norm_eps, normed)?;
        let stride = layer.qkv.n();
        let qkv = room(&mut scratch.qkv, count * stride);
        kernels.matmul(normed, count, &layer.qkv, qkv, Write::Set)?;
        let shape = HeadRows {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            stride,
            query_norm: layer.query_norm.as_deref(),
            key_norm: layer.key_norm.as_deref(),
            eps: config.rms_norm_eps,
        };
        kernels.rope(qkv, shape, &rows.positions, rope)?;
        kernels.store_kv(kv, stored_in, qkv, config.heads * config.head_dim, &rows.slots)
    }

    /// Computes attention for `spans`, over `count` rows of heads.
    fn attend(
        &mut self,
        config: &ModelConfig,
        index: usize,
        count: usize,
        spans: &[Span<'_>],
    ) -> Result<(), KernelError> {
        let stride = (config.heads + 2 * config.kv_heads) * config.head_dim;
        let stored_in = self.stored_in(index);
        let queries = Queries {
            rows: room(&mut self.scratch.qkv, count * stride),
            stride,
            heads: config.heads,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
        };
        let attended = room(&mut self.scratch.attended, count * config.heads * config.head_dim);
        self.kernels.attention(&self.kv, stored_in, queries, spans, attended)
    }

    /// Computes the rest of a layer for `count` rows of the stream: output projection and MLP, both added to the
    /// stream.
    fn finish_layer(&mut self, config: &ModelConfig, index: usize, count: usize) -> Result<(), KernelError> {
        let Core { kernels, weights, scratch, .. } = self;
        let Some(layer): Option<&Layer> = weights.layers.get(index) else { return Ok(()) };
        let stream = room(&mut scratch.stream, count * config.hidden_size);
        let attended = room(&mut scratch.attended, count * config.heads * config.head_dim);
        kernels.matmul(attended, count, &layer.output, stream, Write::Add)?;
        let normed = room(&mut scratch.normed, count * config.hidden_size);
        kernels.rms_norm(stream, &layer.mlp_norm, config.rms_norm_eps, normed)?;
        let gate_up = room(&mut scratch.gate_up, count * 2 * config.intermediate_size);
        kernels.matmul(normed, count, &layer.gate_up, gate_up, Write::Set)?;
        let inner = room(&mut scratch.inner, count * config.intermediate_size);
        kernels.silu_mul(gate_up, config.intermediate_size, inner)?;
        kernels.matmul(inner, count, &layer.down, stream, Write::Add)
    }
}

/// Returns the first `length` elements, and grows the vector if it is too short. The elements hold arbitrary old
/// values.
pub(crate) fn room(memory: &mut Vec<f32>, length: usize) -> &mut [f32] {
    if memory.len() < length {
        memory.resize(length, 0.0);
    }
    memory.get_mut(..length).unwrap_or_default()
}
