//! The facts that most configurations give, and the layers that most architectures share: norms, projections and
//! feed-forward networks by their usual names. Must not know any architecture.

use serde_json::Value;

use crate::config_file::refuse_formats;
use crate::decoder::{
    Architecture, AttentionConfig, EmbeddingConfig, FeedActivation, FeedForward, GatedFeed, HeadConfig,
    HeadNorm, LayerConfig, LayerRotary, LinearConfig, MixerConfig, ModelConfig, NormConfig, NormKind,
    PlainFeed, RotaryConfig, RotaryPairs, RowPick, RowSource, SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::{Rope, RopeScaling};

/// What an architecture's class assumes if a configuration does not say it. `None` means that it must be said.
#[derive(Clone, Copy)]
pub(super) struct SizeDefaults {
    pub(super) hidden: Option<usize>,
    pub(super) layers: Option<usize>,
    pub(super) heads: Option<usize>,
    /// `None` means as many as query heads.
    pub(super) kv_heads: Option<usize>,
    /// `None` means the hidden size divided by the heads.
    pub(super) head_dim: Option<usize>,
    pub(super) inner: Option<usize>,
    pub(super) vocab: Option<usize>,
    pub(super) positions: usize,
    pub(super) is_tied: bool,
}

impl SizeDefaults {
    /// Sizes must be said, and the output projection is one of its own.
    pub(super) const NONE: Self = Self {
        hidden: None,
        layers: None,
        heads: None,
        kv_heads: None,
        head_dim: None,
        inner: None,
        vocab: None,
        positions: 2_048,
        is_tied: false,
    };
}

/// The names of the sizes in a configuration.
#[derive(Clone, Copy)]
pub(super) struct SizeNames {
    pub(super) hidden: &'static str,
    pub(super) layers: &'static str,
    pub(super) heads: &'static str,
    pub(super) inner: &'static str,
    pub(super) positions: &'static str,
}

impl SizeNames {
    pub(super) const USUAL: Self = Self {
        hidden: "hidden_size",
        layers: "num_hidden_layers",
        heads: "num_attention_heads",
        inner: "intermediate_size",
        positions: "max_position_embeddings",
    };
}

/// The sizes of a model.
#[derive(Clone)]
pub(super) struct ModelFacts<'a> {
    pub(super) fields: Fields<'a>,
    names: SizeNames,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) inner: usize,
    pub(super) vocab: usize,
    pub(super) max_positions: usize,
    pub(super) is_tied: bool,
}

impl<'a> ModelFacts<'a> {
    pub(super) fn read(fields: &Fields<'a>, defaults: SizeDefaults) -> Result<Self, CheckpointError> {
        Self::read_as(fields, defaults, SizeNames::USUAL)
    }

