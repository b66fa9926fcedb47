//! Gemma 4: plain norms before and after each half, attention without a scale whose values are normalized, two widths of
//! heads, layers that read the keys and values of earlier ones, inputs of its own for each layer, and experts beside the
//! dense network. Follows `modeling_gemma4` of transformers.

use serde_json::Value;

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use super::moe::{ExpertFacts, experts, softmax, width};
use crate::decoder::{
    Architecture, AttentionConfig, DenseAndExperts, ExpertActivation, ExpertMixture, FeedActivation,
    FeedForward, HeadNorm, LayerConfig, LayerInputNetwork, LayerInputsConfig, LayerTail, LinearConfig,
    MixerConfig, ModelConfig, NormConfig, RotaryConfig, RowSource, SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::{DEFAULT_THETA, Rope, RopeScaling};

const DEFAULTS: SizeDefaults = SizeDefaults {
    hidden: Some(2_304),
    layers: Some(30),
    heads: Some(8),
    kv_heads: Some(4),
    head_dim: Some(256),
    inner: Some(9_216),
    vocab: Some(262_144),
    positions: 131_072,
    is_tied: true,
};
/// What the class assumes if the file does not say it.
const WINDOW: usize = 512;
const FULL_HEAD_DIM: usize = 512;
const FULL_THETA: f64 = 1e6;
const FULL_SHARE: f64 = 0.25;
const LAYER_INPUT_WIDTH: usize = 256;
/// Every layer whose number this divides has no window.
const PATTERN: usize = 6;

pub(super) fn read(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, DEFAULTS)?;
    if let Some(value) = fields.get("use_bidirectional_attention")
        && value.as_str() != Some("vision")
    {
        return Err(fields.unsupported("use_bidirectional_attention", value, "null and \"vision\" are"));
    }
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?);
    let layers = LayerKind::all(&facts)?;
    let options = GemmaOptions::read(&facts, &layers)?;
    let inputs = layer_inputs(&facts, norms)?;
    let full_dim = layers.iter().find(|kind| !kind.is_window).map_or(facts.head_dim, |kind| kind.head_dim);
    let window_dim = layers.iter().find(|kind| kind.is_window).map_or(facts.head_dim, |kind| kind.head_dim);
    let rotary = vec![
        RotaryConfig { rope: full_rope(fields, full_dim)?, width: full_dim },
        RotaryConfig {
            rope: Rope::by_layer_type(fields, "sliding_attention")?
                .unwrap_or(Rope { theta: DEFAULT_THETA, scaling: RopeScaling::None }),
            width: window_dim,
        },
    ];
    let make = |(index, kind): (usize, &LayerKind)| {
        let inner = if kind.is_double { 2 * facts.inner } else { facts.inner };
        let own = facts.with(kind.head_dim, kind.kv_heads, inner);
        let parts = LayerParts::new(&own, norms, "model.layers", index);
        Ok(LayerConfig {
            prefix: parts.name(""),
            mixer_norm: parts.norm("input_layernorm"),
            mixer: MixerConfig::Attention(Box::new(options.attention(&parts, kind))),
            mixer_out_norm: parts.norm("post_attention_layernorm"),
            feed_norm: parts.norm("pre_feedforward_layernorm"),
            feed: options.feed(&parts)?,
            feed_out_norm: parts.norm("post_feedforward_layernorm"),
            parallel: false,
            residual_scale: 1.0,
            tail: Some(Box::new(LayerTail {
                input: inputs.as_ref().map(|inputs| options.input(&parts, inputs.width)),
                scale: RowSource::whole(parts.name("layer_scalar"), &[SizeField::new(1, "1")]),
            })),
        })
    };
    let layers = layers.iter().enumerate().map(make).collect::<Result<_, CheckpointError>>()?;
    let final_norm = norms.named("model.norm", facts.hidden());
    let mut model = facts.model(Architecture::Gemma4, layers, rotary, final_norm)?;
    model.embedding.scale = (facts.hidden as f32).sqrt();
    model.head.cap = facts.cap("final_logit_softcapping", None)?;
    model.layer_inputs = inputs.map(Box::new);
    Ok(model)
}

