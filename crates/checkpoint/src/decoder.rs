//! A decoder as data: shared facts and a list of layers over parts that are written once, with the stored tensor that
//! each part's weights come from. Must not know files, or how a part is computed.

mod architecture;
pub(crate) mod families;
mod feed;
mod latent;
mod layer;
mod norm;
mod recurrent;
mod refused;
mod source;
mod tail;
mod uniform;

pub use architecture::Architecture;
pub use feed::{
    DenseAndExperts, ExpertActivation, ExpertConfig, ExpertGroups, ExpertMixture, FeedActivation,
    FeedForward, GatedFeed, LatentProjection, PlainFeed, RoutingConfig, ScoreKind, SharedExpert,
};
pub use latent::{LatentConfig, LatentQuery, ScoreGrowth};
pub use layer::{AttentionConfig, LayerConfig, LayerRotary, MixerConfig, QueryGrowth};
pub use norm::{HeadNorm, NormConfig, NormKind};
pub use recurrent::{ConvolutionConfig, DeltaConfig, MambaConfig, RateForm, ShortConvConfig, ValueHeadOrder};
pub(crate) use refused::reason as refusal_reason;
pub(crate) use source::{ElementForm, PartSource, TensorFit};
pub use source::{LinearConfig, RotaryPairs, RowPick, RowSource, SizeField, TensorSpec};
pub use tail::{LayerInputNetwork, LayerInputsConfig, LayerTail};
pub use uniform::UniformConfig;

use std::collections::BTreeMap;

use crate::rope::Rope;

/// A decoder-only model: its sizes, its layers and the origin of every weight. All sizes are in elements, and within
/// [`crate::limits`].
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The decoder architecture.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding. May exceed the number of token ids, because of padding.
    pub vocab_size: usize,
    /// Longest context, in positions. An unchecked claim of the file: never allocate in proportion to this value alone.
    pub max_positions: usize,
    /// The token embedding.
    pub embedding: EmbeddingConfig,
    /// The layers, first to last. At least one.
    pub layers: Vec<LayerConfig>,
    /// Inputs that each layer has of its own. `None` in most models.
    pub layer_inputs: Option<Box<LayerInputsConfig>>,
    /// Rotary embeddings, which layers refer to by their index. Each has the width that it rotates.
    pub rotary: Vec<RotaryConfig>,
    /// The norm after the last layer.
    pub final_norm: NormConfig,
    /// The output projection.
    pub head: HeadConfig,
    /// The sizes of all layers, if every layer has the same and the architecture is one of the Llama line. For code
    /// that computes only those.
    pub uniform: Option<UniformConfig>,
    /// Beginning-of-sequence id.
    pub bos: Option<u32>,
    /// End-of-sequence ids. Empty if the file names none.
    pub eos: Vec<u32>,
}

/// The token embedding: a row for each token id.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingConfig {
    /// `vocab × hidden`.
    pub words: RowSource,
    /// `positions × hidden`, added by position. `None` if the model has no learned positions.
    pub positions: Option<RowSource>,
    /// Factor on the row of a token, before the position is added. 1 in most models.
    pub scale: f32,
}

/// The output projection and what is done to the logits.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadConfig {
    /// `vocab × hidden`. `None` if the token embedding is also the output projection.
    pub linear: Option<LinearConfig>,
    /// Factor on every logit. 1 in most models.
    pub scale: f32,
    /// Logits become `cap · tanh(logit / cap)`, after the factor.
    pub cap: Option<f32>,
}

/// A rotary embedding and the number of elements of a head that it rotates.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryConfig {
    /// The frequencies.
    pub rope: Rope,
    /// Rotated elements, from the start of a head. Even.
    pub width: usize,
}

impl ModelConfig {
    /// Whether the token embedding is also the output projection.
    pub fn is_tied(&self) -> bool {
        self.head.linear.is_none()
    }

    /// Takes for every part the tensors that the checkpoint has, where it may be stored in several ways.
    pub(crate) fn resolve(&mut self, fit: &dyn Fn(&TensorSpec) -> TensorFit) {
        for layer in &mut self.layers {
            match &mut layer.feed {
                FeedForward::Experts(experts) => experts.resolve(fit),
                FeedForward::Both(both) => both.experts.resolve(fit),
                FeedForward::Gated(_) | FeedForward::Plain(_) | FeedForward::None => {}
            }
        }
    }

    /// The tensors outside the layers, each once.
    pub(crate) fn global_tensors(&self) -> Vec<&TensorSpec> {
        self.global_sources().into_iter().map(|part| &part.source.tensor).collect()
    }

    /// The sources of the parts outside the layers, in a fixed order.
    fn global_sources(&self) -> Vec<PartSource<'_>> {
        let mut list = vec![PartSource::plain(&self.embedding.words)];
        list.extend(self.embedding.positions.iter().map(PartSource::plain));
        self.layer_inputs.iter().for_each(|inputs| inputs.each_source(&mut list));
        self.final_norm.each_source(&mut list);
        if let Some(linear) = &self.head.linear {
            linear.each_source(&mut list);
        }
        list
    }

    /// The source of every part, in the order of [`ModelConfig::required`].
    pub(crate) fn sources(&self) -> impl Iterator<Item = PartSource<'_>> {
        self.global_sources().into_iter().chain(self.layers.iter().flat_map(LayerConfig::sources))
    }

    /// Names of the tensors that are factors of a norm, each with the value that changes nothing: 1, or 0 if the
    /// checkpoint stores the factors less 1.
    pub fn norm_weights(&self) -> BTreeMap<&str, f32> {
        let norms = self.sources().filter(|part| part.is_norm);
        let neutral = |part: &PartSource<'_>| if part.form == ElementForm::LessOne { 0.0 } else { 1.0 };
        norms.map(|part| (part.source.tensor.name.as_str(), neutral(&part))).collect()
    }

    /// All required tensors, each once. Those outside the layers come first, then layer by layer.
    pub fn required(&self) -> impl Iterator<Item = &TensorSpec> {
        self.global_tensors().into_iter().chain(self.layers.iter().flat_map(LayerConfig::tensors))
    }

    /// Names and shapes of all required tensors, outermost dimension first, in the order of the layers.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        self.required().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect()
    }
}