    pub(super) fn read_as(
        fields: &Fields<'a>,
        defaults: SizeDefaults,
        names: SizeNames,
    ) -> Result<Self, CheckpointError> {
        refuse_formats(fields)?;
        let size = |field: &'static str, most: usize, default: Option<usize>| {
            fields.count(field, 1..=most)?.or(default).ok_or_else(|| fields.missing(field))
        };
        let hidden = size(names.hidden, limits::MAX_HIDDEN_SIZE, defaults.hidden)?;
        let heads = size(names.heads, limits::MAX_HEADS, defaults.heads)?;
        let kv_heads = fields.count("num_key_value_heads", 1..=limits::MAX_HEADS)?;
        let kv_heads = kv_heads.or(defaults.kv_heads).unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("{kv_heads} does not divide {} {heads}", names.heads);
            return Err(fields.problem("num_key_value_heads", problem));
        }
        let facts = Self {
            fields: *fields,
            names,
            hidden,
            layers: size(names.layers, limits::MAX_LAYERS, defaults.layers)?,
            heads,
            kv_heads,
            head_dim: head_dim(fields, defaults.head_dim, hidden, heads)?,
            inner: fields
                .count(names.inner, 1..=limits::MAX_INTERMEDIATE_SIZE)?
                .or(defaults.inner)
                .unwrap_or(0),
            vocab: size("vocab_size", limits::MAX_VOCAB_SIZE, defaults.vocab)?,
            max_positions: fields
                .count(names.positions, 1..=limits::MAX_POSITIONS)?
                .unwrap_or(defaults.positions),
            is_tied: fields.flag("tie_word_embeddings")?.unwrap_or(defaults.is_tied),
        };
        Ok(facts)
    }

    /// The same sizes with other heads and another width of the feed-forward network, for the layers that have them.
    pub(super) fn with(&self, head_dim: usize, kv_heads: usize, inner: usize) -> Self {
        Self { head_dim, kv_heads, inner, ..self.clone() }
    }

    /// The width of the feed-forward network, which must be said.
    pub(super) fn inner(&self) -> Result<SizeField, CheckpointError> {
        match self.inner {
            0 => Err(self.fields.missing(self.names.inner)),
            inner => Ok(SizeField::new(inner, self.names.inner)),
        }
    }

    pub(super) fn hidden(&self) -> SizeField {
        SizeField::new(self.hidden, self.names.hidden)
    }

    pub(super) fn vocab(&self) -> SizeField {
        SizeField::new(self.vocab, "vocab_size")
    }

    pub(super) fn queries(&self) -> SizeField {
        SizeField::new(self.heads * self.head_dim, "num_attention_heads × head_dim")
    }

    pub(super) fn keys(&self) -> SizeField {
        SizeField::new(self.kv_heads * self.head_dim, "num_key_value_heads × head_dim")
    }

    /// One over the root of a head's width.
    pub(super) fn usual_scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Reads a positive epsilon of a norm.
    pub(super) fn eps(&self, field: &str, default: f64) -> Result<f32, CheckpointError> {
        let wide = self.fields.number(field, 0.0, limits::MAX_RMS_NORM_EPS)?.unwrap_or(default);
        match wide as f32 {
            narrow if narrow.is_normal() => Ok(narrow),
            _ => Err(self.fields.problem(field, format!("{wide:e} vanishes in 32-bit floating point"))),
        }
    }

    /// Reads a factor that must be a finite positive number.
    pub(super) fn factor(&self, field: &str, default: f64) -> Result<f32, CheckpointError> {
        Ok(self.fields.number(field, 0.0, limits::MAX_ROPE_FACTOR)?.unwrap_or(default) as f32)
    }

    /// Reads a cap. Absent means none.
    pub(super) fn cap(&self, field: &str, default: Option<f64>) -> Result<Option<f32>, CheckpointError> {
        let is_given = self.fields.values().any(|(name, _)| name == field);
        let given = self.fields.number(field, 0.0, limits::MAX_ROPE_FACTOR)?;
        Ok(if is_given { given } else { default }.map(|cap| cap as f32))
    }

    /// Reads an activation function.
    pub(super) fn activation(
        &self,
        field: &str,
        default: FeedActivation,
    ) -> Result<FeedActivation, CheckpointError> {
        let Some(value) = self.fields.get(field) else { return Ok(default) };
        Ok(match value.as_str() {
            Some("silu" | "swish") => FeedActivation::Silu,
            Some("gelu") => FeedActivation::Gelu,
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" | "gelu_python_tanh") => {
                FeedActivation::GeluTanh
            }
            Some("relu") => FeedActivation::Relu,
            Some("relu2") => FeedActivation::ReluSquared,
            _ => {
                let known =
                    "\"silu\", \"gelu\", \"gelu_pytorch_tanh\", \"gelu_new\", \"relu\" and \"relu2\" are";
                return Err(self.fields.unsupported(field, value, known));
            }
        })
    }

    /// Reads the window of sliding attention. Absent means `default`, and null or 0 none.
    pub(super) fn window(&self, default: Option<usize>) -> Result<Option<usize>, CheckpointError> {
        let is_given = self.fields.values().any(|(name, _)| name == "sliding_window");
        let given = self.fields.count("sliding_window", 0..=usize::MAX)?;
        let window = if is_given { given } else { default };
        // A window that is as long as the context excludes no key.
        Ok(window.filter(|window| (1..self.max_positions).contains(window)))
    }

    /// Reads for each layer whether it sees a window only. `usual` says it for a layer if `layer_types` is absent.
    pub(super) fn windowed_layers(
        &self,
        usual: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>, CheckpointError> {
        let Some(value) = self.fields.get("layer_types") else {
            return Ok((0..self.layers).map(usual).collect());
        };
        let Some(types) = value.as_array().filter(|types| types.len() == self.layers) else {
            let expected = format!("a list of {} {}", self.names.layers, self.layers);
            return Err(self.fields.wrong("layer_types", value, &expected));
        };
        let kind = |kind: &Value| match kind.as_str() {
            Some("full_attention" | "attention" | "global_attention") => Ok(false),
            Some("sliding_attention" | "local_attention") => Ok(true),
            _ => {
                Err(self.fields.unsupported("layer_types", kind, "full_attention and sliding_attention are"))
            }
        };
        types.iter().map(kind).collect()
    }

    /// A rotary embedding over the share of each head that the file says, and its width.
    pub(super) fn rotary(&self, rope: Rope, share: f64) -> Result<RotaryConfig, CheckpointError> {
        let width = (self.head_dim as f64 * share) as usize;
        if width < 2 || !width.is_multiple_of(2) || width > self.head_dim {
            let problem = format!(
                "{share} of {} elements is {width}, which must be even and at least 2",
                self.head_dim
            );
            return Err(self.fields.problem("partial_rotary_factor", problem));
        }
        Ok(RotaryConfig { rope, width })
    }

    /// The model around `layers`, with the usual names of embedding, norm and head.
    pub(super) fn model(
        &self,
        architecture: Architecture,
        layers: Vec<LayerConfig>,
        rotary: Vec<RotaryConfig>,
        final_norm: NormConfig,
    ) -> Result<ModelConfig, CheckpointError> {
        let (vocab, hidden) = (self.vocab(), self.hidden());
        Ok(ModelConfig {
            architecture,
            hidden_size: self.hidden,
            vocab_size: self.vocab,
            max_positions: self.max_positions,
            embedding: EmbeddingConfig {
                words: RowSource::whole("model.embed_tokens.weight".to_owned(), &[vocab, hidden]),
                positions: None,
                scale: 1.0,
            },
            layers,
            layer_inputs: None,
            rotary,
            final_norm,
            head: HeadConfig {
                linear: (!self.is_tied).then(|| LinearConfig::own("lm_head", vocab, hidden, false)),
                scale: 1.0,
                cap: None,
            },
            uniform: None,
            bos: self.fields.token_ids("bos_token_id", 1, self.vocab)?.and_then(|ids| ids.first().copied()),
            eos: self.fields.token_ids("eos_token_id", limits::MAX_EOS_IDS, self.vocab)?.unwrap_or_default(),
        })
    }
}

