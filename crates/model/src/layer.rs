//! The weights of decoder layers, packed for the kernels, with the options of each part. Must not know how a step is
//! computed, or where weights are stored.

use headrace_kernels::matrix::Matrix;
use headrace_kernels::{Activation, RowNorm};

use crate::delta::DeltaWeights;
use crate::feed::FeedWeights;
use crate::mamba::MambaWeights;
use crate::norm::NormWeights;
use crate::short_conv::ShortConvWeights;

/// One decoder layer. See [`headrace_checkpoint::decoder::LayerConfig`] for the meaning of the fields.
pub(crate) struct Layer {
    pub(crate) mixer_norm: Option<NormWeights>,
    pub(crate) mixer: MixerWeights,
    pub(crate) mixer_out_norm: Option<NormWeights>,
    pub(crate) feed_norm: Option<NormWeights>,
    pub(crate) feed: FeedWeights,
    pub(crate) feed_out_norm: Option<NormWeights>,
    pub(crate) parallel: bool,
    pub(crate) residual_scale: f32,
    pub(crate) tail: Option<LayerTail>,
}

/// The last parts of a layer.
pub(crate) struct LayerTail {
    pub(crate) input: Option<LayerInputWeights>,
    /// Factor on the stream.
    pub(crate) scale: f32,
}

/// The network over the layer's own input.
pub(crate) struct LayerInputWeights {
    pub(crate) activation: Activation,
    /// `width × hidden`.
    pub(crate) gate: Matrix,
    /// `hidden × width`.
    pub(crate) projection: Matrix,
    pub(crate) norm: NormWeights,
    /// The layer's first element in a row of the inputs of all layers, and the elements of such a row.
    pub(crate) first: usize,
    pub(crate) stride: usize,
}

/// The weights of the inputs that layers have of their own. See
/// [`headrace_checkpoint::decoder::LayerInputsConfig`].
pub(crate) struct LayerInputs {
    pub(crate) width: usize,
    /// `vocab × layers·width`.
    pub(crate) words: Matrix,
    pub(crate) word_scale: f32,
    /// `layers·width × hidden`.
    pub(crate) projection: Matrix,
    pub(crate) projection_scale: f32,
    pub(crate) norm: NormWeights,
    pub(crate) scale: f32,
}

/// A norm over query or key heads.
pub(crate) struct HeadNorm {
    pub(crate) kind: RowNorm,
    pub(crate) eps: f32,
    /// Factors of one head, or of all heads.
    pub(crate) weight: Vec<f32>,
    /// Whether the statistics are those of all heads together.
    pub(crate) is_whole: bool,
}

/// How positions exchange information.
pub(crate) enum MixerWeights {
    Attention(AttentionWeights),
    Latent(LatentWeights),
    ShortConv(ShortConvWeights),
    Delta(Box<DeltaWeights>),
    Mamba(Box<MambaWeights>),
    /// They do not.
    None,
}

impl MixerWeights {
    /// The output projection. `None` without a mixer.
    pub(crate) fn output(&self) -> Option<&Matrix> {
        match self {
            MixerWeights::Attention(attention) => Some(&attention.output),
            MixerWeights::Latent(latent) => Some(&latent.output),
            MixerWeights::ShortConv(mixer) => Some(&mixer.output),
            MixerWeights::Delta(mixer) => Some(&mixer.output),
            MixerWeights::Mamba(mixer) => Some(&mixer.output),
            MixerWeights::None => None,
        }
    }

    /// Bytes of all weights.
    fn bytes(&self) -> usize {
        match self {
            MixerWeights::Attention(attention) => attention.bytes(),
            MixerWeights::Latent(latent) => latent.bytes(),
            MixerWeights::ShortConv(mixer) => mixer.bytes(),
            MixerWeights::Delta(mixer) => mixer.bytes(),
            MixerWeights::Mamba(mixer) => mixer.bytes(),
            MixerWeights::None => 0,
        }
    }
}

