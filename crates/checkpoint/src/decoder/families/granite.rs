//! Granite 3 and 4 (dense): Llama with four multipliers. Nemotron 4 (arXiv 2402.16819): LayerNorm with 1 + weight, a
//! partial rotation, and a feed-forward network of squared ReLU without a gate.

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use crate::decoder::{Architecture, FeedActivation, ModelConfig, RotaryConfig};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::rope::Rope;

pub(super) fn read(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults::NONE)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let scale = facts.factor("attention_multiplier", 1.0)?;
    let residual_scale = facts.factor("residual_multiplier", 1.0)?;
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let mut attention = parts.attention(attention_bias, Some(0));
        attention.scale = scale;
        let feed = parts.gated(activation, mlp_bias)?;
        let mut layer = parts.pre_norm_layer(attention, feed);
        layer.residual_scale = residual_scale;
        Ok(layer)
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    let final_norm = norms.named("model.norm", facts.hidden());
    let mut model = facts.model(Architecture::Granite, layers, rotary, final_norm)?;
    model.embedding.scale = facts.factor("embedding_multiplier", 1.0)?;
    model.head.scale = 1.0 / facts.factor("logits_scaling", 1.0)?;
    Ok(model)
}

pub(super) fn nemotron(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults { positions: 4_096, ..SizeDefaults::NONE })?;
    let norms = NormStyle { plus_one: true, ..NormStyle::layer(facts.eps("norm_eps", 1e-5)?, true) };
    let activation = facts.activation("hidden_act", FeedActivation::ReluSquared)?;
    let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = parts.attention(attention_bias, Some(0));
        let feed = parts.plain(("mlp.up_proj", "mlp.down_proj"), activation, mlp_bias)?;
        Ok(parts.pre_norm_layer(attention, feed))
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let (rope, share) = Rope::read_partial(fields, 0.5)?;
    let rotary = vec![facts.rotary(rope, share)?];
    facts.model(Architecture::Nemotron, layers, rotary, norms.named("model.norm", facts.hidden()))
}
