//! Mixtures of experts over grouped-query attention: Mixtral (arXiv 2401.04088), Qwen2-MoE and Qwen3-MoE, OLMoE (arXiv
//! 2409.02060), gpt-oss (arXiv 2508.10925) and Granite's.

use serde_json::Value;

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use crate::decoder::{
    Architecture, AttentionConfig, ExpertActivation, ExpertConfig, ExpertMixture, FeedActivation,
    FeedForward, GatedFeed, LinearConfig, ModelConfig, RotaryConfig, RoutingConfig, RowPick, RowSource,
    ScoreKind, SharedExpert, SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::Rope;

/// The names and sizes of a model's experts.
pub(super) struct ExpertFacts {
    pub(super) count: SizeField,
    pub(super) chosen: usize,
    pub(super) inner: SizeField,
}

impl ExpertFacts {
    /// Reads how many experts there are, how many each row passes, and their width.
    pub(super) fn read(
        facts: &ModelFacts<'_>,
        count_fields: &[&'static str],
        inner: SizeField,
        default_chosen: usize,
    ) -> Result<Self, CheckpointError> {
        let fields = &facts.fields;
        let mut count = None;
        for field in count_fields {
            if let Some(found) = fields.count(field, 1..=limits::MAX_EXPERTS)? {
                count = count.or(Some(SizeField::new(found, field)));
            }
        }
        let count = count.ok_or_else(|| fields.missing(count_fields.first().copied().unwrap_or_default()))?;
        let chosen = fields.count("num_experts_per_tok", 1..=count.size)?.unwrap_or(default_chosen);
        Ok(Self { count, chosen: chosen.min(count.size), inner })
    }
}

/// A width that must be said.
pub(super) fn width(fields: &Fields<'_>, field: &'static str) -> Result<SizeField, CheckpointError> {
    Ok(SizeField::new(fields.required_count(field, 1..=limits::MAX_INTERMEDIATE_SIZE)?, field))
}

/// How the probabilities of a softmax over all experts become weights.
pub(super) fn softmax(renormalised: bool) -> RoutingConfig {
    RoutingConfig {
        scores: ScoreKind::Softmax,
        bias: None,
        groups: None,
        renormalise: renormalised.then_some(0.0),
        factor: 1.0,
    }
}

/// Experts with tensors of their own, by the names `gate`, `up` and `down` after `{experts}.{number}.`; or, in newer
/// files, stacked as `{experts}.gate_up_proj` and `{experts}.down_proj`.
pub(super) fn experts(
    parts: &LayerParts<'_, '_>,
    of: &ExpertFacts,
    (experts, gate, up, down): (&str, &str, &str, &str),
) -> Vec<ExpertConfig> {
    let (hidden, inner) = (parts.facts.hidden(), of.inner);
    let both = SizeField::new(2 * inner.size, "2 × the width of an expert");
    let linear = |expert: usize, part: &str, outputs: SizeField, inputs: SizeField, stacked: RowSource| {
        let own =
            LinearConfig::own(&parts.name(&format!("{experts}.{expert}.{part}")), outputs, inputs, false);
        let of_expert = |source: RowSource| Box::new(RowSource { expert: Some(expert), ..source });
        let transposed = stacked.otherwise.map(|source| of_expert(*source));
        let otherwise = Some(of_expert(RowSource { otherwise: transposed, ..stacked }));
        LinearConfig { weight: RowSource { otherwise, ..own.weight }, ..own }
    };
    let stacked = |part: &str, dimensions: [SizeField; 2], pick| {
        let [outer, inner] = dimensions;
        let name = parts.name(&format!("{experts}.{part}"));
        RowSource { pick, ..RowSource::whole(name, &[of.count, outer, inner]) }
    };
    // Files of Qwen3-VL have the same names for inputs × outputs.
    let gate_up = |first| RowSource {
        otherwise: Some(Box::new(stacked(
            "gate_up_proj",
            [hidden, both],
            RowPick::Transposed { first, step: 1, count: inner.size },
        ))),
        ..stacked(
            "gate_up_proj",
            [both, hidden],
            RowPick::Grouped { group: both.size, first, count: inner.size },
        )
    };
    let each_down = || RowSource {
        otherwise: Some(Box::new(stacked(
            "down_proj",
            [inner, hidden],
            RowPick::Transposed { first: 0, step: 1, count: hidden.size },
        ))),
        ..stacked("down_proj", [hidden, inner], RowPick::All)
    };
    (0..of.count.size)
        .map(|expert| ExpertConfig {
            gate: Some(linear(expert, gate, inner, hidden, gate_up(0))),
            up: linear(expert, up, inner, hidden, gate_up(inner.size)),
            down: linear(expert, down, hidden, inner, each_down()),
        })
        .collect()
}

/// Which layers have experts: every `decoder_sparse_step`-th, without those of `mlp_only_layers`.
pub(super) fn sparse_layers(facts: &ModelFacts<'_>) -> Result<Vec<bool>, CheckpointError> {
    let fields = &facts.fields;
    let step = fields.count("decoder_sparse_step", 1..=limits::MAX_LAYERS)?.unwrap_or(1);
    let dense = match fields.get("mlp_only_layers") {
        None => Vec::new(),
        Some(value) => {
            let items = value
                .as_array()
                .and_then(|items| items.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
            items.ok_or_else(|| fields.wrong("mlp_only_layers", value, "a list of layer numbers"))?
        }
    };
    let is_sparse = |index: usize| (index + 1).is_multiple_of(step) && !dense.contains(&(index as u64));
    Ok((0..facts.layers).map(is_sparse).collect())
}

pub(super) fn mixtral(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(
        fields,
        SizeDefaults { kv_heads: Some(8), positions: 131_072, ..SizeDefaults::NONE },
    )?;
    let of = ExpertFacts::read(&facts, &["num_local_experts", "num_experts"], facts.inner()?, 2)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-5)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let window = facts.window(None)?;
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = AttentionConfig { window, ..parts.attention(false, Some(0)) };
        let feed = ExpertMixture {
            chosen: of.chosen,
            inner: of.inner.size,
            activation: ExpertActivation::Usual(activation),
            router: parts.linear("block_sparse_moe.gate", of.count, facts.hidden(), false),
            routing: softmax(true),
            latent: None,
            experts: experts(&parts, &of, ("block_sparse_moe.experts", "w1", "w3", "w2")),
            shared: None,
        };
        parts.pre_norm_layer(attention, FeedForward::Experts(Box::new(feed)))
    };
    let layers = (0..facts.layers).map(layer).collect();
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    facts.model(Architecture::Mixtral, layers, rotary, norms.named("model.norm", facts.hidden()))
}

pub(super) fn qwen3(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let defaults =
        SizeDefaults { kv_heads: Some(4), head_dim: Some(128), positions: 32_768, ..SizeDefaults::NONE };
    let facts = ModelFacts::read(fields, defaults)?;
    qwen(&facts, Architecture::Qwen3Moe, None)
}

pub(super) fn qwen2(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(
        fields,
        SizeDefaults { kv_heads: Some(16), positions: 32_768, ..SizeDefaults::NONE },
    )?;
    let shared = width(fields, "shared_expert_intermediate_size")?;
    qwen(&facts, Architecture::Qwen2Moe, Some(shared))
}

fn qwen(
    facts: &ModelFacts<'_>,
    architecture: Architecture,
    shared: Option<SizeField>,
) -> Result<ModelConfig, CheckpointError> {
    let fields = &facts.fields;
    let of = ExpertFacts::read(
        facts,
        &["num_experts", "num_local_experts"],
        width(fields, "moe_intermediate_size")?,
        8,
    )?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let renormalised = fields.flag("norm_topk_prob")?.unwrap_or(false);
    let is_second = architecture == Architecture::Qwen2Moe;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let windows = match fields.flag("use_sliding_window")?.unwrap_or(false) {
        false => vec![false; facts.layers],
        true => facts.windowed_layers(|_| false)?,
    };
    let window = facts.window(None)?;
    let sparse = sparse_layers(facts)?;
    let layer = |(index, &is_sparse): (usize, &bool)| {
        let parts = LayerParts::new(facts, norms, "model.layers", index);
        let usual = parts.attention(has_bias || is_second, Some(0));
        let attention = AttentionConfig {
            output: parts.linear("self_attn.o_proj", facts.hidden(), facts.queries(), has_bias),
            query_norm: parts.head_norm("self_attn.q_norm").filter(|_| !is_second),
            key_norm: parts.head_norm("self_attn.k_norm").filter(|_| !is_second),
            window: window.filter(|_| windows.get(index) == Some(&true)),
            ..usual
        };
        let feed = match is_sparse {
            false => parts.gated(activation, false)?,
            true => FeedForward::Experts(Box::new(ExpertMixture {
                chosen: of.chosen,
                inner: of.inner.size,
                activation: ExpertActivation::Usual(activation),
                router: parts.linear("mlp.gate", of.count, facts.hidden(), false),
                routing: softmax(renormalised),
                latent: None,
                experts: experts(&parts, &of, ("mlp.experts", "gate_proj", "up_proj", "down_proj")),
                shared: shared.map(|inner| gated_shared(&parts, inner, activation)),
            })),
        };
        Ok(parts.pre_norm_layer(attention, feed))
    };
    let layers = sparse.iter().enumerate().map(layer).collect::<Result<_, CheckpointError>>()?;
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    facts.model(architecture, layers, rotary, norms.named("model.norm", facts.hidden()))
}

/// The shared expert of Qwen's models, with its gate.
pub(super) fn gated_shared(
    parts: &LayerParts<'_, '_>,
    inner: SizeField,
    activation: FeedActivation,
) -> SharedExpert {
    let hidden = parts.facts.hidden();
    let feed = GatedFeed {
        inner: inner.size,
        activation,
        gate: parts.linear("mlp.shared_expert.gate_proj", inner, hidden, false),
        up: parts.linear("mlp.shared_expert.up_proj", inner, hidden, false),
        down: parts.linear("mlp.shared_expert.down_proj", hidden, inner, false),
    };
    let gate = parts.linear("mlp.shared_expert_gate", SizeField::new(1, "1"), hidden, false);
    SharedExpert { feed: FeedForward::Gated(Box::new(feed)), gate: Some(gate) }
}

pub(super) fn olmo(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults { positions: 4_096, ..SizeDefaults::NONE })?;
    let of = ExpertFacts::read(&facts, &["num_experts", "num_local_experts"], facts.inner()?, 8)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-5)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let renormalised = fields.flag("norm_topk_prob")?.unwrap_or(false);
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let clip = facts.cap("clip_qkv", None)?;
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = AttentionConfig {
            query_norm: parts.whole_norm("self_attn.q_norm", facts.queries()),
            key_norm: parts.whole_norm("self_attn.k_norm", facts.keys()),
            clip,
            ..parts.attention(has_bias, Some(0))
        };
        let feed = ExpertMixture {
            chosen: of.chosen,
            inner: of.inner.size,
            activation: ExpertActivation::Usual(activation),
            router: parts.linear("mlp.gate", of.count, facts.hidden(), false),
            routing: softmax(renormalised),
            latent: None,
            experts: experts(&parts, &of, ("mlp.experts", "gate_proj", "up_proj", "down_proj")),
            shared: None,
        };
        parts.pre_norm_layer(attention, FeedForward::Experts(Box::new(feed)))
    };
    let layers = (0..facts.layers).map(layer).collect();
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    facts.model(Architecture::OlMoe, layers, rotary, norms.named("model.norm", facts.hidden()))
}

