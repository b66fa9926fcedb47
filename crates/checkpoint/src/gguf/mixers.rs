//! The sizes of mixers that are not grouped-query attention, in the metadata of a GGUF file, as members of a `config.json`.
//! Must not know how tensors are stored.

use serde_json::Value as Json;

use crate::error::CheckpointError;
use crate::limits;

use super::architecture::{GgufArchitecture, RecurrentMembers, RecurrentSizes, RotationRule};
use super::members::ConfigMembers;
use super::meta::Meta;

/// The key of the number of heads with a state.
pub(super) const HEADS: &str = "ssm.time_step_rank";
/// The key of the width of all heads with a state.
pub(super) const INNER: &str = "ssm.inner_size";

/// Experts of DeepSeek V2, V2.5 and Coder V2, and their groups: all, and those that take part.
const LARGE_EXPERTS: usize = 160;
const LARGE_GROUPS: (usize, usize) = (8, 3);

/// The key that says whether Granite's models were trained with rotated heads.
pub(super) const TRAINED_KEY: &str = "rope.scaling.finetuned";

/// Sets the members of recurrent layers, and the kinds of all layers. `has` returns whether the file has a tensor.
pub(super) fn recurrent(
    meta: Meta<'_>,
    row: &GgufArchitecture,
    members: &mut ConfigMembers<'_>,
    (layers, has): (usize, &dyn Fn(&str) -> bool),
) -> Result<(), CheckpointError> {
    let Some(RecurrentMembers { kinds, marker, sizes }) = &row.recurrent else { return Ok(()) };
    let kind = |index: usize| {
        let has = |part: &str| has(&format!("blk.{index}.{part}"));
        if has(marker) {
            "linear_attention"
        } else if has("attn_q.weight") || has("attn_qkv.weight") {
            "full_attention"
        } else if has("ffn_gate_inp.weight") {
            "moe"
        } else {
            "mlp"
        }
    };
    let each: Vec<&str> = (0..layers).map(kind).collect();
    members.set(kinds, "block_count", each.into());
    let RecurrentSizes::Heads { heads, head_dim, expansion, .. } = sizes else {
        // The file gives the width of the network as it is.
        members.set("block_auto_adjust_ff_dim", "feed_forward_length", Json::Bool(false));
        return Ok(());
    };
    let key_of = |name: &str| members.key(name);
    let count = meta.required_count(&key_of(HEADS), 1..=limits::MAX_HEADS)?;
    let inner = meta.required_count(&key_of(INNER), 1..=limits::MAX_HEADS * limits::MAX_HEAD_DIM)?;
    let hidden = meta.required_count(&key_of("embedding_length"), 1..=limits::MAX_HIDDEN_SIZE)?;
    if !inner.is_multiple_of(count) {
        let problem = format!("is {inner}, which {HEADS} {count} does not divide");
        return Err(meta.problem(&key_of(INNER), problem));
    }
    members.set(heads, HEADS, count.into());
    members.set(head_dim, INNER, (inner / count).into());
    if let Some(expansion) = expansion {
        members.set(expansion, INNER, (inner / hidden).into());
    }
    if row.rotation == RotationRule::IfTrained {
        // llama.cpp's default is to rotate.
        let rotates = meta.flag(&members.key(TRAINED_KEY))?.unwrap_or(true);
        let kind = if rotates { "rope" } else { "nope" };
        members.set("position_embedding_type", TRAINED_KEY, kind.into());
    }
    Ok(())
}

/// Sets the widths of latent attention's heads. `rotary` is the width of their rotated part.
pub(super) fn latent(
    meta: Meta<'_>,
    members: &mut ConfigMembers<'_>,
    rotary: usize,
) -> Result<(), CheckpointError> {
    // Newer files give the sizes of the cached rows under the usual keys, and those of heads under keys of their own.
    let size =
        |own: &str, usual: &'static str| match meta.count(&members.key(own), 1..=limits::MAX_HEAD_DIM)? {
            Some(size) => Ok::<_, CheckpointError>(size),
            None => meta.required_count(&members.key(usual), 1..=limits::MAX_HEAD_DIM),
        };
    let key = size("attention.key_length_mla", "attention.key_length")?;
    let value = size("attention.value_length_mla", "attention.value_length")?;
    let Some(plain) = key.checked_sub(rotary).filter(|plain| *plain > 0) else {
        let problem = format!("is {key}, which is not above rope.dimension_count {rotary}");
        return Err(meta.problem(&members.key("attention.key_length_mla"), problem));
    };
    members.set("qk_nope_head_dim", "attention.key_length_mla", plain.into());
    members.set("qk_rope_head_dim", "rope.dimension_count", rotary.into());
    members.set("v_head_dim", "attention.value_length_mla", value.into());
    Ok(())
}

/// Sets how DeepSeek V2 chooses experts: from all, or from the best groups.
pub(super) fn groups_of_softmax(
    meta: Meta<'_>,
    members: &mut ConfigMembers<'_>,
) -> Result<(), CheckpointError> {
    const GROUPS: &str = "expert_group_count";
    let count = |name: &str| meta.count(&members.key(name), 0..=limits::MAX_EXPERTS);
    let (groups, experts) = (count(GROUPS)?, count("expert_count")?);
    // Files of the large models from before there were keys for groups. V2-Lite has fewer experts, and no groups.
    if groups.is_none() && experts == Some(LARGE_EXPERTS) {
        members.set("n_group", GROUPS, LARGE_GROUPS.0.into());
        members.set("topk_group", GROUPS, LARGE_GROUPS.1.into());
    }
    let has_groups = groups.map_or(experts == Some(LARGE_EXPERTS), |groups| groups > 1);
    let method = if has_groups { "group_limited_greedy" } else { "greedy" };
    members.set("topk_method", GROUPS, method.into());
    Ok(())
}