/// What differs between layers.
struct LayerKind {
    is_window: bool,
    head_dim: usize,
    kv_heads: usize,
    /// The layer whose keys and values it reads.
    kv_of: Option<usize>,
    /// Whether its network is twice as wide.
    is_double: bool,
}

impl LayerKind {
    fn all(facts: &ModelFacts<'_>) -> Result<Vec<Self>, CheckpointError> {
        let fields = &facts.fields;
        let mut windows = facts.windowed_layers(|index| !(index + 1).is_multiple_of(PATTERN))?;
        // The class forces the last layer to see everything.
        if let Some(last) = windows.last_mut() {
            *last = false;
        }
        let readers = fields.count("num_kv_shared_layers", 0..=facts.layers - 1)?.unwrap_or(0);
        let first_reader = facts.layers - readers;
        let doubles = fields.flag("use_double_wide_mlp")?.unwrap_or(false);
        let heads = full_heads(facts)?;
        let own = per_layer(facts)?;
        let mut kinds: Vec<Self> = Vec::with_capacity(windows.len());
        for (index, &is_window) in windows.iter().enumerate() {
            let (head_dim, kv_heads) = match own.get(index).copied().flatten() {
                Some(own) => own,
                None if is_window || !own.is_empty() => (facts.head_dim, facts.kv_heads),
                None => heads,
            };
            let is_reader = index >= first_reader;
            let kv_of = match is_reader {
                false => None,
                true => Some(producer(facts, &windows, first_reader, index)?),
            };
            if let Some(producer) = kv_of.and_then(|layer| kinds.get(layer))
                && (producer.head_dim, producer.kv_heads) != (head_dim, kv_heads)
            {
                let problem = format!("layer {index} has other heads than the layer that it reads");
                return Err(fields.problem("num_kv_shared_layers", problem));
            }
            check_heads(facts, head_dim, kv_heads)?;
            kinds.push(Self { is_window, head_dim, kv_heads, kv_of, is_double: doubles && is_reader });
        }
        for is_window in [false, true] {
            let mut widths =
                kinds.iter().filter(|kind| kind.is_window == is_window).map(|kind| kind.head_dim);
            let first = widths.next();
            if widths.any(|width| Some(width) != first) {
                let problem = "gives layers of one type heads of several widths".to_owned();
                return Err(fields.problem("per_layer_config", problem));
            }
        }
        Ok(kinds)
    }
}

/// The last layer of the same type before the first one that reads others.
fn producer(
    facts: &ModelFacts<'_>,
    windows: &[bool],
    first_reader: usize,
    index: usize,
) -> Result<usize, CheckpointError> {
    let kind = windows.get(index);
    let own = windows.iter().take(first_reader).enumerate().rev();
    own.into_iter().find(|(_, other)| Some(*other) == kind).map(|(layer, _)| layer).ok_or_else(|| {
        let problem = format!("no layer before {first_reader} has the type of layer {index}");
        facts.fields.problem("num_kv_shared_layers", problem)
    })
}

/// Head width and key heads of the layers without a window.
fn full_heads(facts: &ModelFacts<'_>) -> Result<(usize, usize), CheckpointError> {
    let fields = &facts.fields;
    let head_dim = fields.count("global_head_dim", 2..=limits::MAX_HEAD_DIM)?.unwrap_or(FULL_HEAD_DIM);
    let kv_heads = fields.count("num_global_key_value_heads", 1..=limits::MAX_HEADS)?;
    let shares = fields.flag("attention_k_eq_v")?.unwrap_or(false);
    Ok((head_dim, kv_heads.filter(|_| shares).unwrap_or(facts.kv_heads)))
}

