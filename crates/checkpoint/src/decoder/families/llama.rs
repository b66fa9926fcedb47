//! Llama, Qwen2 and Qwen3: see [`crate::decoder::UniformConfig`]. SmolLM3: Llama without rotation in every fourth layer.

use serde_json::Value;

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use crate::config_file::refuse_formats;
use crate::decoder::{Architecture, FeedActivation, ModelConfig, RotaryConfig, UniformConfig};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::Rope;

pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    refuse_unsupported(fields)?;
    let hidden_size = fields.required_count("hidden_size", 1..=limits::MAX_HIDDEN_SIZE)?;
    let layers = fields.required_count("num_hidden_layers", 1..=limits::MAX_LAYERS)?;
    let heads = fields.required_count("num_attention_heads", 1..=limits::MAX_HEADS)?;
    let max_positions = fields
        .count("max_position_embeddings", 1..=limits::MAX_POSITIONS)?
        .unwrap_or(architecture.default_positions());
    refuse_sliding_window(fields, architecture, layers, max_positions)?;
    let vocab_size = fields.required_count("vocab_size", 1..=limits::MAX_VOCAB_SIZE)?;
    let attention_bias = match architecture {
        // Qwen2's class has no such switch.
        Architecture::Qwen2 => false,
        _ => fields.flag("attention_bias")?.unwrap_or(false),
    };
    Ok(UniformConfig {
        architecture,
        hidden_size,
        layers,
        heads,
        kv_heads: kv_heads(fields, architecture, heads)?,
        head_dim: head_dim(fields, architecture, hidden_size, heads)?,
        intermediate_size: fields.required_count("intermediate_size", 1..=limits::MAX_INTERMEDIATE_SIZE)?,
        vocab_size,
        max_positions,
        rms_norm_eps: rms_norm_eps(fields)?,
        rope: Rope::read(fields)?,
        qkv_bias: attention_bias || architecture == Architecture::Qwen2,
        o_bias: attention_bias,
        mlp_bias: architecture == Architecture::Llama && fields.flag("mlp_bias")?.unwrap_or(false),
        qk_norm: architecture == Architecture::Qwen3,
        tie_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        bos: fields.token_ids("bos_token_id", 1, vocab_size)?.and_then(|ids| ids.first().copied()),
        eos: fields.token_ids("eos_token_id", limits::MAX_EOS_IDS, vocab_size)?.unwrap_or_default(),
    }
    .into())
}

fn kv_heads(fields: &Fields<'_>, architecture: Architecture, heads: usize) -> Result<usize, CheckpointError> {
    // If the field is absent, Llama's class has one KV head per query head, and Qwen's has 32. An explicit null means
    // one per query head in all classes.
    let absent = !fields.values().any(|(field, _)| field == "num_key_value_heads");
    let default = if absent && architecture != Architecture::Llama { 32 } else { heads };
    let kv_heads = fields.count("num_key_value_heads", 1..=limits::MAX_HEADS)?.unwrap_or(default);
    if !heads.is_multiple_of(kv_heads) {
        let problem = format!("{kv_heads} does not divide num_attention_heads {heads}");
        return Err(fields.problem("num_key_value_heads", problem));
    }
    Ok(kv_heads)
}

fn head_dim(
    fields: &Fields<'_>,
    architecture: Architecture,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, CheckpointError> {
    let given = fields.count("head_dim", 2..=limits::MAX_HEAD_DIM)?;
    let head_dim = match (given, architecture) {
        (Some(given), _) => given,
        (None, Architecture::Qwen3) => 128,
        (None, _) if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        (None, _) => {
            let problem = format!(
                "is missing, and num_attention_heads {heads} do not divide hidden_size {hidden_size}"
            );
            return Err(fields.problem("head_dim", problem));
        }
    };
    if !head_dim.is_multiple_of(2) || !(2..=limits::MAX_HEAD_DIM).contains(&head_dim) {
        let problem = format!("{head_dim} must be even and from 2 to {}", limits::MAX_HEAD_DIM);
        return Err(fields.problem("head_dim", problem));
    }
    Ok(head_dim)
}

fn rms_norm_eps(fields: &Fields<'_>) -> Result<f32, CheckpointError> {
    let wide = fields.number("rms_norm_eps", 0.0, limits::MAX_RMS_NORM_EPS)?.unwrap_or(1e-6);
    let narrow = wide as f32;
    if !narrow.is_normal() {
        return Err(fields.problem("rms_norm_eps", format!("{wide:e} vanishes in 32-bit floating point")));
    }
    Ok(narrow)
}

/// Refuses every setting that a supported class would honour and this project does not implement.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    refuse_formats(fields)?;
    if let Some(activation) = fields.get("hidden_act")
        && activation.as_str() != Some("silu")
    {
        return Err(fields.unsupported("hidden_act", activation, "\"silu\" is"));
    }
    Ok(())
}

