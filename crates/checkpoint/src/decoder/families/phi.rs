//! Phi-3 and 4 (arXiv 2404.14219): Llama with fused projections and a partial rotation. Phi-1 and 2: one LayerNorm before
//! both halves in parallel, biases everywhere. GLM-4: fused gate and up, norms before and after each half, and a
//! rotation of neighbouring elements.

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults, with_neighbouring_pairs};
use crate::decoder::{
    Architecture, AttentionConfig, FeedActivation, LayerConfig, LinearConfig, MixerConfig, ModelConfig,
    SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::rope::Rope;

pub(super) fn third(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults { positions: 4_096, ..SizeDefaults::NONE })?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-5)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let window = facts.window(None)?;
    let (queries, keys) = (facts.queries().size, facts.keys().size);
    let all =
        SizeField::new(queries + 2 * keys, "(num_attention_heads + 2 × num_key_value_heads) × head_dim");
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let slice = |rows| parts.slice("self_attn.qkv_proj", all, rows, facts.hidden(), false);
        let attention = AttentionConfig {
            query: slice((0, queries)),
            key: slice((queries, keys)),
            value: slice((queries + keys, keys)),
            window,
            ..parts.attention(false, Some(0))
        };
        let feed = parts.fused_gated("mlp.gate_up_proj", activation)?;
        Ok(parts.pre_norm_layer(attention, feed))
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let (rope, share) = Rope::read_partial(fields, 1.0)?;
    let rotary = vec![facts.rotary(rope, share)?];
    facts.model(Architecture::Phi3, layers, rotary, norms.named("model.norm", facts.hidden()))
}

pub(super) fn second(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults::NONE)?;
    let norms = NormStyle::layer(facts.eps("layer_norm_eps", 1e-5)?, true);
    let activation = facts.activation("hidden_act", FeedActivation::GeluTanh)?;
    if let (Some(true), Some(value)) = (fields.flag("qk_layernorm")?, fields.get("qk_layernorm")) {
        return Err(fields.unsupported("qk_layernorm", value, "false is"));
    }
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = AttentionConfig {
            output: parts.linear("self_attn.dense", facts.hidden(), facts.queries(), true),
            ..parts.attention(true, Some(0))
        };
        Ok(LayerConfig {
            prefix: parts.name(""),
            mixer_norm: parts.norm("input_layernorm"),
            mixer: MixerConfig::Attention(Box::new(attention)),
            mixer_out_norm: None,
            feed_norm: None,
            feed: parts.plain(("mlp.fc1", "mlp.fc2"), activation, true)?,
            feed_out_norm: None,
            parallel: true,
            residual_scale: 1.0,
            tail: None,
        })
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let (rope, share) = Rope::read_partial(fields, 0.5)?;
    let rotary = vec![facts.rotary(rope, share)?];
    let final_norm = norms.named("model.final_layernorm", facts.hidden());
    let mut model = facts.model(Architecture::Phi, layers, rotary, final_norm)?;
    if model.head.linear.is_some() {
        model.head.linear = Some(LinearConfig::own("lm_head", facts.vocab(), facts.hidden(), true));
    }
    Ok(model)
}

pub(super) fn glm(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let defaults =
        SizeDefaults { kv_heads: Some(2), head_dim: Some(128), positions: 131_072, ..SizeDefaults::NONE };
    let facts = ModelFacts::read(fields, defaults)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1.562_5e-7)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(true);
    let (rope, share) = Rope::read_partial(fields, 0.5)?;
    let rotary = facts.rotary(rope, share)?;
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = AttentionConfig {
            output: parts.linear("self_attn.o_proj", facts.hidden(), facts.queries(), false),
            ..with_neighbouring_pairs(parts.attention(has_bias, Some(0)), rotary.width)
        };
        Ok(LayerConfig {
            prefix: parts.name(""),
            mixer_norm: parts.norm("input_layernorm"),
            mixer: MixerConfig::Attention(Box::new(attention)),
            mixer_out_norm: parts.norm("post_self_attn_layernorm"),
            feed_norm: parts.norm("post_attention_layernorm"),
            feed: parts.fused_gated("mlp.gate_up_proj", activation)?,
            feed_out_norm: parts.norm("post_mlp_layernorm"),
            parallel: false,
            residual_scale: 1.0,
            tail: None,
        })
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    facts.model(Architecture::Glm4, layers, vec![rotary.clone()], norms.named("model.norm", facts.hidden()))
}
