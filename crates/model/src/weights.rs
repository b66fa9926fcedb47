//! Loads the weights of a decoder, tensor by tensor, and packs them for the kernels. Must not know: how a step is
//! computed.

mod parts;

use std::borrow::Cow;

use headrace_checkpoint::decoder::{
    self, FeedActivation, FeedForward, LayerConfig, LinearConfig, MixerConfig, NormConfig, NormKind, RowPick,
    RowSource, TensorSpec,
};
use headrace_checkpoint::{Checkpoint, CheckpointError, DType, EncoderCheckpoint, ModelConfig, Tensor};
use headrace_kernels::matrix::{Matrix, Part, WeightType};
use headrace_kernels::pool::Pool;
use headrace_kernels::{Activation, RowNorm};
use headrace_quant::BlockType;

use crate::error::ModelError;
use crate::feed::{
    ExpertActivation, ExpertMixture, ExpertWeights, FeedWeights, ProjectedExperts, RoutingRule, ScoreRule,
    SharedNetwork,
};
use crate::layer::{AttentionWeights, HeadNorm, Layer, LayerInputs, MixerWeights};
use crate::norm::NormWeights;
use crate::pick::picked;
use crate::quantize::{self, Role};

/// All weights that a step reads.
pub(crate) struct Weights {
    /// `vocab × hidden`. Also the output projection if the checkpoint ties them.
    pub(crate) embedding: Matrix,
    /// Factor on the rows of the embedding.
    pub(crate) embedding_scale: f32,
    /// `positions × hidden`. Empty if positions are not learned.
    pub(crate) positions: Vec<f32>,
    /// `vocab × hidden`. `None` if the embedding is the output projection.
    pub(crate) head: Option<Matrix>,
    /// Factor on the logits.
    pub(crate) logit_scale: f32,
    /// Cap of the logits.
    pub(crate) logit_cap: Option<f32>,
    pub(crate) final_norm: NormWeights,
    /// Inputs that each layer has of its own.
    pub(crate) layer_inputs: Option<LayerInputs>,
    pub(crate) layers: Vec<Layer>,
}

impl Weights {
    /// The output projection.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::bytes).sum();
        let head = self.head.as_ref().map_or(0, Matrix::bytes);
        let inputs = self.layer_inputs.as_ref().map_or(0, LayerInputs::bytes);
        layers + inputs + head + self.embedding.bytes() + self.final_norm.bytes() + 4 * self.positions.len()
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

/// Returns the type of the rows that `source` takes of a tensor. Blocks go along stored rows, so that rows across them are
/// dequantized to f32.
pub(crate) fn row_type(dtype: DType, source: &RowSource) -> WeightType {
    match (dtype, source.pick) {
        (DType::Block(_), RowPick::Columns { .. }) => WeightType::F32,
        _ => weight_type(dtype),
    }
}

/// The embedding's role: it is also the head if the embeddings are tied.
pub(crate) fn embedding_role(config: &ModelConfig) -> Role {
    if config.is_tied() { Role::Head } else { Role::Inner }
}

/// Converts an activation function to the kernels' one.
fn activation(of: FeedActivation) -> Activation {
    match of {
        FeedActivation::Silu => Activation::Silu,
        FeedActivation::Gelu => Activation::Gelu,
        FeedActivation::GeluTanh => Activation::GeluTanh,
        FeedActivation::Relu => Activation::Relu,
        FeedActivation::ReluSquared => Activation::ReluSquared,
    }
}

/// A source of tensors.
pub(crate) trait Tensors {
    /// Returns the tensor with the given name.
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError>;
    /// Returns one of the matrices that the tensor with the given name stacks.
    fn stacked(&self, name: &str, index: usize) -> Result<Tensor<'_>, CheckpointError>;
    /// Releases the mapped pages of the tensors that were read, which are not needed again soon.
    fn release_pages(&self);
}

impl Tensors for Checkpoint {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        Checkpoint::tensor(self, name)
    }

