//! The rotary embedding in the metadata of a GGUF file, as `rope_theta` and `rope_parameters` of a `config.json`. Must not
//! know where factors of frequencies are stored.

use std::sync::Arc;

use crate::decoder::Architecture;
use crate::error::{CheckpointError, shown};
use crate::limits;
use crate::rope::RopeScaling;

use super::architecture::{GgufArchitecture, RotationRule};
use super::members::ConfigMembers;
use super::meta::Meta;
use super::mixers;

/// Keys that only Ministral 3 has: the growth of queries with their position, and the scale of YaRN's factor.
pub(super) const GROWTH_KEYS: [&str; 2] = ["attention.temperature_scale", LOG_KEY];
/// The key of the scale of YaRN's factor.
pub(super) const LOG_KEY: &str = "rope.scaling.yarn_log_multiplier";

/// The key of the factor on cos and sin.
pub(super) const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";
/// The key of the context of the pretraining.
pub(super) const ORIGINAL: &str = "rope.scaling.original_context_length";

const PARAMETERS: &str = "rope_parameters";
const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";

/// The two factors of LongRoPE beside its lists.
#[derive(Clone, Copy)]
pub(super) struct LongScale {
    /// How much longer the longest context is than that of the pretraining. At least 1.
    pub(super) factor: f64,
    /// The factor on cos and sin.
    pub(super) attention_factor: f64,
}

impl LongScale {
    /// The factors that the class computes from the longest context and that of the pretraining.
    pub(super) fn usual(longest: usize, original: usize) -> Self {
        Self::of((longest as f64 / original as f64).max(1.0), original)
    }

    fn of(factor: f64, original: usize) -> Self {
        let attention_factor = (1.0 + factor.max(1.0).ln() / (original as f64).ln()).sqrt();
        Self { factor, attention_factor }
    }
}

/// The factors of a model with LongRoPE. `None` for every other scaling.
pub(super) fn long_scale(scaling: &RopeScaling) -> Option<LongScale> {
    let RopeScaling::Long { original_max_positions, factor, attention_factor, .. } = scaling else {
        return None;
    };
    let usual = LongScale::of(*factor, *original_max_positions);
    Some(LongScale { attention_factor: attention_factor.unwrap_or(usual.attention_factor), ..usual })
}

/// Sets the members of the rotary embedding.
pub(super) fn members(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    members: &mut ConfigMembers<'_>,
    (head_dim, long_factors): (usize, &Option<[Arc<[f32]>; 2]>),
) -> Result<(), CheckpointError> {
    let key_of = |name: &str| format!("{}.{name}", row.name);
    let is_trained = || meta.flag(&key_of(mixers::TRAINED_KEY)).map(|trained| trained != Some(false));
    match row.rotation {
        RotationRule::Nothing => return Ok(()),
        RotationRule::IfTrained if !is_trained()? => return Ok(()),
        _ => {}
    }
    // llama.cpp's default, which is not that of every class.
    if !members.copy("rope_theta", "rope.freq_base")? {
        members.set("rope_theta", "rope.freq_base", crate::rope::DEFAULT_THETA.into());
    }
    if row.architecture == Architecture::Gemma3 {
        members.copy("rope_local_base_freq", "rope.freq_base_swa")?;
    }
    if row.rotation == RotationRule::Part {
        let name = "rope.dimension_count";
        let width = meta.count(&key_of(name), 2..=head_dim)?.unwrap_or(head_dim);
        // Half an element more, so that the product with the width of a head is never below the number.
        let share = if width == head_dim { 1.0 } else { (width as f64 + 0.5) / head_dim as f64 };
        members.set("partial_rotary_factor", name, share.into());
    }
    if let Some(lists) = long_factors {
        return long(meta, row, members, lists);
    }
    // Files from before `rope.scaling.type` have only `rope.scale_linear`.
    let old = meta.number_from(&key_of("rope.scale_linear"), 1.0, limits::MAX_ROPE_FACTOR)?;
    let factor =
        meta.number_from(&key_of(FACTOR), 0.0, limits::MAX_ROPE_FACTOR)?.or(old).filter(|n| *n != 0.0);
    if factor.is_some_and(|factor| factor < 1.0) {
        return Err(meta.problem(&key_of(FACTOR), "must be at least 1".to_owned()));
    }
    let scaling = match (meta.text(&key_of(TYPE))?, factor) {
        (Some("none"), _) | (None, None) => return Ok(()),
        (None, _) => "linear",
        (Some(scaling), _) => scaling,
    };
    members.set_inner(PARAMETERS, "rope_type", TYPE, scaling.into());
    let factor = factor.ok_or_else(|| meta.missing(&key_of(FACTOR)));
    match scaling {
        "linear" => members.set_inner(PARAMETERS, "factor", FACTOR, factor?.into()),
        "yarn" => yarn(meta, row, members, factor?)?,
        other => {
            let found = format!("\"{}\"", shown(other));
            return Err(meta.unsupported_as(
                &key_of(TYPE),
                found,
                "supported are \"linear\", \"yarn\" and \"none\"",
            ));
        }
    }
    Ok(())
}

