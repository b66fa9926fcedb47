//! DeepSeek V2 and V3 (arXiv 2405.04434, 2412.19437), also of Kimi K2, and GLM-4.7-Flash: latent attention, and experts
//! beside a network that every row passes. GLM-4.5 (arXiv 2508.06471): such experts over grouped-query attention.

use serde_json::Value;

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use super::moe::{ExpertFacts, experts, width};
use crate::decoder::{
    Architecture, AttentionConfig, ExpertActivation, ExpertGroups, ExpertMixture, FeedActivation,
    FeedForward, GatedFeed, LatentConfig, LatentQuery, LayerConfig, LinearConfig, MixerConfig, ModelConfig,
    RotaryConfig, RotaryPairs, RoutingConfig, RowPick, RowSource, ScoreGrowth, ScoreKind, SharedExpert,
    SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::{Rope, RopeScaling};

/// Epsilon of the norms within latent attention, which is not the one that the file gives.
const LATENT_EPS: f32 = 1e-6;
/// Added to the sum of the chosen experts' scores.
const SUM_ADDEND: f32 = 1e-20;

pub(super) fn second(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = latent_model(fields, 2_048)?;
    if let (Some(true), Some(value)) = (fields.flag("norm_topk_prob")?, fields.get("norm_topk_prob")) {
        return Err(fields.unsupported("norm_topk_prob", value, "false is"));
    }
    let scores = match expect_one_of(fields, "topk_method", &["greedy", "group_limited_greedy"])? {
        Some("group_limited_greedy") => RouterKind::SoftmaxOfGroups,
        _ => RouterKind::Softmax,
    };
    if let (Some(false), Some(value)) = (fields.flag("rope_interleave")?, fields.get("rope_interleave")) {
        return Err(fields.unsupported("rope_interleave", value, "true is"));
    }
    expect_one_of(fields, "scoring_func", &["softmax"])?;
    fields.required_count("num_experts_per_tok", 1..=limits::MAX_EXPERTS)?;
    let mixture = MixtureFacts::read(&facts, scores, MixtureDefaults { shared: 2, dense: 0, ..DEFAULTS })?;
    latent_decoder(&facts, Architecture::DeepseekV2, &mixture, true)
}

pub(super) fn third(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = latent_model(fields, 4_096)?;
    let defaults = MixtureDefaults { groups: (8, 4), dense: 3, factor: 2.5, ..DEFAULTS };
    let mixture = MixtureFacts::read(&facts, sigmoid(fields)?, defaults)?;
    let interleaved = fields.flag("rope_interleave")?.unwrap_or(true);
    latent_decoder(&facts, Architecture::DeepseekV3, &mixture, interleaved)
}

pub(super) fn glm_flash(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = latent_model(fields, 202_752)?;
    let defaults = MixtureDefaults { chosen: 4, factor: 1.8, ..DEFAULTS };
    let mixture = MixtureFacts::read(&facts, sigmoid(fields)?, defaults)?;
    let interleaved = fields.flag("rope_interleave")?.unwrap_or(true);
    latent_decoder(&facts, Architecture::Glm4MoeLite, &mixture, interleaved)
}

pub(super) fn glm(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let defaults = SizeDefaults { kv_heads: Some(8), positions: 131_072, ..SizeDefaults::NONE };
    let facts = ModelFacts::read(fields, defaults)?;
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", 1e-5)?);
    let mixture = MixtureFacts::read(&facts, sigmoid(fields)?, DEFAULTS)?;
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let has_norms = fields.flag("use_qk_norm")?.unwrap_or(false);
    let layer = |(index, &is_sparse): (usize, &bool)| {
        let parts = LayerParts::new(&facts, norms, "model.layers", index);
        let attention = AttentionConfig {
            output: parts.linear("self_attn.o_proj", facts.hidden(), facts.queries(), false),
            query_norm: parts.head_norm("self_attn.q_norm").filter(|_| has_norms),
            key_norm: parts.head_norm("self_attn.k_norm").filter(|_| has_norms),
            ..parts.attention(has_bias, Some(0))
        };
        let feed = mixture.feed(&parts, is_sparse)?;
        Ok(parts.pre_norm_layer(attention, feed))
    };
    let layers = mixture.sparse.iter().enumerate().map(layer).collect::<Result<_, CheckpointError>>()?;
    let (rope, share) = Rope::read_partial(fields, 0.5)?;
    let rotary = vec![facts.rotary(rope, share)?];
    facts.model(Architecture::Glm4Moe, layers, rotary, norms.named("model.norm", facts.hidden()))
}

/// Reads the sizes of a model with latent attention. A head's width is not used: a file may leave it out, although the
/// heads do not divide the hidden size.
fn latent_model<'a>(fields: &Fields<'a>, positions: usize) -> Result<ModelFacts<'a>, CheckpointError> {
    let head_dim = Some(rotary_dim(fields)?.size);
    ModelFacts::read(fields, SizeDefaults { head_dim, positions, ..SizeDefaults::NONE })
}

