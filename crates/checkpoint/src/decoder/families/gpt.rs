//! GPT-2 (Radford and others 2019): learned positions, LayerNorm, projections that are stored transposed. GPT-NeoX
//! (arXiv 2204.06745): both halves in parallel, a rotation of a quarter of each head, queries, keys and values fused head
//! by head. StarCoder 2 (arXiv 2402.19173): GPT-2's network with rotation, grouped queries and a window.

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults, SizeNames};
use crate::decoder::{
    Architecture, AttentionConfig, FeedActivation, FeedForward, LayerConfig, LinearConfig, MixerConfig,
    ModelConfig, PlainFeed, RotaryConfig, RowPick, RowSource, SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::rope::Rope;

const GPT2_NAMES: SizeNames = SizeNames {
    hidden: "n_embd",
    layers: "n_layer",
    heads: "n_head",
    inner: "n_inner",
    positions: "n_positions",
};

pub(super) fn second(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let defaults = SizeDefaults {
        hidden: Some(768),
        layers: Some(12),
        heads: Some(12),
        vocab: Some(50_257),
        positions: 1_024,
        is_tied: true,
        ..SizeDefaults::NONE
    };
    let facts = ModelFacts::read_as(fields, defaults, GPT2_NAMES)?;
    let norms = NormStyle::layer(facts.eps("layer_norm_epsilon", 1e-5)?, true);
    let activation = facts.activation("activation_function", FeedActivation::GeluTanh)?;
    let (hidden, width) = (facts.hidden(), facts.hidden);
    let inner = if facts.inner == 0 { 4 * width } else { facts.inner };
    let scale = match fields.flag("scale_attn_weights")?.unwrap_or(true) {
        true => facts.usual_scale(),
        false => 1.0,
    };
    let by_layer = fields.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    let layer = |index: usize| {
        let parts = LayerParts::new(&facts, norms, "transformer.h", index);
        let fused = SizeField::new(3 * width, "3 × n_embd");
        let columns = |first| transposed(&parts, "attn.c_attn", hidden, fused, (first, width));
        let attention = AttentionConfig {
            query: columns(0),
            key: columns(width),
            value: columns(2 * width),
            output: transposed(&parts, "attn.c_proj", hidden, hidden, (0, width)),
            scale: if by_layer { scale / (index + 1) as f32 } else { scale },
            ..parts.attention(true, None)
        };
        let inner = SizeField::new(inner, "n_inner");
        LayerConfig {
            prefix: parts.name(""),
            mixer_norm: parts.norm("ln_1"),
            mixer: MixerConfig::Attention(Box::new(attention)),
            mixer_out_norm: None,
            feed_norm: parts.norm("ln_2"),
            feed: FeedForward::Plain(Box::new(PlainFeed {
                inner: inner.size,
                activation,
                up: transposed(&parts, "mlp.c_fc", hidden, inner, (0, inner.size)),
                down: transposed(&parts, "mlp.c_proj", inner, hidden, (0, width)),
            })),
            feed_out_norm: None,
            parallel: false,
            residual_scale: 1.0,
            tail: None,
        }
    };
    let layers = (0..facts.layers).map(layer).collect();
    let final_norm = norms.named("transformer.ln_f", hidden);
    let mut model = facts.model(Architecture::Gpt2, layers, Vec::new(), final_norm)?;
    let positions = SizeField::new(facts.max_positions, "n_positions");
    model.embedding.words = RowSource::whole("transformer.wte.weight".to_owned(), &[facts.vocab(), hidden]);
    model.embedding.positions =
        Some(RowSource::whole("transformer.wpe.weight".to_owned(), &[positions, hidden]));
    Ok(model)
}

/// The outputs `first..first + count` of a dense layer that is stored as inputs × outputs.
fn transposed(
    parts: &LayerParts<'_, '_>,
    part: &str,
    inputs: SizeField,
    all: SizeField,
    (first, count): (usize, usize),
) -> LinearConfig {
    let name = parts.name(part);
    LinearConfig {
        outputs: count,
        inputs: inputs.size,
        weight: RowSource {
            pick: RowPick::Transposed { first, step: 1, count },
            ..RowSource::whole(format!("{name}.weight"), &[inputs, all])
        },
        bias: Some(RowSource {
            pick: RowPick::Grouped { group: all.size, first, count },
            ..RowSource::whole(format!("{name}.bias"), &[all])
        }),
    }
}

pub(super) fn neo_x(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults::NONE)?;
    let norms = NormStyle::layer(facts.eps("layer_norm_eps", 1e-5)?, true);
    let activation = facts.activation("hidden_act", FeedActivation::Gelu)?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(true);
    let parallel = fields.flag("use_parallel_residual")?.unwrap_or(true);
    let (hidden, head_dim) = (facts.hidden(), facts.head_dim);
    let all = SizeField::new(3 * facts.hidden, "3 × hidden_size");
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "gpt_neox.layers", index);
        let heads = |first| {
            let group = (3 * head_dim, first * head_dim, head_dim);
            parts.grouped("attention.query_key_value", all, group, hidden, has_bias)
        };
        let attention = AttentionConfig {
            query: heads(0),
            key: heads(1),
            value: heads(2),
            output: parts.linear("attention.dense", hidden, facts.queries(), has_bias),
            ..parts.attention(has_bias, Some(0))
        };
        Ok(LayerConfig {
            prefix: parts.name(""),
            mixer_norm: parts.norm("input_layernorm"),
            mixer: MixerConfig::Attention(Box::new(attention)),
            mixer_out_norm: None,
            feed_norm: parts.norm("post_attention_layernorm"),
            feed: parts.plain(("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), activation, true)?,
            feed_out_norm: None,
            parallel,
            residual_scale: 1.0,
            tail: None,
        })
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let share = fields.number("rotary_pct", 0.0, 1.0)?.unwrap_or(0.25);
    let base = fields.number("rotary_emb_base", 0.0, crate::limits::MAX_ROPE_THETA)?;
    let (mut rope, share) = Rope::read_partial(fields, share)?;
    if let Some(theta) = base {
        rope.theta = theta;
    }
    let rotary = vec![facts.rotary(rope, share)?];
    let final_norm = norms.named("gpt_neox.final_layer_norm", hidden);
    let mut model = facts.model(Architecture::GptNeoX, layers, rotary, final_norm)?;
    model.embedding.words = RowSource::whole("gpt_neox.embed_in.weight".to_owned(), &[facts.vocab(), hidden]);
    if model.head.linear.is_some() {
        model.head.linear = Some(LinearConfig::own("embed_out", facts.vocab(), hidden, false));
    }
    Ok(model)
}

pub(super) fn star_coder(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(
        fields,
        SizeDefaults { kv_heads: Some(2), positions: 4_096, is_tied: true, ..SizeDefaults::NONE },
    )?;
    let norms = NormStyle::layer(facts.eps("norm_epsilon", 1e-5)?, true);
    let activation = facts.activation("hidden_act", FeedActivation::GeluTanh)?;
    let has_bias = fields.flag("use_bias")?.unwrap_or(true);
    let window = facts.window(None)?;
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = AttentionConfig { window, ..parts.attention(has_bias, Some(0)) };
        let feed = parts.plain(("mlp.c_fc", "mlp.c_proj"), activation, has_bias)?;
        Ok(parts.pre_norm_layer(attention, feed))
    };
    let layers = (0..facts.layers).map(layer).collect::<Result<_, CheckpointError>>()?;
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    facts.model(Architecture::StarCoder2, layers, rotary, norms.named("model.norm", facts.hidden()))
}
