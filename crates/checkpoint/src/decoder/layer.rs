//! The parts of a decoder layer: norms, mixers and feed-forward networks, each with its options and the origin of its
//! weights. Must not know architectures.

use super::feed::FeedForward;
use super::latent::LatentConfig;
use super::norm::{HeadNorm, NormConfig};
use super::recurrent::{DeltaConfig, MambaConfig, ShortConvConfig};
use super::source::{LinearConfig, PartSource, RowSource, TensorSpec};
use super::tail::LayerTail;

/// A layer: a mixer over positions, and a feed-forward network on each position.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// What the names of its tensors begin with, such as `model.layers.3.`.
    pub prefix: String,
    /// Norm of the mixer's input. `None` if it reads the residual stream as it is.
    pub mixer_norm: Option<NormConfig>,
    /// How positions exchange information.
    pub mixer: MixerConfig,
    /// Norm of the mixer's output, before it is added to the stream.
    pub mixer_out_norm: Option<NormConfig>,
    /// Norm of the feed-forward network's input. `None` if it reads the stream as it is; in a parallel layer, if it reads
    /// the mixer's input.
    pub feed_norm: Option<NormConfig>,
    /// The feed-forward network.
    pub feed: FeedForward,
    /// Norm of the network's output, before it is added to the stream.
    pub feed_out_norm: Option<NormConfig>,
    /// Whether the network reads the layer's input instead of the stream after the mixer.
    pub parallel: bool,
    /// Factor on both outputs before they are added to the stream. 1 in most models.
    pub residual_scale: f32,
    /// What follows the feed-forward network. `None` in most models.
    pub tail: Option<Box<LayerTail>>,
}

/// How positions of a sequence exchange information.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerConfig {
    /// Softmax attention over keys and values.
    Attention(Box<AttentionConfig>),
    /// Softmax attention over one compressed row for each token.
    Latent(Box<LatentConfig>),
    /// A short convolution.
    ShortConv(Box<ShortConvConfig>),
    /// The gated delta rule.
    Delta(Box<DeltaConfig>),
    /// Mamba2.
    Mamba(Box<MambaConfig>),
    /// They do not: the layer is a feed-forward network alone.
    None,
}

impl MixerConfig {
    /// The grouped-query attention, if the mixer is one.
    pub fn attention(&self) -> Option<&AttentionConfig> {
        match self {
            Self::Attention(attention) => Some(attention),
            _ => None,
        }
    }

    /// The dense layers, grouped as they are packed.
    fn matrices(&self) -> Vec<Vec<&LinearConfig>> {
        match self {
            Self::Attention(attention) => vec![attention.inputs(), vec![&attention.output]],
            Self::Latent(latent) => latent.matrices(),
            Self::ShortConv(mixer) => vec![vec![&mixer.input], vec![&mixer.output]],
            Self::Delta(mixer) => vec![mixer.inputs(), vec![&mixer.output]],
            Self::Mamba(mixer) => vec![vec![&mixer.input], vec![&mixer.output]],
            Self::None => Vec::new(),
        }
    }
}

/// Grouped-query softmax attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads. Divides `heads`.
    pub kv_heads: usize,
    /// Width of a head. `heads · head_dim` need not equal the hidden size.
    pub head_dim: usize,
    /// `heads·head_dim × hidden`.
    pub query: LinearConfig,
    /// `kv_heads·head_dim × hidden`.
    pub key: LinearConfig,
    /// `kv_heads·head_dim × hidden`.
    pub value: LinearConfig,
    /// `heads·head_dim × hidden`: the output is multiplied by the sigmoid of this, before its projection. `None` means by
    /// 1.
    pub gate: Option<LinearConfig>,
    /// `hidden × heads·head_dim`.
    pub output: LinearConfig,
    /// Norm of the queries, before they are rotated.
    pub query_norm: Option<HeadNorm>,
    /// Norm of the keys, before they are rotated.
    pub key_norm: Option<HeadNorm>,
    /// Norm of the values.
    pub value_norm: Option<HeadNorm>,
    /// The earlier layer whose keys and values this layer reads instead of its own. `key`, `value` and their norms then
    /// name tensors that a file may have and that change nothing.
    pub kv_of: Option<usize>,
    /// The rotary embedding. `None` if the layer rotates nothing.
    pub rotary: Option<LayerRotary>,
    /// Factor on every score.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`, before the mask.
    pub cap: Option<f32>,
    /// A query sees the keys at most this many positions before the one after it: key `j` of query `i` if `i − j` is
    /// below this. `None` if it sees all before it.
    pub window: Option<usize>,
    /// One score for each query head that takes part in the softmax without a value.
    pub sinks: Option<RowSource>,
    /// Queries, keys and values are clamped to plus and minus this, between their norms and the rotation.
    pub clip: Option<f32>,
}