fn rotary_dim(fields: &Fields<'_>) -> Result<SizeField, CheckpointError> {
    const FIELD: &str = "qk_rope_head_dim";
    let size = fields.required_count(FIELD, 2..=limits::MAX_HEAD_DIM)?;
    match size.is_multiple_of(2) {
        true => Ok(SizeField::new(size, FIELD)),
        false => Err(fields.problem(FIELD, format!("{size} must be even"))),
    }
}

/// Returns the text in `field` if it is one of `known`. Any other is refused.
fn expect_one_of<'a>(
    fields: &Fields<'a>,
    field: &str,
    known: &[&str],
) -> Result<Option<&'a str>, CheckpointError> {
    let found = fields.text(field)?;
    match (found, fields.get(field)) {
        (Some(text), Some(value)) if !known.contains(&text) => {
            let known: Vec<String> = known.iter().map(|name| format!("\"{name}\"")).collect();
            let ending = if known.len() > 1 { "are" } else { "is" };
            Err(fields.unsupported(field, value, &format!("{} {ending}", known.join(" and "))))
        }
        _ => Ok(found),
    }
}

/// The router of DeepSeek V3 and of the GLMs.
fn sigmoid(fields: &Fields<'_>) -> Result<RouterKind, CheckpointError> {
    expect_one_of(fields, "scoring_func", &["sigmoid"])?;
    expect_one_of(fields, "topk_method", &["noaux_tc"])?;
    Ok(RouterKind::Sigmoid)
}

/// The sizes of latent attention.
struct LatentFacts {
    latent: SizeField,
    plain: SizeField,
    rotary: SizeField,
    value: SizeField,
    query_rank: Option<SizeField>,
    has_bias: bool,
    /// Whether neighbouring elements are rotated.
    interleaved: bool,
    score_growth: Option<ScoreGrowth>,
}