fn head_dim(
    fields: &Fields<'_>,
    default: Option<usize>,
    hidden: usize,
    heads: usize,
) -> Result<usize, CheckpointError> {
    let head_dim = match fields.count("head_dim", 2..=limits::MAX_HEAD_DIM)?.or(default) {
        Some(given) => given,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem = format!("is missing, and {heads} heads do not divide a hidden size of {hidden}");
            return Err(fields.problem("head_dim", problem));
        }
    };
    if !head_dim.is_multiple_of(2) || !(2..=limits::MAX_HEAD_DIM).contains(&head_dim) {
        let problem = format!("{head_dim} must be even and from 2 to {}", limits::MAX_HEAD_DIM);
        return Err(fields.problem("head_dim", problem));
    }
    Ok(head_dim)
}

/// The kind of norm that a model has everywhere.
#[derive(Clone, Copy)]
pub(super) struct NormStyle {
    pub(super) kind: NormKind,
    pub(super) eps: f32,
    pub(super) has_bias: bool,
    pub(super) plus_one: bool,
}

impl NormStyle {
    /// RMSNorm with plain weights.
    pub(super) fn rms(eps: f32) -> Self {
        Self { kind: NormKind::Rms, eps, has_bias: false, plus_one: false }
    }

    /// LayerNorm with a bias, or without one.
    pub(super) fn layer(eps: f32, has_bias: bool) -> Self {
        Self { kind: NormKind::Layer, eps, has_bias, plus_one: false }
    }