    fn stacked(&self, name: &str, index: usize) -> Result<Tensor<'_>, CheckpointError> {
        Checkpoint::stacked(self, name, index)
    }

    fn release_pages(&self) {
        Checkpoint::release_pages(self);
    }
}

impl Tensors for EncoderCheckpoint {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        EncoderCheckpoint::tensor(self, name)
    }

    fn stacked(&self, name: &str, index: usize) -> Result<Tensor<'_>, CheckpointError> {
        EncoderCheckpoint::stacked(self, name, index)
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

/// A projection to load: its full name, its number of outputs, and whether it has a bias.
pub(crate) type Projection<'n> = (&'n str, usize, bool);

impl<'a> Loader<'a> {
    /// Loads all weights. Mapped pages are released after each layer, so that there are never two copies of all
    /// weights.
    pub(crate) fn load(mut self, config: &ModelConfig) -> Result<Weights, ModelError> {
        let tensors = self.tensors;
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let words = &config.embedding.words;
        let embedding = self.whole(&words.tensor.name, embedding_role(config), vocab, hidden)?;
        let positions = match &config.embedding.positions {
            None => Vec::new(),
            Some(source) => self.widened(&source.tensor.name, &source.tensor.shape)?,
        };
        let head = match &config.head.linear {
            None => None,
            Some(linear) => Some(self.packed(&[linear], Role::Head)?),
        };
        let final_norm = self.norm(&config.final_norm)?;
        tensors.release_pages();
        let layer_inputs =
            config.layer_inputs.as_ref().map(|inputs| self.layer_inputs(inputs)).transpose()?;
        let mut layers = Vec::with_capacity(config.layers.len());
        for (index, layer) in config.layers.iter().enumerate() {
            layers.push(self.layer(layer, (index, config.layers.len()))?);
            tensors.release_pages();
        }
        (self.progress)(self.total, self.total);
        Ok(Weights {
            embedding,
            embedding_scale: config.embedding.scale,
            positions,
            head,
            logit_scale: config.head.scale,
            logit_cap: config.head.cap,
            final_norm,
            layer_inputs,
            layers,
        })
    }

    /// Loads a layer, given its number and that of all layers.
    fn layer(&mut self, config: &LayerConfig, place: (usize, usize)) -> Result<Layer, ModelError> {
        let mut norm = |of: &Option<NormConfig>| of.as_ref().map(|norm| self.norm(norm)).transpose();
        let (mixer_norm, mixer_out_norm) = (norm(&config.mixer_norm)?, norm(&config.mixer_out_norm)?);
        let (feed_norm, feed_out_norm) = (norm(&config.feed_norm)?, norm(&config.feed_out_norm)?);
        let mixer = match &config.mixer {
            MixerConfig::Attention(attention) => MixerWeights::Attention(self.attention(attention)?),
            MixerConfig::Latent(latent) => MixerWeights::Latent(self.latent(latent)?),
            MixerConfig::ShortConv(mixer) => MixerWeights::ShortConv(self.short_conv(mixer)?),
            MixerConfig::Delta(mixer) => MixerWeights::Delta(Box::new(self.delta(mixer)?)),
            MixerConfig::Mamba(mixer) => MixerWeights::Mamba(Box::new(self.mamba(mixer)?)),
            MixerConfig::None => MixerWeights::None,
        };
        Ok(Layer {
            mixer_norm,
            mixer,
            mixer_out_norm,
            feed_norm,
            feed: self.feed(&config.feed)?,
            feed_out_norm,
            parallel: config.parallel,
            residual_scale: config.residual_scale,
            tail: config.tail.as_ref().map(|tail| self.tail(tail, place)).transpose()?,
        })
    }