/// The window of gpt-oss's class if the file does not say one.
const WINDOW: usize = 128;

pub(super) fn gpt_oss(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let defaults =
        SizeDefaults { kv_heads: Some(8), head_dim: Some(64), positions: 131_072, ..SizeDefaults::NONE };
    let facts = ModelFacts::read(fields, defaults)?;
    let of = ExpertFacts::read(&facts, &["num_local_experts", "num_experts"], facts.inner()?, 4)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-5)?);
    let windows = facts.windowed_layers(|index| index.is_multiple_of(2))?;
    let window = facts.window(Some(WINDOW))?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(true);
    let activation = ExpertActivation::Clamped {
        limit: facts.factor("swiglu_limit", 7.0)?,
        slope: facts.factor("swiglu_alpha", 1.702)?,
    };
    let layer = |(index, &is_window): (usize, &bool)| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let heads = SizeField::new(facts.heads, "num_attention_heads");
        let attention = AttentionConfig {
            sinks: Some(RowSource::whole(parts.name("self_attn.sinks"), &[heads])),
            window: window.filter(|_| is_window),
            ..parts.attention(has_bias, Some(0))
        };
        let feed = ExpertMixture {
            chosen: of.chosen,
            inner: of.inner.size,
            activation,
            router: parts.linear("mlp.router", of.count, facts.hidden(), true),
            routing: RoutingConfig { scores: ScoreKind::SoftmaxOfChosen, ..softmax(false) },
            latent: None,
            experts: interleaved_experts(&parts, &of),
            shared: None,
        };
        parts.pre_norm_layer(attention, FeedForward::Experts(Box::new(feed)))
    };
    let layers = windows.iter().enumerate().map(layer).collect();
    let rotary = vec![RotaryConfig { rope: Rope::read_with(fields, 150_000.0)?, width: facts.head_dim }];
    facts.model(Architecture::GptOss, layers, rotary, norms.named("model.norm", facts.hidden()))
}

