//! The stores of keys and values, and the memory of a model before it is loaded, so that a caller can size the KV pool.
//! Must not know: how much memory the machine has.

use headrace_checkpoint::decoder::{FeedForward, LayerConfig, MixerConfig, RowSource};
use headrace_checkpoint::{Checkpoint, ModelConfig};
use headrace_kernels::KernelError;
use headrace_kernels::attention::{KvShape, KvStore, KvType, KvValues};
use headrace_kernels::matrix::Matrix;
use headrace_kv_layout::{KvGroupKind, KvLayout};
use headrace_quant::BlockType;

use crate::attention::LayerKv;
use crate::error::ModelError;
use crate::quantize::{Role, target};
use crate::weights::{embedding_role, row_type};

/// The stores of a model's keys and values. Layers of one cache group whose heads have the same shape share one. The
/// stores of a group have the same block ids.
pub(crate) struct KvStores {
    stores: Vec<KvStore>,
    /// The place of each layer. `None` for layers without keys and values.
    places: Vec<Option<LayerPlace>>,
}

/// Where a layer's keys and values are stored.
#[derive(Clone, Copy)]
struct LayerPlace {
    /// Index of the store.
    store: usize,
    /// The layer's index in the store.
    layer: usize,
    /// Whether the layer belongs to the cache group of the window.
    in_window: bool,
}

/// The heads of the layers of one store.
#[derive(Clone, Copy, PartialEq)]
struct StoreShape {
    shape: KvShape,
    in_window: bool,
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
    /// Reserves memory for the blocks of a layout.
    pub(crate) fn new(
        config: &ModelConfig,
        kv: KvType,
        layout: &KvLayout,
        kept: KeptLayers,
    ) -> Result<KvStores, KernelError> {
        let (shapes, places) = shapes(config, kept);
        let groups = layout.groups();
        let stores = shapes.into_iter().map(|StoreShape { shape, in_window }| {
            let group = if in_window { groups.window() } else { groups.full() };
            KvStore::new(shape, kv, group.block_count)
        });
        Ok(KvStores { stores: stores.collect::<Result<_, _>>()?, places })
    }

    /// Whether layer `index` belongs to the cache group of the window.
    pub(crate) fn is_in_window(&self, index: usize) -> bool {
        self.places.get(index).copied().flatten().is_some_and(|place| place.in_window)
    }

    pub(crate) fn kv_type(&self) -> KvType {
        self.stores.first().map_or(KvType::F32, KvStore::kv_type)
    }

    /// The store of layer `index`. `None` if the layer keeps no keys and values.
    pub(crate) fn of_layer(&mut self, index: usize) -> Option<LayerKv<'_>> {
        let LayerPlace { store, layer, in_window } = self.places.get(index).copied().flatten()?;
        Some(LayerKv { store: self.stores.get_mut(store)?, layer, in_window })
    }
}

/// The window of the cache group of layers with a window: the widest of them. `None` if every layer keeps every
/// position. A window as wide as the longest context is none.
pub(crate) fn group_window(config: &ModelConfig) -> Option<usize> {
    config.layers.iter().filter_map(|layer| layer_window(config, layer)).max()
}

/// What the layers without a window keep.
pub(crate) fn full_kind(config: &ModelConfig) -> KvGroupKind {
    let is_latent = |layer: &LayerConfig| matches!(layer.mixer, MixerConfig::Latent(_));
    if config.layers.iter().any(is_latent) { KvGroupKind::Latent } else { KvGroupKind::Full }
}

/// The window of a layer in the cache group of layers with a window. `None` if the layer keeps every position, or no keys
/// and values. A window as wide as the longest context is none.
pub fn layer_window(config: &ModelConfig, layer: &LayerConfig) -> Option<usize> {
    layer.mixer.attention()?.window.filter(|&window| window < config.max_positions)
}

/// The shapes of the stores, and the place of each layer.
fn shapes(config: &ModelConfig, kept: KeptLayers) -> (Vec<StoreShape>, Vec<Option<LayerPlace>>) {
    let mut shapes: Vec<StoreShape> = Vec::new();
    let mut places = Vec::with_capacity(config.layers.len());
    let has_groups = kept == KeptLayers::All;
    // A layer that others read must keep what it stored until they are computed.
    let is_read = config.layers.iter().any(|layer| kv_of(&layer.mixer).is_some());
    let kept = if is_read { KeptLayers::All } else { kept };
    for layer in &config.layers {
        if let Some(of) = kv_of(&layer.mixer) {
            places.push(places.get(of).copied().flatten());
            continue;
        }
        let Some(shape) = layer_shape(&layer.mixer) else {
            places.push(None);
            continue;
        };
        let in_window = has_groups && layer_window(config, layer).is_some();
        let wanted = StoreShape { shape, in_window };
        let alike = |known: &StoreShape| {
            StoreShape { shape: KvShape { layers: 0, ..known.shape }, ..*known } == wanted
        };
        let store = shapes.iter().position(alike).unwrap_or_else(|| {
            shapes.push(wanted);
            shapes.len() - 1
        });
        if let Some(StoreShape { shape, .. }) = shapes.get_mut(store) {
            let layer = match kept {
                KeptLayers::All => shape.layers,
                KeptLayers::One => 0,
            };
            shape.layers = layer + 1;
            places.push(Some(LayerPlace { store, layer, in_window }));
        }
    }
    (shapes, places)
}

