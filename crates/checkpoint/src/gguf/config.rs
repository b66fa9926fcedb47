//! GGUF metadata → [`ModelConfig`]. Sizes must be within named limits. Every key that would change the output and is
//! not supported is refused by name. Must not know where tensors are.

use std::sync::Arc;

use crate::decoder::{Architecture, ModelConfig, UniformConfig};
use crate::error::{CheckpointError, shown, with_needs};
use crate::generation::GenerationDefaults;
use crate::limits;
use crate::rope::{DEFAULT_THETA, Rope, RopeScaling, YARN_BETA_FAST, YARN_BETA_SLOW};

use super::meta::Meta;
use super::value::Value;

/// Facts that follow from the tensors and are not in the metadata.
pub(super) struct Found {
    /// Rows of the embedding.
    pub(super) vocab_size: usize,
    pub(super) qkv_bias: bool,
    pub(super) o_bias: bool,
    pub(super) mlp_bias: bool,
    /// Whether the output projection is the embedding, because the file has none of its own.
    pub(super) tied: bool,
    /// Factors of the rotary frequencies.
    pub(super) rope_factors: Option<Arc<[f32]>>,
}

/// The key of the architecture.
pub(crate) const ARCHITECTURE_KEY: &str = "general.architecture";

/// Reads the model's architecture.
pub(super) fn architecture(meta: Meta<'_>) -> Result<Architecture, CheckpointError> {
    match meta.get("general.type") {
        Some(value @ Value::Text(kind)) if kind != "model" => {
            return Err(meta.unsupported("general.type", value, "a file of type \"model\" is"));
        }
        _ => {}
    }
    match meta.text(ARCHITECTURE_KEY)? {
        None => Err(meta.missing(ARCHITECTURE_KEY)),
        Some(name) => Architecture::from_gguf_name(name).ok_or_else(|| {
            let found = with_needs(&format!("\"{}\"", shown(name)), name);
            meta.unsupported_as(ARCHITECTURE_KEY, found, &supported())
        }),
    }
}

/// The supported architectures, as messages show them.
fn supported() -> String {
    let names: Vec<String> = Architecture::gguf_names().iter().map(|name| format!("\"{name}\"")).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => {
            format!("supported are {} and {last}", others.join(", "))
        }
        _ => format!("supported is {}", names.concat()),
    }
}

/// Reads the number of layers.
pub(super) fn layers(meta: Meta<'_>, architecture: Architecture) -> Result<usize, CheckpointError> {
    meta.required_count(&key(architecture, "block_count"), 1..=limits::MAX_LAYERS)
}

/// Reads the width of a head.
pub(super) fn head_dim(meta: Meta<'_>, architecture: Architecture) -> Result<usize, CheckpointError> {
    let key_of = |name| key(architecture, name);
    let hidden = meta.required_count(&key_of("embedding_length"), 1..=limits::MAX_HIDDEN_SIZE)?;
    let heads = heads(meta, architecture)?;
    let widths = 2..=limits::MAX_HEAD_DIM;
    let length = key_of("attention.key_length");
    let head_dim = match meta.count(&length, widths.clone())? {
        Some(given) => given,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem = format!("is missing, and {heads} heads do not divide an embedding of {hidden}");
            return Err(meta.problem(&length, problem));
        }
    };
    if !head_dim.is_multiple_of(2) || !widths.contains(&head_dim) {
        let problem = format!("{head_dim} must be even and from 2 to {}", limits::MAX_HEAD_DIM);
        return Err(meta.problem(&length, problem));
    }
    for name in ["attention.value_length", "rope.dimension_count"] {
        let key = key_of(name);
        match (meta.count(&key, 0..=usize::MAX)?, meta.get(&key)) {
            (Some(other), Some(value)) if other != head_dim => {
                return Err(meta.unsupported(&key, value, &format!("the width of a head, {head_dim}, is")));
            }
            _ => {}
        }
    }
    Ok(head_dim)
}