/// The rotary embedding of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerRotary {
    /// Index into [`super::ModelConfig::rotary`].
    pub table: usize,
    /// Growth of the queries with their position. `None` in most models.
    pub growth: Option<QueryGrowth>,
}

/// Queries at position `p` are multiplied by `1 + beta · ln(1 + ⌊p / positions⌋)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// Growth for each e-fold.
    pub beta: f32,
    /// Positions after which it begins.
    pub positions: usize,
}

impl LayerConfig {
    /// The tensors that the layer needs, each once.
    pub(crate) fn tensors(&self) -> Vec<&TensorSpec> {
        let mut list = self.sources();
        let mut seen = std::collections::BTreeSet::new();
        list.retain(|part| seen.insert(part.source.tensor.name.as_str()));
        list.into_iter().map(|part| &part.source.tensor).collect()
    }

    /// The sources of the layer's parts, in a fixed order.
    pub(crate) fn sources(&self) -> Vec<PartSource<'_>> {
        let mut list = Vec::with_capacity(18);
        let norms = [&self.mixer_norm, &self.mixer_out_norm, &self.feed_norm, &self.feed_out_norm];
        norms.into_iter().flatten().for_each(|norm| norm.each_source(&mut list));
        match &self.mixer {
            MixerConfig::Attention(attention) => attention.each_source(&mut list),
            MixerConfig::Latent(latent) => latent.each_source(&mut list),
            MixerConfig::ShortConv(mixer) => mixer.each_source(&mut list),
            MixerConfig::Delta(mixer) => mixer.each_source(&mut list),
            MixerConfig::Mamba(mixer) => mixer.each_source(&mut list),
            MixerConfig::None => {}
        }
        self.feed.each_source(&mut list);
        self.tail.iter().for_each(|tail| tail.each_source(&mut list));
        list
    }

    /// The tensors that a file may have of the layer and that change nothing.
    pub(crate) fn unused_tensors(&self) -> Vec<&TensorSpec> {
        let mut list = Vec::new();
        if let MixerConfig::Attention(attention) = &self.mixer
            && attention.kv_of.is_some()
        {
            attention.each_kv_source(&mut list);
        }
        list.into_iter().map(|part| &part.source.tensor).collect()
    }

    /// The dense layers, grouped as they are packed: those of one group have the same inputs and share one matrix.
    pub fn matrices(&self) -> Vec<Vec<&LinearConfig>> {
        let mut all = self.mixer.matrices();
        all.extend(self.feed.matrices());
        all.extend(self.tail.iter().flat_map(|tail| tail.matrices()));
        all
    }
}

impl AttentionConfig {
    /// The projections of the layer's input, in the order in which their outputs follow each other.
    pub fn inputs(&self) -> Vec<&LinearConfig> {
        match self.kv_of {
            None => [&self.query, &self.key, &self.value].into_iter().chain(&self.gate).collect(),
            Some(_) => [&self.query].into_iter().chain(&self.gate).collect(),
        }
    }

    fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        self.query.each_source(list);
        self.gate.iter().for_each(|gate| gate.each_source(list));
        if self.kv_of.is_none() {
            self.each_kv_source(list);
        }
        self.output.each_source(list);
        self.query_norm.iter().for_each(|norm| norm.norm().each_source(list));
        list.extend(self.sinks.iter().map(PartSource::plain));
    }

    /// The tensors of keys and values.
    fn each_kv_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        self.key.each_source(list);
        self.value.each_source(list);
        for norm in [&self.key_norm, &self.value_norm].into_iter().flatten() {
            norm.norm().each_source(list);
        }
    }
}
