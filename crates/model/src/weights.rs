//! The weights of a decoder, packed for the kernels, and their names in Hugging Face checkpoints. Must not know: how a
//! step is computed.

use std::borrow::Cow;

use headrace_checkpoint::{Checkpoint, CheckpointError, DType, EncoderCheckpoint, ModelConfig, Tensor};
use headrace_kernels::matrix::{Matrix, Part, WeightType};
use headrace_kernels::pool::Pool;
use headrace_quant::BlockType;

use crate::error::ModelError;
use crate::quantize::{self, Role};

/// All weights that a step reads.
pub(crate) struct Weights {
    /// `vocab × hidden`. Also the output projection if the checkpoint ties them.
    pub(crate) embedding: Matrix,
    /// `vocab × hidden`. `None` if the embedding is the output projection.
    pub(crate) head: Option<Matrix>,
    /// `hidden`.
    pub(crate) final_norm: Vec<f32>,
    pub(crate) layers: Vec<Layer>,
}

/// One decoder layer. Projections of the same input share one matrix: fewer operations, and more columns to distribute
/// over threads.
pub(crate) struct Layer {
    /// `hidden`.
    pub(crate) attention_norm: Vec<f32>,
    /// Query, key and value heads: `(heads + 2·kv_heads)·head_dim × hidden`.
    pub(crate) qkv: Matrix,
    /// `head_dim`. `None` if the architecture does not normalize queries.
    pub(crate) query_norm: Option<Vec<f32>>,
    /// `head_dim`. `None` if the architecture does not normalize keys.
    pub(crate) key_norm: Option<Vec<f32>>,
    /// `hidden × heads·head_dim`.
    pub(crate) output: Matrix,
    /// `hidden`.
    pub(crate) mlp_norm: Vec<f32>,
    /// Gates, then ups: `2·intermediate × hidden`.
    pub(crate) gate_up: Matrix,
    /// `hidden × intermediate`.
    pub(crate) down: Matrix,
}

impl Weights {
    /// The output projection.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        let vectors = |layer: &Layer| {
            let optional = |norm: &Option<Vec<f32>>| norm.as_ref().map_or(0, Vec::len);
            4 * (layer.attention_norm.len() + layer.mlp_norm.len())
                + 4 * (optional(&layer.query_norm) + optional(&layer.key_norm))
        };
        let matrices = |layer: &Layer| {
            layer.qkv.bytes() + layer.output.bytes() + layer.gate_up.bytes() + layer.down.bytes()
        };
        let layers: usize = self.layers.iter().map(|layer| vectors(layer) + matrices(layer)).sum();
        let head = self.head.as_ref().map_or(0, Matrix::bytes);
        layers + head + self.embedding.bytes() + 4 * self.final_norm.len()
    }
}

/// Converts an element type to the kernels' weight type.
pub(crate) fn weight_type(dtype: DType) -> WeightType {
    match dtype {
        DType::F32 => WeightType::F32,
        DType::F16 => WeightType::F16,
        DType::BF16 => WeightType::Bf16,
        DType::Block(kind) => WeightType::Block(kind),
    }
}

pub(crate) fn embedding_name() -> &'static str {
    "model.embed_tokens.weight"
}

/// The embedding's role: it is also the head if the embeddings are tied.
pub(crate) fn embedding_role(config: &ModelConfig) -> Role {
    if config.tie_embeddings { Role::Head } else { Role::Inner }
}

pub(crate) fn head_name() -> &'static str {
    "lm_head.weight"
}

/// Names of one layer's tensors.
#[derive(Clone, Copy)]
pub(crate) struct LayerNames {
    pub(crate) layer: usize,
}

impl LayerNames {
    pub(crate) fn weight(&self, part: &str) -> String {
        format!("{}.weight", self.part(part))
    }

    fn part(&self, part: &str) -> String {
        format!("model.layers.{}.{part}", self.layer)
    }
}

/// A source of tensors.
pub(crate) trait Tensors {
    /// Returns the tensor with the given name.
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError>;
    /// Releases the mapped pages of the tensors that were read, which are not needed again soon.
    fn release_pages(&self);
}

impl Tensors for Checkpoint {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        Checkpoint::tensor(self, name)
    }

    fn release_pages(&self) {
        Checkpoint::release_pages(self);
    }
}

impl Tensors for EncoderCheckpoint {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        EncoderCheckpoint::tensor(self, name)
    }

    fn release_pages(&self) {
        EncoderCheckpoint::release_pages(self);
    }
}

/// Packs a checkpoint's tensors one by one, and reports the bytes that are done.
pub(crate) struct Loader<'a> {
    pub(crate) tensors: &'a dyn Tensors,
    pub(crate) pool: &'a mut Pool,
    /// The type to which dense matrices are quantized.
    pub(crate) quantize: Option<BlockType>,
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) progress: &'a mut dyn FnMut(u64, u64),
}

/// A projection to load: its name (within the layer, or in full), its number of outputs, and whether it has a bias.
pub(crate) type Projection<'n> = (&'n str, usize, bool);