/// Grouped-query attention.
pub(crate) struct AttentionWeights {
    pub(crate) heads: usize,
    /// Key heads that the layer computes, and as many value heads. 0 if it reads those of an earlier layer.
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Query, key and value heads, and the output gates if there are some: `(heads + 2·kv_heads)·head_dim × hidden` or
    /// `(2·heads + 2·kv_heads)·head_dim × hidden`. ProjectedRows of the same input share one
    /// matrix: fewer operations, and more columns to distribute over threads.
    pub(crate) qkv: Matrix,
    /// Whether the output is multiplied by the sigmoid of a gate.
    pub(crate) is_gated: bool,
    /// `hidden × heads·head_dim`.
    pub(crate) output: Matrix,
    pub(crate) query_norm: Option<HeadNorm>,
    pub(crate) key_norm: Option<HeadNorm>,
    pub(crate) value_norm: Option<HeadNorm>,
    /// Index of the rotary table. `None` if nothing is rotated.
    pub(crate) table: Option<usize>,
    /// Growth of the queries: factor and positions.
    pub(crate) growth: Option<(f32, usize)>,
    pub(crate) scale: f32,
    pub(crate) cap: Option<f32>,
    pub(crate) window: Option<usize>,
    /// Empty if there are none.
    pub(crate) sinks: Vec<f32>,
    pub(crate) clip: Option<f32>,
}

impl AttentionWeights {
    fn bytes(&self) -> usize {
        let heads = [&self.query_norm, &self.key_norm, &self.value_norm].into_iter().flatten();
        let vectors = heads.map(|norm| norm.weight.len()).sum::<usize>() + self.sinks.len();
        self.qkv.bytes() + self.output.bytes() + 4 * vectors
    }
}

/// Latent attention. A stored row is a latent, then the rotated part of the keys.
pub(crate) struct LatentWeights {
    pub(crate) heads: usize,
    pub(crate) latent_dim: usize,
    pub(crate) plain_dim: usize,
    pub(crate) rotary_dim: usize,
    pub(crate) value_dim: usize,
    /// `rank × hidden`, and the norm of its output. `None` if queries are not compressed.
    pub(crate) query_down: Option<(Matrix, NormWeights)>,
    /// Plain elements of all heads, then rotated ones of all heads: `heads·(plain + rotary) × (rank or hidden)`.
    pub(crate) query: Matrix,
    /// Latent, then the rotated part of the keys: `(latent + rotary) × hidden`.
    pub(crate) row: Matrix,
    pub(crate) latent_norm: NormWeights,
    /// For each head `latent × plain`.
    pub(crate) key: Vec<Matrix>,
    /// For each head `value × latent`.
    pub(crate) value: Vec<Matrix>,
    /// `hidden × heads·value`.
    pub(crate) output: Matrix,
    /// Index of the rotary table.
    pub(crate) table: usize,
    pub(crate) scale: f32,
}

impl LatentWeights {
    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        let down = self.query_down.as_ref().map_or(0, |(down, norm)| down.bytes() + norm.bytes());
        let heads: usize = self.key.iter().chain(&self.value).map(Matrix::bytes).sum();
        down + self.query.bytes() + self.row.bytes() + self.latent_norm.bytes() + heads + self.output.bytes()
    }
}

impl Layer {
    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        let norms = [&self.mixer_norm, &self.mixer_out_norm, &self.feed_norm, &self.feed_out_norm];
        let norms: usize = norms.into_iter().flatten().map(NormWeights::bytes).sum();
        let input = self.tail.as_ref().and_then(|tail| tail.input.as_ref());
        let tail =
            input.map_or(0, |input| input.gate.bytes() + input.projection.bytes() + input.norm.bytes());
        norms + self.mixer.bytes() + self.feed.bytes() + tail
    }
}

impl LayerInputs {
    /// Bytes of all weights.
    pub(crate) fn bytes(&self) -> usize {
        self.words.bytes() + self.projection.bytes() + self.norm.bytes()
    }
}
