//! The parts of a decoder that the kernels compute, layer by layer. Refuses every other part, with its name and its layer.
//! Must not know: tensors, memory, or launches.

use headrace_checkpoint::ModelConfig;
use headrace_checkpoint::decoder::{
    AttentionConfig, EmbeddingConfig, FeedActivation, FeedForward, GatedFeed, HeadConfig, HeadNorm,
    LayerConfig, LayerRotary, LinearConfig, MixerConfig, NormConfig, NormKind,
};
use headrace_model::{KvGroups, layer_window, rope};

use crate::attention::Heads;
use crate::device::DeviceError;
use crate::error::LoadError;
use crate::ops::GateActivation;

/// A decoder with no part that the kernels do not compute.
pub(crate) struct DecoderPlan<'c> {
    pub(crate) config: &'c ModelConfig,
    /// The heads of every layer.
    pub(crate) heads: Heads,
    pub(crate) layers: Vec<LayerPlan<'c>>,
    /// The rotary embeddings of the layers, each once.
    pub(crate) rotaries: Vec<LayerRotary>,
}

/// One layer.
pub(crate) struct LayerPlan<'c> {
    /// Norms and the factor on both outputs.
    pub(crate) config: &'c LayerConfig,
    pub(crate) attention: &'c AttentionConfig,
    pub(crate) feed: &'c GatedFeed,
    pub(crate) activation: GateActivation,
    /// Index into [`DecoderPlan::rotaries`]. `None` if nothing is rotated.
    pub(crate) rotary: Option<usize>,
    /// A query sees key `j` at position `i` if `i − j` is below this. `None` if the layer keeps every position.
    pub(crate) window: Option<usize>,
}

impl<'c> DecoderPlan<'c> {
    /// Checks every part of a configuration.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] with the first part that the kernels do not compute.
    pub(crate) fn of(config: &'c ModelConfig) -> Result<Self, LoadError> {
        check_globals(config)?;
        let mut rotaries: Vec<LayerRotary> = Vec::new();
        let mut layers: Vec<LayerPlan<'c>> = Vec::with_capacity(config.layers.len());
        for (index, layer) in config.layers.iter().enumerate() {
            let (attention, feed, activation) = parts_of(index, layer)?;
            if let Some(first) = layers.first().map(|layer| layer.attention)
                && shape_of(first) != shape_of(attention)
            {
                let shown = |(heads, kv_heads, head_dim): (usize, usize, usize)| {
                    format!("{heads} query and {kv_heads} key heads of {head_dim}")
                };
                let (found, first) = (shown(shape_of(attention)), shown(shape_of(first)));
                let found = format!("has {found}, and layer 0 has {first}");
                return Err(refused("attention", index, &found, "the same heads in every layer"));
            }
            let rotary = attention.rotary.map(|rotary| {
                rotaries.iter().position(|known| *known == rotary).unwrap_or_else(|| {
                    rotaries.push(rotary);
                    rotaries.len() - 1
                })
            });
            let window = layer_window(config, layer);
            layers.push(LayerPlan { config: layer, attention, feed, activation, rotary, window });
        }
        // Queries grow with their position, and the tables of LongRoPE have rows for two lists of factors.
        let grows = rotaries.iter().any(|rotary| rotary.growth.is_some());
        if grows && rope::short_positions(config, config.max_positions).is_some() {
            return Err(unsupported(
                "rope",
                "queries grow, and LongRoPE has two lists of factors",
                "one of both",
            ));
        }
        let (heads, kv_heads, head_dim) = layers.first().map_or((0, 0, 0), |layer| shape_of(layer.attention));
        let heads = Heads::new(heads, kv_heads, head_dim).map_err(|error| match error {
            DeviceError::Shape { what, problem } => LoadError::Unsupported { name: what, problem },
            other => LoadError::Device(other),
        })?;
        Ok(Self { config, heads, layers, rotaries })
    }