impl<'a> Loader<'a> {
    /// Loads all weights. Mapped pages are released after each layer, so that there are never two copies of all
    /// weights.
    pub(crate) fn load(mut self, config: &ModelConfig) -> Result<Weights, ModelError> {
        let tensors = self.tensors;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = self.whole(embedding_name(), embedding_role(config), vocab, hidden)?;
        let head = match config.tie_embeddings {
            true => None,
            false => Some(self.whole(head_name(), Role::Head, vocab, hidden)?),
        };
        let final_norm = self.vector("model.norm.weight", config.hidden_size)?;
        tensors.release_pages();
        let mut layers = Vec::with_capacity(config.layers);
        for layer in 0..config.layers {
            layers.push(self.layer(config, LayerNames { layer })?);
            tensors.release_pages();
        }
        (self.progress)(self.total, self.total);
        Ok(Weights { embedding, head, final_norm, layers })
    }

    fn layer(&mut self, config: &ModelConfig, names: LayerNames) -> Result<Layer, ModelError> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (queries, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let (qkv_bias, mlp_bias) = (config.qkv_bias, config.mlp_bias);
        let head_norm = |loader: &mut Self, part: &str| match config.qk_norm {
            true => loader.vector(&names.weight(part), config.head_dim).map(Some),
            false => Ok(None),
        };
        Ok(Layer {
            attention_norm: self.vector(&names.weight("input_layernorm"), hidden)?,
            qkv: self.fused(
                names,
                hidden,
                &[
                    ("self_attn.q_proj", queries, qkv_bias),
                    ("self_attn.k_proj", kv, qkv_bias),
                    ("self_attn.v_proj", kv, qkv_bias),
                ],
            )?,
            query_norm: head_norm(self, "self_attn.q_norm")?,
            key_norm: head_norm(self, "self_attn.k_norm")?,
            output: self.fused(names, queries, &[("self_attn.o_proj", hidden, config.o_bias)])?,
            mlp_norm: self.vector(&names.weight("post_attention_layernorm"), hidden)?,
            gate_up: self.fused(
                names,
                hidden,
                &[("mlp.gate_proj", inner, mlp_bias), ("mlp.up_proj", inner, mlp_bias)],
            )?,
            down: self.fused(names, inner, &[("mlp.down_proj", hidden, mlp_bias)])?,
        })
    }

    pub(crate) fn whole(&mut self, name: &str, role: Role, n: usize, k: usize) -> Result<Matrix, ModelError> {
        let tensor = self.tensor(name, &[n, k])?;
        let (weight_type, bytes) = self.converted(&tensor, role, k)?;
        let part = Part { weight_type, rows: n, bytes: &bytes, bias: None };
        Ok(Matrix::pack(self.pool, &[part], k)?)
    }

    fn fused(&mut self, names: LayerNames, k: usize, of: &[Projection<'_>]) -> Result<Matrix, ModelError> {
        let whole: Vec<(String, usize, bool)> =
            of.iter().map(|&(part, rows, bias)| (names.part(part), rows, bias)).collect();
        let whole: Vec<Projection<'_>> =
            whole.iter().map(|(name, rows, bias)| (name.as_str(), *rows, *bias)).collect();
        self.dense(k, &whole)
    }

    /// Packs dense layers with the same `k` inputs into one matrix, one below the other. The names are full names.
    pub(crate) fn dense(&mut self, k: usize, of: &[Projection<'_>]) -> Result<Matrix, ModelError> {
        let mut tensors = Vec::with_capacity(of.len());
        for &(name, rows, has_bias) in of {
            let tensor = self.tensor(&format!("{name}.weight"), &[rows, k])?;
            let bias = has_bias.then(|| self.vector(&format!("{name}.bias"), rows)).transpose()?;
            tensors.push((tensor, rows, bias));
        }
        let mut parts = Vec::with_capacity(tensors.len());
        for (tensor, rows, bias) in &tensors {
            let (weight_type, bytes) = self.converted(tensor, Role::Inner, k)?;
            parts.push((weight_type, *rows, bytes, bias.as_deref()));
        }
        let parts: Vec<Part<'_>> = parts
            .iter()
            .map(|(weight_type, rows, bytes, bias)| Part {
                weight_type: *weight_type,
                rows: *rows,
                bytes,
                bias: *bias,
            })
            .collect();
        Ok(Matrix::pack(self.pool, &parts, k)?)
    }

    fn converted<'t>(
        &mut self,
        tensor: &'t Tensor<'_>,
        role: Role,
        k: usize,
    ) -> Result<(WeightType, Cow<'t, [u8]>), ModelError> {
        let stored = weight_type(tensor.dtype);
        let target = quantize::target(self.quantize, stored, role, k);
        let bytes = quantize::convert(self.pool, tensor.name, (stored, &tensor.bytes), target, k)?;
        Ok((target, bytes))
    }

    pub(crate) fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>, ModelError> {
        self.widened(name, &[length])
    }

    /// Returns all elements of a tensor as f32, row by row.
    pub(crate) fn widened(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let (tensor, length) = (self.tensor(name, shape)?, shape.iter().product::<usize>());
        let values = weight_type(tensor.dtype).widen(&tensor.bytes);
        if values.len() != length {
            let problem = format!("has {} elements, not {length}", values.len());
            return Err(ModelError::Tensor { name: name.to_owned(), problem });
        }
        Ok(values)
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor<'a>, ModelError> {
        (self.progress)(self.done, self.total);
        let tensor = self.tensors.tensor(name)?;
        if tensor.shape != shape {
            let problem = format!("has shape {:?}, not {shape:?}", tensor.shape);
            return Err(ModelError::Tensor { name: name.to_owned(), problem });
        }
        self.done = self.done.saturating_add(tensor.bytes.len() as u64).min(self.total);
        Ok(tensor)
    }
}
