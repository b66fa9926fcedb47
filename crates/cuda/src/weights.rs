//! Weights on the device: how they are fused, padded and interleaved, and how several threads upload them from a
//! checkpoint. Must not know: how a step is computed, or where the checkpoint came from.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

use headrace_checkpoint::decoder::{
    GatedFeed, HeadNorm as HeadNormConfig, LinearConfig, NormConfig, RowPick, RowSource,
};
use headrace_checkpoint::{Checkpoint, CheckpointError, DType, Tensor};
use headrace_model::pick::picked;

use crate::device::{Buffer, Device, DeviceError, Upload};
use crate::error::LoadError;
use crate::ops::{GateActivation, Matrix, NormWeights, padded};
use crate::plan::{DecoderPlan, LayerPlan};

/// Bytes that a thread prepares before it uploads them.
const PIECE_BYTES: usize = 16 << 20;
/// Bytes after which the pages of mapped files are released.
const RELEASE_BYTES: u64 = 1 << 30;

/// A source of tensors.
pub trait Tensors: Sync {
    /// Returns the tensor with the given name, as Hugging Face's checkpoints name it.
    ///
    /// # Errors
    /// Fails if there is no such tensor.
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError>;

    /// Size of all tensors together, in bytes.
    fn bytes(&self) -> u64;

    /// Releases the mapped pages of the tensors that were read, which are not needed again soon.
    fn release_pages(&self);
}

impl Tensors for Checkpoint {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        Checkpoint::tensor(self, name)
    }

    fn bytes(&self) -> u64 {
        self.tensor_bytes()
    }

    fn release_pages(&self) {
        Checkpoint::release_pages(self);
    }
}

/// All weights that a step reads, and the factors beside them.
pub(crate) struct Weights {
    pub(crate) embedding: Matrix,
    /// Factor on the rows of the embedding.
    pub(crate) embedding_scale: f32,
    pub(crate) head: Matrix,
    /// Factor on the logits.
    pub(crate) logit_scale: f32,
    /// Cap of the logits, after the factor.
    pub(crate) logit_cap: Option<f32>,
    pub(crate) final_norm: NormWeights,
    pub(crate) layers: Vec<Layer>,
}

/// One decoder layer.
pub(crate) struct Layer {
    /// `None` if attention reads the stream as it is.
    pub(crate) mixer_norm: Option<NormWeights>,
    pub(crate) qkv: Matrix,
    pub(crate) query_norm: Option<HeadNorm>,
    pub(crate) key_norm: Option<HeadNorm>,
    /// Index of the rotary embedding. `None` if nothing is rotated.
    pub(crate) rotary: Option<usize>,
    /// Factor on every score.
    pub(crate) scale: f32,
    /// Scores become `cap · tanh(score / cap)`.
    pub(crate) cap: Option<f32>,
    /// The window of the layer. `None` if it keeps every position.
    pub(crate) window: Option<usize>,
    pub(crate) output: Matrix,
    pub(crate) mixer_out_norm: Option<NormWeights>,
    /// `None` if the feed-forward network reads the stream as it is.
    pub(crate) feed_norm: Option<NormWeights>,
    /// Gate and up rows, alternating in groups of eight, so that one thread of the product has both. Each has a
    /// [`padded`] number of rows.
    pub(crate) gate_up: Matrix,
    pub(crate) activation: GateActivation,
    pub(crate) down: Matrix,
    pub(crate) feed_out_norm: Option<NormWeights>,
    /// Factor on the outputs of both halves.
    pub(crate) residual_scale: f32,
}

/// A norm over query or key heads.
#[derive(Clone, Copy)]
pub(crate) struct HeadNorm {
    pub(crate) norm: NormWeights,
    /// Whether the statistics are those of all heads together.
    pub(crate) is_whole: bool,
}

/// A tensor to upload: the rows that are taken of it, their destination and their arrangement.
struct TensorUpload {
    source: RowSource,
    /// Rows that are taken. Elements of a vector count as rows of one input.
    rows: usize,
    inputs: usize,
    to: Buffer,
    layout: UploadLayout,
}

