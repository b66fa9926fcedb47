//! GGUF metadata → [`ModelConfig`], by way of the members of a `config.json`, so that the layers of an architecture are
//! described once. Every key that would change the output and is not supported is refused by name. Must not know where
//! tensors are.

use std::ops::Range;

use serde_json::Value as Json;

use crate::decoder::{Architecture, ModelConfig, UniformConfig, families};
use crate::error::{CheckpointError, shown, with_needs};
use crate::generation::GenerationDefaults;
use crate::limits;
use crate::rope::RopeScaling;

use super::architecture::{ExpertMembers, GgufArchitecture, RotationRule, WindowRule, supported};
use super::found::FoundTensors;
use super::gemma4;
use super::members::ConfigMembers;
use super::meta::Meta;
use super::mixers;
use super::rotary;
use super::value::Value;

/// The key of the architecture.
pub(crate) const ARCHITECTURE_KEY: &str = "general.architecture";

/// The key of the number of layers that only draft tokens.
const DRAFT_KEY: &str = "nextn_predict_layers";

/// The key of the number of elements of a head that are rotated.
const ROTATED_KEY: &str = "rope.dimension_count";

/// The keys of sizes, and their usual members.
const SIZES: [(&str, &str); 5] = [
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count", "num_attention_heads"),
    (INNER_KEY, "intermediate_size"),
];

/// The key of the width of the feed-forward network.
const INNER_KEY: &str = "feed_forward_length";

/// Keys that change the arithmetic of some architecture, their neutral values, and what is supported if the key has no
/// member.
const ARITHMETIC_KEYS: [(&str, f64, &str); 16] = [
    ("expert_weights_scale", 1.0, "1 is"),
    ("expert_group_count", 1.0, "one group is"),
    ("expert_shared_count", 0.0, "none is"),
    ("leading_dense_block_count", 0.0, "0 is"),
    ("logit_scale", 1.0, "1 is"),
    ("residual_scale", 1.0, "1 is"),
    ("embedding_scale", 1.0, "1 is"),
    ("attn_logit_softcapping", 0.0, "none is"),
    ("final_logit_softcapping", 0.0, "none is"),
    ("router_logit_softcapping", 0.0, "none is"),
    ("attention.clamp_kqv", 0.0, "none is"),
    ("attention.max_alibi_bias", 0.0, "none is"),
    ("attention.temperature_length", 0.0, "none is"),
    ("attention.temperature_scale", 0.0, "none is"),
    ("rope.scaling.yarn_log_multiplier", 0.0, "0 is"),
    ("embedding_length_per_layer_input", 0.0, "none is"),
];

