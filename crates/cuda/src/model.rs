//! A decoder on a device, computed step by step over paged KV blocks. Must not know: who owns a block, why a chunk has
//! its length, or how the logits are used.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use headrace_checkpoint::UniformConfig;
use headrace_kernels::forward::{Forward, ForwardError, ForwardShape, Logits, SequenceChunk};
use headrace_kernels::pool::panic_message;
use headrace_model::batch::Rows;

use crate::device::{Buffer, Device, DeviceError, Recording};
use crate::kernels::KERNEL_VERSION;
use crate::ops::{self, Finish, HeadWeights, Heads, Pages, Workspace, padded};
use crate::scratch::Scratch;
use crate::step::{Shape, Step, bucket, is_decode, passes, shape_of};
use crate::weights::{Layer, Weights};

/// Maximum number of recordings. After that, steps of new shapes are launched kernel by kernel.
const MOST_RECORDINGS: usize = 96;

/// A loaded model. Dropping it frees its memory on the device.
pub struct CudaModel {
    config: UniformConfig,
    shape: ForwardShape,
    numerics: String,
    limits: Limits,
    core: Core,
    /// Recordings by shape. `None` means that a step of this shape was launched once and the next one will be recorded.
    /// A shape that occurs once is not worth a recording. Also, the driver may load a kernel at its first launch, which
    /// cannot be recorded.
    recordings: BTreeMap<Shape, Option<Recording>>,
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
    heads: Heads,
    weights: Weights,
    pages: Vec<Pages>,
    angles: (Buffer, Buffer),
    scratch: Scratch,
    workspace: Workspace,
    partial: Buffer,
}

type Identity = (Box<dyn Device>, UniformConfig, ForwardShape, Limits);
type DeviceWeights = (Heads, Weights, Vec<Pages>, (Buffer, Buffer));

impl CudaModel {
    pub(crate) fn new(
        identity: Identity,
        loaded: DeviceWeights,
        work: (Scratch, Workspace, Buffer),
    ) -> CudaModel {
        let (device, config, shape, limits) = identity;
        let (heads, weights, pages, angles) = loaded;
        let (scratch, workspace, partial) = work;
        let numerics = format!("cuda/{}/bf16/kv-bf16/v{KERNEL_VERSION}", device.name());
        let core = Core { device, heads, weights, pages, angles, scratch, workspace, partial };
        let (rows, step, recordings) = (Rows::default(), Step::default(), BTreeMap::new());
        CudaModel { config, shape, numerics, limits, core, recordings, rows, step }
    }

    /// The configuration of the loaded checkpoint.
    pub fn config(&self) -> &UniformConfig {
        &self.config
    }

    /// Number of recorded decode steps, each of a different shape.
    pub fn recordings(&self) -> usize {
        self.recordings.values().flatten().count()
    }

