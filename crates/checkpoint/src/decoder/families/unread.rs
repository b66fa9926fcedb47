//! Refuses fields of a configuration that change the arithmetic of some architecture and that the reader of this one did
//! not read. Must not know any architecture.

use serde_json::Value;

use crate::error::{CheckpointError, NO_SUCH_OPTION};
use crate::fields::{Fields, ReadFields};

/// Fields that change the arithmetic of some architecture, each with its neutral value. One that no code has read is
/// refused unless it is neutral.
const ARITHMETIC_FIELDS: &[(&str, NeutralValue)] = &[
    ("attn_logit_softcapping", NeutralValue::Zero),
    ("final_logit_softcapping", NeutralValue::Zero),
    ("num_experts", NeutralValue::Zero),
    ("num_local_experts", NeutralValue::Zero),
    ("n_routed_experts", NeutralValue::Zero),
    ("moe_intermediate_size", NeutralValue::Zero),
    ("embedding_multiplier", NeutralValue::One),
    ("attention_multiplier", NeutralValue::Zero),
    ("residual_multiplier", NeutralValue::One),
    ("logits_scaling", NeutralValue::One),
    ("logit_scale", NeutralValue::One),
    ("partial_rotary_factor", NeutralValue::One),
    ("rotary_pct", NeutralValue::One),
    ("clip_qkv", NeutralValue::Zero),
    ("query_pre_attn_scalar", NeutralValue::Zero),
    ("no_rope_layers", NeutralValue::Zero),
    ("use_qk_norm", NeutralValue::Zero),
    ("qk_layernorm", NeutralValue::Zero),
    ("alibi", NeutralValue::Zero),
    ("attn_output_gate", NeutralValue::Zero),
    ("attention_k_eq_v", NeutralValue::Zero),
    ("enable_moe_block", NeutralValue::Zero),
    ("hidden_size_per_layer_input", NeutralValue::Zero),
    ("num_kv_shared_layers", NeutralValue::Zero),
    ("kv_lora_rank", NeutralValue::Zero),
    ("q_lora_rank", NeutralValue::Zero),
    ("mamba_d_state", NeutralValue::Zero),
    ("ssm_state_size", NeutralValue::Zero),
    ("linear_num_value_heads", NeutralValue::Zero),
    ("conv_L_cache", NeutralValue::Zero),
    ("hybrid_override_pattern", NeutralValue::Zero),
    ("moe_latent_size", NeutralValue::Zero),
    ("use_bidirectional_attention", NeutralValue::Zero),
    ("scale_attn_by_inverse_layer_idx", NeutralValue::Zero),
    ("rope_local_base_freq", NeutralValue::Zero),
    // Scales and caps.
    ("attention_in_multiplier", NeutralValue::One),
    ("attention_out_multiplier", NeutralValue::One),
    ("attention_value_scale", NeutralValue::One),
    ("dim_model_base", NeutralValue::Zero),
    ("embedding_scale", NeutralValue::One),
    ("key_multiplier", NeutralValue::One),
    ("lm_head_multiplier", NeutralValue::One),
    ("logits_mup_width_multiplier", NeutralValue::One),
    ("logits_soft_cap", NeutralValue::Zero),
    ("mlp_gate_softcap", NeutralValue::Zero),
    ("mlp_multipliers", NeutralValue::One),
    ("mlp_up_softcap", NeutralValue::Zero),
    ("mup_enabled", NeutralValue::Zero),
    ("output_logit_soft_cap", NeutralValue::Zero),
    ("qk_l2_clip_threshold", NeutralValue::Zero),
    ("scale_depth", NeutralValue::Zero),
    ("scale_emb", NeutralValue::One),
    // Which keys a query sees, and where it is.
    ("attention_chunk_size", NeutralValue::Zero),
    ("attn_temperature_tuning", NeutralValue::Zero),
    ("index_topk", NeutralValue::Zero),
    ("is_causal", NeutralValue::One),
    ("layer_rope_theta", NeutralValue::Zero),
    ("layer_types", NeutralValue::FullAttention),
    ("prefix_lm", NeutralValue::Zero),
    ("rope_interleave", NeutralValue::Zero),
    // Where norms are, and the order of layers.
    ("apply_residual_connection_post_layernorm", NeutralValue::Zero),
    ("loop_num_passes", NeutralValue::One),
    ("n_recurrent_loops", NeutralValue::One),
    ("use_parallel_residual", NeutralValue::Zero),
    ("use_post_norm", NeutralValue::Zero),
    ("use_sandwich_norm", NeutralValue::Zero),
    // Experts.
    ("moe_num_experts", NeutralValue::Zero),
    ("moe_routed_scaling_factor", NeutralValue::One),
    ("moe_router_logit_softcapping", NeutralValue::Zero),
    ("n_shared_experts", NeutralValue::Zero),
    ("num_shared_experts", NeutralValue::Zero),
    ("route_scale", NeutralValue::One),
    ("routed_scaling_factor", NeutralValue::One),
    ("router_scaling_factor", NeutralValue::One),
    ("shared_intermediate_size", NeutralValue::Zero),
];

/// The objects of the rotary embedding, in both spellings.
const ROPE_OBJECTS: [&str; 2] = ["rope_parameters", "rope_scaling"];
/// A field of these objects: queries grow with their position.
const GROWTH: &str = "llama_4_scaling_beta";

/// A value that changes nothing.
#[derive(Clone, Copy)]
enum NeutralValue {
    /// 0, false, null or an empty list.
    Zero,
    /// 1, true, or a list of ones.
    One,
    /// A list of full attention for every layer.
    FullAttention,
}

impl NeutralValue {
    fn is(self, value: &Value) -> bool {
        let is_one = |value: &Value| value.as_f64() == Some(1.0);
        match (self, value) {
            (Self::Zero, Value::Bool(on)) => !on,
            (Self::Zero, Value::Array(items)) => items.is_empty(),
            (Self::Zero, number) => number.as_f64() == Some(0.0),
            (Self::One, Value::Bool(on)) => *on,
            (Self::One, Value::Array(items)) => items.iter().all(is_one),
            (Self::One, number) => is_one(number),
            (Self::FullAttention, Value::Array(items)) => {
                items.iter().all(|item| matches!(item.as_str(), Some("full_attention" | "attention")))
            }
            (Self::FullAttention, _) => false,
        }
    }
}

/// Refuses queries that grow with their position, for an architecture that does not read it.
pub(super) fn refuse_growth(fields: &Fields<'_>) -> Result<(), CheckpointError> {
    for object in ROPE_OBJECTS {
        let Some(Value::Object(members)) = fields.peek(object) else { continue };
        let rope = fields.within(object, members);
        if let Some(value) = rope.peek(GROWTH).filter(|value| !NeutralValue::Zero.is(value)) {
            return Err(rope.unsupported(GROWTH, value, NO_SUCH_OPTION));
        }
    }
    Ok(())
}

/// Refuses a field that changes the arithmetic and that was not read.
pub(super) fn refuse_unread(fields: &Fields<'_>, read: &ReadFields) -> Result<(), CheckpointError> {
    for (field, neutral) in ARITHMETIC_FIELDS {
        let Some(value) = fields.peek(field).filter(|_| !read.has(field)) else { continue };
        if !neutral.is(value) {
            return Err(fields.unsupported(field, value, NO_SUCH_OPTION));
        }
    }
    Ok(())
}