enum UploadLayout {
    /// Rows of bf16, one below the other. Each is padded to this many inputs.
    Rows(usize),
    /// Like `Rows`, but in groups of eight rows, each followed by room for eight other rows. The second value is the
    /// index of the first row within the sixteen: 0 or 8.
    Alternating(usize, usize),
    /// One row of floats.
    Floats,
    /// Like `Floats`, but 1 is added to each element.
    FloatsPlusOne,
    /// Like `Floats`, but in groups of eight, each followed by room for eight others. The value is 0 or 8, as in
    /// `Alternating`.
    AlternatingFloats(usize),
}

/// Plans the layout, allocates all buffers, and lists the tensors to upload.
struct Planner<'a> {
    device: &'a mut dyn Device,
    jobs: Vec<TensorUpload>,
    allocated: usize,
}

/// Bytes that the weights take on a device.
pub(crate) fn device_bytes(plan: &DecoderPlan<'_>) -> usize {
    let norm = |norm: &NormConfig| norm.width * 4;
    let layer = |LayerPlan { config, attention, feed, .. }: &LayerPlan<'_>| {
        let norms = [&config.mixer_norm, &config.mixer_out_norm, &config.feed_norm, &config.feed_out_norm];
        let norms: usize = norms.into_iter().flatten().map(norm).sum();
        let head_norms = [&attention.query_norm, &attention.key_norm].into_iter().flatten();
        let head_norms: usize = head_norms.map(|of| norm(of.norm())).sum();
        let GatedFeed { inner, gate, up, down, .. } = feed;
        let gate_up = matrix_bytes(2 * padded(*inner), gate.inputs, has_bias(&[gate, up]));
        norms
            + head_norms
            + gate_up
            + dense_bytes(&attention.inputs())
            + dense_bytes(&[&attention.output])
            + dense_bytes(&[down])
    };
    let layers: usize = plan.layers.iter().map(layer).sum();
    let config = plan.config;
    let embedding = matrix_bytes(config.vocab_size, config.hidden_size, false);
    let head = config.head.linear.as_ref().map_or(0, |linear| dense_bytes(&[linear]));
    layers + embedding + head + norm(&config.final_norm)
}

fn dense_bytes(of: &[&LinearConfig]) -> usize {
    let (features, inputs) = size_of(of);
    matrix_bytes(features, inputs, has_bias(of))
}

fn matrix_bytes(features: usize, inputs: usize, has_bias: bool) -> usize {
    features * (padded(inputs) * 2 + if has_bias { 4 } else { 0 })
}

fn has_bias(of: &[&LinearConfig]) -> bool {
    of.iter().any(|linear| linear.bias.is_some())
}

/// Outputs and inputs of dense layers, one below the other.
fn size_of(of: &[&LinearConfig]) -> (usize, usize) {
    (of.iter().map(|linear| linear.outputs).sum(), of.first().map_or(0, |linear| linear.inputs))
}

impl Weights {
    /// Uploads all weights with `threads` threads, and calls `progress` with the tensor bytes that are done and their
    /// total. Also returns the bytes that the weights take on the device.
    pub(crate) fn load(
        device: &mut dyn Device,
        plan: &DecoderPlan<'_>,
        tensors: &dyn Tensors,
        threads: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Weights, usize), LoadError> {
        let mut planner = Planner { device, jobs: Vec::new(), allocated: 0 };
        let weights = planner.everything(plan)?;
        let Planner { jobs, allocated, .. } = planner;
        device.synchronize()?;
        bring(device, &jobs, tensors, threads, progress)?;
        Ok((weights, allocated))
    }
}

