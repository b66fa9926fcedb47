//! OLMo 2 (arXiv 2501.00656): norms after each half only, and over all queries and all keys together. OLMo 3: the same
//! with windows in three of four layers, whose rotation is never scaled.

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use crate::decoder::{
    Architecture, AttentionConfig, FeedActivation, LayerConfig, LayerRotary, MixerConfig, ModelConfig,
    RotaryConfig,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::rope::{Rope, RopeScaling};

/// The window of OLMo 3's class if the file does not say one.
const WINDOW: usize = 4_096;

pub(super) fn second(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults::NONE)?;
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    let windows = vec![false; facts.layers];
    decoder(&facts, Architecture::Olmo2, (&windows, None), rotary)
}

pub(super) fn third(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults { positions: 65_536, ..SizeDefaults::NONE })?;
    let windows = facts.windowed_layers(|index| !(index + 1).is_multiple_of(4))?;
    let window = facts.window(Some(WINDOW))?;
    let (full, unscaled) = match Rope::by_layer_type(fields, "full_attention")? {
        Some(full) => {
            let unscaled = Rope { theta: full.theta, scaling: RopeScaling::None };
            (full, Rope::by_layer_type(fields, "sliding_attention")?.unwrap_or(unscaled))
        }
        None => {
            let full = Rope::read(fields)?;
            let unscaled = Rope { theta: full.theta, scaling: RopeScaling::None };
            (full, unscaled)
        }
    };
    let width = facts.head_dim;
    let rotary = vec![RotaryConfig { rope: full, width }, RotaryConfig { rope: unscaled, width }];
    decoder(&facts, Architecture::Olmo3, (&windows, window), rotary)
}

fn decoder(
    facts: &ModelFacts<'_>,
    architecture: Architecture,
    (windows, window): (&[bool], Option<usize>),
    rotary: Vec<RotaryConfig>,
) -> Result<ModelConfig, CheckpointError> {
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-5)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let has_bias = facts.fields.flag("attention_bias")?.unwrap_or(false);
    let layer = |(index, &is_window): (usize, &bool)| {
        let parts = LayerParts::new(facts, norms, "model.layers", index);
        let attention = AttentionConfig {
            query_norm: parts.whole_norm("self_attn.q_norm", facts.queries()),
            key_norm: parts.whole_norm("self_attn.k_norm", facts.keys()),
            window: window.filter(|_| is_window),
            rotary: Some(LayerRotary { table: usize::from(is_window), growth: None }),
            ..parts.attention(has_bias, None)
        };
        Ok(LayerConfig {
            prefix: parts.name(""),
            mixer_norm: None,
            mixer: MixerConfig::Attention(Box::new(attention)),
            mixer_out_norm: parts.norm("post_attention_layernorm"),
            feed_norm: None,
            feed: parts.gated(activation, false)?,
            feed_out_norm: parts.norm("post_feedforward_layernorm"),
            parallel: false,
            residual_scale: 1.0,
            tail: None,
        })
    };
    let layers = windows.iter().enumerate().map(layer).collect::<Result<_, CheckpointError>>()?;
    facts.model(architecture, layers, rotary, norms.named("model.norm", facts.hidden()))
}