impl LatentFacts {
    fn read(fields: &Fields<'_>, rope: &Rope, interleaved: bool) -> Result<Self, CheckpointError> {
        let size = |field: &'static str, most: usize| {
            Ok::<_, CheckpointError>(SizeField::new(fields.required_count(field, 1..=most)?, field))
        };
        let plain = size("qk_nope_head_dim", limits::MAX_HEAD_DIM)?;
        let rotary = rotary_dim(fields)?;
        let query_rank = fields.count("q_lora_rank", 1..=limits::MAX_LATENT_DIM)?;
        Ok(Self {
            latent: size("kv_lora_rank", limits::MAX_LATENT_DIM)?,
            plain,
            rotary,
            value: size("v_head_dim", limits::MAX_HEAD_DIM)?,
            query_rank: query_rank.map(|rank| SizeField::new(rank, "q_lora_rank")),
            has_bias: fields.flag("attention_bias")?.unwrap_or(false),
            interleaved,
            score_growth: score_growth(fields, rope)?,
        })
    }

    fn mixer(&self, parts: &LayerParts<'_, '_>) -> LatentConfig {
        let (heads, hidden) = (parts.facts.heads, parts.facts.hidden());
        let Self { latent, plain, rotary, value, .. } = *self;
        let norms = NormStyle::rms(LATENT_EPS);
        let compressed = self.query_rank.map(|rank| {
            let linear = parts.linear("self_attn.q_a_proj", rank, hidden, self.has_bias);
            (linear, norms.named(&parts.name("self_attn.q_a_layernorm"), rank))
        });
        let (query, inputs) = match self.query_rank {
            Some(rank) => ("self_attn.q_b_proj", rank),
            None => ("self_attn.q_proj", hidden),
        };
        let head = plain.size + rotary.size;
        let queries =
            SizeField::new(heads * head, "num_attention_heads × (qk_nope_head_dim + qk_rope_head_dim)");
        let row = SizeField::new(latent.size + rotary.size, "kv_lora_rank + qk_rope_head_dim");
        let down = |rows| parts.slice("self_attn.kv_a_proj_with_mqa", row, rows, hidden, self.has_bias);
        let values = SizeField::new(heads * value.size, "num_attention_heads × v_head_dim");
        LatentConfig {
            heads,
            latent_dim: latent.size,
            plain_dim: plain.size,
            rotary_dim: rotary.size,
            value_dim: value.size,
            query: LatentQuery {
                compressed,
                plain: parts.grouped(query, queries, (head, 0, plain.size), inputs, false),
                rotary: self.rotated(parts.grouped(
                    query,
                    queries,
                    (head, plain.size, rotary.size),
                    inputs,
                    false,
                )),
            },
            latent: down((0, latent.size)),
            latent_norm: norms.named(&parts.name("self_attn.kv_a_layernorm"), latent),
            key_rotary: self.rotated(down((latent.size, rotary.size))),
            key: (0..heads).map(|head| self.key_head(parts, head)).collect(),
            value: (0..heads).map(|head| self.value_head(parts, head)).collect(),
            output: parts.linear("self_attn.o_proj", hidden, values, self.has_bias),
            table: 0,
            scale: 1.0 / (head as f32).sqrt(),
            score_growth: self.score_growth,
        }
    }

    /// Says that the rows of a projection to rotated elements are stored in neighbouring pairs, if they are.
    fn rotated(&self, mut linear: LinearConfig) -> LinearConfig {
        let width = self.rotary.size;
        let pairs = self.interleaved.then_some(RotaryPairs { head: width, rotated: width });
        linear.weight.pairs = pairs;
        if let Some(bias) = &mut linear.bias {
            bias.pairs = pairs;
        }
        linear
    }

    /// Rows of the projection from the latent, which holds the key and then the value of each head.
    fn up(&self, parts: &LayerParts<'_, '_>, pick: RowPick) -> RowSource {
        let rows = SizeField::new(
            parts.facts.heads * (self.plain.size + self.value.size),
            "num_attention_heads × (qk_nope_head_dim + v_head_dim)",
        );
        let name = parts.name("self_attn.kv_b_proj.weight");
        RowSource { pick, ..RowSource::whole(name, &[rows, self.latent]) }
    }

    fn key_head(&self, parts: &LayerParts<'_, '_>, head: usize) -> LinearConfig {
        let (plain, first) = (self.plain.size, head * (self.plain.size + self.value.size));
        LinearConfig {
            outputs: self.latent.size,
            inputs: plain,
            weight: self.up(parts, RowPick::Columns { first, count: plain }),
            bias: None,
        }
    }

    fn value_head(&self, parts: &LayerParts<'_, '_>, head: usize) -> LinearConfig {
        let (plain, value) = (self.plain.size, self.value.size);
        let (group, first) = (parts.facts.heads * (plain + value), head * (plain + value) + plain);
        LinearConfig {
            outputs: value,
            inputs: self.latent.size,
            weight: self.up(parts, RowPick::Grouped { group, first, count: value }),
            bias: None,
        }
    }
}

/// Reads the growth of the scores with the scaling of the frequencies.
fn score_growth(fields: &Fields<'_>, rope: &Rope) -> Result<Option<ScoreGrowth>, CheckpointError> {
    let factor = match rope.scaling {
        RopeScaling::Yarn { factor, .. }
        | RopeScaling::Linear { factor }
        | RopeScaling::Llama3 { factor, .. } => factor,
        RopeScaling::None | RopeScaling::Long { .. } | RopeScaling::Divided { .. } => return Ok(None),
    };
    for object in ["rope_parameters", "rope_scaling"] {
        if let Some(inner) = fields.object(object)?
            && let Some(mscale) = inner.number("mscale_all_dim", 0.0, limits::MAX_ROPE_FACTOR)?
        {
            return Ok(Some(ScoreGrowth { mscale, factor }));
        }
    }
    Ok(None)
}

