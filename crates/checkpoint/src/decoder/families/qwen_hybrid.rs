//! Qwen3-Next and Qwen3.5 (Qwen Team 2025): the gated delta rule in most layers, and attention with an output gate in the
//! others. Norms have 1 + weight, but not the one of the delta rule's output.

use super::facts::{LayerParts, ModelFacts, NormStyle, SizeDefaults};
use super::hybrid::{LayerKind, convolution, per_head, pre_norm_layer, taps, width};
use super::moe::{self, ExpertFacts, experts, gated_shared};
use crate::decoder::{
    Architecture, AttentionConfig, DeltaConfig, ExpertActivation, ExpertMixture, FeedActivation, FeedForward,
    LinearConfig, MixerConfig, ModelConfig, RateForm, SizeField, ValueHeadOrder,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;
use crate::rope::Rope;

/// The share of a head that these classes rotate if the file does not say it.
const ROTATED: f64 = 0.25;

pub(super) fn dense(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, defaults(4))?;
    let activation = facts.activation("hidden_act", FeedActivation::Silu)?;
    model(&facts, Architecture::Qwen35, |parts, _| parts.gated(activation, false))
}

pub(super) fn moe(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, defaults(2))?;
    let mixture = MixtureFacts::read(&facts, 8)?;
    // This class always renormalises.
    model(&facts, Architecture::Qwen35Moe, |parts, _| Ok(mixture.feed(parts, true)))
}

pub(super) fn next(fields: &Fields<'_>) -> Result<ModelConfig, CheckpointError> {
    let facts = ModelFacts::read(fields, defaults(2))?;
    let mixture = MixtureFacts::read(&facts, 10)?;
    let renormalised = fields.flag("norm_topk_prob")?.unwrap_or(true);
    let sparse = moe::sparse_layers(&facts)?;
    model(&facts, Architecture::Qwen3Next, |parts, index| match sparse.get(index) {
        Some(false) => parts.gated(mixture.activation, false),
        _ => Ok(mixture.feed(parts, renormalised)),
    })
}

fn defaults(kv_heads: usize) -> SizeDefaults {
    SizeDefaults {
        heads: Some(16),
        kv_heads: Some(kv_heads),
        head_dim: Some(256),
        positions: 32_768,
        ..SizeDefaults::NONE
    }
}

/// The experts of a model, and the network that every row passes.
struct MixtureFacts {
    of: ExpertFacts,
    shared: SizeField,
    activation: FeedActivation,
}

impl MixtureFacts {
    fn read(facts: &ModelFacts<'_>, default_chosen: usize) -> Result<Self, CheckpointError> {
        let fields = &facts.fields;
        let inner = moe::width(fields, "moe_intermediate_size")?;
        let counts = ["num_experts", "num_local_experts"];
        Ok(Self {
            of: ExpertFacts::read(facts, &counts, inner, default_chosen)?,
            shared: moe::width(fields, "shared_expert_intermediate_size")?,
            activation: facts.activation("hidden_act", FeedActivation::Silu)?,
        })
    }

    fn feed(&self, parts: &LayerParts<'_, '_>, renormalised: bool) -> FeedForward {
        let of = &self.of;
        FeedForward::Experts(Box::new(ExpertMixture {
            chosen: of.chosen,
            inner: of.inner.size,
            activation: ExpertActivation::Usual(self.activation),
            router: parts.linear("mlp.gate", of.count, parts.facts.hidden(), false),
            routing: moe::softmax(renormalised),
            latent: None,
            experts: experts(parts, of, ("mlp.experts", "gate_proj", "up_proj", "down_proj")),
            shared: Some(gated_shared(parts, self.shared, self.activation)),
        }))
    }
}

fn model(
    facts: &ModelFacts<'_>,
    architecture: Architecture,
    feed: impl Fn(&LayerParts<'_, '_>, usize) -> Result<FeedForward, CheckpointError>,
) -> Result<ModelConfig, CheckpointError> {
    let fields = &facts.fields;
    let norms = NormStyle { plus_one: true, ..NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?) };
    if let Some(value) = fields.get("attn_output_gate").filter(|value| value.as_bool() != Some(true)) {
        return Err(fields.unsupported("attn_output_gate", value, "true is"));
    }
    let has_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let delta = DeltaFacts::read(facts, architecture == Architecture::Qwen3Next)?;
    let interval = fields.count("full_attention_interval", 1..=limits::MAX_LAYERS)?.unwrap_or(4);
    let kinds = LayerKind::of_layers(facts, |index| match (index + 1).is_multiple_of(interval) {
        true => LayerKind::Attention,
        false => LayerKind::Recurrent,
    })?;
    let layer = |(index, &kind): (usize, &LayerKind)| {
        let parts = LayerParts::new(facts, norms, "model.layers", index);
        let mixer = match kind {
            LayerKind::Attention => MixerConfig::Attention(Box::new(gated_attention(&parts, has_bias))),
            _ => delta.mixer(&parts),
        };
        let feed = feed(&parts, index)?;
        Ok(pre_norm_layer(&parts, ("input_layernorm", mixer), ("post_attention_layernorm", feed)))
    };
    let layers = kinds.iter().enumerate().map(layer).collect::<Result<_, CheckpointError>>()?;
    let (rope, share) = Rope::read_partial(fields, ROTATED)?;
    let rotary = vec![facts.rotary(rope, share)?];
    facts.model(architecture, layers, rotary, norms.named("model.norm", facts.hidden()))
}

