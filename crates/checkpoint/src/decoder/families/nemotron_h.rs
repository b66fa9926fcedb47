//! Nemotron-H and Nemotron 3 Nano (NVIDIA 2025, arXiv 2504.03624 and 2512.20848): layers of one part each, which is
//! Mamba2, attention without rotation, a network of squared ReLU, or experts of such networks.

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use super::hybrid::{LayerKind, MambaFacts, taps, width};
use super::moe::ExpertFacts;
use crate::decoder::{
    Architecture, AttentionConfig, ExpertActivation, ExpertConfig, ExpertGroups, ExpertMixture,
    FeedActivation, FeedForward, LatentProjection, LayerConfig, LinearConfig, MixerConfig, ModelConfig,
    PlainFeed, RoutingConfig, RowPick, RowSource, ScoreKind, SharedExpert, SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;

/// All kinds of layers.
const KINDS: [LayerKind; 4] =
    [LayerKind::Attention, LayerKind::Recurrent, LayerKind::Dense, LayerKind::Experts];

pub(super) fn read(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let kinds = kinds(fields)?;
    let defaults = SizeDefaults {
        layers: Some(kinds.len()),
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: 4_096,
        ..SizeDefaults::NONE
    };
    let facts = ModelFacts::read(fields, defaults)?;
    if facts.layers != kinds.len() {
        let problem = format!("says {}, but the list of layers has {}", facts.layers, kinds.len());
        return Err(fields.problem("num_hidden_layers", problem));
    }
    let norms = NormStyle::rms(facts.eps("layer_norm_epsilon", 1e-5)?);
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let activation = facts.activation("mlp_hidden_act", FeedActivation::ReluSquared)?;
    let mamba = mamba(&facts)?;
    let mixture = MixtureFacts::read(&facts, activation, mlp_bias)?;
    let layer = |(index, kind): (usize, &LayerKind)| {
        let parts = LayerParts::new(&facts, norms, "backbone.layers", index);
        let (mixer, feed) = match kind {
            LayerKind::Attention => {
                (MixerConfig::Attention(Box::new(attention(&parts, has_bias))), FeedForward::None)
            }
            LayerKind::Recurrent => (mamba.mixer(&parts, "mixer", norms), FeedForward::None),
            LayerKind::Dense => {
                let inner = facts.inner()?;
                (MixerConfig::None, plain(&parts, "mixer", inner, activation, mlp_bias))
            }
            LayerKind::Experts => (MixerConfig::None, mixture.feed(&parts)?),
        };
        let norm = parts.norm("norm");
        let is_mixer = !matches!(mixer, MixerConfig::None);
        Ok(LayerConfig {
            prefix: parts.name(""),
            mixer_norm: norm.clone().filter(|_| is_mixer),
            mixer,
            mixer_out_norm: None,
            feed_norm: norm.filter(|_| !is_mixer),
            feed,
            feed_out_norm: None,
            parallel: false,
            residual_scale: 1.0,
            tail: None,
        })
    };
    let layers = kinds.iter().enumerate().map(layer).collect::<Result<_, CheckpointError>>()?;
    let final_norm = norms.named("backbone.norm_f", facts.hidden());
    let mut model = facts.model(Architecture::NemotronH, layers, Vec::new(), final_norm)?;
    model.embedding.words =
        RowSource::whole("backbone.embeddings.weight".to_owned(), &[facts.vocab(), facts.hidden()]);
    Ok(model)
}

/// Reads the kinds of all layers: a list of names, or a pattern with one letter for each layer.
fn kinds(fields: &Fields<'_>) -> Result<Vec<LayerKind>, CheckpointError> {
    for field in ["layers_block_type", "layer_types"] {
        if let Some(kinds) = LayerKind::list(fields, field, &KINDS)? {
            return Ok(kinds);
        }
    }
    const FIELD: &str = "hybrid_override_pattern";
    let Some(pattern) = fields.text(FIELD)? else { return Err(fields.missing("layers_block_type")) };
    let kind = |letter: char| match letter {
        'M' => Some(LayerKind::Recurrent),
        '*' => Some(LayerKind::Attention),
        '-' => Some(LayerKind::Dense),
        'E' => Some(LayerKind::Experts),
        _ => None,
    };
    let kinds: Option<Vec<LayerKind>> = pattern.chars().map(kind).collect();
    kinds.filter(|kinds| (1..=limits::MAX_LAYERS).contains(&kinds.len())).ok_or_else(|| {
        let expected = format!("1 to {} of the letters M, *, - and E", limits::MAX_LAYERS);
        fields.wrong(FIELD, &serde_json::Value::from(pattern), &expected)
    })
}

fn attention(parts: &LayerParts<'_, '_>, has_bias: bool) -> AttentionConfig {
    let (hidden, queries, keys) = (parts.facts.hidden(), parts.facts.queries(), parts.facts.keys());
    AttentionConfig {
        query: parts.linear("mixer.q_proj", queries, hidden, has_bias),
        key: parts.linear("mixer.k_proj", keys, hidden, has_bias),
        value: parts.linear("mixer.v_proj", keys, hidden, has_bias),
        output: parts.linear("mixer.o_proj", hidden, queries, has_bias),
        ..parts.attention(has_bias, None)
    }
}

/// A network without a gate, by the names `{name}.up_proj` and `{name}.down_proj`.
fn plain(
    parts: &LayerParts<'_, '_>,
    name: &str,
    inner: SizeField,
    activation: FeedActivation,
    has_bias: bool,
) -> FeedForward {
    let hidden = parts.facts.hidden();
    FeedForward::Plain(Box::new(PlainFeed {
        inner: inner.size,
        activation,
        up: parts.linear(&format!("{name}.up_proj"), inner, hidden, has_bias),
        down: parts.linear(&format!("{name}.down_proj"), hidden, inner, has_bias),
    }))
}

/// The experts of the layers that have some.
struct MixtureFacts {
    of: Option<ExpertFacts>,
    shared: Option<SizeField>,
    latent: Option<SizeField>,
    routing: RoutingConfig,
    activation: FeedActivation,
    has_bias: bool,
}

impl MixtureFacts {
    fn read(
        facts: &ModelFacts<'_>,
        activation: FeedActivation,
        has_bias: bool,
    ) -> Result<Self, CheckpointError> {
        let fields = &facts.fields;
        let optional = |field: &'static str| -> Result<Option<SizeField>, CheckpointError> {
            let count = fields.count(field, 0..=limits::MAX_INTERMEDIATE_SIZE)?;
            Ok(count.filter(|count| *count > 0).map(|count| SizeField::new(count, field)))
        };
        let counts = ["n_routed_experts", "num_local_experts"];
        let count = fields.count("n_routed_experts", 0..=limits::MAX_EXPERTS)?;
        let inner = optional("moe_intermediate_size")?;
        let of = match (count.filter(|count| *count > 0), inner) {
            (Some(_), Some(inner)) => Some(ExpertFacts::read(facts, &counts, inner, 2)?),
            _ => None,
        };
        let groups = fields.count("n_group", 1..=limits::MAX_EXPERTS)?.unwrap_or(1);
        let kept = fields.count("topk_group", 1..=groups)?.unwrap_or(1);
        if let Some(of) = &of
            && !of.count.size.is_multiple_of(groups)
        {
            let problem = format!("{groups} does not divide n_routed_experts {}", of.count.size);
            return Err(fields.problem("n_group", problem));
        }
        let renormalise = fields.flag("norm_topk_prob")?.unwrap_or(true).then_some(1e-20);
        Ok(Self {
            of,
            shared: {
                fields.count("n_shared_experts", 0..=1)?;
                optional("moe_shared_expert_intermediate_size")?
            },
            latent: optional("moe_latent_size")?,
            routing: RoutingConfig {
                scores: ScoreKind::Sigmoid,
                bias: None,
                groups: (groups > 1).then_some(ExpertGroups { count: groups, kept, best: 2 }),
                renormalise,
                factor: facts.factor("routed_scaling_factor", 1.0)?,
            },
            activation,
            has_bias,
        })
    }

    fn feed(&self, parts: &LayerParts<'_, '_>) -> Result<FeedForward, CheckpointError> {
        let fields = &parts.facts.fields;
        let of = self.of.as_ref().ok_or_else(|| fields.missing("n_routed_experts"))?;
        let hidden = parts.facts.hidden();
        let latent = self.latent.map(|latent| LatentProjection {
            input: parts.linear("mixer.fc1_latent_proj", latent, hidden, self.has_bias),
            output: parts.linear("mixer.fc2_latent_proj", hidden, latent, self.has_bias),
        });
        let bias = RowSource::whole(parts.name("mixer.gate.e_score_correction_bias"), &[of.count]);
        let shared = self.shared.map(|inner| SharedExpert {
            feed: plain(parts, "mixer.shared_experts", inner, self.activation, self.has_bias),
            gate: None,
        });
        Ok(FeedForward::Experts(Box::new(ExpertMixture {
            chosen: of.chosen,
            inner: of.inner.size,
            activation: ExpertActivation::Usual(self.activation),
            router: parts.linear("mixer.gate", of.count, hidden, false),
            routing: RoutingConfig { bias: Some(bias), ..self.routing.clone() },
            latent,
            experts: plain_experts(parts, of, self.latent.unwrap_or(hidden)),
            shared,
        })))
    }
}