/// Reads the whole configuration.
pub(super) fn read(
    meta: Meta<'_>,
    architecture: Architecture,
    found: Found,
    ids: (Option<u32>, Vec<u32>),
) -> Result<ModelConfig, CheckpointError> {
    let key_of = |name| key(architecture, name);
    let head_dim = head_dim(meta, architecture)?;
    refuse_unsupported(meta, architecture, head_dim)?;
    let max_positions = meta.required_count(&key_of("context_length"), 1..=limits::MAX_POSITIONS)?;
    refuse_sliding_window(meta, architecture, max_positions)?;
    let heads = heads(meta, architecture)?;
    let (kv_key, kv_range) = (key_of("attention.head_count_kv"), 1..=limits::MAX_HEADS);
    let kv_heads = meta.uniform_count(&kv_key, kv_range)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(meta.problem(&kv_key, format!("{kv_heads} does not divide {heads} heads")));
    }
    let (ffn_key, ffn_range) = (key_of("feed_forward_length"), 1..=limits::MAX_INTERMEDIATE_SIZE);
    let intermediate_size = meta.uniform_count(&ffn_key, ffn_range)?.ok_or_else(|| meta.missing(&ffn_key))?;
    Ok(UniformConfig {
        architecture,
        hidden_size: meta.required_count(&key_of("embedding_length"), 1..=limits::MAX_HIDDEN_SIZE)?,
        layers: layers(meta, architecture)?,
        heads,
        kv_heads,
        head_dim,
        intermediate_size,
        vocab_size: found.vocab_size,
        max_positions,
        rms_norm_eps: rms_norm_eps(meta, architecture)?,
        rope: rope(meta, architecture, max_positions, found.rope_factors)?,
        qkv_bias: found.qkv_bias || architecture == Architecture::Qwen2,
        o_bias: found.o_bias,
        mlp_bias: found.mlp_bias,
        qk_norm: architecture == Architecture::Qwen3,
        tie_embeddings: found.tied,
        bos: ids.0,
        eos: ids.1,
    }
    .into())
}

/// Reads sampling defaults, which newer converters copy from `generation_config.json`.
pub(super) fn generation(
    meta: Meta<'_>,
    vocab_size: usize,
    eos: &[u32],
) -> Result<GenerationDefaults, CheckpointError> {
    let narrow = |number: Option<f64>| number.map(|n| n as f32);
    let top_k = meta.get("general.sampling.top_k").and_then(Value::integer).filter(|k| *k > 0);
    let penalty = meta.number("general.sampling.penalty_repeat", 0.0, limits::MAX_REPETITION_PENALTY)?;
    Ok(GenerationDefaults {
        temperature: narrow(meta.number_from("general.sampling.temp", 0.0, limits::MAX_TEMPERATURE)?),
        top_p: narrow(meta.number("general.sampling.top_p", 0.0, 1.0)?),
        top_k: top_k.and_then(|k| u32::try_from(k.min(vocab_size as i128)).ok()),
        min_p: narrow(meta.number_from("general.sampling.min_p", 0.0, 1.0)?),
        repetition_penalty: narrow(penalty),
        max_new_tokens: None,
        eos: (!eos.is_empty()).then(|| eos.to_vec()),
    })
}

fn key(architecture: Architecture, name: &str) -> String {
    format!("{}.{name}", architecture.gguf_name())
}

fn heads(meta: Meta<'_>, architecture: Architecture) -> Result<usize, CheckpointError> {
    let key = key(architecture, "attention.head_count");
    meta.uniform_count(&key, 1..=limits::MAX_HEADS)?.ok_or_else(|| meta.missing(&key))
}

fn rms_norm_eps(meta: Meta<'_>, architecture: Architecture) -> Result<f32, CheckpointError> {
    let key = key(architecture, "attention.layer_norm_rms_epsilon");
    let wide = meta.number(&key, 0.0, limits::MAX_RMS_NORM_EPS)?.ok_or_else(|| meta.missing(&key))?;
    let narrow = wide as f32;
    match narrow.is_normal() {
        true => Ok(narrow),
        false => Err(meta.problem(&key, format!("{wide:e} vanishes in 32-bit floating point"))),
    }
}

/// Refuses settings that would change the model's output and are not implemented.
fn refuse_unsupported(
    meta: Meta<'_>,
    architecture: Architecture,
    head_dim: usize,
) -> Result<(), CheckpointError> {
    // Neutral values are accepted, because some converters write them out. So is 0 for every key.
    for (name, neutral, supported) in [
        ("expert_count", 0.0, "a dense model, without experts, is"),
        ("logit_scale", 1.0, "1 is"),
        ("residual_scale", 1.0, "1 is"),
        ("embedding_scale", 1.0, "1 is"),
        ("attn_logit_softcapping", 0.0, "none is"),
        ("final_logit_softcapping", 0.0, "none is"),
        ("attention.clamp_kqv", 0.0, "none is"),
        ("attention.max_alibi_bias", 0.0, "none is"),
        ("attention.temperature_length", 0.0, "none is"),
        ("attention.scale", 1.0 / (head_dim as f64).sqrt(), "one over the root of the head's width is"),
        ("nextn_predict_layers", 0.0, "0 is"),
        ("rope.scaling.yarn_log_multiplier", 0.0, "0 is"),
    ] {
        let key = key(architecture, name);
        if let Some(value) = meta.get(&key)
            && value.number().is_none_or(|number| number != 0.0 && (number - neutral).abs() > 1e-6)
        {
            return Err(meta.unsupported(&key, value, supported));
        }
    }
    let causal = key(architecture, "attention.causal");
    match (meta.flag(&causal)?, meta.get(&causal)) {
        (Some(false), Some(value)) => Err(meta.unsupported(&causal, value, "causal attention is")),
        _ => Ok(()),
    }
}

