//! Cohere's Command (one LayerNorm without bias before both halves in parallel, neighbouring pairs rotated, scaled
//! logits; the second version with windows in three of four layers and no rotation in the others), and StableLM 2
//! (arXiv 2402.17834: LayerNorm, a quarter of each head rotated, a gated network).

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults, with_neighbouring_pairs};
use crate::decoder::{
    Architecture, AttentionConfig, FeedActivation, HeadNorm, LayerConfig, MixerConfig, ModelConfig,
    NormConfig, NormKind, RotaryConfig, RotaryPairs, RowSource, SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::Rope;

const COHERE: SizeDefaults = SizeDefaults { positions: 8_192, is_tied: true, ..SizeDefaults::NONE };
/// The factor on logits of Cohere's classes if the file does not say one.
const LOGIT_SCALE: f64 = 0.062_5;
/// The window of the second version's class if the file does not say one.
const WINDOW: usize = 4_096;

pub(super) fn cohere(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, COHERE)?;
    let has_norms = fields.flag("use_qk_norm")?.unwrap_or(false);
    let windows = vec![false; facts.layers];
    command(&facts, Architecture::Cohere, has_norms, (&windows, None), |_| true)
}

pub(super) fn cohere2(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, COHERE)?;
    let pattern = ["sliding_window_pattern", "_sliding_window_pattern"]
        .into_iter()
        .find_map(|field| fields.count(field, 1..=limits::MAX_LAYERS).transpose())
        .transpose()?
        .unwrap_or(4);
    let windows = facts.windowed_layers(|index| !(index + 1).is_multiple_of(pattern))?;
    let window = facts.window(Some(WINDOW))?;
    command(&facts, Architecture::Cohere2, false, (&windows, window), |is_window| is_window)
}

fn command(
    facts: &ModelFacts<'_>,
    architecture: Architecture,
    has_norms: bool,
    (windows, window): (&[bool], Option<usize>),
    rotates: impl Fn(bool) -> bool,
) -> Result<ModelConfig, CheckpointError> {
    let fields = &facts.fields;
    let norms = NormStyle::layer(facts.eps("layer_norm_eps", 1e-5)?, false);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let head = |parts: &LayerParts<'_, '_>, part: &str, heads: SizeField| {
        let width = SizeField::new(facts.head_dim, "head_dim");
        let weight = RowSource {
            pairs: Some(RotaryPairs { head: facts.head_dim, rotated: facts.head_dim }),
            ..RowSource::whole(parts.name(part), &[heads, width])
        };
        has_norms.then_some(HeadNorm::EachHead(NormConfig {
            kind: NormKind::Layer,
            eps: norms.eps,
            width: heads.size * width.size,
            weight: Some(weight),
            bias: None,
            plus_one: false,
        }))
    };
    let layer = |(index, &is_window): (usize, &bool)| {
        let parts = LayerParts::new(facts, norms, "model.layers", index);
        let table = rotates(is_window).then_some(0);
        let attention = AttentionConfig {
            query_norm: head(
                &parts,
                "self_attn.q_norm.weight",
                SizeField::new(facts.heads, "num_attention_heads"),
            ),
            key_norm: head(
                &parts,
                "self_attn.k_norm.weight",
                SizeField::new(facts.kv_heads, "num_key_value_heads"),
            ),
            window: window.filter(|_| is_window),
            // Also without rotation: scores do not change if queries and keys are reordered alike.
            ..with_neighbouring_pairs(parts.attention(has_bias, table), facts.head_dim)
        };
        Ok(LayerConfig {
            prefix: parts.name(""),
            mixer_norm: parts.norm("input_layernorm"),
            mixer: MixerConfig::Attention(Box::new(attention)),
            mixer_out_norm: None,
            feed_norm: None,
            feed: parts.gated(activation, false)?,
            feed_out_norm: None,
            parallel: true,
            residual_scale: 1.0,
            tail: None,
        })
    };
    let layers = windows.iter().enumerate().map(layer).collect::<Result<_, CheckpointError>>()?;
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    let mut model = facts.model(architecture, layers, rotary, norms.named("model.norm", facts.hidden()))?;
    model.head.scale = facts.factor("logit_scale", LOGIT_SCALE)?;
    Ok(model)
}

pub(super) fn stable_lm(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults { positions: 4_096, ..SizeDefaults::NONE })?;
    let norms = NormStyle::layer(facts.eps("layer_norm_eps", 1e-5)?, true);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let has_bias = fields.flag("use_qkv_bias")?.unwrap_or(false);
    let parallel = fields.flag("use_parallel_residual")?.unwrap_or(false);
    if let (Some(true), Some(value)) = (fields.flag("qk_layernorm")?, fields.get("qk_layernorm")) {
        return Err(fields.unsupported("qk_layernorm", value, "false is"));
    }
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = AttentionConfig {
            output: parts.linear("self_attn.o_proj", facts.hidden(), facts.queries(), false),
            ..parts.attention(has_bias, Some(0))
        };
        let feed = parts.gated(activation, false)?;
        let layer = parts.pre_norm_layer(attention, feed);
        Ok(match parallel {
            true => LayerConfig { feed_norm: None, parallel, ..layer },
            false => layer,
        })
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let (rope, share) = Rope::read_partial(fields, 0.25)?;
    let rotary = vec![facts.rotary(rope, share)?];
    facts.model(Architecture::StableLm, layers, rotary, norms.named("model.norm", facts.hidden()))
}
