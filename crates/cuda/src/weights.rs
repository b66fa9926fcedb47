//! Weights on the device: how they are fused, padded and interleaved, and how several threads upload them from a
//! checkpoint. Must not know: how a step is computed, or where the checkpoint came from.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

use headrace_checkpoint::{Checkpoint, CheckpointError, DType, Tensor, UniformConfig};

use crate::device::{Buffer, Device, DeviceError, Upload};
use crate::error::LoadError;
use crate::ops::{Matrix, padded};

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

/// All weights that a step reads.
pub(crate) struct Weights {
    pub(crate) embedding: Matrix,
    pub(crate) head: Matrix,
    pub(crate) final_norm: Buffer,
    pub(crate) layers: Vec<Layer>,
}

/// One decoder layer.
pub(crate) struct Layer {
    pub(crate) attention_norm: Buffer,
    pub(crate) qkv: Matrix,
    pub(crate) query_norm: Option<Buffer>,
    pub(crate) key_norm: Option<Buffer>,
    pub(crate) output: Matrix,
    pub(crate) mlp_norm: Buffer,
    /// Gate and up rows, alternating in groups of eight, so that one thread of the product has both. Each has [`inner`]
    /// rows.
    pub(crate) gate_up: Matrix,
    pub(crate) down: Matrix,
}

/// Width of the MLP on the device. The part beyond the model's own width is zero.
pub(crate) fn inner(config: &UniformConfig) -> usize {
    padded(config.intermediate_size)
}

/// A tensor to upload: its destination and its arrangement.
struct TensorUpload {
    name: String,
    shape: Vec<usize>,
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
pub(crate) fn device_bytes(config: &UniformConfig) -> usize {
    let matrix = |features: usize, inputs: usize| features * padded(inputs) * 2;
    let (hidden, heads, kv) =
        (config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let vectors = 4 * (4 * hidden + heads + 2 * kv + 2 * config.head_dim + 2 * inner(config));
    let layer = matrix(heads + 2 * kv, hidden)
        + matrix(hidden, heads)
        + matrix(2 * inner(config), hidden)
        + matrix(hidden, inner(config))
        + vectors;
    let embeddings = if config.tie_embeddings { 1 } else { 2 };
    config.layers * layer + embeddings * matrix(config.vocab_size, hidden) + 4 * hidden
}

impl Weights {
    /// Uploads all weights with `threads` threads, and calls `progress` with the tensor bytes that are done and their
    /// total. Also returns the bytes that the weights take on the device.
    pub(crate) fn load(
        device: &mut dyn Device,
        config: &UniformConfig,
        tensors: &dyn Tensors,
        threads: usize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Weights, usize), LoadError> {
        let mut planner = Planner { device, jobs: Vec::new(), allocated: 0 };
        let weights = planner.everything(config)?;
        let Planner { jobs, allocated, .. } = planner;
        device.synchronize()?;
        bring(device, &jobs, tensors, threads, progress)?;
        Ok((weights, allocated))
    }
}

impl Planner<'_> {
    fn everything(&mut self, config: &UniformConfig) -> Result<Weights, LoadError> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = self.matrix(hidden, &[("model.embed_tokens".to_owned(), vocab)], false)?;
        let head = match config.tie_embeddings {
            true => embedding,
            false => self.matrix(hidden, &[("lm_head".to_owned(), vocab)], false)?,
        };
        let final_norm = self.vector("model.norm.weight".to_owned(), hidden)?;
        let layers = (0..config.layers).map(|layer| self.layer(config, layer)).collect::<Result<_, _>>()?;
        Ok(Weights { embedding, head, final_norm, layers })
    }