/// Refuses a sliding window that some position could reach.
fn refuse_sliding_window(
    meta: Meta<'_>,
    architecture: Architecture,
    max_positions: usize,
) -> Result<(), CheckpointError> {
    let key = key(architecture, "attention.sliding_window");
    match (meta.count(&key, 0..=usize::MAX)?, meta.get(&key)) {
        (Some(window), Some(value)) if window > 0 && window < max_positions => {
            Err(meta.unsupported(&key, value, "full attention in every layer is"))
        }
        _ => Ok(()),
    }
}

fn rope(
    meta: Meta<'_>,
    architecture: Architecture,
    max_positions: usize,
    factors: Option<Arc<[f32]>>,
) -> Result<Rope, CheckpointError> {
    let key_of = |name| key(architecture, name);
    let theta = meta.number(&key_of("rope.freq_base"), 0.0, limits::MAX_ROPE_THETA)?;
    let type_key = key_of("rope.scaling.type");
    // Files from before `rope.scaling.type` have only `rope.scale_linear`.
    let old = meta.number_from(&key_of("rope.scale_linear"), 1.0, limits::MAX_ROPE_FACTOR)?;
    let factor_key = key_of("rope.scaling.factor");
    let factor = meta.number_from(&factor_key, 0.0, limits::MAX_ROPE_FACTOR)?.or(old).filter(|n| *n != 0.0);
    let needed = || match factor {
        Some(factor) if factor >= 1.0 => Ok(factor),
        Some(_) => Err(meta.problem(&factor_key, "must be at least 1".to_owned())),
        None => Err(meta.missing(&factor_key)),
    };
    let scaling = match (meta.text(&type_key)?, factor) {
        (Some("none"), _) | (None, None) => RopeScaling::None,
        (None | Some("linear"), _) => RopeScaling::Linear { factor: needed()? },
        (Some("yarn"), _) => yarn(meta, architecture, needed()?, max_positions)?,
        (Some(other), _) => {
            let found = Value::Text(other.to_owned());
            return Err(meta.unsupported(&type_key, &found, "supported are none, linear and yarn"));
        }
    };
    let scaling = match (scaling, factors) {
        (scaling, None) => scaling,
        (RopeScaling::None, Some(factors)) => RopeScaling::Divided { factors },
        (_, Some(_)) => {
            let problem = "is present beside rope_freqs.weight; only one of the two is supported".to_owned();
            return Err(meta.problem(&type_key, problem));
        }
    };
    Ok(Rope { theta: theta.unwrap_or(DEFAULT_THETA), scaling })
}

fn yarn(
    meta: Meta<'_>,
    architecture: Architecture,
    factor: f64,
    max_positions: usize,
) -> Result<RopeScaling, CheckpointError> {
    let key_of = |name| key(architecture, name);
    for name in ["rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"]
    {
        let key = key_of(name);
        if let Some(value) = meta.get(&key)
            && value.number().is_none_or(|number| number != 1.0 && number >= 0.0)
        {
            return Err(meta.unsupported(&key, value, "1 is"));
        }
    }
    let original = meta.count(&key_of("rope.scaling.original_context_length"), 1..=limits::MAX_POSITIONS)?;
    let turns = |name, default| -> Result<f64, CheckpointError> {
        Ok(meta.number(&key_of(name), 0.0, limits::MAX_ROPE_FACTOR)?.unwrap_or(default))
    };
    let beta_fast = turns("rope.scaling.yarn_beta_fast", YARN_BETA_FAST)?;
    let beta_slow = turns("rope.scaling.yarn_beta_slow", YARN_BETA_SLOW)?;
    if beta_fast < beta_slow {
        let problem = format!("found {beta_fast}, expected at least yarn_beta_slow {beta_slow}");
        return Err(meta.problem(&key_of("rope.scaling.yarn_beta_fast"), problem));
    }
    Ok(RopeScaling::Yarn {
        factor,
        original_max_positions: original.unwrap_or(max_positions),
        beta_fast,
        beta_slow,
        truncate: true,
        attention_factor: None,
        mscales: None,
    })
}
