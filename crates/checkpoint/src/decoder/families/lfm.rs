//! LFM2 and LFM2-MoE (Liquid AI 2025, arXiv 2511.23404): short convolutions with gates, and attention in some layers.

use serde_json::Value;

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use super::hybrid::{LayerKind, convolution, pre_norm_layer, taps};
use super::moe::{ExpertFacts, experts};
use crate::decoder::{
    Architecture, AttentionConfig, ExpertActivation, ExpertMixture, FeedActivation, FeedForward, GatedFeed,
    MixerConfig, ModelConfig, RotaryConfig, RoutingConfig, RowSource, ScoreKind, ShortConvConfig, SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::Rope;

const DEFAULTS: SizeDefaults =
    SizeDefaults { kv_heads: Some(8), positions: 128_000, is_tied: true, ..SizeDefaults::NONE };
/// The rotary base of these classes if the file gives none.
const THETA: f64 = 1e6;

fn facts<'a>(fields: &Fields<'a>) -> Result<ModelFacts<'a>, CheckpointError> {
    let mut facts = ModelFacts::read(fields, DEFAULTS)?;
    // The older name of `tie_word_embeddings`, which wins as in these classes.
    facts.is_tied = fields.flag("tie_embedding")?.unwrap_or(facts.is_tied);
    Ok(facts)
}

pub(super) fn second(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = facts(fields)?;
    let inner = dense_inner(&facts)?;
    let attends = match fields.get("full_attn_idxs") {
        None => None,
        Some(value) => {
            let items = value.as_array().and_then(|items| items.iter().map(Value::as_u64).collect());
            let items: Option<Vec<u64>> = items;
            Some(items.ok_or_else(|| fields.wrong("full_attn_idxs", value, "a list of layer numbers"))?)
        }
    };
    let usual = |index: usize| match &attends {
        Some(attends) if !attends.contains(&(index as u64)) => LayerKind::Recurrent,
        _ => LayerKind::Attention,
    };
    let kinds = LayerKind::of_layers(&facts, usual)?;
    model(&facts, Architecture::Lfm2, &kinds, |parts, _| gated(parts, inner))
}

/// The width of the dense networks: `intermediate_size`, or two thirds of it, rounded up to a multiple.
fn dense_inner(facts: &ModelFacts<'_>) -> Result<SizeField, CheckpointError> {
    let fields = &facts.fields;
    let older = fields.count("block_ff_dim", 1..=limits::MAX_INTERMEDIATE_SIZE)?;
    let given = match older {
        Some(inner) => SizeField::new(inner, "block_ff_dim"),
        None => facts.inner()?,
    };
    let factor = fields.number("block_ffn_dim_multiplier", 0.0, limits::MAX_ROPE_FACTOR)?.unwrap_or(1.0);
    let multiple = fields.count("block_multiple_of", 1..=limits::MAX_INTERMEDIATE_SIZE)?.unwrap_or(256);
    if !fields.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(given);
    }
    let adjusted = (factor * (2 * given.size / 3) as f64) as usize;
    match adjusted.checked_next_multiple_of(multiple).filter(|inner| *inner > 0) {
        Some(inner) if inner <= limits::MAX_INTERMEDIATE_SIZE => {
            Ok(SizeField::new(inner, "2/3 of intermediate_size, rounded up to block_multiple_of"))
        }
        _ => {
            let most = limits::MAX_INTERMEDIATE_SIZE;
            let problem = format!("{factor} makes a width that is not from 1 to {most}");
            Err(fields.problem("block_ffn_dim_multiplier", problem))
        }
    }
}