/// Sets the members of LongRoPE. `lists` are the factors for contexts as long as in the pretraining, and for longer ones.
fn long(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    members: &mut ConfigMembers<'_>,
    lists: &[Arc<[f32]>; 2],
) -> Result<(), CheckpointError> {
    let key_of = |name: &str| format!("{}.{name}", row.name);
    if let Some(other) = meta.text(&key_of(TYPE))?.filter(|kind| *kind != "longrope") {
        let found = format!("\"{}\"", shown(other));
        return Err(meta.unsupported_as(&key_of(TYPE), found, "beside factors of LongRoPE, \"longrope\" is"));
    }
    let original = meta.required_count(&key_of(ORIGINAL), 2..=limits::MAX_POSITIONS)?;
    let longest = meta.required_count(&key_of("context_length"), 1..=limits::MAX_POSITIONS)?;
    let mut set = |member: &str, name: &str, value: serde_json::Value| {
        members.set_inner(PARAMETERS, member, name, value);
    };
    set("rope_type", TYPE, "longrope".into());
    set("original_max_position_embeddings", ORIGINAL, original.into());
    for (member, list) in ["short_factor", "long_factor"].into_iter().zip(lists) {
        set(member, "context_length", list.to_vec().into());
    }
    // The converter writes the factor that the class computes from the two contexts.
    let usual = LongScale::usual(longest, original).attention_factor;
    let given = meta.number(&key_of(ATTENTION_FACTOR), 0.0, limits::MAX_ROPE_FACTOR)?;
    if let Some(given) = given.filter(|given| (given - usual).abs() > 1e-5) {
        set("attention_factor", ATTENTION_FACTOR, given.into());
    }
    Ok(())
}

fn yarn(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    members: &mut ConfigMembers<'_>,
    factor: f64,
) -> Result<(), CheckpointError> {
    let key_of = |name: &str| format!("{}.{name}", row.name);
    // YaRN's own factor on cos and sin is the same as none.
    let usual = 0.1 * factor.ln() + 1.0;
    for name in [ATTENTION_FACTOR, "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"] {
        let key = key_of(name);
        let is_neutral = |number: f64| {
            let is_usual = name.ends_with("yarn_attn_factor") && (number - usual).abs() < 1e-5;
            number == 1.0 || number < 0.0 || is_usual
        };
        if let Some(value) =
            meta.get(&key).filter(|value| value.number().is_none_or(|number| !is_neutral(number)))
        {
            return Err(meta.unsupported(&key, value, "1 is"));
        }
    }
    let original = match meta.count(&key_of(ORIGINAL), 1..=limits::MAX_POSITIONS)? {
        Some(original) => original,
        None => meta.required_count(&key_of("context_length"), 1..=limits::MAX_POSITIONS)?,
    };
    let mut set = |member: &str, name: &str, value: serde_json::Value| {
        members.set_inner(PARAMETERS, member, name, value);
    };
    set("factor", FACTOR, factor.into());
    set("original_max_position_embeddings", ORIGINAL, original.into());
    for (member, name) in
        [("beta_fast", "rope.scaling.yarn_beta_fast"), ("beta_slow", "rope.scaling.yarn_beta_slow")]
    {
        if let Some(turns) = meta.number(&key_of(name), 0.0, limits::MAX_ROPE_FACTOR)? {
            set(member, name, turns.into());
        }
    }
    set("truncate", TYPE, row.truncates_ramp.into());
    if row.is_latent
        && let Some(tenth) =
            meta.number_from(&key_of(LOG_KEY), 0.0, limits::MAX_ROPE_FACTOR)?.filter(|n| *n != 0.0)
    {
        // The converter writes a tenth of the second of the two scales, which are the same in all published files.
        // Metadata has 32 bits, of a number with few digits.
        let scale = (tenth * 1e7).round() / 1e6;
        set("mscale", LOG_KEY, scale.into());
        set("mscale_all_dim", LOG_KEY, scale.into());
    }
    if row.architecture == Architecture::Ministral3 {
        let [growth, log] = GROWTH_KEYS;
        if let Some(beta) =
            meta.number_from(&key_of(growth), 0.0, limits::MAX_ROPE_FACTOR)?.filter(|n| *n != 0.0)
        {
            set("llama_4_scaling_beta", growth, beta.into());
        }
        // The converter writes the second of the two scales. The first is 1 in all published files.
        if let Some(scale) =
            meta.number_from(&key_of(log), 0.0, limits::MAX_ROPE_FACTOR)?.filter(|n| *n != 0.0)
        {
            set("mscale", log, 1.0.into());
            set("mscale_all_dim", log, scale.into());
        }
    }
    Ok(())
}