    /// The cache groups, without numbers of blocks.
    pub(crate) fn kv_groups(&self) -> KvGroups {
        KvGroups::with_block_bytes(self.config, |_| 2 * self.heads.block_bytes())
    }

    /// The greatest width of the layers' feed-forward networks.
    pub(crate) fn inner(&self) -> usize {
        self.layers.iter().map(|layer| layer.feed.inner).max().unwrap_or(0)
    }

    /// Whether the output of some half of a layer is normalized before it is added to the stream.
    pub(crate) fn has_out_norms(&self) -> bool {
        let has = |layer: &LayerPlan<'_>| {
            layer.config.mixer_out_norm.is_some() || layer.config.feed_out_norm.is_some()
        };
        self.layers.iter().any(has)
    }
}

/// Query heads, key heads and their width.
fn shape_of(attention: &AttentionConfig) -> (usize, usize, usize) {
    (attention.heads, attention.kv_heads, attention.head_dim)
}

fn check_globals(config: &ModelConfig) -> Result<(), LoadError> {
    let ModelConfig {
        architecture: _,
        hidden_size: _,
        vocab_size: _,
        max_positions: _,
        embedding,
        layers: _,
        layer_inputs,
        rotary: _,
        final_norm,
        head,
        uniform: _,
        bos: _,
        eos: _,
    } = config;
    let EmbeddingConfig { words: _, positions, scale: _ } = embedding;
    let HeadConfig { linear: _, scale: _, cap: _ } = head;
    let whole = |name, found: &str, computed: &str| Err(unsupported(name, found, computed));
    if positions.is_some() {
        return whole("embedding", "the model has learned positions", "rotary embeddings and none");
    }
    if layer_inputs.is_some() {
        return whole("layer_inputs", "layers have inputs of their own", "layers that read the stream");
    }
    check_norm(final_norm).map_err(|found| unsupported("final norm", &format!("it {found}"), NORMS))
}

/// The norms that the kernels compute.
const NORMS: &str = "RMSNorm with weights and without biases";

/// Returns the attention and the network of a layer that has no other parts.
fn parts_of(
    index: usize,
    layer: &LayerConfig,
) -> Result<(&AttentionConfig, &GatedFeed, GateActivation), LoadError> {
    let LayerConfig {
        prefix: _,
        mixer_norm,
        mixer,
        mixer_out_norm,
        feed_norm,
        feed,
        feed_out_norm,
        parallel,
        residual_scale: _,
        tail,
    } = layer;
    let norms = [
        ("mixer norm", mixer_norm),
        ("mixer output norm", mixer_out_norm),
        ("feed-forward norm", feed_norm),
        ("feed-forward output norm", feed_out_norm),
    ];
    for (name, norm) in norms {
        if let Some(norm) = norm {
            check_norm(norm).map_err(|found| refused(name, index, &found, NORMS))?;
        }
    }
    let attention =
        mixer_of(mixer).map_err(|found| refused("mixer", index, found, "attention over keys and values"))?;
    check_attention(index, attention)?;
    let feed: &GatedFeed = match feed {
        FeedForward::Gated(feed) => feed,
        FeedForward::Plain(_) => return Err(refused_feed(index, "has a network without a gate")),
        FeedForward::Experts(_) => return Err(refused_feed(index, "has experts")),
        FeedForward::Both(_) => return Err(refused_feed(index, "has experts beside a dense network")),
        FeedForward::None => return Err(refused_feed(index, "has no feed-forward network")),
    };
    let GatedFeed { inner: _, activation, gate, up, down } = feed;
    let activation = activation_of(*activation)
        .map_err(|name| refused_feed(index, &format!("has the activation {name}")))?;
    check_linears(index, &[gate, up, down])?;
    if *parallel {
        return Err(refused("layer", index, "computes both halves in parallel", "one half after the other"));
    }
    if tail.is_some() {
        return Err(refused(
            "layer",
            index,
            "has a factor or an input of its own at its end",
            "none of them",
        ));
    }
    Ok((attention, feed, activation))
}

