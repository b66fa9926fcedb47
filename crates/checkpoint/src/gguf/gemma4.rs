//! What differs between the layers of Gemma 4, in the metadata of a GGUF file, as members of a `config.json`. Must not know
//! how tensors are stored.

use serde_json::json;

use crate::error::CheckpointError;
use crate::limits;
use crate::rope::DEFAULT_THETA;

use super::architecture::INPUT_KEY;
use super::found::FoundTensors;
use super::members::ConfigMembers;
use super::meta::Meta;

/// The factor of the frequencies of pairs that do not turn, as the converter writes it.
pub(super) const STILL: f32 = 1e30;

/// Widths of heads: of the layers without a window, and of those with one.
const FULL: &str = "attention.key_length";
const IN_WINDOW: &str = "attention.key_length_swa";

/// Sets the members. `head_dim` is the width of heads without a window.
pub(super) fn members(
    meta: Meta<'_>,
    members: &mut ConfigMembers<'_>,
    (layers, head_dim): (usize, usize),
    found: &FoundTensors<'_>,
) -> Result<(), CheckpointError> {
    let key = |members: &ConfigMembers<'_>, name: &str| members.key(name);
    let narrow = meta.count(&key(members, IN_WINDOW), 2..=limits::MAX_HEAD_DIM)?.unwrap_or(head_dim);
    members.set("global_head_dim", FULL, head_dim.into());
    members.set("head_dim", IN_WINDOW, narrow.into());
    for (own, width) in [("attention.value_length_swa", narrow), ("rope.dimension_count_swa", narrow)] {
        let own = key(members, own);
        match (meta.count(&own, 0..=usize::MAX)?, meta.get(&own)) {
            (Some(other), Some(value)) if other != width => {
                return Err(meta.unsupported(&own, value, &format!("the width of a head, {width}, is")));
            }
            _ => {}
        }
    }
    const READERS: &str = "attention.shared_kv_layers";
    let readers = meta.count(&key(members, READERS), 0..=layers.saturating_sub(1))?.unwrap_or(0);
    members.set("num_kv_shared_layers", READERS, readers.into());
    // Layers that read the keys and values of others need none of their own.
    let shares = (0..layers - readers).any(|index| !(found.has)(&format!("blk.{index}.attn_v.weight")));
    members.set_flag("attention_k_eq_v", "attn_v.weight".to_owned(), shares);
    heads(meta, members, layers)?;
    inner(meta, members, layers)?;
    let width = meta.count(&key(members, INPUT_KEY), 0..=limits::MAX_HEAD_DIM)?.unwrap_or(0);
    members.set("hidden_size_per_layer_input", INPUT_KEY, width.into());
    members.set("vocab_size_per_layer_input", INPUT_KEY, found.input_words.unwrap_or(0).into());
    rotary(meta, members, head_dim, found)
}

/// Sets the numbers of key heads.
fn heads(meta: Meta<'_>, members: &mut ConfigMembers<'_>, layers: usize) -> Result<(), CheckpointError> {
    const HEADS: &str = "attention.head_count_kv";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let each = meta.each_count(&members.key(HEADS), layers, 1..=limits::MAX_HEADS)?;
    let Some(each) = each else { return Ok(()) };
    // The last layer never has a window.
    if let Some(last) = each.last() {
        members.set("num_global_key_value_heads", HEADS, (*last).into());
    }
    let windows = meta.windowed_layers(&members.key(PATTERN), layers)?;
    let first = windows.and_then(|windows| windows.iter().position(|is_window| *is_window));
    if let Some(in_window) = first.and_then(|index| each.get(index)) {
        members.set("num_key_value_heads", HEADS, (*in_window).into());
    }
    Ok(())
}

/// Sets the width of the networks, which may be twice as wide in the layers that read the keys of others.
fn inner(meta: Meta<'_>, members: &mut ConfigMembers<'_>, layers: usize) -> Result<(), CheckpointError> {
    const INNER: &str = "feed_forward_length";
    let widths = 1..=limits::MAX_INTERMEDIATE_SIZE;
    let Some(each) = meta.each_count(&members.key(INNER), layers, widths)? else { return Ok(()) };
    let (first, last) = (each.first().copied().unwrap_or(0), each.last().copied().unwrap_or(0));
    members.set("intermediate_size", INNER, first.into());
    members.set("use_double_wide_mlp", INNER, (last != first).into());
    Ok(())
}

/// Sets the two rotary embeddings. The first pairs of the heads without a window turn, the others stay.
fn rotary(
    meta: Meta<'_>,
    members: &mut ConfigMembers<'_>,
    head_dim: usize,
    found: &FoundTensors<'_>,
) -> Result<(), CheckpointError> {
    const BASE: &str = "rope.freq_base";
    const BASE_IN_WINDOW: &str = "rope.freq_base_swa";
    let base = |name: &str| meta.number(&members.key(name), 0.0, limits::MAX_ROPE_THETA);
    let (full, in_window) =
        (base(BASE)?.unwrap_or(DEFAULT_THETA), base(BASE_IN_WINDOW)?.unwrap_or(DEFAULT_THETA));
    let share = match &found.rope_factors {
        None => 1.0,
        Some(factors) => {
            let turning = factors.iter().take_while(|factor| **factor == 1.0).count();
            // A quarter of a pair more, so that the product with the width of a head is never below the number.
            (2.0 * turning as f64 + 0.5) / head_dim as f64
        }
    };
    let full = json!({ "rope_type": "proportional", "rope_theta": full, "partial_rotary_factor": share });
    members.set_inner("rope_parameters", "full_attention", BASE, full);
    let in_window = json!({ "rope_type": "default", "rope_theta": in_window });
    members.set_inner("rope_parameters", "sliding_attention", BASE_IN_WINDOW, in_window);
    Ok(())
}