/// Experts without gates, with tensors of their own or, in newer files, stacked.
fn plain_experts(parts: &LayerParts<'_, '_>, of: &ExpertFacts, width: SizeField) -> Vec<ExpertConfig> {
    let linear = |expert: usize, part: &str, outputs: SizeField, inputs: SizeField| {
        let name = parts.name(&format!("mixer.experts.{expert}.{part}"));
        let own = LinearConfig::own(&name, outputs, inputs, false);
        let stacked =
            RowSource::whole(parts.name(&format!("mixer.experts.{part}")), &[of.count, outputs, inputs]);
        let otherwise = RowSource { expert: Some(expert), pick: RowPick::All, ..stacked };
        LinearConfig { weight: RowSource { otherwise: Some(Box::new(otherwise)), ..own.weight }, ..own }
    };
    let expert = |expert| ExpertConfig {
        gate: None,
        up: linear(expert, "up_proj", of.inner, width),
        down: linear(expert, "down_proj", width, of.inner),
    };
    (0..of.count.size).map(expert).collect()
}

fn mamba(facts: &ModelFacts<'_>) -> Result<MambaFacts, CheckpointError> {
    let fields = &facts.fields;
    if facts.activation("mamba_hidden_act", FeedActivation::Silu)? != FeedActivation::Silu
        && let Some(value) = fields.get("mamba_hidden_act")
    {
        return Err(fields.unsupported("mamba_hidden_act", value, "\"silu\" is"));
    }
    let either = |newer: &'static str, older: &'static str| match fields.peek(newer) {
        Some(_) => newer,
        None => older,
    };
    let least = fields.number_from("time_step_min", 0.0, limits::MAX_ROPE_FACTOR)?.unwrap_or(0.001);
    MambaFacts {
        heads: width(fields, "mamba_num_heads", limits::MAX_HEADS, Some(128))?,
        head_dim: width(fields, "mamba_head_dim", limits::MAX_HEAD_DIM, Some(64))?,
        groups: width(fields, either("n_groups", "mamba_n_groups"), limits::MAX_HEADS, Some(8))?,
        state_dim: width(fields, "ssm_state_size", limits::MAX_HEAD_DIM, Some(128))?,
        taps: taps(fields, either("conv_kernel", "mamba_d_conv"), 4)?,
        has_convolution_bias: fields.flag(either("use_conv_bias", "mamba_conv_bias"))?.unwrap_or(true),
        has_bias: fields.flag("use_bias")?.unwrap_or(false),
        steps: (least as f32, f32::INFINITY),
        inner_fields: "mamba_num_heads × mamba_head_dim",
    }
    .checked(fields, either("n_groups", "mamba_n_groups"))
}