/// Reads the model's architecture.
pub(super) fn architecture(meta: Meta<'_>) -> Result<&'static GgufArchitecture, CheckpointError> {
    match meta.get("general.type") {
        Some(value @ Value::Text(kind)) if kind != "model" => {
            return Err(meta.unsupported("general.type", value, "a file of type \"model\" is"));
        }
        _ => {}
    }
    match meta.text(ARCHITECTURE_KEY)? {
        None => Err(meta.missing(ARCHITECTURE_KEY)),
        Some(name) => GgufArchitecture::named(name).ok_or_else(|| {
            let found = with_needs(&format!("\"{}\"", shown(name)), name);
            meta.unsupported_as(ARCHITECTURE_KEY, found, &supported())
        }),
    }
}

/// Reads which layers only draft tokens. They follow the others.
pub(super) fn drafts(meta: Meta<'_>, row: &GgufArchitecture) -> Result<Range<usize>, CheckpointError> {
    let all = meta.required_count(&key(row, "block_count"), 1..=limits::MAX_LAYERS)?;
    let drafts = meta.count(&key(row, DRAFT_KEY), 0..=all - 1)?.unwrap_or(0);
    Ok(all - drafts..all)
}

/// Reads the width of a head.
pub(super) fn head_dim(meta: Meta<'_>, row: &GgufArchitecture) -> Result<usize, CheckpointError> {
    let key_of = |name| key(row, name);
    let hidden = meta.required_count(&key_of("embedding_length"), 1..=limits::MAX_HIDDEN_SIZE)?;
    let heads = heads(meta, row)?;
    let widths = 2..=limits::MAX_HEAD_DIM;
    // In files with latents, other keys may have the width of a cached row.
    let length = key_of(if row.is_latent { ROTATED_KEY } else { "attention.key_length" });
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
    let is_whole = matches!(row.rotation, RotationRule::Whole | RotationRule::IfTrained);
    let of_rotation = Some(ROTATED_KEY).filter(|_| is_whole);
    let of_values = Some("attention.value_length").filter(|_| !row.is_latent);
    for name in of_rotation.into_iter().chain(of_values) {
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

/// Reads the whole configuration. `ids` are those of the beginning and the ends of a sequence.
pub(super) fn read(
    meta: Meta<'_>,
    row: &'static GgufArchitecture,
    found: &FoundTensors<'_>,
    ids: (Option<u32>, Vec<u32>),
) -> Result<ModelConfig, CheckpointError> {
    let (layers, head_dim) = (drafts(meta, row)?.start, head_dim(meta, row)?);
    refuse_unsupported(meta, row, head_dim)?;
    let mut members = ConfigMembers::new(meta, row.name);
    sizes(meta, row, &mut members, (layers, head_dim))?;
    members.set("vocab_size", "vocab_size", found.vocab_size.into());
    for (member, name) in row.flags {
        let tensors = (0..layers).map(|index| format!("blk.{index}.{name}"));
        let found = tensors.clone().find(|tensor| (found.has)(tensor));
        let has = found.is_some();
        members.set_flag(member, found.or(tensors.clone().next()).unwrap_or_default(), has);
    }
    members.set_flag("tie_word_embeddings", "output.weight".to_owned(), !(found.has)("output.weight"));
    for (name, member) in row.keys {
        members.copy_unless_zero(member, name)?;
    }
    if row.reads("use_parallel_residual") && meta.get(&key(row, "use_parallel_residual")).is_none() {
        let has_norm = (found.has)("blk.0.ffn_norm.weight");
        members.set_flag("use_parallel_residual", "blk.0.ffn_norm.weight".to_owned(), !has_norm);
    }
    scales(meta, row, &mut members, (layers, head_dim))?;
    let has_window = window(meta, row, &mut members, layers)?;
    let has_experts = experts(meta, row, &mut members, (layers, found))?;
    if row.is_latent {
        mixers::latent(meta, &mut members, head_dim)?;
    }
    mixers::recurrent(meta, row, &mut members, (layers, found.has))?;
    if row.architecture == Architecture::Gemma4 {
        gemma4::members(meta, &mut members, (layers, head_dim), found)?;
        members.set("enable_moe_block", "expert_count", has_experts.into());
    } else {
        rotary::members(meta, row, &mut members, (head_dim, &found.long_factors))?;
    }
    let is_softmax = gating(meta, row)? == Some(1);
    let architecture = match (has_experts, has_window) {
        (true, _) if is_softmax => row.with_softmax.or(row.with_experts).unwrap_or(row.architecture),
        (true, _) => row.with_experts.unwrap_or(row.architecture),
        (false, true) => row.with_window.unwrap_or(row.architecture),
        (false, false) => row.architecture,
    };
    if Some(architecture) == row.with_softmax {
        mixers::groups_of_softmax(meta, &mut members)?;
    }
    let config = families::read(architecture, members.values()).map_err(|error| members.by_key(error))?;
    completed(meta, row, config, (found, ids))
}

/// Copies the sizes.
fn sizes(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    members: &mut ConfigMembers<'_>,
    (layers, head_dim): (usize, usize),
) -> Result<(), CheckpointError> {
    // Layers of hybrid models may have no attention or no network, and those of Gemma 4 have two kinds of heads.
    let count = |key: &str| match (&row.recurrent, row.architecture) {
        (Some(_), _) => meta.layer_count(key, 0..=usize::MAX),
        (None, Architecture::Gemma4) => {
            Ok(meta.each_count(key, layers, 0..=usize::MAX)?.and_then(|each| each.first().copied()))
        }
        _ => meta.uniform_count(key, 0..=usize::MAX),
    };
    let has_other_width =
        row.experts.as_ref().is_some_and(|members| members.width == Some("moe_intermediate_size"));
    for (name, member) in SIZES {
        let key = key(row, name);
        // The class's own limits are tighter. Some converters repeat a size for each layer.
        let number = match count(&key)? {
            Some(_) if name == "block_count" => layers,
            Some(number) => number,
            None if name == INNER_KEY && has_other_width => continue,
            None => return Err(meta.missing(&key)),
        };
        members.set(row.member(member), name, number.into());
    }
    let kv_key = key(row, "attention.head_count_kv");
    let kv_heads = match count(&kv_key)? {
        Some(kv_heads) => kv_heads,
        None => heads(meta, row)?,
    };
    members.set("num_key_value_heads", "attention.head_count_kv", kv_heads.into());
    members.set("head_dim", "attention.key_length", head_dim.into());
    let (eps, member) = row.eps;
    match members.copy(member, eps)? {
        true => Ok(()),
        false => Err(meta.missing(&key(row, eps))),
    }
}

/// Sets the factors on scores that the metadata says otherwise than `config.json`, or not at all.
fn scales(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    members: &mut ConfigMembers<'_>,
    (layers, head_dim): (usize, usize),
) -> Result<(), CheckpointError> {
    const SCALE: &str = "attention.scale";
    let key = key(row, SCALE);
    let given = meta.number_from(&key, 0.0, limits::MAX_ROPE_FACTOR)?.filter(|scale| *scale != 0.0);
    if let Some(largest) = row.query_scalar {
        let usual = match layers == largest {
            true => {
                meta.required_count(&self::key(row, "embedding_length"), 1..=limits::MAX_HIDDEN_SIZE)?
                    / heads(meta, row)?
            }
            false => head_dim,
        };
        // Metadata has 32 bits, so that the square is off by some 1e-7 of its value.
        let squared = given.map_or(usual as f64, |scale| 1.0 / (scale * scale));
        let whole = squared.round();
        let scalar = if (squared - whole).abs() <= 1e-6 * squared { whole } else { squared };
        members.set("query_pre_attn_scalar", SCALE, scalar.into());
    } else if row.reads(SCALE) && given.is_none() {
        // llama.cpp's default. The class has another.
        members.set("attention_multiplier", SCALE, (1.0 / (head_dim as f64).sqrt()).into());
    }
    Ok(())
}

/// Sets the sliding window and the layers that have it. Returns whether some position could reach it.
fn window(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    members: &mut ConfigMembers<'_>,
    layers: usize,
) -> Result<bool, CheckpointError> {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let key_of = |name| key(row, name);
    let max_positions = meta.required_count(&key_of("context_length"), 1..=limits::MAX_POSITIONS)?;
    let given = meta.count(&key_of(WINDOW), 0..=usize::MAX)?;
    let is_reached = given.is_some_and(|window| (1..max_positions).contains(&window));
    match (row.window, given, meta.get(&key_of(WINDOW))) {
        (WindowRule::Refused, _, Some(value)) if is_reached => {
            return Err(meta.unsupported(&key_of(WINDOW), value, "full attention in every layer is"));
        }
        (WindowRule::Refused, ..) => return Ok(false),
        (WindowRule::SomeLayersOrClass, None, _) => {}
        (_, given, _) => {
            let window = given.filter(|window| *window > 0).map_or(Json::Null, Json::from);
            members.set("sliding_window", WINDOW, window);
        }
    }
    if let Some(windowed) = meta.windowed_layers(&key_of(PATTERN), layers)? {
        let has_full = windowed.contains(&false);
        match (row.window, meta.get(&key_of(PATTERN))) {
            (WindowRule::AllLayers, Some(value)) if is_reached && has_full => {
                return Err(meta.unsupported(&key_of(PATTERN), value, "a window in every layer is"));
            }
            (WindowRule::AllLayers, _) => {}
            _ => {
                let kinds = windowed.into_iter().map(|is_window| match is_window {
                    true => "sliding_attention",
                    false => "full_attention",
                });
                members.set("layer_types", PATTERN, kinds.collect::<Vec<_>>().into());
            }
        }
    }
    // The layers of Olmo 3 with a window differ from others also if it is never reached.
    Ok(match row.architecture {
        Architecture::Llama => is_reached,
        _ => given.is_some_and(|window| window > 0),
    })
}

/// Sets the sizes of the experts. Returns whether there are any.
fn experts(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    members: &mut ConfigMembers<'_>,
    (layers, found): (usize, &FoundTensors<'_>),
) -> Result<bool, CheckpointError> {
    const COUNT: &str = "expert_count";
    const USED: &str = "expert_used_count";
    let key_of = |name| key(row, name);
    let count = meta.count(&key_of(COUNT), 0..=limits::MAX_EXPERTS)?.filter(|count| *count > 0);
    let Some(expert_members) = &row.experts else {
        return match (count, meta.get(&key_of(COUNT))) {
            (Some(_), Some(value)) => {
                Err(meta.unsupported(&key_of(COUNT), value, "a dense model, without experts, is"))
            }
            _ => Ok(false),
        };
    };
    let ExpertMembers { count: count_member, is_optional, width, shared, renormalises, .. } = expert_members;
    // The width of the feed-forward network, which was read before.
    let whole = members.values().get(row.member("intermediate_size")).and_then(Json::as_u64).unwrap_or(0);
    let whole = usize::try_from(whole).unwrap_or(0);
    const SHARED: &str = "expert_shared_feed_forward_length";
    let given = meta.count(&key_of(SHARED), 0..=limits::MAX_INTERMEDIATE_SIZE)?.filter(|n| *n > 0);
    if let Some(member) = shared {
        members.set(member, SHARED, given.unwrap_or(whole).into());
    }
    // Only a class of its own has no experts, or one that may have none.
    let Some(count) = count else {
        if *is_optional {
            members.set(count_member, COUNT, 0.into());
        }
        return match *is_optional || row.with_experts.is_some() {
            true => Ok(false),
            false => Err(meta.missing(&key_of(COUNT))),
        };
    };
    members.set(count_member, COUNT, count.into());
    let used = meta.required_count(&key_of(USED), 1..=count)?;
    members.set(row.member("num_experts_per_tok"), USED, used.into());
    let width_key = "expert_feed_forward_length";
    let usual = if *width == Some("intermediate_size") { whole } else { whole / used };
    let given = meta.count(&key_of(width_key), 0..=limits::MAX_INTERMEDIATE_SIZE)?.filter(|n| *n > 0);
    if let Some(member) = width {
        members.set(member, width_key, given.unwrap_or(usual).into());
    }
    routing(meta, expert_members, members, count)?;
    if let Some(usual) = renormalises {
        let given = meta.flag(&key_of("expert_weights_norm"))?;
        members.set("norm_topk_prob", "expert_weights_norm", given.unwrap_or(*usual).into());
    }
    if *count_member == "num_experts" {
        let is_dense = |index: &usize| !(found.has)(&format!("blk.{index}.ffn_gate_inp.weight"));
        let dense: Vec<usize> = (0..layers).filter(is_dense).collect();
        if dense.len() == layers {
            return Err(
                meta.problem(&key_of(COUNT), format!("is {count}, but no layer has a ffn_gate_inp.weight"))
            );
        }
        members.set("mlp_only_layers", COUNT, dense.into());
    }
    Ok(true)
}

/// Sets how many networks every row passes, how many layers have no experts, and how experts are chosen.
fn routing(
    meta: Meta<'_>,
    of: &ExpertMembers,
    members: &mut ConfigMembers<'_>,
    count: usize,
) -> Result<(), CheckpointError> {
    const GROUPS: &str = "expert_group_count";
    const FACTOR: &str = "expert_weights_scale";
    for (member, name, most) in [
        (of.shared_count, "expert_shared_count", limits::MAX_EXPERTS),
        (of.dense_layers, "leading_dense_block_count", limits::MAX_LAYERS),
    ] {
        if let Some(member) = member {
            let given = meta.count(&members.key(name), 0..=most)?;
            members.set(member, name, given.unwrap_or(0).into());
        }
    }
    if let Some(member) = of.factor {
        let given = meta.number_from(&members.key(FACTOR), 0.0, limits::MAX_ROPE_FACTOR)?;
        // Metadata has 32 bits, of a number with few digits.
        let digits = |factor: f64| (factor * 1e6).round() / 1e6;
        let factor = given.filter(|factor| *factor != 0.0).map_or(1.0, digits);
        members.set(member, FACTOR, factor.into());
    }
    if of.has_groups {
        let groups = meta.count(&members.key(GROUPS), 0..=count)?.filter(|groups| *groups > 0);
        let kept = meta.count(&members.key("expert_group_used_count"), 0..=count)?.filter(|kept| *kept > 0);
        // Files of DeepSeek V3 and R1 from before there were keys for groups. Its class has the numbers.
        let is_class = groups.is_none() && count == 256;
        if !is_class {
            let groups = groups.unwrap_or(1);
            members.set("n_group", GROUPS, groups.into());
            members.set("topk_group", "expert_group_used_count", kept.unwrap_or(groups).into());
        }
    }
    Ok(())
}

/// Reads the number of the function that turns a router's logits into scores. `None` for a model without experts.
fn gating(meta: Meta<'_>, row: &GgufArchitecture) -> Result<Option<usize>, CheckpointError> {
    let key = key(row, "expert_gating_func");
    let given = meta.count(&key, 0..=usize::MAX)?.filter(|number| *number != 0);
    match (given, meta.get(&key)) {
        (Some(other), Some(value)) if !row.gating.contains(&other) => {
            let known: Vec<String> = row.gating.iter().map(usize::to_string).collect();
            let ending = if known.len() > 1 { "are" } else { "is" };
            Err(meta.unsupported(&key, value, &format!("{} {ending}", known.join(" and "))))
        }
        (given, _) => Ok(given.or(row.gating.first().copied()).filter(|_| row.experts.is_some())),
    }
}

/// Adds what the members of a `config.json` cannot say.
fn completed(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    mut config: ModelConfig,
    (found, (bos, eos)): (&FoundTensors<'_>, (Option<u32>, Vec<u32>)),
) -> Result<ModelConfig, CheckpointError> {
    if let Some(factors) = found.rope_factors.as_ref().filter(|_| row.architecture != Architecture::Gemma4) {
        let type_key = key(row, "rope.scaling.type");
        match config.rotary.as_mut_slice() {
            [only] if only.rope.scaling == RopeScaling::None => {
                only.rope.scaling = RopeScaling::Divided { factors: factors.clone() };
            }
            [_] => {
                let problem =
                    "is present beside rope_freqs.weight; only one of the two is supported".to_owned();
                return Err(meta.problem(&type_key, problem));
            }
            _ => {
                let problem = format!("rope_freqs.weight is not supported for {}", row.name);
                return Err(meta.problem(ARCHITECTURE_KEY, problem));
            }
        }
    }
    (config.bos, config.eos) = (bos, eos);
    let Some(uniform) = config.uniform.take() else { return Ok(config) };
    // Files of these architectures may have some of the biases only.
    let has = |part: &str| (found.has)(&format!("blk.0.{part}.bias"));
    Ok(UniformConfig {
        qkv_bias: has("attn_q") || row.architecture == Architecture::Qwen2,
        o_bias: has("attn_output"),
        mlp_bias: has("ffn_gate"),
        rope: config.rotary.first().map_or(uniform.rope, |rotary| rotary.rope.clone()),
        bos: config.bos,
        eos: config.eos,
        ..uniform
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

fn key(row: &GgufArchitecture, name: &str) -> String {
    format!("{}.{name}", row.name)
}

fn heads(meta: Meta<'_>, row: &GgufArchitecture) -> Result<usize, CheckpointError> {
    let key = key(row, "attention.head_count");
    meta.uniform_count(&key, 1..=limits::MAX_HEADS)?.ok_or_else(|| meta.missing(&key))
}

/// Refuses settings that would change the model's output and are not implemented.
fn refuse_unsupported(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    head_dim: usize,
) -> Result<(), CheckpointError> {
    let usual =
        ("attention.scale", 1.0 / (head_dim as f64).sqrt(), "one over the root of the head's width is");
    // Neutral values are accepted, because some converters write them out. So is 0 for every key.
    for (name, neutral, supported) in ARITHMETIC_KEYS.into_iter().chain([usual]) {
        let key = key(row, name);
        let has_member = row.reads(name)
            || (name == "attention.scale" && row.query_scalar.is_some())
            || (row.architecture == Architecture::Ministral3 && rotary::GROWTH_KEYS.contains(&name))
            || (row.is_latent && name == rotary::LOG_KEY);
        if let Some(value) = meta.get(&key).filter(|_| !has_member)
            && value.number().is_none_or(|number| number != 0.0 && (number - neutral).abs() > 1e-6)
        {
            return Err(meta.unsupported(&key, value, supported));
        }
    }
    gating(meta, row)?;
    let sections = key(row, "rope.dimension_sections");
    // The converter reorders the queries and keys of GLM-4.1V, which other files of `glm4` have not.
    if let Some(value) = meta.get(&sections).filter(|_| row.architecture == Architecture::Glm4) {
        return Err(meta.unsupported(
            &sections,
            value,
            "a file without sections is, or a directory of GLM-4.1V",
        ));
    }
    let causal = key(row, "attention.causal");
    match (meta.flag(&causal)?, meta.get(&causal)) {
        (Some(false), Some(value)) => Err(meta.unsupported(&causal, value, "causal attention is")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::gguf::value::Numbers;

    #[test]
    fn windows_are_given_by_layer_or_by_group() {
        let list = |numbers: &[i32]| Value::Numbers(Numbers::of_i32(numbers));
        for (value, expected) in [
            (list(&[1, 0, 1, 0]), Some(vec![true, false, true, false])),
            (list(&[1, 0]), None),
            (list(&[2, 0, 1, 0]), None),
            (Value::Integer(0), Some(vec![true; 4])),
            (Value::Integer(1), Some(vec![false; 4])),
            (Value::Integer(3), Some(vec![true, true, false, true])),
            (Value::Integer(-1), None),
            (Value::Text("3".to_owned()), None),
        ] {
            let values = BTreeMap::from([("k".to_owned(), value.clone())]);
            let windowed = Meta::new("m.gguf", &values).windowed_layers("k", 4);
            assert_eq!(windowed.ok().flatten(), expected, "{value:?}");
        }
    }
}