/// Attention whose query projection gives, for each head, a query and the logits of an output gate.
fn gated_attention(parts: &LayerParts<'_, '_>, has_bias: bool) -> AttentionConfig {
    let facts = parts.facts;
    let (head_dim, hidden) = (facts.head_dim, facts.hidden());
    let both = SizeField::new(2 * facts.heads * head_dim, "2 × num_attention_heads × head_dim");
    let half =
        |first| parts.grouped("self_attn.q_proj", both, (2 * head_dim, first, head_dim), hidden, has_bias);
    AttentionConfig {
        query: half(0),
        gate: Some(half(head_dim)),
        query_norm: parts.head_norm("self_attn.q_norm"),
        key_norm: parts.head_norm("self_attn.k_norm"),
        ..parts.attention(has_bias, Some(0))
    }
}

/// The sizes of the layers with the delta rule.
struct DeltaFacts {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    taps: SizeField,
    norms: NormStyle,
    /// Whether the projections are two tensors, with the rows of each key head together.
    is_interleaved: bool,
}

impl DeltaFacts {
    fn read(facts: &ModelFacts<'_>, is_interleaved: bool) -> Result<Self, CheckpointError> {
        let fields = &facts.fields;
        let heads = |field, default| width(fields, field, limits::MAX_HEADS, Some(default));
        let dim = |field| width(fields, field, limits::MAX_HEAD_DIM, Some(128));
        let (key_heads, value_heads) =
            (heads("linear_num_key_heads", 16)?, heads("linear_num_value_heads", 32)?);
        if !value_heads.is_multiple_of(key_heads) {
            let problem = format!("{key_heads} does not divide linear_num_value_heads {value_heads}");
            return Err(fields.problem("linear_num_key_heads", problem));
        }
        if facts.activation("hidden_act", FeedActivation::Silu)? != FeedActivation::Silu
            && let Some(value) = fields.get("hidden_act")
        {
            return Err(fields.unsupported("hidden_act", value, "\"silu\" is"));
        }
        Ok(Self {
            key_heads,
            value_heads,
            key_dim: dim("linear_key_head_dim")?,
            value_dim: dim("linear_value_head_dim")?,
            taps: taps(fields, "linear_conv_kernel_dim", 4)?,
            norms: NormStyle::rms(facts.eps("rms_norm_eps", 1e-6)?),
            is_interleaved,
        })
    }

    /// Elements of the keys and of the values of all heads. Within `limits`, so that they cannot overflow.
    fn widths(&self) -> (usize, usize) {
        (self.key_heads * self.key_dim, self.value_heads * self.value_dim)
    }

    fn mixer(&self, parts: &LayerParts<'_, '_>) -> MixerConfig {
        let (keys, values) = self.widths();
        let heads = SizeField::new(self.value_heads, "linear_num_value_heads");
        let inner = SizeField::new(values, "linear_num_value_heads × linear_value_head_dim");
        let channels = SizeField::new(2 * keys + values, "linear keys, queries and values");
        let [query, key, value, gate, beta, step] = match self.is_interleaved {
            true => self.interleaved(parts),
            false => self.apart(parts, channels, (inner, heads)),
        };
        let norm = SizeField::new(self.value_dim, "linear_value_head_dim");
        MixerConfig::Delta(Box::new(DeltaConfig {
            key_heads: self.key_heads,
            value_heads: self.value_heads,
            head_order: ValueHeadOrder::Grouped,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            query,
            key,
            value,
            gate,
            beta,
            step,
            convolution: convolution(parts, "linear_attn.conv1d", (channels, self.taps), false),
            step_bias: per_head(parts, "linear_attn.dt_bias", heads),
            rates: per_head(parts, "linear_attn.A_log", heads),
            rate_form: RateForm::Logarithm,
            norm: self.norms.named(&parts.name("linear_attn.norm"), norm),
            output: parts.linear("linear_attn.out_proj", parts.facts.hidden(), inner, false),
        }))
    }

    /// The projections of Qwen3.5: queries, keys and values in one tensor, one after the other.
    fn apart(
        &self,
        parts: &LayerParts<'_, '_>,
        channels: SizeField,
        (inner, heads): (SizeField, SizeField),
    ) -> [LinearConfig; 6] {
        let (hidden, (keys, values)) = (parts.facts.hidden(), self.widths());
        let slice =
            |first, count| parts.slice("linear_attn.in_proj_qkv", channels, (first, count), hidden, false);
        let own = |name: &str, outputs| parts.linear(&format!("linear_attn.{name}"), outputs, hidden, false);
        [
            slice(0, keys),
            slice(keys, keys),
            slice(2 * keys, values),
            own("in_proj_z", inner),
            own("in_proj_b", heads),
            own("in_proj_a", heads),
        ]
    }

    /// The projections of Qwen3-Next: for each key head its query, key, values and gates, and in another tensor the
    /// logits of β and the step sizes of its value heads.
    fn interleaved(&self, parts: &LayerParts<'_, '_>) -> [LinearConfig; 6] {
        let (hidden, (keys, values)) = (parts.facts.hidden(), self.widths());
        let (key, value) = (self.key_dim, values / self.key_heads);
        let wide = SizeField::new(2 * keys + 2 * values, "linear queries, keys, values and gates");
        let narrow = SizeField::new(2 * self.value_heads, "2 × linear_num_value_heads");
        let shared = self.value_heads / self.key_heads;
        let pick = |first, count| {
            let group = 2 * key + 2 * value;
            parts.grouped("linear_attn.in_proj_qkvz", wide, (group, first, count), hidden, false)
        };
        let pick_heads = |first| {
            parts.grouped("linear_attn.in_proj_ba", narrow, (2 * shared, first, shared), hidden, false)
        };
        [
            pick(0, key),
            pick(key, key),
            pick(2 * key, value),
            pick(2 * key + value, value),
            pick_heads(0),
            pick_heads(shared),
        ]
    }
}