pub(super) fn second_moe(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = facts(fields)?;
    let dense_layers = fields.count("num_dense_layers", 0..=limits::MAX_LAYERS)?.unwrap_or(2);
    let inner = facts.inner()?;
    let of = ExpertFacts::read(
        &facts,
        &["num_experts", "num_local_experts"],
        super::moe::width(fields, "moe_intermediate_size")?,
        4,
    )?;
    let has_bias = fields.flag("use_expert_bias")?.unwrap_or(true);
    let renormalise = fields.flag("norm_topk_prob")?.unwrap_or(true).then_some(1e-6);
    let factor = facts.factor("routed_scaling_factor", 1.0)?;
    let kinds = LayerKind::of_layers(&facts, |_| LayerKind::Attention)?;
    let feed = |parts: &LayerParts<'_, '_>, index: usize| {
        if index < dense_layers {
            return gated(parts, inner);
        }
        let bias = RowSource::whole(parts.name("feed_forward.expert_bias"), &[of.count]);
        FeedForward::Experts(Box::new(ExpertMixture {
            chosen: of.chosen,
            inner: of.inner.size,
            activation: ExpertActivation::Usual(FeedActivation::Silu),
            router: parts.linear("feed_forward.gate", of.count, parts.facts.hidden(), false),
            routing: RoutingConfig {
                scores: ScoreKind::Sigmoid,
                bias: has_bias.then_some(bias),
                groups: None,
                renormalise,
                factor,
            },
            latent: None,
            experts: experts(parts, &of, ("feed_forward.experts", "w1", "w3", "w2")),
            shared: None,
        }))
    };
    model(&facts, Architecture::Lfm2Moe, &kinds, feed)
}

/// A gated network by the names of these files.
fn gated(parts: &LayerParts<'_, '_>, inner: SizeField) -> FeedForward {
    let hidden = parts.facts.hidden();
    FeedForward::Gated(Box::new(GatedFeed {
        inner: inner.size,
        activation: FeedActivation::Silu,
        gate: parts.linear("feed_forward.w1", inner, hidden, false),
        up: parts.linear("feed_forward.w3", inner, hidden, false),
        down: parts.linear("feed_forward.w2", hidden, inner, false),
    }))
}

fn model(
    facts: &ModelFacts<'_>,
    architecture: Architecture,
    kinds: &[LayerKind],
    feed: impl Fn(&LayerParts<'_, '_>, usize) -> FeedForward,
) -> Result<ModelConfig, CheckpointError> {
    let fields = &facts.fields;
    let norms = NormStyle::rms(facts.eps("norm_eps", 1e-5)?);
    let taps = taps(fields, "conv_L_cache", 3)?;
    let has_bias = fields.flag("conv_bias")?.unwrap_or(false);
    let hidden = facts.hidden();
    let mixer = |parts: &LayerParts<'_, '_>, kind: LayerKind| match kind {
        LayerKind::Attention => MixerConfig::Attention(Box::new(AttentionConfig {
            output: parts.linear("self_attn.out_proj", hidden, facts.queries(), false),
            query_norm: parts.head_norm("self_attn.q_layernorm"),
            key_norm: parts.head_norm("self_attn.k_layernorm"),
            ..parts.attention(false, Some(0))
        })),
        _ => MixerConfig::ShortConv(Box::new(ShortConvConfig {
            input: parts.linear(
                "conv.in_proj",
                SizeField::new(3 * hidden.size, "3 × hidden_size"),
                hidden,
                has_bias,
            ),
            convolution: convolution(parts, "conv.conv", (hidden, taps), has_bias),
            output: parts.linear("conv.out_proj", hidden, hidden, has_bias),
        })),
    };
    let layers = kinds.iter().enumerate().map(|(index, &kind)| {
        let parts = LayerParts::new(facts, norms, "model.layers", index);
        let (mixer, feed) = (mixer(&parts, kind), feed(&parts, index));
        pre_norm_layer(&parts, ("operator_norm", mixer), ("ffn_norm", feed))
    });
    let layers = layers.collect();
    let rotary = vec![RotaryConfig { rope: Rope::read_with(fields, THETA)?, width: facts.head_dim }];
    facts.model(architecture, layers, rotary, norms.named("model.embedding_norm", hidden))
}
