//! A decoder on a device, computed step by step over paged KV blocks. Must not know: who owns a block, why a chunk has
//! its length, or how the logits are used.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use headrace_checkpoint::ModelConfig;
use headrace_kernels::forward::{Forward, ForwardError, ForwardShape, Logits, SequenceChunk};
use headrace_kernels::pool::panic_message;
use headrace_model::batch::Rows;

use crate::attention::{self, HeadWeights, Heads, Pages, RotaryTables, SeenKeys};
use crate::device::{Buffer, Device, DeviceError, Recording};
use crate::kernels::KERNEL_VERSION;
use crate::ops::{self, Finish, Matrix, NormWeights, Workspace, padded};
use crate::scratch::Scratch;
use crate::step::{Sections, Shape, Step, bucket, is_decode, passes, shape_of};
use crate::weights::{HeadNorm, Layer, Weights};

/// Maximum number of recordings. After that, steps of new shapes are launched kernel by kernel.
const MOST_RECORDINGS: usize = 96;

/// A loaded model. Dropping it frees its memory on the device.
pub struct CudaModel {
    config: ModelConfig,
    shape: ForwardShape,
    numerics: String,
    limits: Limits,
    core: Core,
    /// Recordings by shape. `None` means that a step of this shape was launched once and the next one will be recorded.
    /// A shape that occurs once is not worth a recording. Also, the driver may load a kernel at its first launch, which
    /// cannot be recorded.
    recordings: BTreeMap<Shape, Option<Recording>>,
    /// The recording that was replayed last. Its inputs are still in place until the next step.
    replayed: Option<Recording>,
    rows: Rows,
    step: Step,
}

/// Limits of a step.
pub(crate) struct Limits {
    pub(crate) pass_rows: usize,
    pub(crate) logit_rows: usize,
    pub(crate) recorded_rows: usize,
}

/// Everything that the kernels of a step read or write.
struct Core {
    device: Box<dyn Device>,
    /// Width of the residual stream.
    hidden: usize,
    vocab: usize,
    heads: Heads,
    weights: Weights,
    /// Keys and values of each layer. Layers of one cache group have the same block ids.
    pages: Vec<Pages>,
    rotaries: Vec<RotaryTables>,
    scratch: Scratch,
    workspace: Workspace,
    partial: Buffer,
}

type Identity = (Box<dyn Device>, ModelConfig, ForwardShape, Limits);
type DeviceWeights = (Heads, Weights, Vec<Pages>, Vec<RotaryTables>);

impl CudaModel {
    pub(crate) fn new(
        identity: Identity,
        loaded: DeviceWeights,
        work: (Scratch, Workspace, Buffer),
    ) -> CudaModel {
        let (device, config, shape, limits) = identity;
        let (heads, weights, pages, rotaries) = loaded;
        let (scratch, workspace, partial) = work;
        let mut numerics = format!("cuda/{}/bf16/kv-bf16/v{KERNEL_VERSION}", device.name());
        // An engine whose context is short uses the first list of factors where this one may use the second.
        if shape.short_positions.is_some() {
            numerics.push_str("/longrope");
        }
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let core =
            Core { device, hidden, vocab, heads, weights, pages, rotaries, scratch, workspace, partial };
        let (rows, step, recordings) = (Rows::default(), Step::default(), BTreeMap::new());
        CudaModel { config, shape, numerics, limits, core, recordings, replayed: None, rows, step }
    }

    /// The configuration of the loaded checkpoint.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Number of recorded decode steps, each of a different shape.
    pub fn recordings(&self) -> usize {
        self.recordings.values().flatten().count()
    }

    /// Replays the last step `times` times over its inputs, and does nothing else. Benchmarks use this to measure the
    /// overhead of a step. Returns `false` if the last step was not a recorded one.
    ///
    /// # Errors
    /// Returns the device's errors.
    pub fn replay(&mut self, times: usize) -> Result<bool, DeviceError> {
        let Some(recording) = self.replayed else { return Ok(false) };
        (0..times).try_for_each(|_| self.core.device.replay(recording))?;
        self.core.device.synchronize()?;
        Ok(true)
    }