fn latent_decoder(
    facts: &ModelFacts<'_>,
    architecture: Architecture,
    mixture: &MixtureFacts,
    interleaved: bool,
) -> Result<ModelConfig, CheckpointError> {
    let rope = Rope::read(&facts.fields)?;
    let latent = LatentFacts::read(&facts.fields, &rope, interleaved)?;
    let default_eps = if architecture == Architecture::Glm4MoeLite { 1e-5 } else { 1e-6 };
    let norms = NormStyle::rms(facts.eps("rms_norm_eps", default_eps)?);
    let layer = |(index, &is_sparse): (usize, &bool)| {
        let parts = LayerParts::new(facts, norms, "model.layers", index);
        Ok(LayerConfig {
            prefix: parts.name(""),
            mixer_norm: parts.norm("input_layernorm"),
            mixer: MixerConfig::Latent(Box::new(latent.mixer(&parts))),
            mixer_out_norm: None,
            feed_norm: parts.norm("post_attention_layernorm"),
            feed: mixture.feed(&parts, is_sparse)?,
            feed_out_norm: None,
            parallel: false,
            residual_scale: 1.0,
            tail: None,
        })
    };
    let layers = mixture.sparse.iter().enumerate().map(layer).collect::<Result<_, CheckpointError>>()?;
    let rotary = vec![RotaryConfig { rope, width: latent.rotary.size }];
    facts.model(architecture, layers, rotary, norms.named("model.norm", facts.hidden()))
}

/// How experts are chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RouterKind {
    /// The best of a softmax over all.
    Softmax,
    /// The same within the groups that have the largest scores.
    SoftmaxOfGroups,
    /// Sigmoids, with a bias for the choice, within the groups whose two largest scores have the largest sums.
    Sigmoid,
}

/// What a class assumes of its experts if a configuration does not say it.
#[derive(Clone, Copy)]
struct MixtureDefaults {
    chosen: usize,
    /// Number of groups, and those that take part.
    groups: (usize, usize),
    /// Shared experts.
    shared: usize,
    /// Leading layers without experts.
    dense: usize,
    factor: f64,
}

const DEFAULTS: MixtureDefaults =
    MixtureDefaults { chosen: 8, groups: (1, 1), shared: 1, dense: 1, factor: 1.0 };

/// The experts of a model, and the layers that have them.
struct MixtureFacts {
    of: ExpertFacts,
    activation: FeedActivation,
    router: RouterKind,
    groups: Option<ExpertGroups>,
    renormalise: Option<f32>,
    factor: f32,
    /// Width of the shared network.
    shared: Option<SizeField>,
    /// For each layer, whether it has experts.
    sparse: Vec<bool>,
}

impl MixtureFacts {
    fn read(
        facts: &ModelFacts<'_>,
        router: RouterKind,
        defaults: MixtureDefaults,
    ) -> Result<Self, CheckpointError> {
        let fields = &facts.fields;
        let inner = width(fields, "moe_intermediate_size")?;
        let names = ["n_routed_experts", "num_local_experts", "num_experts"];
        let of = ExpertFacts::read(facts, &names, inner, defaults.chosen)?;
        let shared = fields.count("n_shared_experts", 0..=limits::MAX_EXPERTS)?.unwrap_or(defaults.shared)
            * inner.size;
        if shared > limits::MAX_INTERMEDIATE_SIZE {
            let most = limits::MAX_INTERMEDIATE_SIZE;
            let problem = format!("times moe_intermediate_size is {shared}, the most is {most}");
            return Err(fields.problem("n_shared_experts", problem));
        }
        let renormalise = match router {
            RouterKind::Sigmoid => fields.flag("norm_topk_prob")?.unwrap_or(true),
            RouterKind::Softmax | RouterKind::SoftmaxOfGroups => false,
        };
        Ok(Self {
            groups: groups(fields, router, &of, defaults.groups)?,
            of,
            activation: facts.activation("hidden_act", FeedActivation::Silu)?,
            router,
            renormalise: renormalise.then_some(SUM_ADDEND),
            factor: facts.factor("routed_scaling_factor", defaults.factor)?,
            shared: (shared > 0)
                .then_some(SizeField::new(shared, "n_shared_experts × moe_intermediate_size")),
            sparse: sparse_layers(facts, defaults.dense)?,
        })
    }