/// Experts that are stacked as inputs × outputs, or in MXFP4 as outputs × inputs, with the outputs of gate and up in
/// turn.
fn interleaved_experts(parts: &LayerParts<'_, '_>, of: &ExpertFacts) -> Vec<ExpertConfig> {
    let (hidden, inner) = (parts.facts.hidden(), of.inner);
    let both = SizeField::new(2 * inner.size, "2 × intermediate_size");
    let part = |expert: usize, name: &str, shape: &[SizeField], pick: RowPick| RowSource {
        expert: Some(expert),
        pick,
        ..RowSource::whole(parts.name(&format!("mlp.experts.{name}")), shape)
    };
    let or = |plain: RowSource, mxfp4: RowSource| RowSource { otherwise: Some(Box::new(mxfp4)), ..plain };
    let half = |expert: usize, first: usize| LinearConfig {
        outputs: inner.size,
        inputs: hidden.size,
        weight: or(
            part(
                expert,
                "gate_up_proj",
                &[of.count, hidden, both],
                RowPick::Transposed { first, step: 2, count: inner.size },
            ),
            part(
                expert,
                "gate_up_proj_blocks",
                &[of.count, both, hidden],
                RowPick::Grouped { group: 2, first, count: 1 },
            ),
        ),
        bias: Some(part(
            expert,
            "gate_up_proj_bias",
            &[of.count, both],
            RowPick::Grouped { group: 2, first, count: 1 },
        )),
    };
    (0..of.count.size)
        .map(|expert| ExpertConfig {
            gate: Some(half(expert, 0)),
            up: half(expert, 1),
            down: LinearConfig {
                outputs: hidden.size,
                inputs: inner.size,
                weight: or(
                    part(
                        expert,
                        "down_proj",
                        &[of.count, inner, hidden],
                        RowPick::Transposed { first: 0, step: 1, count: hidden.size },
                    ),
                    part(expert, "down_proj_blocks", &[of.count, hidden, inner], RowPick::All),
                ),
                bias: Some(part(expert, "down_proj_bias", &[of.count, hidden], RowPick::All)),
            },
        })
        .collect()
}