impl Planner<'_> {
    fn everything(&mut self, plan: &DecoderPlan<'_>) -> Result<Weights, LoadError> {
        let config = plan.config;
        let (vocab, k) = (config.vocab_size, padded(config.hidden_size));
        let words = self.allocate(vocab * k * 2)?;
        let embedding = Matrix { weights: words, bias: None, features: vocab, inputs: k };
        self.job(&config.embedding.words, (vocab, config.hidden_size), words, UploadLayout::Rows(k));
        let head = match &config.head.linear {
            None => embedding,
            Some(linear) => self.matrix(&[linear])?,
        };
        let final_norm = self.norm(&config.final_norm)?;
        let layers = plan.layers.iter().map(|layer| self.layer(layer)).collect::<Result<_, _>>()?;
        Ok(Weights {
            embedding,
            embedding_scale: config.embedding.scale,
            head,
            logit_scale: config.head.scale,
            logit_cap: config.head.cap,
            final_norm,
            layers,
        })
    }

    fn layer(&mut self, plan: &LayerPlan<'_>) -> Result<Layer, LoadError> {
        let LayerPlan { config, attention, feed, activation, rotary, window } = plan;
        let mut norm = |of: &Option<NormConfig>| of.as_ref().map(|norm| self.norm(norm)).transpose();
        let (mixer_norm, mixer_out_norm) = (norm(&config.mixer_norm)?, norm(&config.mixer_out_norm)?);
        let (feed_norm, feed_out_norm) = (norm(&config.feed_norm)?, norm(&config.feed_out_norm)?);
        let mut head_norm = |of: &Option<HeadNormConfig>| match of {
            None => Ok(None),
            Some(of) => {
                let is_whole = matches!(of, HeadNormConfig::Whole(_));
                self.norm(of.norm()).map(|norm| Some(HeadNorm { norm, is_whole }))
            }
        };
        Ok(Layer {
            mixer_norm,
            query_norm: head_norm(&attention.query_norm)?,
            key_norm: head_norm(&attention.key_norm)?,
            qkv: self.matrix(&attention.inputs())?,
            rotary: *rotary,
            scale: attention.scale,
            cap: attention.cap,
            window: *window,
            output: self.matrix(&[&attention.output])?,
            mixer_out_norm,
            feed_norm,
            gate_up: self.gate_up(feed)?,
            activation: *activation,
            down: self.matrix(&[&feed.down])?,
            feed_out_norm,
            residual_scale: config.residual_scale,
        })
    }

    /// Plans dense layers with the same inputs, one below the other.
    fn matrix(&mut self, of: &[&LinearConfig]) -> Result<Matrix, LoadError> {
        let (features, inputs) = size_of(of);
        let k = padded(inputs);
        let weights = self.allocate(features * k * 2)?;
        let bias = self.bias(of, features)?;
        let mut at = 0;
        for linear in of {
            let rows = linear.outputs;
            let to = weights.part(at * k * 2, rows * k * 2)?;
            self.job(&linear.weight, (rows, inputs), to, UploadLayout::Rows(k));
            if let (Some(bias), Some(source)) = (bias, &linear.bias) {
                self.job(source, (rows, 1), bias.part(at * 4, rows * 4)?, UploadLayout::Floats);
            }
            at += rows;
        }
        Ok(Matrix { weights, bias, features, inputs: k })
    }

    /// Allocates zeros for the biases of dense layers, if one of them has some.
    fn bias(&mut self, of: &[&LinearConfig], features: usize) -> Result<Option<Buffer>, LoadError> {
        if !has_bias(of) {
            return Ok(None);
        }
        let bias = self.allocate(features * 4)?;
        self.device.clear(bias)?;
        Ok(Some(bias))
    }

    /// Plans the gate and up projections, alternating in groups of eight rows. Padding rows are zero, and so are their
    /// outputs.
    fn gate_up(&mut self, feed: &GatedFeed) -> Result<Matrix, LoadError> {
        let (inputs, rows, features) = (feed.gate.inputs, feed.inner, 2 * padded(feed.inner));
        let k = padded(inputs);
        let weights = self.allocate(features * k * 2)?;
        self.device.clear(weights)?;
        let both = [&feed.gate, &feed.up];
        let bias = self.bias(&both, features)?;
        for (at, linear) in both.into_iter().enumerate() {
            self.job(&linear.weight, (rows, inputs), weights, UploadLayout::Alternating(k, 8 * at));
            if let (Some(bias), Some(source)) = (bias, &linear.bias) {
                self.job(source, (rows, 1), bias, UploadLayout::AlternatingFloats(8 * at));
            }
        }
        Ok(Matrix { weights, bias, features, inputs: k })
    }

    /// Plans a norm, which [`DecoderPlan::of`] checked.
    fn norm(&mut self, config: &NormConfig) -> Result<NormWeights, LoadError> {
        let weight = self.allocate(config.width * 4)?;
        if let Some(source) = &config.weight {
            let layout = if config.plus_one { UploadLayout::FloatsPlusOne } else { UploadLayout::Floats };
            self.job(source, (config.width, 1), weight, layout);
        }
        Ok(NormWeights { weight, eps: config.eps })
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.allocated += bytes;
        self.device.allocate(bytes)
    }

    fn job(&mut self, source: &RowSource, (rows, inputs): (usize, usize), to: Buffer, layout: UploadLayout) {
        self.jobs.push(TensorUpload { source: source.clone(), rows, inputs, to, layout });
    }
}