    fn feed(&self, parts: &LayerParts<'_, '_>, is_sparse: bool) -> Result<FeedForward, CheckpointError> {
        if !is_sparse {
            return parts.gated(self.activation, false);
        }
        let (hidden, count) = (parts.facts.hidden(), self.of.count);
        let bias = RowSource::whole(parts.name("mlp.gate.e_score_correction_bias"), &[count]);
        let scores = match self.router {
            RouterKind::Softmax | RouterKind::SoftmaxOfGroups => ScoreKind::Softmax,
            RouterKind::Sigmoid => ScoreKind::Sigmoid,
        };
        let shared = self.shared.map(|inner| {
            let linear = |part: &str, outputs, inputs| {
                parts.linear(&format!("mlp.shared_experts.{part}"), outputs, inputs, false)
            };
            SharedExpert {
                feed: FeedForward::Gated(Box::new(GatedFeed {
                    inner: inner.size,
                    activation: self.activation,
                    gate: linear("gate_proj", inner, hidden),
                    up: linear("up_proj", inner, hidden),
                    down: linear("down_proj", hidden, inner),
                })),
                gate: None,
            }
        });
        Ok(FeedForward::Experts(Box::new(ExpertMixture {
            latent: None,
            chosen: self.of.chosen,
            inner: self.of.inner.size,
            activation: ExpertActivation::Usual(self.activation),
            router: parts.linear("mlp.gate", count, hidden, false),
            routing: RoutingConfig {
                scores,
                bias: (self.router == RouterKind::Sigmoid).then_some(bias),
                groups: self.groups,
                renormalise: self.renormalise,
                factor: self.factor,
            },
            experts: experts(parts, &self.of, ("mlp.experts", "gate_proj", "up_proj", "down_proj")),
            shared,
        })))
    }
}

/// Reads the groups of experts. `None` if all experts take part.
fn groups(
    fields: &Fields<'_>,
    router: RouterKind,
    of: &ExpertFacts,
    defaults: (usize, usize),
) -> Result<Option<ExpertGroups>, CheckpointError> {
    let experts = of.count.size;
    let count = fields.count("n_group", 1..=experts)?;
    let kept = fields.count("topk_group", 1..=experts)?;
    let (count, kept) = match router {
        RouterKind::Softmax => return Ok(None),
        RouterKind::SoftmaxOfGroups => {
            let required = |found: Option<usize>, field| found.ok_or_else(|| fields.missing(field));
            (required(count, "n_group")?, required(kept, "topk_group")?)
        }
        RouterKind::Sigmoid => (count.unwrap_or(defaults.0), kept.unwrap_or(defaults.1)),
    };
    if !experts.is_multiple_of(count) {
        return Err(fields.problem("n_group", format!("{count} does not divide {experts} experts")));
    }
    if kept > count || kept * (experts / count) < of.chosen {
        let chosen = of.chosen;
        let problem = format!("{kept} of {count} groups must hold num_experts_per_tok {chosen} experts");
        return Err(fields.problem("topk_group", problem));
    }
    let best = if router == RouterKind::Sigmoid { 2 } else { 1 };
    Ok((kept < count).then_some(ExpertGroups { count, kept, best }))
}

/// Which layers have experts: those that `mlp_layer_types` calls sparse, or those after the leading dense ones, as far as
/// `moe_layer_freq` divides their number.
fn sparse_layers(facts: &ModelFacts<'_>, dense: usize) -> Result<Vec<bool>, CheckpointError> {
    let fields = &facts.fields;
    let dense = fields.count("first_k_dense_replace", 0..=limits::MAX_LAYERS)?.unwrap_or(dense);
    let step = fields.count("moe_layer_freq", 1..=limits::MAX_LAYERS)?.unwrap_or(1);
    let Some(value) = fields.get("mlp_layer_types") else {
        return Ok((0..facts.layers).map(|index| index >= dense && index.is_multiple_of(step)).collect());
    };
    let Some(types) = value.as_array().filter(|types| types.len() == facts.layers) else {
        let expected = format!("a list of num_hidden_layers {}", facts.layers);
        return Err(fields.wrong("mlp_layer_types", value, &expected));
    };
    let is_sparse = |kind: &Value| match kind.as_str() {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        _ => Err(fields.unsupported("mlp_layer_types", kind, "\"dense\" and \"sparse\" are")),
    };
    types.iter().map(is_sparse).collect()
}