/// Head width and key heads of the layers that `per_layer_config` names. Empty without this field.
fn per_layer(facts: &ModelFacts<'_>) -> Result<Vec<Option<(usize, usize)>>, CheckpointError> {
    const FIELD: &str = "per_layer_config";
    let Some(layers) = facts.fields.object(FIELD)? else { return Ok(Vec::new()) };
    let mut own = vec![None; facts.layers];
    for (name, value) in layers.values() {
        let slot = name.parse::<usize>().ok().and_then(|index| own.get_mut(index));
        let (Some(slot), Value::Object(members)) = (slot, value) else {
            let expected = format!("objects by numbers of layers below {}", facts.layers);
            return Err(layers.wrong(name, value, &expected));
        };
        let layer = Fields::new(crate::config_file::CONFIG_FILE, members);
        if let Some(other) =
            members.keys().find(|key| !["head_dim", "num_key_value_heads"].contains(&key.as_str()))
        {
            let value = members.get(other).unwrap_or(&Value::Null);
            return Err(layer.unsupported(other, value, "head_dim and num_key_value_heads of a layer are"));
        }
        let head_dim = layer.count("head_dim", 2..=limits::MAX_HEAD_DIM)?.unwrap_or(facts.head_dim);
        let kv_heads = layer.count("num_key_value_heads", 1..=limits::MAX_HEADS)?.unwrap_or(facts.kv_heads);
        *slot = Some((head_dim, kv_heads));
    }
    Ok(own)
}

fn check_heads(facts: &ModelFacts<'_>, head_dim: usize, kv_heads: usize) -> Result<(), CheckpointError> {
    if !head_dim.is_multiple_of(2) {
        return Err(facts.fields.problem("global_head_dim", format!("{head_dim} must be even")));
    }
    if !facts.heads.is_multiple_of(kv_heads) {
        let problem = format!("{kv_heads} does not divide num_attention_heads {}", facts.heads);
        return Err(facts.fields.problem("num_global_key_value_heads", problem));
    }
    Ok(())
}

/// The rotary embedding of layers without a window: the first pairs of a head turn, the others stay.
fn full_rope(fields: &Fields<'_>, head_dim: usize) -> Result<Rope, CheckpointError> {
    let proportional = |theta: f64, share: f64, factor: f64| {
        let turning = (share * head_dim as f64 / 2.0).floor() as usize;
        let factor = |pair: usize| if pair < turning { factor as f32 } else { f32::INFINITY };
        Rope { theta, scaling: RopeScaling::Divided { factors: (0..head_dim / 2).map(factor).collect() } }
    };
    let all = fields.object("rope_parameters")?;
    let Some(own) = all.and_then(|all| all.inner_object("full_attention")) else {
        return Ok(proportional(FULL_THETA, FULL_SHARE, 1.0));
    };
    if own.text("rope_type")? != Some("proportional") {
        let plain = Rope { theta: FULL_THETA, scaling: RopeScaling::None };
        return Ok(Rope::by_layer_type(fields, "full_attention")?.unwrap_or(plain));
    }
    let theta = own.number("rope_theta", 0.0, limits::MAX_ROPE_THETA)?.unwrap_or(FULL_THETA);
    let share = own.number("partial_rotary_factor", 0.0, 1.0)?.unwrap_or(1.0);
    let factor = own.number_from("factor", 1.0, limits::MAX_ROPE_FACTOR)?.unwrap_or(1.0);
    Ok(proportional(theta, share, factor))
}

/// Reads the inputs that each layer has of its own.
fn layer_inputs(
    facts: &ModelFacts<'_>,
    norms: NormStyle,
) -> Result<Option<LayerInputsConfig>, CheckpointError> {
    let fields = &facts.fields;
    const WIDTH: &str = "hidden_size_per_layer_input";
    let size = fields.count(WIDTH, 0..=limits::MAX_HEAD_DIM)?.unwrap_or(LAYER_INPUT_WIDTH);
    let words = fields.count("vocab_size_per_layer_input", 0..=limits::MAX_VOCAB_SIZE)?;
    if size == 0 {
        return Ok(None);
    }
    let words = SizeField::new(words.unwrap_or(262_144), "vocab_size_per_layer_input");
    if words.size < facts.vocab {
        let problem = format!("{} is below vocab_size {}", words.size, facts.vocab);
        return Err(fields.problem(words.field, problem));
    }
    let width = SizeField::new(size, WIDTH);
    let all = SizeField::new(facts.layers * size, "num_hidden_layers × hidden_size_per_layer_input");
    Ok(Some(LayerInputsConfig {
        width: size,
        words: RowSource::whole("model.embed_tokens_per_layer.weight".to_owned(), &[words, all]),
        word_scale: (size as f32).sqrt(),
        projection: LinearConfig::own("model.per_layer_model_projection", all, facts.hidden(), false),
        projection_scale: 1.0 / (facts.hidden as f32).sqrt(),
        norm: norms.named("model.per_layer_projection_norm", width),
        scale: std::f32::consts::FRAC_1_SQRT_2,
    }))
}