    fn attention(&mut self, config: &decoder::AttentionConfig) -> Result<AttentionWeights, ModelError> {
        let qkv = self.packed(&config.inputs(), Role::Inner)?;
        let output = self.packed(&[&config.output], Role::Inner)?;
        let mut head_norm =
            |of: &Option<decoder::HeadNorm>| of.as_ref().map(|norm| self.head_norm(norm)).transpose();
        let query_norm = head_norm(&config.query_norm)?;
        let (key_norm, value_norm) = match config.kv_of {
            None => (head_norm(&config.key_norm)?, head_norm(&config.value_norm)?),
            Some(_) => (None, None),
        };
        let sinks = match &config.sinks {
            None => Vec::new(),
            Some(source) => self.elements(source, config.heads)?,
        };
        Ok(AttentionWeights {
            heads: config.heads,
            kv_heads: if config.kv_of.is_some() { 0 } else { config.kv_heads },
            head_dim: config.head_dim,
            qkv,
            is_gated: config.gate.is_some(),
            output,
            query_norm,
            key_norm,
            value_norm,
            table: config.rotary.map(|rotary| rotary.table),
            growth: config
                .rotary
                .and_then(|rotary| rotary.growth)
                .map(|growth| (growth.beta, growth.positions)),
            scale: config.scale,
            cap: config.cap,
            window: config.window,
            sinks,
            clip: config.clip,
        })
    }

    fn feed(&mut self, config: &FeedForward) -> Result<FeedWeights, ModelError> {
        Ok(match config {
            FeedForward::Gated(feed) => FeedWeights::Gated {
                inner: feed.inner,
                activation: activation(feed.activation),
                gate_up: self.packed(&[&feed.gate, &feed.up], Role::Inner)?,
                down: self.packed(&[&feed.down], Role::Inner)?,
            },
            FeedForward::Plain(feed) => FeedWeights::Plain {
                inner: feed.inner,
                activation: activation(feed.activation),
                up: self.packed(&[&feed.up], Role::Inner)?,
                down: self.packed(&[&feed.down], Role::Inner)?,
            },
            FeedForward::Experts(experts) => FeedWeights::Experts(Box::new(self.experts(experts)?)),
            FeedForward::None => FeedWeights::None,
            FeedForward::Both(both) => FeedWeights::Both(Box::new(self.both(both)?)),
        })
    }

    fn experts(&mut self, config: &decoder::ExpertMixture) -> Result<ExpertMixture, ModelError> {
        let is_gated = config.experts.iter().any(|expert| expert.gate.is_some());
        let activation = match config.activation {
            decoder::ExpertActivation::Usual(of) if is_gated => ExpertActivation::Gated(activation(of)),
            decoder::ExpertActivation::Usual(of) => ExpertActivation::Plain(activation(of)),
            decoder::ExpertActivation::Clamped { limit, slope } => ExpertActivation::Clamped { limit, slope },
        };
        let router = self.exact(&config.router)?;
        let routing = self.routing(&config.routing, config.experts.len())?;
        let latent = match &config.latent {
            None => None,
            Some(latent) => Some(ProjectedExperts {
                input: self.packed(&[&latent.input], Role::Inner)?,
                output: self.packed(&[&latent.output], Role::Inner)?,
            }),
        };
        let mut experts = Vec::with_capacity(config.experts.len());
        for decoder::ExpertConfig { gate, up, down } in &config.experts {
            let input: Vec<&LinearConfig> = gate.iter().chain([up]).collect();
            let input = self.packed(&input, Role::Inner)?;
            experts.push(ExpertWeights { input, down: self.packed(&[down], Role::Inner)? });
        }
        let shared = match &config.shared {
            None => None,
            Some(shared) => Some(SharedNetwork {
                feed: self.feed(&shared.feed)?,
                gate: shared.gate.as_ref().map(|gate| self.exact(gate)).transpose()?,
            }),
        };
        Ok(ExpertMixture {
            chosen: config.chosen,
            inner: config.inner,
            activation,
            router,
            routing,
            latent,
            experts,
            shared,
        })
    }