    /// Replays the recorded decode step with the most rows `times` times over its last inputs, and does nothing else.
    /// Benchmarks use this to measure the overhead of a step. Returns `false` if no step is recorded.
    ///
    /// # Errors
    /// Returns the device's errors.
    pub fn replay(&mut self, times: usize) -> Result<bool, DeviceError> {
        let Some(&recording) = self.recordings.values().rev().flatten().next() else { return Ok(false) };
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
        let group = self.shape.kv.first();
        let exact = shape_of(batch, &self.rows, &self.core.heads, group);
        let decode = is_decode(batch) && exact.rows <= self.limits.recorded_rows;
        let shape = match decode {
            true => {
                Shape::decode(bucket(exact.rows), exact.splits.next_power_of_two(), &self.core.heads, group)
            }
            false => exact,
        };
        self.step.fill(batch, &self.rows, &self.core.heads, group, &shape);
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
        self.core.device.upload(inputs, &words)?;
        // A recorded step computes the logits of all its rows. They must fit into one download.
        let fits = shape.wanted <= self.limits.logit_rows.min(self.limits.pass_rows);
        if decode && fits && self.recorded(shape)? {
            return self.core.fetch(&self.config, (first_row, wanted), out);
        }
        self.core.states(&self.config, shape)?;
        let mut done = 0;
        while done < wanted {
            let count = (wanted - done).min(self.limits.logit_rows);
            self.core.logits(&self.config, done, count)?;
            self.core.fetch(&self.config, (first_row + done, count), out)?;
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
        Ok(true)
    }

    fn record(&mut self, shape: &Shape) -> Result<Recording, DeviceError> {
        self.core.device.begin_recording()?;
        let states = self.core.states(&self.config, shape);
        let launched = states.and_then(|()| self.core.logits(&self.config, 0, shape.wanted));
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
    fn states(&mut self, config: &UniformConfig, shape: &Shape) -> Result<(), DeviceError> {
        let Core { device, heads, weights, pages, angles, scratch, workspace, partial } = self;
        let device = &mut **device;
        let (hidden, eps, rows) = (config.hidden_size, config.rms_norm_eps, shape.rows);
        let sections = shape.within(scratch.inputs)?;
        let (stream, normed) = (scratch.stream, scratch.normed);
        let table = (weights.embedding.weights, weights.embedding.inputs);
        ops::embed(device, table, sections.tokens, (stream, rows), hidden)?;
        for (layer, pages) in weights.layers.iter().zip(pages.iter()) {
            let Layer { attention_norm, qkv, query_norm, key_norm, output, mlp_norm, gate_up, down } = layer;
            ops::rms_norm(device, (stream, None), *attention_norm, (normed, rows), hidden, eps)?;
            ops::product(device, workspace, qkv, (normed, rows), (scratch.qkv, qkv.features), Finish::Store)?;
            let (cos, sin) = *angles;
            let of_heads = HeadWeights { query_norm: *query_norm, key_norm: *key_norm, cos, sin, eps };
            let places = (sections.positions, sections.slots);
            ops::write_heads(device, heads, &of_heads, (scratch.qkv, rows), places, scratch.queries, pages)?;
            let seen = (scratch.queries, pages);
            ops::attend(device, heads, &sections.entries, seen, *partial, scratch.attended)?;
            ops::product(device, workspace, output, (scratch.attended, rows), (stream, hidden), Finish::Add)?;
            ops::rms_norm(device, (stream, None), *mlp_norm, (normed, rows), hidden, eps)?;
            let middle = (scratch.inner, down.inputs);
            ops::product(device, workspace, gate_up, (normed, rows), middle, Finish::Gate)?;
            ops::product(device, workspace, down, (scratch.inner, rows), (stream, hidden), Finish::Add)?;
        }
        let wanted = (stream, Some(sections.wanted));
        ops::rms_norm(device, wanted, weights.final_norm, (normed, shape.wanted), hidden, eps)
    }

    /// Computes the logits of `count` wanted rows, starting with row `first` of `normed`.
    fn logits(&mut self, config: &UniformConfig, first: usize, count: usize) -> Result<(), DeviceError> {
        let row = padded(config.hidden_size) * 2;
        let states = self.scratch.normed.part(first * row, count * row)?;
        let out = (self.scratch.logits, config.vocab_size);
        ops::product(
            &mut *self.device,
            &self.workspace,
            &self.weights.head,
            (states, count),
            out,
            Finish::Store,
        )
    }

    /// Downloads the first `count` rows of logits into rows of `out`, starting with row `first`.
    fn fetch(
        &mut self,
        config: &UniformConfig,
        (first, count): (usize, usize),
        out: &mut Logits,
    ) -> Result<(), DeviceError> {
        let vocab = config.vocab_size;
        let to = out.values_mut().get_mut(first * vocab..(first + count) * vocab).unwrap_or_default();
        let from = self.scratch.logits.part(0, to.len() * 4)?;
        self.device.download(from, to)
    }
}
