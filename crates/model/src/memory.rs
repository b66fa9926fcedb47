//! The stores of keys and values, and the memory of a model before it is loaded, so that a caller can size the KV pool.
//! Must not know: how much memory the machine has.

use headrace_checkpoint::decoder::{LayerConfig, MixerConfig};
use headrace_checkpoint::{Checkpoint, ModelConfig};
use headrace_kernels::KernelError;
use headrace_kernels::attention::{KvShape, KvStore, KvType};
use headrace_kernels::matrix::Matrix;
use headrace_quant::BlockType;

use crate::attention::LayerKv;
use crate::error::ModelError;
use crate::quantize::{Role, target};
use crate::weights::{embedding_role, weight_type};

/// The stores of a model's keys and values. Layers whose heads have the same shape share one. All stores have the same
/// block ids.
pub(crate) struct KvStores {
    stores: Vec<KvStore>,
    /// For each layer, the index of its store, and its layer in that store.
    places: Vec<(usize, usize)>,
}

/// How many layers keep their keys and values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptLayers {
    /// All layers.
    All,
    /// One layer at a time, because each step computes whole sequences.
    One,
}

impl KvStores {
    /// Reserves memory for `blocks` blocks.
    pub(crate) fn new(
        config: &ModelConfig,
        kv: KvType,
        blocks: usize,
        kept: KeptLayers,
    ) -> Result<KvStores, KernelError> {
        let (shapes, places) = shapes(config, kept);
        let stores = shapes.into_iter().map(|shape| KvStore::new(shape, kv, blocks));
        Ok(KvStores { stores: stores.collect::<Result<_, _>>()?, places })
    }

    pub(crate) fn kv_type(&self) -> KvType {
        self.stores.first().map_or(KvType::F32, KvStore::kv_type)
    }

    /// The store of layer `index`. There is one for each layer of the configuration.
    pub(crate) fn of_layer(&mut self, index: usize) -> Option<LayerKv<'_>> {
        let &(store, layer) = self.places.get(index)?;
        Some(LayerKv { store: self.stores.get_mut(store)?, layer })
    }
}

/// The shapes of the stores, and the place of each layer.
fn shapes(config: &ModelConfig, kept: KeptLayers) -> (Vec<KvShape>, Vec<(usize, usize)>) {
    let mut shapes: Vec<KvShape> = Vec::new();
    let mut places = Vec::with_capacity(config.layers.len());
    for layer in &config.layers {
        let MixerConfig::Attention(attention) = &layer.mixer;
        let (kv_heads, head_dim) = (attention.kv_heads, attention.head_dim);
        let known = shapes.iter().position(|shape| (shape.kv_heads, shape.head_dim) == (kv_heads, head_dim));
        let store = known.unwrap_or_else(|| {
            shapes.push(KvShape { layers: 0, kv_heads, head_dim });
            shapes.len() - 1
        });
        if let Some(shape) = shapes.get_mut(store) {
            let layer = match kept {
                KeptLayers::All => shape.layers,
                KeptLayers::One => 0,
            };
            shape.layers = layer + 1;
            places.push((store, layer));
        }
    }
    (shapes, places)
}

/// KV bytes per block of 16 tokens, over all layers.
pub fn kv_bytes_per_block(config: &ModelConfig, kv: KvType) -> usize {
    block_bytes(config, kv, KeptLayers::All)
}

pub(crate) fn block_bytes(config: &ModelConfig, kv: KvType, kept: KeptLayers) -> usize {
    shapes(config, kept).0.into_iter().map(|shape| kv.block_bytes(shape)).fold(0, usize::saturating_add)
}

/// Bytes of the packed matrices if dense ones are quantized to `quantize`. Norms and biases are small and are not
/// counted.
///
/// # Errors
/// Fails if a tensor is missing.
pub fn weight_bytes(checkpoint: &Checkpoint, quantize: Option<BlockType>) -> Result<usize, ModelError> {
    let config = checkpoint.config();
    let mut total = 0_usize;
    let mut add = |parts: &[(&str, usize)], role: Role, k: usize| -> Result<(), ModelError> {
        let mut types = Vec::with_capacity(parts.len());
        for &(name, rows) in parts {
            // Requesting a tensor that is missing or of another type returns an error with its name.
            let dtype =
                checkpoint.dtype(name).map_or_else(|| checkpoint.tensor(name).map(|t| t.dtype), Ok)?;
            types.push((target(quantize, weight_type(dtype), role, k), rows));
        }
        total = total.saturating_add(Matrix::packed_bytes(&types, k));
        Ok(())
    };
    let words = (config.embedding.words.tensor.name.as_str(), config.vocab_size);
    add(&[words], embedding_role(config), config.hidden_size)?;
    let layers = config.layers.iter().flat_map(LayerConfig::matrices).map(|linears| (linears, Role::Inner));
    let head = config.head.linear.iter().map(|linear| (vec![linear], Role::Head));
    for (linears, role) in head.chain(layers) {
        let parts: Vec<(&str, usize)> =
            linears.iter().map(|linear| (linear.weight.tensor.name.as_str(), linear.outputs)).collect();
        add(&parts, role, linears.first().map_or(0, |linear| linear.inputs))?;
    }
    Ok(total)
}