    fn routing(
        &mut self,
        config: &decoder::RoutingConfig,
        experts: usize,
    ) -> Result<RoutingRule, ModelError> {
        let scores = match config.scores {
            decoder::ScoreKind::Softmax => ScoreRule::Softmax,
            decoder::ScoreKind::SoftmaxOfChosen => ScoreRule::SoftmaxOfChosen,
            decoder::ScoreKind::Sigmoid => ScoreRule::Sigmoid,
        };
        let bias = match &config.bias {
            None => Vec::new(),
            Some(source) => self.elements(source, experts)?,
        };
        let groups = config.groups.map(|groups| (groups.count, groups.kept, groups.best));
        let (renormalise, factor) = (config.renormalise, config.factor);
        Ok(RoutingRule { scores, bias, groups, renormalise, factor, expert_scales: Vec::new() })
    }

    /// Packs a small dense layer in f32, also if its type in the file is another, so that its products are exact in every
    /// compute mode.
    fn exact(&mut self, linear: &LinearConfig) -> Result<Matrix, ModelError> {
        let (stored, bytes) = self.picked(&linear.weight, linear.inputs)?;
        let values: Vec<u8> = stored.widen(&bytes).iter().flat_map(|value| value.to_le_bytes()).collect();
        let bias = linear.bias.as_ref().map(|source| self.elements(source, linear.outputs)).transpose()?;
        let part = Part {
            weight_type: WeightType::F32,
            rows: linear.outputs,
            bytes: &values,
            bias: bias.as_deref(),
        };
        Ok(Matrix::pack(self.pool, &[part], linear.inputs)?)
    }

    pub(crate) fn norm(&mut self, config: &NormConfig) -> Result<NormWeights, ModelError> {
        let weight = match &config.weight {
            None => vec![1.0; config.width],
            Some(source) => self.elements(source, config.width)?,
        };
        let bias = match &config.bias {
            None => Vec::new(),
            Some(source) => self.elements(source, config.width)?,
        };
        let kind = match config.kind {
            NormKind::Rms => RowNorm::Rms,
            NormKind::Layer => RowNorm::Layer,
        };
        let addend = if config.plus_one { 1.0 } else { 0.0 };
        let weight = weight.into_iter().map(|factor| factor + addend).collect();
        Ok(NormWeights { kind, eps: config.eps, weight, bias })
    }

    fn head_norm(&mut self, config: &decoder::HeadNorm) -> Result<HeadNorm, ModelError> {
        let is_whole = matches!(config, decoder::HeadNorm::Whole(_));
        let NormWeights { kind, eps, weight, .. } = self.norm(config.norm())?;
        Ok(HeadNorm { kind, eps, weight, is_whole })
    }