/// The earlier layer whose keys and values a layer reads.
fn kv_of(mixer: &MixerConfig) -> Option<usize> {
    mixer.attention()?.kv_of
}

/// The shape of the keys and values of one layer, in a store without layers. `None` for layers without any.
fn layer_shape(mixer: &MixerConfig) -> Option<KvShape> {
    match mixer {
        MixerConfig::Attention(attention) => Some(KvShape {
            layers: 0,
            kv_heads: attention.kv_heads,
            head_dim: attention.head_dim,
            values: KvValues::Own,
        }),
        MixerConfig::Latent(latent) => Some(KvShape {
            layers: 0,
            kv_heads: 1,
            head_dim: latent.row_width(),
            values: KvValues::FirstOfKeys(latent.latent_dim),
        }),
        _ => None,
    }
}

/// KV bytes per block of 16 tokens, over the layers of one cache group.
pub(crate) fn block_bytes(config: &ModelConfig, kv: KvType, kept: KeptLayers, in_window: bool) -> usize {
    let of_group = shapes(config, kept).0.into_iter().filter(|store| store.in_window == in_window);
    of_group.map(|store| kv.block_bytes(store.shape)).fold(0, usize::saturating_add)
}

/// Bytes of the packed matrices if dense ones are quantized to `quantize`. Norms and biases are small and are not
/// counted.
///
/// # Errors
/// Fails if a tensor is missing.
pub fn weight_bytes(checkpoint: &Checkpoint, quantize: Option<BlockType>) -> Result<usize, ModelError> {
    bytes_of(checkpoint.config(), checkpoint, quantize)
}

/// Bytes of the packed matrices that one token of decoding reads: of each mixture as many experts as a row passes, and
/// one row of an embedding that is not also the output projection. Norms, biases and routers are not counted.
///
/// # Errors
/// Fails if a tensor is missing.
pub fn active_weight_bytes(
    checkpoint: &Checkpoint,
    quantize: Option<BlockType>,
) -> Result<usize, ModelError> {
    let mut config = checkpoint.config().clone();
    if !config.is_tied() {
        config.vocab_size = 1;
    }
    if let Some(rows) = config.layer_inputs.as_mut().and_then(|inputs| inputs.words.tensor.shape.first_mut())
    {
        *rows = 1;
    }
    for layer in &mut config.layers {
        let experts = match &mut layer.feed {
            FeedForward::Experts(experts) => experts,
            FeedForward::Both(both) => &mut both.experts,
            FeedForward::Gated(_) | FeedForward::Plain(_) | FeedForward::None => continue,
        };
        experts.experts.truncate(experts.chosen);
    }
    bytes_of(&config, checkpoint, quantize)
}

/// Bytes of the packed matrices of `config`, which calls for a part of the checkpoint.
fn bytes_of(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    quantize: Option<BlockType>,
) -> Result<usize, ModelError> {
    let mut total = 0_usize;
    let mut add = |parts: &[(&RowSource, usize)], role: Role, k: usize| -> Result<(), ModelError> {
        let mut types = Vec::with_capacity(parts.len());
        for &(source, rows) in parts {
            let name = &source.tensor.name;
            // Requesting a tensor that is missing or of another type returns an error with its name.
            let dtype =
                checkpoint.dtype(name).map_or_else(|| checkpoint.tensor(name).map(|t| t.dtype), Ok)?;
            types.push((target(quantize, row_type(dtype, source), role, k), rows));
        }
        total = total.saturating_add(Matrix::packed_bytes(&types, k));
        Ok(())
    };
    let words = (&config.embedding.words, config.vocab_size);
    add(&[words], embedding_role(config), config.hidden_size)?;
    if let Some(inputs) = &config.layer_inputs {
        let columns = inputs.words.tensor.shape.last().copied().unwrap_or(0);
        let rows = inputs.words.tensor.shape.first().copied().unwrap_or(0);
        add(&[(&inputs.words, rows)], Role::Inner, columns)?;
        let projection = &inputs.projection;
        let part = (&projection.weight, projection.outputs);
        add(&[part], Role::Inner, projection.inputs)?;
    }
    let layers = config.layers.iter().flat_map(LayerConfig::matrices).map(|linears| (linears, Role::Inner));
    let head = config.head.linear.iter().map(|linear| (vec![linear], Role::Head));
    for (linears, role) in head.chain(layers) {
        let parts: Vec<(&RowSource, usize)> =
            linears.iter().map(|linear| (&linear.weight, linear.outputs)).collect();
        add(&parts, role, linears.first().map_or(0, |linear| linear.inputs))?;
    }
    Ok(total)
}
