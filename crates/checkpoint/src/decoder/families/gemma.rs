//! Gemma 1 to 3 (arXiv 2403.08295, 2408.00118, 2503.19786): embeddings times the root of their width, norms with
//! 1 + weight, GELU with tanh. Gemma 2 adds norms after each half, caps and windows; Gemma 3 norms of queries and keys
//! instead of caps, and a rotary base of its own for the windows.

use serde_json::Value;

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use crate::decoder::{
    Architecture, AttentionConfig, FeedActivation, LayerConfig, MixerConfig, ModelConfig, RotaryConfig,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::{DEFAULT_THETA, Rope, RopeScaling};

const FIRST: SizeDefaults = SizeDefaults {
    hidden: Some(3_072),
    layers: Some(28),
    heads: Some(16),
    kv_heads: Some(16),
    head_dim: Some(256),
    inner: Some(24_576),
    vocab: Some(256_000),
    positions: 8_192,
    is_tied: true,
};
const SECOND: SizeDefaults = SizeDefaults {
    hidden: Some(2_304),
    layers: Some(26),
    heads: Some(8),
    kv_heads: Some(4),
    inner: Some(9_216),
    ..FIRST
};
const THIRD: SizeDefaults = SizeDefaults { vocab: Some(262_208), positions: 131_072, ..SECOND };
/// The window of the classes of Gemma 2 and 3 if the file does not say one.
const WINDOW: usize = 4_096;
/// `query_pre_attn_scalar` of these classes if the file does not say it.
const QUERY_SCALAR: f64 = 256.0;

pub(super) fn first(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, FIRST)?;
    let style = style(&facts)?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let activation = activation(&facts)?;
    let layer = |index| {
        let parts = LayerParts::new(&facts, style, "model.layers", index);
        let feed = parts.gated(activation, false)?;
        let attention = parts.attention(has_bias, Some(0));
        Ok(parts.pre_norm_layer(attention, feed))
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    model(&facts, Architecture::Gemma, style, layers, rotary)
}

pub(super) fn second(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SECOND)?;
    let style = style(&facts)?;
    let cap = facts.cap("attn_logit_softcapping", Some(50.0))?;
    let windows = facts.windowed_layers(|index| index.is_multiple_of(2))?;
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    let layers = sandwiches(&facts, style, &windows, |attention, _| AttentionConfig { cap, ..attention })?;
    let mut model = model(&facts, Architecture::Gemma2, style, layers, rotary)?;
    model.head.cap = facts.cap("final_logit_softcapping", Some(30.0))?;
    Ok(model)
}

pub(super) fn third(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, THIRD)?;
    let style = style(&facts)?;
    let pattern = ["sliding_window_pattern", "_sliding_window_pattern"]
        .into_iter()
        .find_map(|field| fields.count(field, 1..=limits::MAX_LAYERS).transpose())
        .transpose()?
        .unwrap_or(6);
    let windows = facts.windowed_layers(|index| !(index + 1).is_multiple_of(pattern))?;
    let (full, window) = match Rope::by_layer_type(fields, "full_attention")? {
        Some(full) => {
            let window = Rope::by_layer_type(fields, "sliding_attention")?;
            (full, window.unwrap_or(Rope { theta: DEFAULT_THETA, scaling: RopeScaling::None }))
        }
        None => {
            let base = fields.number("rope_local_base_freq", 0.0, limits::MAX_ROPE_THETA)?;
            let window = Rope { theta: base.unwrap_or(DEFAULT_THETA), scaling: RopeScaling::None };
            (Rope::read_with(fields, 1e6)?, window)
        }
    };
    let cap = facts.cap("attn_logit_softcapping", None)?;
    let width = facts.head_dim;
    let rotary = vec![RotaryConfig { rope: full, width }, RotaryConfig { rope: window, width }];
    let layers = sandwiches(&facts, style, &windows, |mut attention, is_window| {
        if let Some(rotary) = &mut attention.rotary {
            rotary.table = usize::from(is_window);
        }
        AttentionConfig { cap, ..attention }
    })?;
    let layers = layers.into_iter().enumerate().map(|(index, mut layer)| {
        let parts = LayerParts::new(&facts, style, "model.layers", index);
        if let MixerConfig::Attention(attention) = &mut layer.mixer {
            attention.query_norm = parts.head_norm("self_attn.q_norm");
            attention.key_norm = parts.head_norm("self_attn.k_norm");
        }
        layer
    });
    let mut model = model(&facts, Architecture::Gemma3, style, layers.collect(), rotary)?;
    model.head.cap = facts.cap("final_logit_softcapping", None)?;
    Ok(model)
}

fn style(facts: &ModelFacts<'_>) -> Result<NormStyle, CheckpointError> {
    Ok(NormStyle { plus_one: true, ..NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?) })
}

/// Layers with a norm before and after each half.
fn sandwiches(
    facts: &ModelFacts<'_>,
    style: NormStyle,
    windows: &[bool],
    with: impl Fn(AttentionConfig, bool) -> AttentionConfig,
) -> Result<Vec<LayerConfig>, CheckpointError> {
    let fields = &facts.fields;
    if let Some(value @ Value::Bool(true)) = fields.get("use_bidirectional_attention") {
        return Err(fields.unsupported("use_bidirectional_attention", value, "causal attention is"));
    }
    let scalar =
        fields.number("query_pre_attn_scalar", 0.0, limits::MAX_ROPE_FACTOR)?.unwrap_or(QUERY_SCALAR);
    let window = facts.window(Some(WINDOW))?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let activation = activation(facts)?;
    let layer = |(index, &is_window): (usize, &bool)| {
        let parts = LayerParts::new(facts, style, "model.layers", index);
        let attention = AttentionConfig {
            scale: 1.0 / (scalar as f32).sqrt(),
            window: window.filter(|_| is_window),
            ..parts.attention(has_bias, Some(0))
        };
        Ok(LayerConfig {
            mixer_out_norm: parts.norm("post_attention_layernorm"),
            feed_norm: parts.norm("pre_feedforward_layernorm"),
            feed_out_norm: parts.norm("post_feedforward_layernorm"),
            ..{
                let feed = parts.gated(activation, false)?;
                parts.pre_norm_layer(with(attention, is_window), feed)
            }
        })
    };
    windows.iter().enumerate().map(layer).collect()
}

/// The activation. Files of Gemma 1 from before the second field name the one with the error function, which no class
/// uses.
fn activation(facts: &ModelFacts<'_>) -> Result<FeedActivation, CheckpointError> {
    match facts.fields.get("hidden_activation") {
        Some(_) => facts.activation("hidden_activation", FeedActivation::GeluTanh),
        None => Ok(FeedActivation::GeluTanh),
    }
}

fn model(
    facts: &ModelFacts<'_>,
    architecture: Architecture,
    style: NormStyle,
    layers: Vec<LayerConfig>,
    rotary: Vec<RotaryConfig>,
) -> Result<ModelConfig, CheckpointError> {
    let mut model = facts.model(architecture, layers, rotary, style.named("model.norm", facts.hidden()))?;
    model.embedding.scale = (facts.hidden as f32).sqrt();
    Ok(model)
}