    /// The norm with tensors `{name}.weight` and `{name}.bias`.
    pub(super) fn named(self, name: &str, width: SizeField) -> NormConfig {
        NormConfig {
            kind: self.kind,
            eps: self.eps,
            width: width.size,
            weight: Some(RowSource::whole(format!("{name}.weight"), &[width])),
            bias: self.has_bias.then(|| RowSource::whole(format!("{name}.bias"), &[width])),
            plus_one: self.plus_one,
        }
    }
}

/// Names and makes the parts of one layer.
pub(super) struct LayerParts<'f, 'a> {
    pub(super) facts: &'f ModelFacts<'a>,
    pub(super) norms: NormStyle,
    prefix: String,
}

impl<'f, 'a> LayerParts<'f, 'a> {
    /// The parts of layer `index`, whose tensors begin with `{base}.{index}.`.
    pub(super) fn new(facts: &'f ModelFacts<'a>, norms: NormStyle, base: &str, index: usize) -> Self {
        Self { facts, norms, prefix: format!("{base}.{index}.") }
    }

    pub(super) fn name(&self, part: &str) -> String {
        format!("{}{part}", self.prefix)
    }

    /// A norm over the stream.
    pub(super) fn norm(&self, part: &str) -> Option<NormConfig> {
        Some(self.norms.named(&self.name(part), self.facts.hidden()))
    }

    /// RMSNorm over each head, with weights that all heads share.
    pub(super) fn head_norm(&self, part: &str) -> Option<HeadNorm> {
        let width = SizeField::new(self.facts.head_dim, "head_dim");
        let style = NormStyle { kind: NormKind::Rms, has_bias: false, ..self.norms };
        Some(HeadNorm::Head(style.named(&self.name(part), width)))
    }

    /// A norm over all heads together.
    pub(super) fn whole_norm(&self, part: &str, width: SizeField) -> Option<HeadNorm> {
        Some(HeadNorm::Whole(self.norms.named(&self.name(part), width)))
    }

    pub(super) fn linear(
        &self,
        part: &str,
        outputs: SizeField,
        inputs: SizeField,
        has_bias: bool,
    ) -> LinearConfig {
        LinearConfig::own(&self.name(part), outputs, inputs, has_bias)
    }

    /// Rows `first..first + outputs` of a fused tensor of `all` rows.
    pub(super) fn slice(
        &self,
        part: &str,
        all: SizeField,
        (first, outputs): (usize, usize),
        inputs: SizeField,
        has_bias: bool,
    ) -> LinearConfig {
        self.grouped(part, all, (all.size, first, outputs), inputs, has_bias)
    }

    /// From each group of `group` rows of a tensor of `all` rows, `count` rows from `first` on.
    pub(super) fn grouped(
        &self,
        part: &str,
        all: SizeField,
        (group, first, count): (usize, usize, usize),
        inputs: SizeField,
        has_bias: bool,
    ) -> LinearConfig {
        let pick = RowPick::Grouped { group, first, count };
        let source = |kind: &str, dimensions: &[SizeField]| RowSource {
            pick,
            ..RowSource::whole(format!("{}.{kind}", self.name(part)), dimensions)
        };
        LinearConfig {
            outputs: all.size / group.max(1) * count,
            inputs: inputs.size,
            weight: source("weight", &[all, inputs]),
            bias: has_bias.then(|| source("bias", &[all])),
        }
    }