    fn layer(&mut self, config: &UniformConfig, layer: usize) -> Result<Layer, LoadError> {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let (hidden, queries, kv) =
            (config.hidden_size, config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let head_norm = |planner: &mut Self, part: &str| match config.qk_norm {
            true => planner.vector(name(part), config.head_dim).map(Some),
            false => Ok(None),
        };
        let (query_norm, key_norm) =
            (head_norm(self, "self_attn.q_norm.weight")?, head_norm(self, "self_attn.k_norm.weight")?);
        Ok(Layer {
            attention_norm: self.vector(name("input_layernorm.weight"), hidden)?,
            qkv: self.matrix(
                hidden,
                &[
                    (name("self_attn.q_proj"), queries),
                    (name("self_attn.k_proj"), kv),
                    (name("self_attn.v_proj"), kv),
                ],
                config.qkv_bias,
            )?,
            query_norm,
            key_norm,
            output: self.matrix(queries, &[(name("self_attn.o_proj"), hidden)], config.o_bias)?,
            mlp_norm: self.vector(name("post_attention_layernorm.weight"), hidden)?,
            gate_up: self.gate_up(config, [name("mlp.gate_proj"), name("mlp.up_proj")])?,
            down: self.matrix(
                config.intermediate_size,
                &[(name("mlp.down_proj"), hidden)],
                config.mlp_bias,
            )?,
        })
    }

    /// Plans dense layers with the same inputs, one below the other.
    fn matrix(&mut self, inputs: usize, of: &[(String, usize)], bias: bool) -> Result<Matrix, LoadError> {
        let (features, k) = (of.iter().map(|(_, rows)| rows).sum(), padded(inputs));
        let weights = self.allocate(features * k * 2)?;
        let bias = if bias { Some(self.allocate(features * 4)?) } else { None };
        let mut at = 0;
        for (name, rows) in of {
            let to = weights.part(at * k * 2, rows * k * 2)?;
            self.job(format!("{name}.weight"), vec![*rows, inputs], to, UploadLayout::Rows(k));
            if let Some(bias) = bias {
                self.job(
                    format!("{name}.bias"),
                    vec![*rows],
                    bias.part(at * 4, rows * 4)?,
                    UploadLayout::Floats,
                );
            }
            at += rows;
        }
        Ok(Matrix { weights, bias, features, inputs: k })
    }

    /// Plans the gate and up projections, alternating in groups of eight rows. Padding rows are zero, and so are their
    /// outputs.
    fn gate_up(&mut self, config: &UniformConfig, names: [String; 2]) -> Result<Matrix, LoadError> {
        let (inputs, rows, features) = (config.hidden_size, config.intermediate_size, 2 * inner(config));
        let k = padded(inputs);
        let weights = self.allocate(features * k * 2)?;
        self.device.clear(weights)?;
        let bias = if config.mlp_bias { Some(self.allocate(features * 4)?) } else { None };
        if let Some(bias) = bias {
            self.device.clear(bias)?;
        }
        for (at, name) in names.into_iter().enumerate() {
            self.job(
                format!("{name}.weight"),
                vec![rows, inputs],
                weights,
                UploadLayout::Alternating(k, 8 * at),
            );
            if let Some(bias) = bias {
                self.job(format!("{name}.bias"), vec![rows], bias, UploadLayout::AlternatingFloats(8 * at));
            }
        }
        Ok(Matrix { weights, bias, features, inputs: k })
    }

    fn vector(&mut self, name: String, length: usize) -> Result<Buffer, LoadError> {
        let to = self.allocate(length * 4)?;
        self.job(name, vec![length], to, UploadLayout::Floats);
        Ok(to)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        self.allocated += bytes;
        self.device.allocate(bytes)
    }

    fn job(&mut self, name: String, shape: Vec<usize>, to: Buffer, layout: UploadLayout) {
        self.jobs.push(TensorUpload { name, shape, to, layout });
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
    /// Uploads the tensor. Returns its bytes in the checkpoint.
    fn run(&self, tensors: &dyn Tensors, upload: &mut dyn Upload) -> Result<u64, LoadError> {
        let tensor = tensors.tensor(&self.name)?;
        if tensor.shape != self.shape {
            let problem = format!("has shape {:?}, not {:?}", tensor.shape, self.shape);
            return Err(LoadError::Tensor { name: self.name.clone(), problem });
        }
        let element = match tensor.dtype {
            DType::BF16 | DType::F16 => 2,
            DType::F32 => 4,
            DType::Block(kind) => {
                let problem = format!(
                    "is {}; a CUDA device takes bf16, f16 and f32: serve this model on the CPU, or another copy of it",
                    kind.name()
                );
                return Err(LoadError::Tensor { name: self.name.clone(), problem });
            }
        };
        let length: usize = self.shape.iter().product();
        if tensor.bytes.len() != length * element {
            let problem = format!("has {} bytes, not {}", tensor.bytes.len(), length * element);
            return Err(LoadError::Tensor { name: self.name.clone(), problem });
        }
        let (rows, inputs) = match *self.shape.as_slice() {
            [rows, inputs] => (rows, inputs),
            _ => (1, length),
        };
        match self.layout {
            UploadLayout::Rows(k) if k == inputs && tensor.dtype == DType::BF16 => {
                for (at, piece) in tensor.bytes.chunks(PIECE_BYTES).enumerate() {
                    upload.upload(self.to.part(at * PIECE_BYTES, piece.len())?, piece)?;
                }
            }
            UploadLayout::Rows(k) => {
                let at_once = (PIECE_BYTES / (k * 2)).max(1);
                for first in (0..rows).step_by(at_once) {
                    let piece = rows_of(&tensor, first..rows.min(first + at_once), inputs, k);
                    upload.upload(self.to.part(first * k * 2, piece.len())?, &piece)?;
                }
            }
            UploadLayout::Alternating(k, from) => {
                for first in (0..rows).step_by(8) {
                    let piece = rows_of(&tensor, first..rows.min(first + 8), inputs, k);
                    upload.upload(self.to.part((first * 2 + from) * k * 2, piece.len())?, &piece)?;
                }
            }
            UploadLayout::Floats => upload.upload(self.to, &floats_of(&tensor))?,
            UploadLayout::AlternatingFloats(from) => {
                for (at, piece) in floats_of(&tensor).chunks(8 * 4).enumerate() {
                    upload.upload(self.to.part((at * 16 + from) * 4, piece.len())?, piece)?;
                }
            }
        }
        Ok(tensor.bytes.len() as u64)
    }
}

/// Returns rows as bf16, each padded with zeros to `k` inputs.
fn rows_of<'t>(
    tensor: &'t Tensor<'_>,
    rows: std::ops::Range<usize>,
    inputs: usize,
    k: usize,
) -> Cow<'t, [u8]> {
    let element = if tensor.dtype == DType::F32 { 4 } else { 2 };
    let bytes =
        tensor.bytes.get(rows.start * inputs * element..rows.end * inputs * element).unwrap_or_default();
    if tensor.dtype == DType::BF16 && k == inputs {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(rows.len() * k * 2);
    for row in bytes.chunks(inputs * element) {
        match tensor.dtype {
            DType::F32 => out.extend(row.as_chunks().0.iter().flat_map(|&b| bf16(f32::from_le_bytes(b)))),
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

fn bf16(value: f32) -> [u8; 2] {
    half::bf16::from_f32(value).to_le_bytes()
}

/// Returns all elements as the bytes of f32 values.
fn floats_of(tensor: &Tensor<'_>) -> Vec<u8> {
    let bytes = &tensor.bytes;
    let widened = |of: fn([u8; 2]) -> f32| -> Vec<u8> {
        bytes.as_chunks().0.iter().flat_map(|&b| of(b).to_le_bytes()).collect()
    };
    match tensor.dtype {
        DType::F32 => bytes.to_vec(),
        DType::F16 => widened(|b| half::f16::from_le_bytes(b).to_f32()),
        _ => widened(|b| half::bf16::from_le_bytes(b).to_f32()),
    }
}
