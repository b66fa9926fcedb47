//! What a layer does after its feed-forward network: a network over an input that each layer has of its own, and a factor
//! on the stream. Must not know architectures.

use super::feed::FeedActivation;
use super::norm::NormConfig;
use super::source::{LinearConfig, PartSource, RowSource};

/// The last parts of a layer. Most models have none.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerTail {
    /// The network over the layer's own input.
    pub input: Option<LayerInputNetwork>,
    /// One element: a factor on the stream, the last step of the layer.
    pub scale: RowSource,
}

/// Adds `norm(projection(activation(gate(stream)) · input))` to the stream. `input` is the layer's part of
/// [`LayerInputsConfig`].
#[derive(Debug, Clone, PartialEq)]
pub struct LayerInputNetwork {
    /// The activation of the gate.
    pub activation: FeedActivation,
    /// `width × hidden`.
    pub gate: LinearConfig,
    /// `hidden × width`.
    pub projection: LinearConfig,
    /// Norm of the projection.
    pub norm: NormConfig,
}

/// Inputs that each layer has of its own: for each token and layer
/// `scale · (norm(projection_scale · projection(embedding)) + word_scale · word)`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerInputsConfig {
    /// Elements of one layer's input.
    pub width: usize,
    /// `vocab × layers·width`: the words.
    pub words: RowSource,
    /// Factor on the row of a token.
    pub word_scale: f32,
    /// `layers·width × hidden`, of the token's embedding.
    pub projection: LinearConfig,
    /// Factor on the projection, before the norm.
    pub projection_scale: f32,
    /// Norm over each layer's part.
    pub norm: NormConfig,
    /// Factor on the sum.
    pub scale: f32,
}

impl LayerTail {
    /// The dense layers, grouped as they are packed.
    pub(crate) fn matrices(&self) -> Vec<Vec<&LinearConfig>> {
        self.input.iter().flat_map(|input| [vec![&input.gate], vec![&input.projection]]).collect()
    }

    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        if let Some(LayerInputNetwork { gate, projection, norm, .. }) = &self.input {
            gate.each_source(list);
            projection.each_source(list);
            norm.each_source(list);
        }
        list.push(PartSource::plain(&self.scale));
    }
}

impl LayerInputsConfig {
    pub(crate) fn each_source<'a>(&'a self, list: &mut Vec<PartSource<'a>>) {
        list.push(PartSource::plain(&self.words));
        self.projection.each_source(list);
        self.norm.each_source(list);
    }
}