/// Refuses a sliding window that some position could reach. A window that is switched off, or is never reached, has no
/// effect.
fn refuse_sliding_window(
    fields: &Fields<'_>,
    architecture: Architecture,
    layers: usize,
    max_positions: usize,
) -> Result<(), CheckpointError> {
    const FULL: &str = "full attention in every layer is";
    if let Some(value) = fields.get("layer_types") {
        let Some(types) = value.as_array().filter(|types| types.len() == layers) else {
            return Err(fields.wrong("layer_types", value, &format!("a list of num_hidden_layers {layers}")));
        };
        if let Some(other) = types.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            return Err(fields.unsupported("layer_types", other, FULL));
        }
        return Ok(());
    }
    // Llama's class has no window. Qwen's classes use one from layer `max_window_layers` on, 28 by default.
    if architecture == Architecture::Llama || !fields.flag("use_sliding_window")?.unwrap_or(false) {
        return Ok(());
    }
    let first = fields.count("max_window_layers", 0..=usize::MAX)?.unwrap_or(28);
    let given = fields.values().any(|(field, _)| field == "sliding_window");
    let window = fields.count("sliding_window", 1..=usize::MAX)?.or((!given).then_some(4_096));
    match window {
        Some(window) if first < layers && window < max_positions => {
            Err(fields.unsupported("use_sliding_window", &Value::Bool(true), FULL))
        }
        _ => Ok(()),
    }
}

pub(super) fn smol(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let defaults = SizeDefaults { kv_heads: Some(4), positions: 32_768, is_tied: true, ..SizeDefaults::NONE };
    let facts = ModelFacts::read(fields, defaults)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    refuse_sliding_window(fields, Architecture::SmolLm3, facts.layers, facts.max_positions)?;
    let rotates = rotated_layers(&facts)?;
    let layer = |(index, &rotates): (usize, &bool)| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = parts.attention(attention_bias, rotates.then_some(0));
        let feed = parts.gated(activation, mlp_bias)?;
        Ok(parts.pre_norm_layer(attention, feed))
    };
    let layers = rotates.iter().enumerate().map(layer).collect::<Result<_, CheckpointError>>()?;
    let rotary = vec![RotaryConfig { rope: Rope::read_with(fields, 2e6)?, width: facts.head_dim }];
    facts.model(Architecture::SmolLm3, layers, rotary, norms.named("model.norm", facts.hidden()))
}

/// Which layers rotate: a list with 1 for those that do, or all but one in each interval.
fn rotated_layers(facts: &ModelFacts<'_>) -> Result<Vec<bool>, CheckpointError> {
    let fields = &facts.fields;
    let interval = fields.count("no_rope_layer_interval", 1..=limits::MAX_LAYERS)?.unwrap_or(4);
    let Some(value) = fields.get("no_rope_layers") else {
        return Ok((0..facts.layers).map(|index| !(index + 1).is_multiple_of(interval)).collect());
    };
    let items = value.as_array().filter(|items| items.len() == facts.layers);
    let each = items.and_then(|items| items.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
    match each {
        Some(each) if each.iter().all(|item| *item <= 1) => Ok(each.iter().map(|item| *item == 1).collect()),
        _ => {
            let expected = format!("a list of 0 or 1 for each of {} layers", facts.layers);
            Err(fields.wrong("no_rope_layers", value, &expected))
        }
    }
}
