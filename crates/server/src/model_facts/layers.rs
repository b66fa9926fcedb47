//! The layers of a decoder, as `models inspect` shows them: kinds of attention with their heads, kinds of recurrent layers,
//! and widths of the feed-forward networks. Must not load weights.

use headrace_checkpoint::ModelConfig;
use headrace_checkpoint::decoder::{AttentionConfig, LayerConfig, MixerConfig};
use serde_json::{Value, json};

/// The kinds of layers of a decoder.
pub(super) struct LayerFacts<'a> {
    config: &'a ModelConfig,
}

/// Attention layers that are alike.
#[derive(PartialEq)]
pub(super) struct AttentionKind {
    pub(super) heads: usize,
    /// As many as query heads in latent attention.
    pub(super) kv_heads: usize,
    /// Elements of a key.
    pub(super) head_dim: usize,
    window: Option<usize>,
    /// Elements of the one row that latent attention stores of each token.
    latent: Option<usize>,
}

/// Recurrent layers that are alike.
#[derive(PartialEq)]
struct RecurrentKind {
    /// The name as text and as JSON.
    names: (&'static str, &'static str),
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    channels: usize,
    taps: usize,
}

impl RecurrentKind {
    /// Returns the kind of a mixer. `None` if it is not recurrent.
    fn of(mixer: &MixerConfig) -> Option<Self> {
        let (names, convolution, [heads, key_dim, value_dim]) = match mixer {
            MixerConfig::ShortConv(mixer) => {
                (("short convolution", "short_conv"), &mixer.convolution, [0; 3])
            }
            MixerConfig::Delta(mixer) => {
                let sizes = [mixer.value_heads, mixer.key_dim, mixer.value_dim];
                (("gated delta rule", "gated_delta"), &mixer.convolution, sizes)
            }
            MixerConfig::Mamba(mixer) => {
                let sizes = [mixer.heads, mixer.state_dim, mixer.head_dim];
                (("Mamba2", "mamba2"), &mixer.convolution, sizes)
            }
            MixerConfig::Attention(_) | MixerConfig::Latent(_) | MixerConfig::None => return None,
        };
        let (channels, taps) = (convolution.channels, convolution.taps);
        Some(Self { names, heads, key_dim, value_dim, channels, taps })
    }
}

impl<'a> LayerFacts<'a> {
    pub(super) fn of(config: &'a ModelConfig) -> Self {
        Self { config }
    }

    /// The kinds of attention, each with the number of its layers, in the order in which they first occur.
    fn kinds(&self) -> Vec<(AttentionKind, usize)> {
        let mut kinds: Vec<(AttentionKind, usize)> = Vec::new();
        for kind in self.attentions() {
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind, 1)),
            }
        }
        kinds
    }

    fn attentions(&self) -> impl Iterator<Item = AttentionKind> + 'a {
        self.config.layers.iter().filter_map(|layer: &LayerConfig| match &layer.mixer {
            MixerConfig::Attention(attention) => {
                let AttentionConfig { heads, kv_heads, head_dim, window, .. } = **attention;
                Some(AttentionKind { heads, kv_heads, head_dim, window, latent: None })
            }
            MixerConfig::Latent(latent) => Some(AttentionKind {
                heads: latent.heads,
                kv_heads: latent.heads,
                head_dim: latent.plain_dim + latent.rotary_dim,
                window: None,
                latent: Some(latent.row_width()),
            }),
            _ => None,
        })
    }

    /// The heads of each kind of attention as text.
    pub(super) fn heads(&self) -> String {
        let kinds = self.kinds();
        let several = kinds.len() > 1;
        let each = kinds.iter().map(|(kind, count)| {
            let AttentionKind { heads, kv_heads, head_dim, window, latent } = kind;
            let window = window.map_or(String::new(), |window| format!(", a window of {window} tokens"));
            let layers = if several { format!("{count} layers: ") } else { String::new() };
            match latent {
                None => format!("{layers}{heads} of {head_dim}, keys and values {kv_heads}{window}"),
                Some(row) => format!("{layers}{heads} of {head_dim} over one latent of {row}{window}"),
            }
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// The kinds of recurrent layers, each with the number of its layers, in the order in which they first occur.
    fn recurrent_kinds(&self) -> Vec<(RecurrentKind, usize)> {
        let mut kinds: Vec<(RecurrentKind, usize)> = Vec::new();
        for kind in self.config.layers.iter().filter_map(|layer| RecurrentKind::of(&layer.mixer)) {
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind, 1)),
            }
        }
        kinds
    }

    /// The kinds of recurrent layers as text. `None` if there are no such layers.
    pub(super) fn recurrent(&self) -> Option<String> {
        let kinds = self.recurrent_kinds();
        let each = kinds.iter().map(|(kind, count)| {
            let heads = match kind.heads {
                0 => String::new(),
                heads => format!(", {heads} heads of {} × {}", kind.key_dim, kind.value_dim),
            };
            let (channels, taps) = (kind.channels, kind.taps);
            format!(
                "{count} layers: {}{heads}, a convolution of {channels} channels over {taps}",
                kind.names.0
            )
        });
        (!kinds.is_empty()).then(|| each.collect::<Vec<_>>().join("; "))
    }

    /// The kinds of recurrent layers as JSON.
    pub(super) fn recurrent_json(&self) -> Value {
        let kinds = self.recurrent_kinds();
        let each = kinds.iter().map(|(kind, count)| {
            json!({
                "kind": kind.names.1, "layers": count, "heads": kind.heads, "key_dim": kind.key_dim,
                "value_dim": kind.value_dim, "channels": kind.channels, "taps": kind.taps,
            })
        });
        Value::Array(each.collect())
    }

    /// The widths of the feed-forward networks as text.
    pub(super) fn inner(&self) -> String {
        let mut widths: Vec<usize> = self.inners().collect();
        widths.dedup();
        widths.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
    }

    fn inners(&self) -> impl Iterator<Item = usize> {
        self.config.layers.iter().map(|layer| layer.feed.inner()).filter(|inner| *inner > 0)
    }

    pub(super) fn first_inner(&self) -> Option<usize> {
        self.inners().next()
    }

    /// A size of the first layer's attention.
    pub(super) fn first_attention(&self, size: impl Fn(AttentionKind) -> usize) -> Option<usize> {
        self.attentions().next().map(size)
    }

    /// The kinds of attention as JSON.
    pub(super) fn json(&self) -> Value {
        let kinds = self.kinds();
        let each = kinds.iter().map(|(kind, count)| {
            json!({
                "layers": count, "heads": kind.heads, "kv_heads": kind.kv_heads, "head_dim": kind.head_dim,
                "window": kind.window, "latent": kind.latent,
            })
        });
        Value::Array(each.collect())
    }
}