/// Options that all layers share.
struct GemmaOptions {
    has_bias: bool,
    activation: FeedActivation,
    window: Option<usize>,
    /// Whether values are keys before their norm, in layers without a window.
    values_are_keys: bool,
    experts: Option<ExpertFacts>,
}

impl GemmaOptions {
    fn read(facts: &ModelFacts<'_>, layers: &[LayerKind]) -> Result<Self, CheckpointError> {
        let fields = &facts.fields;
        let experts = match fields.flag("enable_moe_block")?.unwrap_or(false) {
            false => None,
            true => {
                let chosen = fields.required_count("top_k_experts", 1..=limits::MAX_EXPERTS)?;
                let inner = width(fields, "moe_intermediate_size")?;
                Some(ExpertFacts::read(facts, &["num_experts", "num_local_experts"], inner, chosen)?)
            }
        };
        let window = facts.window(Some(WINDOW))?.filter(|_| layers.iter().any(|kind| kind.is_window));
        Ok(Self {
            has_bias: fields.flag("attention_bias")?.unwrap_or(false),
            activation: facts.activation("hidden_activation", FeedActivation::GeluTanh)?,
            window,
            values_are_keys: fields.flag("attention_k_eq_v")?.unwrap_or(false),
            experts,
        })
    }

    fn attention(&self, parts: &LayerParts<'_, '_>, kind: &LayerKind) -> AttentionConfig {
        let facts = parts.facts;
        let usual = parts.attention(self.has_bias, Some(usize::from(kind.is_window)));
        let keys = parts.linear("self_attn.k_proj", facts.keys(), facts.hidden(), self.has_bias);
        let unweighted =
            NormConfig { weight: None, ..parts.norms.named("", SizeField::new(facts.head_dim, "head_dim")) };
        AttentionConfig {
            value: if self.values_are_keys && !kind.is_window { keys } else { usual.value },
            query_norm: parts.head_norm("self_attn.q_norm"),
            key_norm: parts.head_norm("self_attn.k_norm"),
            value_norm: Some(HeadNorm::Head(unweighted)),
            kv_of: kind.kv_of,
            scale: 1.0,
            window: self.window.filter(|_| kind.is_window),
            ..usual
        }
    }

    fn feed(&self, parts: &LayerParts<'_, '_>) -> Result<FeedForward, CheckpointError> {
        let dense = parts.gated(self.activation, false)?;
        let Some(of) = &self.experts else { return Ok(dense) };
        let hidden = parts.facts.hidden();
        let norm = |part: &str| parts.norms.named(&parts.name(part), hidden);
        Ok(FeedForward::Both(Box::new(DenseAndExperts {
            dense,
            dense_out_norm: norm("post_feedforward_layernorm_1"),
            router_norm: NormConfig {
                weight: Some(RowSource::whole(parts.name("router.scale"), &[hidden])),
                ..norm("router")
            },
            router_scale: 1.0 / (hidden.size as f32).sqrt(),
            expert_norm: norm("pre_feedforward_layernorm_2"),
            experts: ExpertMixture {
                chosen: of.chosen,
                inner: of.inner.size,
                activation: ExpertActivation::Usual(self.activation),
                router: parts.linear("router.proj", of.count, hidden, false),
                routing: softmax(true),
                experts: experts(parts, of, ("experts", "gate_proj", "up_proj", "down_proj")),
                shared: None,
                latent: None,
            },
            expert_scales: RowSource::whole(parts.name("router.per_expert_scale"), &[of.count]),
            expert_out_norm: norm("post_feedforward_layernorm_2"),
        })))
    }

    /// The network over the layer's own input.
    fn input(&self, parts: &LayerParts<'_, '_>, width: usize) -> LayerInputNetwork {
        let (hidden, width) = (parts.facts.hidden(), SizeField::new(width, "hidden_size_per_layer_input"));
        LayerInputNetwork {
            activation: self.activation,
            gate: parts.linear("per_layer_input_gate", width, hidden, false),
            projection: parts.linear("per_layer_projection", hidden, width, false),
            norm: parts.norms.named(&parts.name("post_per_layer_input_norm"), hidden),
        }
    }
}