    fn pass(
        &mut self,
        batch: &[SequenceChunk<'_>],
        first_row: usize,
        out: &mut Logits,
    ) -> Result<usize, ForwardError> {
        self.rows.fill(batch, &self.shape)?;
        let (heads, layout) = (&self.core.heads, &self.shape.kv);
        let exact = shape_of(batch, &self.rows, heads, layout);
        let decode = is_decode(batch) && exact.rows <= self.limits.recorded_rows;
        let shape = match decode {
            true => Shape::decode(bucket(exact.rows), exact.splits.next_power_of_two(), heads, layout),
            false => exact,
        };
        self.step.fill(batch, &self.rows, heads, layout, &shape);
        let wanted = self.rows.wanted.len();
        self.compute(&shape, decode, first_row, wanted, out).map_err(failed)?;
        Ok(first_row + wanted)
    }

    fn compute(
        &mut self,
        shape: &Shape,
        decode: bool,
        first_row: usize,
        wanted: usize,
        out: &mut Logits,
    ) -> Result<(), DeviceError> {
        if shape.bytes() > self.core.scratch.inputs.bytes {
            // The recordings read the old inputs.
            self.recordings.clear();
            self.core.grow_inputs(shape.bytes())?;
        }
        let words = self.step.bytes();
        let inputs = self.core.scratch.inputs.part(0, words.len())?;
        self.replayed = None;
        self.core.device.upload(inputs, &words)?;
        // A recorded step computes the logits of all its rows. They must fit into one download.
        let fits = shape.wanted <= self.limits.logit_rows.min(self.limits.pass_rows);
        if decode && fits && self.recorded(shape)? {
            return self.core.fetch((first_row, wanted), out);
        }
        self.core.states(shape)?;
        let mut done = 0;
        while done < wanted {
            let count = (wanted - done).min(self.limits.logit_rows);
            self.core.logits(done, count)?;
            self.core.fetch((first_row + done, count), out)?;
            done += count;
        }
        Ok(())
    }

    /// Replays the step of this shape, and records it first if this is its second use. Returns `false` if it must be
    /// launched.
    fn recorded(&mut self, shape: &Shape) -> Result<bool, DeviceError> {
        let recording = match self.recordings.get(shape) {
            Some(&Some(recording)) => recording,
            Some(None) => {
                let recording = self.record(shape)?;
                self.recordings.insert(*shape, Some(recording));
                recording
            }
            None => {
                if self.recordings.len() < MOST_RECORDINGS {
                    self.recordings.insert(*shape, None);
                }
                return Ok(false);
            }
        };
        self.core.device.replay(recording)?;
        self.replayed = Some(recording);
        Ok(true)
    }

    fn record(&mut self, shape: &Shape) -> Result<Recording, DeviceError> {
        self.core.device.begin_recording()?;
        let states = self.core.states(shape);
        let launched = states.and_then(|()| self.core.logits(0, shape.wanted));
        let recording = self.core.device.end_recording();
        launched?;
        recording
    }
}

impl Forward for CudaModel {
    fn shape(&self) -> &ForwardShape {
        &self.shape
    }

    fn numerics(&self) -> &str {
        &self.numerics
    }

    fn step(&mut self, batch: &[SequenceChunk<'_>], out: &mut Logits) -> Result<(), ForwardError> {
        out.reset(0, self.shape.vocab);
        self.rows.fill(batch, &self.shape)?;
        out.reset(self.rows.wanted.len(), self.shape.vocab);
        let step = catch_unwind(AssertUnwindSafe(|| {
            let mut row = 0;
            for pass in passes(batch, self.limits.pass_rows) {
                row = self.pass(&pass, row, out)?;
            }
            // Sequences without logits must also be finished before the caller continues, because it may release their
            // keys and values.
            self.core.device.synchronize().map_err(failed)
        }));
        let step =
            step.unwrap_or_else(|panic| Err(ForwardError::Panicked { message: panic_message(&*panic) }));
        if step.is_err() {
            out.reset(0, self.shape.vocab);
        }
        step
    }
}

fn failed(error: DeviceError) -> ForwardError {
    ForwardError::Failed { message: error.to_string() }
}

impl Core {
    fn grow_inputs(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.device.synchronize()?;
        let grown = self.device.allocate(bytes.next_power_of_two())?;
        let former = std::mem::replace(&mut self.scratch.inputs, grown);
        self.device.free(former)
    }

    /// Computes keys and values of all rows, and the normalized last hidden states of the wanted rows in `normed`.
    fn states(&mut self, shape: &Shape) -> Result<(), DeviceError> {
        let (hidden, rows, stream) = (self.hidden, shape.rows, self.scratch.stream);
        let sections = shape.within(self.scratch.inputs)?;
        let Weights { embedding, embedding_scale, .. } = &self.weights;
        let (table, scale) = ((embedding.weights, embedding.inputs), *embedding_scale);
        ops::embed(&mut *self.device, table, sections.tokens, (stream, rows), (hidden, scale))?;
        for index in 0..self.weights.layers.len() {
            self.layer(index, &sections, rows)?;
        }
        let (wanted, normed) = ((stream, Some(sections.wanted)), (self.scratch.normed, shape.wanted));
        ops::rms_norm(&mut *self.device, wanted, self.weights.final_norm, normed, hidden)
    }