    pub(crate) fn whole(&mut self, name: &str, role: Role, n: usize, k: usize) -> Result<Matrix, ModelError> {
        let tensor = self.tensor(name, &[n, k])?;
        let (weight_type, bytes) = self.converted(&tensor, role, k)?;
        let part = Part { weight_type, rows: n, bytes: &bytes, bias: None };
        Ok(Matrix::pack(self.pool, &[part], k)?)
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

    /// Packs dense layers with the same inputs into one matrix, one below the other.
    pub(crate) fn packed(&mut self, of: &[&LinearConfig], role: Role) -> Result<Matrix, ModelError> {
        let k = of.first().map_or(0, |linear| linear.inputs);
        let mut parts = Vec::with_capacity(of.len());
        for linear in of {
            let bias =
                linear.bias.as_ref().map(|source| self.elements(source, linear.outputs)).transpose()?;
            let (stored, bytes) = self.picked(&linear.weight, k)?;
            let name = &linear.weight.tensor.name;
            let target = quantize::target(self.quantize, stored, role, k);
            let bytes = quantize::convert(self.pool, name, (stored, &bytes), target, k)?.into_owned();
            parts.push((target, linear.outputs, bytes, bias));
        }
        let parts: Vec<Part<'_>> = parts
            .iter()
            .map(|(weight_type, rows, bytes, bias)| Part {
                weight_type: *weight_type,
                rows: *rows,
                bytes,
                bias: bias.as_deref(),
            })
            .collect();
        Ok(Matrix::pack(self.pool, &parts, k)?)
    }

    /// Returns the rows that `source` takes of its tensor, each of `k` weights, as they are stored.
    fn picked(&mut self, source: &RowSource, k: usize) -> Result<(WeightType, Cow<'a, [u8]>), ModelError> {
        let TensorSpec { name, shape, .. } = &source.tensor;
        let stacked = shape.get(usize::from(source.expert.is_some())..).unwrap_or_default();
        let tensor = self.part(name, stacked, source.expert)?;
        let (stored, rows) = rows_of(&tensor, source, k)?;
        // Several parts may take rows of one tensor, so only those taken are done.
        self.count(rows.len());
        Ok((stored, rows))
    }

    /// Returns the elements that `source` takes of a vector, as f32.
    pub(crate) fn elements(&mut self, source: &RowSource, length: usize) -> Result<Vec<f32>, ModelError> {
        let (stored, bytes) = self.picked(source, 1)?;
        let values = stored.widen(&bytes);
        if values.len() != length {
            let problem = format!("has {} elements, not {length}", values.len());
            return Err(ModelError::Tensor { name: source.tensor.name.clone(), problem });
        }
        Ok(values)
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
        let tensor = self.part(name, shape, None)?;
        self.count(tensor.bytes.len());
        Ok(tensor)
    }

    fn count(&mut self, bytes: usize) {
        self.done = self.done.saturating_add(bytes as u64).min(self.total);
    }

    /// Returns a tensor of `shape`, or one of the matrices of `shape` that the tensor stacks. Does not count its bytes as
    /// done.
    fn part(&mut self, name: &str, shape: &[usize], expert: Option<usize>) -> Result<Tensor<'a>, ModelError> {
        (self.progress)(self.done, self.total);
        let tensor = match expert {
            None => self.tensors.tensor(name)?,
            Some(expert) => self.tensors.stacked(name, expert)?,
        };
        if tensor.shape != shape {
            let problem = format!("has shape {:?}, not {shape:?}", tensor.shape);
            return Err(ModelError::Tensor { name: name.to_owned(), problem });
        }
        Ok(tensor)
    }
}

/// Returns the rows that `source` takes of `tensor`, each of `k` weights, and their type.
fn rows_of<'t>(
    tensor: &Tensor<'t>,
    source: &RowSource,
    k: usize,
) -> Result<(WeightType, Cow<'t, [u8]>), ModelError> {
    let columns = if k == 1 { 1 } else { source.tensor.shape.last().copied().unwrap_or(1) };
    let rows = tensor.dtype.row_bytes(columns).and_then(|row| match (tensor.dtype, source.pick) {
        (DType::Block(_), RowPick::Columns { first, count }) => {
            let stored = first.checked_mul(row)?..first.checked_add(count)?.checked_mul(row)?;
            let values = weight_type(tensor.dtype).widen(tensor.bytes.get(stored)?);
            let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let slice = RowSource { pick: RowPick::Columns { first: 0, count }, ..source.clone() };
            picked(&Cow::Owned(values), &slice, (columns.checked_mul(4)?, Some(4)))
        }
        (DType::Block(_), _) => picked(&tensor.bytes, source, (row, None)),
        (dense, _) => picked(&tensor.bytes, source, (row, dense.row_bytes(1))),
    });
    let rows = rows.ok_or_else(|| {
        let problem = format!("{} with shape {:?} has no rows of {k}", tensor.dtype.name(), tensor.shape);
        ModelError::Tensor { name: source.tensor.name.clone(), problem }
    })?;
    Ok((row_type(tensor.dtype, source), rows))
}
