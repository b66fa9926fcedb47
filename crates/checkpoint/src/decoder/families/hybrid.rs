//! What models with recurrent layers share: the kinds of their layers, convolutions, and Mamba2 mixers. Must not know any
//! architecture.

use serde_json::Value;

use super::facts::{LayerParts, ModelFacts, NormStyle};
use crate::decoder::{
    ConvolutionConfig, FeedForward, LayerConfig, MambaConfig, MixerConfig, NormConfig, RateForm, RowSource,
    SizeField,
};
use crate::error::CheckpointError;
use crate::fields::Fields;
use crate::limits;

/// What a layer of a model with recurrent layers is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerKind {
    Attention,
    Recurrent,
    Dense,
    Experts,
}

impl LayerKind {
    /// Returns the kind of a name, in the spelling of transformers 5 or an older one.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "full_attention" | "attention" => Self::Attention,
            "linear_attention" | "mamba" | "conv" => Self::Recurrent,
            "mlp" => Self::Dense,
            "moe" => Self::Experts,
            _ => return None,
        })
    }

    /// Reads the kinds of all layers from a list of names. Kinds that are not in `allowed` are refused. `None` if the field is
    /// absent.
    pub(super) fn list(
        fields: &Fields<'_>,
        field: &str,
        allowed: &[LayerKind],
    ) -> Result<Option<Vec<LayerKind>>, CheckpointError> {
        let Some(value) = fields.get(field) else { return Ok(None) };
        let Some(names) = value.as_array().filter(|names| (1..=limits::MAX_LAYERS).contains(&names.len()))
        else {
            return Err(fields.wrong(field, value, &format!("a list of 1 to {} names", limits::MAX_LAYERS)));
        };
        let kind = |name: &Value| {
            let kind = name.as_str().and_then(Self::named).filter(|kind| allowed.contains(kind));
            kind.ok_or_else(|| {
                fields.unsupported(field, name, "the kinds of layers that its class knows are")
            })
        };
        names.iter().map(kind).collect::<Result<_, _>>().map(Some)
    }

    /// Reads the kinds from `layer_types`, or from `usual` if it is absent.
    pub(super) fn of_layers(
        facts: &ModelFacts<'_>,
        usual: impl Fn(usize) -> LayerKind,
    ) -> Result<Vec<LayerKind>, CheckpointError> {
        let fields = &facts.fields;
        let kinds = match Self::list(fields, "layer_types", &[Self::Attention, Self::Recurrent])? {
            Some(kinds) => kinds,
            None => (0..facts.layers).map(usual).collect(),
        };
        if kinds.len() != facts.layers {
            let problem =
                format!("lists {} layers, but num_hidden_layers says {}", kinds.len(), facts.layers);
            return Err(fields.problem("layer_types", problem));
        }
        Ok(kinds)
    }
}

/// The layer with a norm before each half, by these names.
pub(super) fn pre_norm_layer(
    parts: &LayerParts<'_, '_>,
    (mixer_norm, mixer): (&str, MixerConfig),
    (feed_norm, feed): (&str, FeedForward),
) -> LayerConfig {
    LayerConfig {
        prefix: parts.name(""),
        mixer_norm: parts.norm(mixer_norm),
        mixer,
        mixer_out_norm: None,
        feed_norm: parts.norm(feed_norm),
        feed,
        feed_out_norm: None,
        parallel: false,
        residual_scale: 1.0,
        tail: None,
    }
}

/// Reads the taps of a convolution.
pub(super) fn taps(
    fields: &Fields<'_>,
    field: &'static str,
    default: usize,
) -> Result<SizeField, CheckpointError> {
    let taps = fields.count(field, 1..=limits::MAX_CONVOLUTION_TAPS)?.unwrap_or(default);
    Ok(SizeField::new(taps, field))
}

/// The convolution with tensors `{name}.weight` and, if `has_bias`, `{name}.bias`.
pub(super) fn convolution(
    parts: &LayerParts<'_, '_>,
    name: &str,
    (channels, taps): (SizeField, SizeField),
    has_bias: bool,
) -> ConvolutionConfig {
    let one = SizeField::new(1, "1");
    let source =
        |kind: &str, shape: &[SizeField]| RowSource::whole(parts.name(&format!("{name}.{kind}")), shape);
    ConvolutionConfig {
        channels: channels.size,
        taps: taps.size,
        weight: source("weight", &[channels, one, taps]),
        bias: has_bias.then(|| source("bias", &[channels])),
    }
}

/// A width of a recurrent layer.
pub(super) fn width(
    fields: &Fields<'_>,
    field: &'static str,
    most: usize,
    default: Option<usize>,
) -> Result<usize, CheckpointError> {
    fields.count(field, 1..=most)?.or(default).ok_or_else(|| fields.missing(field))
}

/// The sizes of Mamba2 mixers, and the fields that give them.
#[derive(Clone, Copy)]
pub(super) struct MambaFacts {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) groups: usize,
    pub(super) state_dim: usize,
    pub(super) taps: SizeField,
    pub(super) has_convolution_bias: bool,
    pub(super) has_bias: bool,
    /// Bounds of the step sizes.
    pub(super) steps: (f32, f32),
    /// How the fields are spelled, for messages: heads × head width.
    pub(super) inner_fields: &'static str,
}

impl MambaFacts {
    /// Checks that the groups divide the heads.
    pub(super) fn checked(self, fields: &Fields<'_>, groups_field: &str) -> Result<Self, CheckpointError> {
        if !self.heads.is_multiple_of(self.groups) {
            let problem = format!("{} does not divide the {} heads of Mamba2", self.groups, self.heads);
            return Err(fields.problem(groups_field, problem));
        }
        Ok(self)
    }

    /// The mixer with tensors below `{name}.`.
    pub(super) fn mixer(&self, parts: &LayerParts<'_, '_>, name: &str, norms: NormStyle) -> MixerConfig {
        let named = |part: &str| format!("{name}.{part}");
        let heads = SizeField::new(self.heads, "heads of Mamba2");
        let of_heads = |part: &str| per_head(parts, &named(part), heads);
        let hidden = parts.facts.hidden();
        // Within `limits`, so that the sums and products cannot overflow.
        let inner = SizeField::new(self.heads * self.head_dim, self.inner_fields);
        let channels =
            SizeField::new(inner.size + 2 * self.groups * self.state_dim, "channels of Mamba2's convolution");
        let all = SizeField::new(inner.size + channels.size + self.heads, "outputs of Mamba2's projection");
        let norm: NormConfig = norms.named(&parts.name(&named("norm")), inner);
        MixerConfig::Mamba(Box::new(MambaConfig {
            heads: self.heads,
            head_dim: self.head_dim,
            groups: self.groups,
            state_dim: self.state_dim,
            input: parts.linear(&named("in_proj"), all, hidden, self.has_bias),
            convolution: convolution(
                parts,
                &named("conv1d"),
                (channels, self.taps),
                self.has_convolution_bias,
            ),
            step_bias: of_heads("dt_bias"),
            steps: self.steps,
            rates: of_heads("A_log"),
            rate_form: RateForm::Logarithm,
            skips: of_heads("D"),
            norm,
            output: parts.linear(&named("out_proj"), hidden, inner, self.has_bias),
        }))
    }
}

/// A vector of one element for each head, with the name `{name}`.
pub(super) fn per_head(parts: &LayerParts<'_, '_>, name: &str, heads: SizeField) -> RowSource {
    RowSource::whole(parts.name(name), &[heads])
}
