//! Mistral (Jiang and others 2023, arXiv 2310.06825): Llama with a window in all layers. Ministral 3: YaRN, and queries
//! that grow with their position.

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use crate::decoder::{Architecture, FeedActivation, LayerRotary, ModelConfig, QueryGrowth, RotaryConfig};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::Rope;

const DEFAULTS: SizeDefaults = SizeDefaults { kv_heads: Some(8), positions: 131_072, ..SizeDefaults::NONE };
/// The window of Mistral's class if the file does not say one.
const WINDOW: usize = 4_096;

pub(super) fn mistral(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, DEFAULTS)?;
    let window = facts.window(Some(WINDOW))?;
    let rope = Rope::read(fields)?;
    decoder(&facts, Architecture::Mistral, (rope, None), window)
}

pub(super) fn ministral(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, DEFAULTS)?;
    let window = facts.window(None)?;
    let rope = Rope::read(fields)?;
    // transformers takes the older spelling for the same object.
    let object = match fields.object("rope_parameters")? {
        Some(object) => Some(object),
        None => fields.object("rope_scaling")?,
    };
    let growth = match object {
        None => None,
        Some(rope) => {
            let positions = rope.count("original_max_position_embeddings", 1..=limits::MAX_POSITIONS)?;
            let beta = rope.number("llama_4_scaling_beta", 0.0, limits::MAX_ROPE_FACTOR)?;
            beta.zip(positions).map(|(beta, positions)| QueryGrowth { beta: beta as f32, positions })
        }
    };
    decoder(&facts, Architecture::Ministral3, (rope, growth), window)
}

fn decoder(
    facts: &ModelFacts<'_>,
    architecture: Architecture,
    (rope, growth): (Rope, Option<QueryGrowth>),
    window: Option<usize>,
) -> Result<ModelConfig, CheckpointError> {
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let layer = |index| {
        let parts = LayerParts::new(facts, norms, "model.layers", index);
        let mut attention = parts.attention(false, Some(0));
        attention.window = window;
        attention.rotary = Some(LayerRotary { table: 0, growth });
        let feed = parts.gated(activation, false)?;
        Ok(parts.pre_norm_layer(attention, feed))
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let rotary = vec![RotaryConfig { rope, width: facts.head_dim }];
    facts.model(architecture, layers, rotary, norms.named("model.norm", facts.hidden()))
}