    /// Attention with the usual names and without further options.
    pub(super) fn attention(&self, has_bias: bool, table: Option<usize>) -> AttentionConfig {
        let ModelFacts { heads, kv_heads, head_dim, .. } = *self.facts;
        let (hidden, queries, keys) = (self.facts.hidden(), self.facts.queries(), self.facts.keys());
        AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            query: self.linear("self_attn.q_proj", queries, hidden, has_bias),
            key: self.linear("self_attn.k_proj", keys, hidden, has_bias),
            value: self.linear("self_attn.v_proj", keys, hidden, has_bias),
            gate: None,
            output: self.linear("self_attn.o_proj", hidden, queries, has_bias),
            query_norm: None,
            key_norm: None,
            value_norm: None,
            kv_of: None,
            rotary: table.map(|table| LayerRotary { table, growth: None }),
            scale: self.facts.usual_scale(),
            cap: None,
            window: None,
            sinks: None,
            clip: None,
        }
    }

    /// A gated network with the usual names.
    pub(super) fn gated(
        &self,
        activation: FeedActivation,
        has_bias: bool,
    ) -> Result<FeedForward, CheckpointError> {
        let (hidden, inner) = (self.facts.hidden(), self.facts.inner()?);
        Ok(FeedForward::Gated(Box::new(GatedFeed {
            inner: inner.size,
            activation,
            gate: self.linear("mlp.gate_proj", inner, hidden, has_bias),
            up: self.linear("mlp.up_proj", inner, hidden, has_bias),
            down: self.linear("mlp.down_proj", hidden, inner, has_bias),
        })))
    }

    /// A gated network whose gate and up projections are one tensor, the gate first.
    pub(super) fn fused_gated(
        &self,
        part: &str,
        activation: FeedActivation,
    ) -> Result<FeedForward, CheckpointError> {
        let (hidden, inner) = (self.facts.hidden(), self.facts.inner()?);
        let all = SizeField::new(2 * inner.size, "2 × intermediate_size");
        Ok(FeedForward::Gated(Box::new(GatedFeed {
            inner: inner.size,
            activation,
            gate: self.slice(part, all, (0, inner.size), hidden, false),
            up: self.slice(part, all, (inner.size, inner.size), hidden, false),
            down: self.linear("mlp.down_proj", hidden, inner, false),
        })))
    }

    /// A network without a gate.
    pub(super) fn plain(
        &self,
        (up, down): (&str, &str),
        activation: FeedActivation,
        has_bias: bool,
    ) -> Result<FeedForward, CheckpointError> {
        let (hidden, inner) = (self.facts.hidden(), self.facts.inner()?);
        Ok(FeedForward::Plain(Box::new(PlainFeed {
            inner: inner.size,
            activation,
            up: self.linear(up, inner, hidden, has_bias),
            down: self.linear(down, hidden, inner, has_bias),
        })))
    }

    /// The layer with a norm before each half, by the usual names.
    pub(super) fn pre_norm_layer(self, attention: AttentionConfig, feed: FeedForward) -> LayerConfig {
        LayerConfig {
            mixer_norm: self.norm("input_layernorm"),
            mixer: MixerConfig::Attention(Box::new(attention)),
            mixer_out_norm: None,
            feed_norm: self.norm("post_attention_layernorm"),
            feed,
            feed_out_norm: None,
            parallel: false,
            residual_scale: 1.0,
            tail: None,
            prefix: self.prefix,
        }
    }
}

/// Says that queries and keys rotate neighbouring elements in the checkpoint.
pub(super) fn with_neighbouring_pairs(mut attention: AttentionConfig, rotated: usize) -> AttentionConfig {
    let pairs = Some(RotaryPairs { head: attention.head_dim, rotated });
    for linear in [&mut attention.query, &mut attention.key] {
        linear.weight.pairs = pairs;
        if let Some(bias) = &mut linear.bias {
            bias.pairs = pairs;
        }
    }
    attention
}

/// Checks that a list of factors has one for each pair of rotated elements.
pub(super) fn check_pair_factors(fields: &Fields<'_>, config: &ModelConfig) -> Result<(), CheckpointError> {
    for rotary in &config.rotary {
        let RopeScaling::Long { short, long, .. } = &rotary.rope.scaling else { continue };
        for (field, factors) in [("rope_scaling.short_factor", short), ("rope_scaling.long_factor", long)] {
            if factors.len() != rotary.width / 2 {
                let (found, pairs) = (factors.len(), rotary.width / 2);
                return Err(fields.problem(field, format!("has {found} factors for {pairs} pairs")));
            }
        }
    }
    Ok(())
}