pub(super) fn granite(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, SizeDefaults::NONE)?;
    let of = ExpertFacts::read(&facts, &["num_local_experts", "num_experts"], facts.inner()?, 2)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?);
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let scale = facts.factor("attention_multiplier", 1.0)?;
    let residual_scale = facts.factor("residual_multiplier", 1.0)?;
    let layer = |index| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = AttentionConfig { scale, ..parts.attention(has_bias, Some(0)) };
        let feed = granite_experts(&parts, &of, activation);
        let mut layer = parts.pre_norm_layer(attention, FeedForward::Experts(Box::new(feed)));
        layer.residual_scale = residual_scale;
        layer
    };
    let layers = (0..facts.layers).map(layer).collect();
    let rotary = vec![RotaryConfig { rope: Rope::read(fields)?, width: facts.head_dim }];
    let final_norm = norms.named("model.norm", facts.hidden());
    let mut model = facts.model(Architecture::GraniteMoe, layers, rotary, final_norm)?;
    model.embedding.scale = facts.factor("embedding_multiplier", 1.0)?;
    model.head.scale = 1.0 / facts.factor("logits_scaling", 1.0)?;
    Ok(model)
}

/// Granite's experts: stacked, the gate before up.
pub(super) fn granite_experts(
    parts: &LayerParts<'_, '_>,
    of: &ExpertFacts,
    activation: FeedActivation,
) -> ExpertMixture {
    let (hidden, inner) = (parts.facts.hidden(), of.inner);
    let both = SizeField::new(2 * inner.size, "2 × intermediate_size");
    let linear =
        |expert: usize, name: &str, shape: &[SizeField], pick: RowPick, sizes: (usize, usize)| LinearConfig {
            outputs: sizes.0,
            inputs: sizes.1,
            weight: RowSource {
                expert: Some(expert),
                pick,
                ..RowSource::whole(parts.name(&format!("block_sparse_moe.{name}.weight")), shape)
            },
            bias: None,
        };
    let half = |expert: usize, first: usize| {
        let pick = RowPick::Grouped { group: both.size, first, count: inner.size };
        linear(expert, "input_linear", &[of.count, both, hidden], pick, (inner.size, hidden.size))
    };
    let down = |expert: usize| {
        linear(expert, "output_linear", &[of.count, hidden, inner], RowPick::All, (hidden.size, inner.size))
    };
    ExpertMixture {
        chosen: of.chosen,
        inner: inner.size,
        activation: ExpertActivation::Usual(activation),
        router: parts.linear("block_sparse_moe.router.layer", of.count, hidden, false),
        routing: RoutingConfig { scores: ScoreKind::SoftmaxOfChosen, ..softmax(false) },
        latent: None,
        experts: (0..of.count.size)
            .map(|expert| ExpertConfig {
                gate: Some(half(expert, 0)),
                up: half(expert, inner.size),
                down: down(expert),
            })
            .collect(),
        shared: None,
    }
}