/// Runs all jobs. Each thread takes the next job until none is left or one has failed. The caller's thread reports
/// progress.
fn bring(
    device: &dyn Device,
    jobs: &[TensorUpload],
    tensors: &dyn Tensors,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LoadError> {
    let (next, total) = (AtomicUsize::new(0), tensors.bytes());
    let mut uploads =
        (0..threads.clamp(1, jobs.len().max(1))).map(|_| device.uploader()).collect::<Result<Vec<_>, _>>()?;
    progress(0, total);
    std::thread::scope(|scope| {
        let (results, finished) = mpsc::channel();
        for upload in &mut uploads {
            let (results, next) = (results.clone(), &next);
            scope.spawn(move || {
                while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)) {
                    let done = job.run(tensors, &mut **upload);
                    if done.is_err() {
                        next.store(jobs.len(), Relaxed);
                    }
                    if results.send(done).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        let (mut done, mut since, mut result) = (0_u64, 0_u64, Ok(()));
        for job in finished {
            match job {
                Ok(bytes) => {
                    done = done.saturating_add(bytes).min(total);
                    since += bytes;
                    progress(done, total);
                }
                Err(error) => result = Err(error),
            }
            if since > RELEASE_BYTES {
                since = 0;
                tensors.release_pages();
            }
        }
        result
    })?;
    tensors.release_pages();
    progress(total, total);
    Ok(())
}

impl TensorUpload {
    /// Uploads the tensor's rows. Returns their bytes in the checkpoint.
    fn run(&self, tensors: &dyn Tensors, upload: &mut dyn Upload) -> Result<u64, LoadError> {
        let name = &self.source.tensor.name;
        let tensor = tensors.tensor(name)?;
        let wrong = |problem| LoadError::Tensor { name: name.clone(), problem };
        if tensor.shape != self.source.tensor.shape {
            return Err(wrong(format!("has shape {:?}, not {:?}", tensor.shape, self.source.tensor.shape)));
        }
        let element = match tensor.dtype {
            DType::BF16 | DType::F16 => 2,
            DType::F32 => 4,
            DType::Block(kind) => {
                return Err(wrong(format!(
                    "is {}; a CUDA device takes bf16, f16 and f32: serve this model on the CPU, or another copy of it",
                    kind.name()
                )));
            }
        };
        let stored = tensor.shape.iter().product::<usize>() * element;
        if tensor.bytes.len() != stored {
            return Err(wrong(format!("has {} bytes, not {stored}", tensor.bytes.len())));
        }
        let taken =
            self.taken(&tensor, element).filter(|bytes| bytes.len() == self.rows * self.inputs * element);
        let bytes = taken.ok_or_else(|| wrong(format!("has no {} rows of {}", self.rows, self.inputs)))?;
        let rows = StoredRows { dtype: tensor.dtype, bytes: &bytes, inputs: self.inputs };
        match self.layout {
            UploadLayout::Rows(k) if k == self.inputs && tensor.dtype == DType::BF16 => {
                for (at, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
                    upload.upload(self.to.part(at * PIECE_BYTES, piece.len())?, piece)?;
                }
            }
            UploadLayout::Rows(k) => {
                let at_once = (PIECE_BYTES / (k * 2)).max(1);
                for first in (0..self.rows).step_by(at_once) {
                    let piece = rows.padded(first..self.rows.min(first + at_once), k);
                    upload.upload(self.to.part(first * k * 2, piece.len())?, &piece)?;
                }
            }
            UploadLayout::Alternating(k, from) => {
                for first in (0..self.rows).step_by(8) {
                    let piece = rows.padded(first..self.rows.min(first + 8), k);
                    upload.upload(self.to.part((first * 2 + from) * k * 2, piece.len())?, &piece)?;
                }
            }
            UploadLayout::Floats => upload.upload(self.to, &rows.floats(None))?,
            UploadLayout::FloatsPlusOne => upload.upload(self.to, &rows.floats(Some(1.0)))?,
            UploadLayout::AlternatingFloats(from) => {
                for (at, piece) in rows.floats(None).chunks(8 * 4).enumerate() {
                    upload.upload(self.to.part((at * 16 + from) * 4, piece.len())?, piece)?;
                }
            }
        }
        Ok(bytes.len() as u64)
    }

    /// The bytes of the rows that the source takes. `None` if the tensor has no such rows.
    fn taken<'t>(&self, tensor: &'t Tensor<'_>, element: usize) -> Option<Cow<'t, [u8]>> {
        if self.source.pick == RowPick::All && self.source.pairs.is_none() {
            return Some(Cow::Borrowed(&tensor.bytes));
        }
        let columns = if self.inputs == 1 { 1 } else { tensor.shape.last().copied()? };
        picked(&Cow::Borrowed(&tensor.bytes), &self.source, (columns.checked_mul(element)?, Some(element)))
    }
}

/// Rows of a tensor, or a vector, as the checkpoint stores them.
struct StoredRows<'t> {
    dtype: DType,
    bytes: &'t [u8],
    inputs: usize,
}

impl<'t> StoredRows<'t> {
    /// Returns rows as bf16, each padded with zeros to `k` inputs.
    fn padded(&self, rows: std::ops::Range<usize>, k: usize) -> Cow<'t, [u8]> {
        let StoredRows { dtype, bytes, inputs } = *self;
        let element = if dtype == DType::F32 { 4 } else { 2 };
        let bytes = bytes.get(rows.start * inputs * element..rows.end * inputs * element).unwrap_or_default();
        if dtype == DType::BF16 && k == inputs {
            return Cow::Borrowed(bytes);
        }
        let mut out = Vec::with_capacity(rows.len() * k * 2);
        for row in bytes.chunks(inputs * element) {
            match dtype {
                DType::F32 => {
                    out.extend(row.as_chunks().0.iter().flat_map(|&b| bf16(f32::from_le_bytes(b))));
                }
                DType::F16 => {
                    out.extend(
                        row.as_chunks().0.iter().flat_map(|&b| bf16(half::f16::from_le_bytes(b).to_f32())),
                    );
                }
                _ => out.extend_from_slice(row),
            }
            out.resize(out.len() + (k - inputs) * 2, 0);
        }
        Cow::Owned(out)
    }

    /// Returns all elements as the bytes of f32 values, with `addend` added to each.
    fn floats(&self, addend: Option<f32>) -> Vec<u8> {
        let StoredRows { dtype, bytes, .. } = *self;
        let written = |value: f32| addend.map_or(value, |addend| value + addend).to_le_bytes();
        match dtype {
            DType::F32 => bytes.as_chunks().0.iter().flat_map(|&b| written(f32::from_le_bytes(b))).collect(),
            DType::F16 => {
                let widened = |&b: &[u8; 2]| written(half::f16::from_le_bytes(b).to_f32());
                bytes.as_chunks().0.iter().flat_map(widened).collect()
            }
            _ => {
                let widened = |&b: &[u8; 2]| written(half::bf16::from_le_bytes(b).to_f32());
                bytes.as_chunks().0.iter().flat_map(widened).collect()
            }
        }
    }
}

fn bf16(value: f32) -> [u8; 2] {
    half::bf16::from_f32(value).to_le_bytes()
}