    /// Computes one layer, from the stream to the stream.
    fn layer(&mut self, index: usize, sections: &Sections, rows: usize) -> Result<(), DeviceError> {
        let (device, hidden, partial) = (&mut *self.device, self.hidden, self.partial);
        let (heads, scratch, workspace) = (&self.heads, &self.scratch, &self.workspace);
        let (Some(layer), Some(pages)) = (self.weights.layers.get(index), self.pages.get(index)) else {
            return Ok(());
        };
        let Layer { mixer_norm, qkv, query_norm, key_norm, rotary, output, mixer_out_norm, .. } = layer;
        let Layer { feed_norm, gate_up, down, feed_out_norm, residual_scale, .. } = layer;
        let half = LayerHalf { hidden, workspace, scratch, rows, factor: *residual_scale };
        half.input(device, *mixer_norm)?;
        let (normed, projected) = ((scratch.normed, rows), (scratch.projected, rows));
        ops::product(device, workspace, qkv, normed, (scratch.projected, qkv.features), Finish::Store)?;
        let (queries, keys) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
        for (norm, columns) in [(query_norm, (0, queries)), (key_norm, (queries, keys))] {
            if let Some(HeadNorm { norm, is_whole: true }) = norm {
                ops::rms_norm_columns(device, projected, qkv.features, columns, *norm)?;
            }
        }
        let each = |norm: &Option<HeadNorm>| norm.filter(|norm| !norm.is_whole).map(|norm| norm.norm);
        let (query_norm, key_norm) = (each(query_norm), each(key_norm));
        let of_heads = HeadWeights {
            query_norm: query_norm.map(|norm| norm.weight),
            key_norm: key_norm.map(|norm| norm.weight),
            eps: query_norm.or(key_norm).map_or(0.0, |norm| norm.eps),
            rotary: rotary.and_then(|rotary| self.rotaries.get(rotary)).copied(),
        };
        let group = if layer.window.is_some() { sections.window } else { sections.full };
        let places = (sections.angles, group.slots);
        attention::write_heads(device, heads, &of_heads, projected, places, scratch.queries, pages)?;
        let Layer { scale, cap, window, .. } = *layer;
        let seen = SeenKeys { pages, tables: group.tables, scale, cap, window };
        let queries = (scratch.queries, &seen);
        attention::attend(device, heads, &sections.entries, queries, partial, scratch.attended)?;
        half.output(device, output, scratch.attended, *mixer_out_norm)?;
        half.input(device, *feed_norm)?;
        ops::product(
            device,
            workspace,
            gate_up,
            normed,
            (scratch.inner, down.inputs),
            Finish::Gate(layer.activation),
        )?;
        half.output(device, down, scratch.inner, *feed_out_norm)
    }

    /// Computes the logits of `count` wanted rows, starting with row `first` of `normed`.
    fn logits(&mut self, first: usize, count: usize) -> Result<(), DeviceError> {
        let row = padded(self.hidden) * 2;
        let states = self.scratch.normed.part(first * row, count * row)?;
        let Weights { head, logit_scale, logit_cap, .. } = &self.weights;
        let (device, logits) = (&mut *self.device, self.scratch.logits);
        ops::product(device, &self.workspace, head, (states, count), (logits, self.vocab), Finish::Store)?;
        if *logit_scale == 1.0 && logit_cap.is_none() {
            return Ok(());
        }
        ops::scale_and_cap(device, (logits, count), self.vocab, *logit_scale, *logit_cap)
    }

    /// Downloads the first `count` rows of logits into rows of `out`, starting with row `first`.
    fn fetch(&mut self, (first, count): (usize, usize), out: &mut Logits) -> Result<(), DeviceError> {
        let vocab = self.vocab;
        let to = out.values_mut().get_mut(first * vocab..(first + count) * vocab).unwrap_or_default();
        let from = self.scratch.logits.part(0, to.len() * 4)?;
        self.device.download(from, to)
    }
}

/// The input and the output of one half of a layer: of attention, or of the feed-forward network.
struct LayerHalf<'a> {
    hidden: usize,
    workspace: &'a Workspace,
    scratch: &'a Scratch,
    rows: usize,
    /// Factor on the output.
    factor: f32,
}

impl LayerHalf<'_> {
    /// Leaves the half's input in `scratch.normed`: the stream, normalized if there is a norm.
    fn input(&self, device: &mut dyn Device, norm: Option<NormWeights>) -> Result<(), DeviceError> {
        let (stream, out) = (self.scratch.stream, (self.scratch.normed, self.rows));
        match norm {
            Some(norm) => ops::rms_norm(device, (stream, None), norm, out, self.hidden),
            None => ops::round_rows(device, stream, out, self.hidden),
        }
    }

    /// Computes the last projection, and adds it to the stream, normalized if there is a norm.
    fn output(
        &self,
        device: &mut dyn Device,
        projection: &Matrix,
        from: Buffer,
        norm: Option<NormWeights>,
    ) -> Result<(), DeviceError> {
        let LayerHalf { hidden, workspace, scratch, rows, factor } = *self;
        let (input, stream) = ((from, rows), (scratch.stream, hidden));
        let Some(norm) = norm else {
            return ops::product(device, workspace, projection, input, stream, Finish::Add(factor));
        };
        let projected = scratch.projected;
        ops::product(device, workspace, projection, input, (projected, hidden), Finish::Store)?;
        ops::rms_norm_add(device, projected, norm, (scratch.stream, rows), hidden, factor)
    }
}
