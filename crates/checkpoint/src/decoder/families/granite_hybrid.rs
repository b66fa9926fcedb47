//! Granite 4 (IBM 2025): Mamba2 in most layers and attention in the others, a network that every row passes in each layer,
//! experts in some models, and Granite's four multipliers.

use serde_json::Value;

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use super::hybrid::{LayerKind, MambaFacts, pre_norm_layer, taps, width};
use super::moe::{ExpertFacts, granite_experts};
use crate::decoder::{
    Architecture, AttentionConfig, ExpertMixture, FeedActivation, FeedForward, GatedFeed, LayerConfig,
    MixerConfig, ModelConfig, RotaryConfig, SharedExpert, SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::Rope;

pub(super) fn read(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults::NONE)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let scale = facts.factor("attention_multiplier", 1.0)?;
    let residual_scale = facts.factor("residual_multiplier", 1.0)?;
    let table = match fields.text("position_embedding_type")? {
        None | Some("nope") => None,
        Some("rope") => Some(0),
        Some(other) => {
            let value = Value::from(other);
            return Err(fields.unsupported("position_embedding_type", &value, "\"rope\" and \"nope\" are"));
        }
    };
    let shared = width(fields, "shared_intermediate_size", limits::MAX_INTERMEDIATE_SIZE, Some(1_024))?;
    let shared = SizeField::new(shared, "shared_intermediate_size");
    let of = match fields.count("num_local_experts", 0..=limits::MAX_EXPERTS)?.unwrap_or(8) {
        0 => None,
        _ => Some(ExpertFacts::read(&facts, &["num_local_experts", "num_experts"], facts.inner()?, 2)?),
    };
    let mamba = mamba(&facts)?;
    let types =
        match LayerKind::list(fields, "layers_block_type", &[LayerKind::Attention, LayerKind::Recurrent])? {
            Some(kinds) if kinds.len() == facts.layers => Some(kinds),
            Some(kinds) => {
                let problem =
                    format!("lists {} layers, but num_hidden_layers says {}", kinds.len(), facts.layers);
                return Err(fields.problem("layers_block_type", problem));
            }
            None => None,
        };
    let kinds = LayerKind::of_layers(&facts, |index| {
        types.as_ref().and_then(|kinds| kinds.get(index).copied()).unwrap_or(LayerKind::Recurrent)
    })?;
    let layers = kinds.iter().enumerate().map(|(index, kind)| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let mixer = match kind {
            LayerKind::Attention => MixerConfig::Attention(Box::new(AttentionConfig {
                scale,
                ..parts.attention(has_bias, table)
            })),
            _ => mamba.mixer(&parts, "mamba", norms),
        };
        let dense = shared_network(&parts, shared, activation);
        let feed = match &of {
            None => dense,
            Some(of) => FeedForward::Experts(Box::new(ExpertMixture {
                shared: Some(SharedExpert { feed: dense, gate: None }),
                ..granite_experts(&parts, of, activation)
            })),
        };
        LayerConfig {
            residual_scale,
            ..pre_norm_layer(&parts, ("input_layernorm", mixer), ("post_attention_layernorm", feed))
        }
    });
    let layers = layers.collect();
    let rotary = match table {
        None => Vec::new(),
        Some(_) => vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }],
    };
    let final_norm = norms.named("model.norm", facts.hidden());
    let mut model = facts.model(Architecture::GraniteHybrid, layers, rotary, final_norm)?;
    model.embedding.scale = facts.factor("embedding_multiplier", 1.0)?;
    model.head.scale = 1.0 / facts.factor("logits_scaling", 1.0)?;
    Ok(model)
}

/// The network that every row passes: gate and up in one tensor, the gate first.
fn shared_network(parts: &LayerParts<'_, '_>, inner: SizeField, activation: FeedActivation) -> FeedForward {
    let hidden = parts.facts.hidden();
    let both = SizeField::new(2 * inner.size, "2 × shared_intermediate_size");
    let half = |first| parts.slice("shared_mlp.input_linear", both, (first, inner.size), hidden, false);
    FeedForward::Gated(Box::new(GatedFeed {
        inner: inner.size,
        activation,
        gate: half(0),
        up: half(inner.size),
        down: parts.linear("shared_mlp.output_linear", hidden, inner, false),
    }))
}

fn mamba(facts: &ModelFacts<'_>) -> Result<MambaFacts, CheckpointError> {
    let fields = &facts.fields;
    let heads = width(fields, "mamba_n_heads", limits::MAX_HEADS, Some(128))?;
    let expand = fields.count("mamba_expand", 1..=16)?.unwrap_or(2);
    let inner = expand * facts.hidden;
    let head_dim = match fields.get("mamba_d_head") {
        Some(value) if value.as_str() != Some("auto") => {
            width(fields, "mamba_d_head", limits::MAX_HEAD_DIM, None)?
        }
        _ => inner / heads,
    };
    if heads * head_dim != inner || head_dim > limits::MAX_HEAD_DIM {
        let problem = format!(
            "{heads} heads of {head_dim} are not mamba_expand {expand} × hidden_size {}",
            facts.hidden
        );
        return Err(fields.problem("mamba_d_head", problem));
    }
    if facts.activation("hidden_act", FeedActivation::Silu)? != FeedActivation::Silu
        && let Some(value) = fields.get("hidden_act")
    {
        return Err(fields.unsupported("hidden_act", value, "\"silu\" is"));
    }
    MambaFacts {
        heads,
        head_dim,
        groups: width(fields, "mamba_n_groups", limits::MAX_HEADS, Some(1))?,
        state_dim: width(fields, "mamba_d_state", limits::MAX_HEAD_DIM, Some(256))?,
        taps: taps(fields, "mamba_d_conv", 4)?,
        has_convolution_bias: fields.flag("mamba_conv_bias")?.unwrap_or(true),
        has_bias: fields.flag("mamba_proj_bias")?.unwrap_or(false),
        steps: step_limits(fields)?,
        inner_fields: "mamba_n_heads × mamba_d_head",
    }
    .checked(fields, "mamba_n_groups")
}

/// Reads `time_step_limit`: two numbers. The second one may be infinite.
fn step_limits(fields: &Fields<'_>) -> Result<(f32, f32), CheckpointError> {
    let Some(value) = fields.get("time_step_limit") else { return Ok((0.0, f32::INFINITY)) };
    let limits = match value.as_array().map(Vec::as_slice) {
        Some([least, most]) => {
            let is_infinite = |text: &Value| text.as_str() == Some("Infinity");
            // Files of transformers 5 have an object with the word.
            let is_infinite = is_infinite(most) || most.get("__float__").is_some_and(is_infinite);
            let most = if is_infinite { Some(f64::INFINITY) } else { most.as_f64() };
            least.as_f64().zip(most)
        }
        _ => None,
    };
    match limits {
        Some((least, most)) if least >= 0.0 && least <= most => Ok((least as f32, most as f32)),
        _ => Err(fields.wrong("time_step_limit", value, "two numbers, the lower one first")),
    }
}