fn mixer_of(mixer: &MixerConfig) -> Result<&AttentionConfig, &'static str> {
    match mixer {
        MixerConfig::Attention(attention) => Ok(attention),
        MixerConfig::Latent(_) => Err("has latent attention"),
        MixerConfig::ShortConv(_) => Err("has a short convolution"),
        MixerConfig::Delta(_) => Err("has the gated delta rule"),
        MixerConfig::Mamba(_) => Err("has a Mamba2 mixer"),
        MixerConfig::None => Err("has no mixer"),
    }
}

/// The activation, or the name of one that the kernels do not compute.
fn activation_of(activation: FeedActivation) -> Result<GateActivation, &'static str> {
    match activation {
        FeedActivation::Silu => Ok(GateActivation::Silu),
        FeedActivation::GeluTanh => Ok(GateActivation::GeluTanh),
        FeedActivation::Gelu => Err("GELU with the error function"),
        FeedActivation::Relu => Err("ReLU"),
        FeedActivation::ReluSquared => Err("squared ReLU"),
    }
}

fn check_attention(index: usize, attention: &AttentionConfig) -> Result<(), LoadError> {
    let AttentionConfig {
        heads: _,
        kv_heads: _,
        head_dim: _,
        query,
        key,
        value,
        gate,
        output,
        query_norm,
        key_norm,
        value_norm,
        kv_of,
        rotary: _,
        scale: _,
        cap: _,
        window: _,
        sinks,
        clip,
    } = attention;
    for (name, norm) in [("query norm", query_norm), ("key norm", key_norm)] {
        let Some(norm) = norm else { continue };
        if matches!(norm, HeadNorm::EachHead(_)) {
            let computed = "one weight for all heads, or one norm over all of them";
            return Err(refused(name, index, "has weights of its own for every head", computed));
        }
        check_norm(norm.norm()).map_err(|found| refused(name, index, &found, NORMS))?;
    }
    let parts = [
        (gate.is_some(), "gates the output of attention"),
        (value_norm.is_some(), "normalizes values"),
        (kv_of.is_some(), "reads the keys and values of another layer"),
        (sinks.is_some(), "has attention sinks"),
        (clip.is_some(), "clamps queries, keys and values"),
    ];
    match parts.into_iter().find(|(is_there, _)| *is_there) {
        Some((_, found)) => Err(refused("attention", index, found, "attention without that")),
        None => check_linears(index, &[query, key, value, output]),
    }
}

/// Refuses matrices that are one of several in a tensor.
fn check_linears(index: usize, linears: &[&LinearConfig]) -> Result<(), LoadError> {
    let sources = linears.iter().flat_map(|linear| [Some(&linear.weight), linear.bias.as_ref()]);
    match sources.flatten().any(|source| source.expert.is_some()) {
        true => Err(refused("weights", index, "has weights of an expert", "dense layers")),
        false => Ok(()),
    }
}

/// Returns what a norm has that the kernels do not compute.
fn check_norm(norm: &NormConfig) -> Result<(), String> {
    let NormConfig { kind, eps: _, width: _, weight, bias, plus_one: _ } = norm;
    match (kind, weight, bias) {
        (NormKind::Layer, _, _) => Err("is LayerNorm".to_owned()),
        (_, None, _) => Err("has a norm without weights".to_owned()),
        (_, _, Some(_)) => Err("has a norm with biases".to_owned()),
        (NormKind::Rms, Some(_), None) => Ok(()),
    }
}

fn refused_feed(index: usize, found: &str) -> LoadError {
    refused("feed-forward", index, found, "one gated network with SiLU or with GELU by tanh")
}

fn refused(name: &'static str, index: usize, found: &str, computed: &str) -> LoadError {
    unsupported(name, &format!("layer {index} {found}"), computed)
}

fn unsupported(name: &'static str, found: &str, computed: &str) -> LoadError {
    let problem = format!("{found}; a GPU computes {computed}. The CPU engine computes this model");
    LoadError::Unsupported { name, problem }
}
