//! The states of a model's recurrent layers: their store, and the place of each layer in it. Must not know: what is
//! computed from them, or which sequences share a slot.

use headrace_checkpoint::ModelConfig;
use headrace_checkpoint::decoder::{ConvolutionConfig, LayerConfig, MixerConfig};
use headrace_kernels::KernelError;
use headrace_kernels::forward::SequenceChunk;
use headrace_kernels::states::{StatePlan, StateShape, StateSpan, StateStore};

/// The states of a model's recurrent layers.
pub(crate) struct RecurrentStates {
    store: StateStore,
    /// For each layer of the model, its layer in the store. `None` for layers without a state.
    places: Vec<Option<usize>>,
    plan: StatePlan,
}

/// The state of one layer in a step.
pub(crate) struct LayerState<'a> {
    pub(crate) store: &'a mut StateStore,
    pub(crate) layer: usize,
    pub(crate) plan: &'a StatePlan,
}

impl RecurrentStates {
    /// Reserves memory for `slots` slots. Models without recurrent layers need none.
    pub(crate) fn new(config: &ModelConfig, slots: usize) -> Result<RecurrentStates, KernelError> {
        let shapes: Vec<Option<StateShape>> = config.layers.iter().map(shape).collect();
        let mut next = 0;
        let places = shapes.iter().map(|shape| {
            shape.map(|_| {
                next += 1;
                next - 1
            })
        });
        let places = places.collect();
        let shapes: Vec<StateShape> = shapes.into_iter().flatten().collect();
        let store = StateStore::new(&shapes, if shapes.is_empty() { 0 } else { slots })?;
        Ok(RecurrentStates { store, places, plan: StatePlan::default() })
    }

    /// Plans a step.
    ///
    /// # Errors
    /// Fails if a chunk has no slots though the model has recurrent layers, or if slots overlap.
    pub(crate) fn plan(&mut self, batch: &[SequenceChunk<'_>]) -> Result<(), KernelError> {
        if self.store.layers() == 0 {
            return Ok(());
        }
        let mut lacking = None;
        let spans = batch.iter().enumerate().map_while(|(index, chunk)| {
            let slots = chunk.tables.states;
            lacking = lacking.or(slots.is_none().then_some(index));
            Some(StateSpan { count: chunk.tokens.len(), start: chunk.start, slots: slots? })
        });
        self.plan.fill(spans, self.store.slots())?;
        match lacking {
            None => Ok(()),
            Some(index) => {
                let message = format!("chunk {index} has no slot for its state");
                Err(KernelError::Shape { message })
            }
        }
    }

    /// The state of layer `index`. `None` if the layer has none.
    pub(crate) fn of_layer(&mut self, index: usize) -> Option<LayerState<'_>> {
        let layer = self.places.get(index).copied().flatten()?;
        Some(LayerState { store: &mut self.store, layer, plan: &self.plan })
    }
}

/// Bytes of one slot: the states of all recurrent layers of a sequence, and the rows of a block. 0 if the model has no such
/// layers.
pub fn state_bytes_per_slot(config: &ModelConfig) -> usize {
    config.layers.iter().filter_map(shape).map(StateShape::bytes).fold(0, usize::saturating_add)
}

/// The shape of a layer's state. `None` if it has none.
fn shape(layer: &LayerConfig) -> Option<StateShape> {
    let of = |convolution: &ConvolutionConfig| StateShape {
        channels: convolution.channels,
        taps: convolution.taps,
        ..StateShape::default()
    };
    Some(match &layer.mixer {
        MixerConfig::ShortConv(mixer) => of(&mixer.convolution),
        MixerConfig::Delta(mixer) => StateShape {
            heads: mixer.value_heads,
            key_dim: mixer.key_dim,
            value_dim: mixer.value_dim,
            ..of(&mixer.convolution)
        },
        MixerConfig::Mamba(mixer) => StateShape {
            heads: mixer.heads,
            key_dim: mixer.state_dim,
            value_dim: mixer.head_dim,
            ..of(&mixer.convolution)
        },
        MixerConfig::Attention(_) | MixerConfig::Latent(_) | MixerConfig::None => return None,
    })
}
