//! The store of states: the layout of a slot. Must not know: which sequence a slot belongs to, or what is computed from
//! it.

use headrace_kv_layout::BLOCK_TOKENS;

use crate::error::KernelError;
use crate::memory::Region;
use crate::shapes::LANES;

/// The shape of the state of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateShape {
    /// Heads that keep a matrix. 0 for a short convolution alone.
    pub heads: usize,
    /// Rows of a head's matrix: the elements of a key.
    pub key_dim: usize,
    /// Columns of a head's matrix: the elements of a value.
    pub value_dim: usize,
    /// Channels of the convolution.
    pub channels: usize,
    /// Inputs that an output of the convolution depends on, its own among them: from 1 to 17.
    pub taps: usize,
}

impl StateShape {
    /// Most taps of a convolution: the inputs before a block are at most one block.
    pub const MAX_TAPS: usize = BLOCK_TOKENS + 1;

    /// Bytes of one slot for this layer.
    pub fn bytes(self) -> usize {
        self.boundary_floats().saturating_add(self.row_floats()).saturating_mul(4)
    }

    /// Elements from one row of a head's matrix to the next: whole vectors.
    pub(crate) fn value_stride(self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// Elements from one input of the convolution to the next: whole vectors.
    pub(crate) fn channel_stride(self) -> usize {
        self.channels.next_multiple_of(LANES)
    }

    /// Elements of a head's matrix.
    pub(crate) fn matrix_floats(self) -> usize {
        self.key_dim.saturating_mul(self.value_stride())
    }

    /// Elements of the inputs before a block.
    pub(crate) fn tail_floats(self) -> usize {
        self.taps.saturating_sub(1).saturating_mul(self.channel_stride())
    }

    /// Elements of the state at a block's start: the heads' matrices, then the inputs before the block.
    fn boundary_floats(self) -> usize {
        self.heads.saturating_mul(self.matrix_floats()).saturating_add(self.tail_floats())
    }

    /// Elements of the rows of one head: keys, values, and sums of the decays.
    fn head_row_floats(self) -> usize {
        BLOCK_TOKENS.saturating_mul(self.key_dim.saturating_add(self.value_stride()).saturating_add(1))
    }

    /// Elements of the rows of a block: the inputs of the convolution, then the rows of each head.
    fn row_floats(self) -> usize {
        let heads = self.heads.saturating_mul(self.head_row_floats());
        BLOCK_TOKENS.saturating_mul(self.channel_stride()).saturating_add(heads)
    }
}

/// The rows of a head in the current block.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows {
    /// `[key_dim][16 tokens]`.
    pub(crate) keys: *mut f32,
    /// `[16 tokens][value_stride]`: what each token adds to the state, beside its key.
    pub(crate) values: *mut f32,
    /// `[16 tokens]`: the sum of the logarithms of the decays from the block's start to the token.
    pub(crate) sums: *mut f32,
}

/// The place of a layer in a slot.
struct LayerPlace {
    shape: StateShape,
    /// First element of its state at the block's start, within that part of a slot.
    boundary: usize,
    /// First element of its rows, within that part of a slot.
    rows: usize,
}

/// States of all recurrent layers in slots, each for one sequence or one snapshot. The states at block starts of all
/// slots come first, then the rows of all slots, so that a snapshot commits no memory for rows.
pub struct StateStore {
    region: Region,
    layers: Vec<LayerPlace>,
    slots: usize,
    /// Elements of a slot's states at a block's start.
    boundary_floats: usize,
    /// Elements of a slot's rows.
    row_floats: usize,
}

impl StateStore {
    /// Reserves memory for `slots` slots of layers of these shapes. The system commits the memory on first write.
    ///
    /// # Errors
    /// Fails if a convolution has more than [`StateShape::MAX_TAPS`] taps or none, or if the system refuses the memory.
    pub fn new(shapes: &[StateShape], slots: usize) -> Result<StateStore, KernelError> {
        let (mut boundary_floats, mut row_floats) = (0_usize, 0_usize);
        let mut layers = Vec::with_capacity(shapes.len());
        for &shape in shapes {
            if shape.taps == 0 || shape.taps > StateShape::MAX_TAPS {
                let (taps, most) = (shape.taps, StateShape::MAX_TAPS);
                return Err(KernelError::shape(format!("a convolution of {taps} taps, from 1 to {most}")));
            }
            layers.push(LayerPlace { shape, boundary: boundary_floats, rows: row_floats });
            boundary_floats = boundary_floats.saturating_add(shape.boundary_floats());
            row_floats = row_floats.saturating_add(shape.row_floats());
        }
        let bytes = boundary_floats.saturating_add(row_floats).saturating_mul(4).saturating_mul(slots);
        let region = Region::zeroed(bytes)?;
        Ok(StateStore { region, layers, slots, boundary_floats, row_floats })
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns the shape of a layer. `None` if there is no such layer.
    pub fn shape(&self, layer: usize) -> Option<StateShape> {
        self.layers.get(layer).map(|place| place.shape)
    }

    fn element(&self, at: usize) -> *mut f32 {
        self.region.start().cast::<f32>().wrapping_add(at)
    }

    fn boundary(&self, place: &LayerPlace, slot: u32) -> usize {
        debug_assert!((slot as usize) < self.slots);
        slot as usize * self.boundary_floats + place.boundary
    }

    fn rows(&self, place: &LayerPlace, slot: u32) -> usize {
        debug_assert!((slot as usize) < self.slots);
        self.slots * self.boundary_floats + slot as usize * self.row_floats + place.rows
    }

    /// Returns the matrix of a head, `[key_dim][value_stride]`. Layer, slot and head must exist.
    pub(crate) fn matrix(&self, layer: usize, slot: u32, head: usize) -> *mut f32 {
        let place = &self.layers[layer];
        debug_assert!(head < place.shape.heads);
        self.element(self.boundary(place, slot) + head * place.shape.matrix_floats())
    }

    /// Returns the inputs before the block, `[taps − 1][channel_stride]`, oldest first. Layer and slot must exist.
    pub(crate) fn tail(&self, layer: usize, slot: u32) -> *mut f32 {
        let place = &self.layers[layer];
        self.element(self.boundary(place, slot) + place.shape.heads * place.shape.matrix_floats())
    }

    /// Returns the inputs of the block, `[16 tokens][channel_stride]`. Layer and slot must exist.
    pub(crate) fn inputs(&self, layer: usize, slot: u32) -> *mut f32 {
        self.element(self.rows(&self.layers[layer], slot))
    }

    /// Returns the rows of a head. Layer, slot and head must exist.
    pub(crate) fn head_rows(&self, layer: usize, slot: u32, head: usize) -> HeadRows {
        let place = &self.layers[layer];
        debug_assert!(head < place.shape.heads);
        let first = BLOCK_TOKENS * place.shape.channel_stride() + head * place.shape.head_row_floats();
        let keys = self.rows(place, slot) + first;
        let values = keys + BLOCK_TOKENS * place.shape.key_dim;
        let sums = values + BLOCK_TOKENS * place.shape.value_stride();
        HeadRows { keys: self.element(keys), values: self.element(values), sums: self.element(sums) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_slot_are_disjoint_and_on_cache_lines() {
        let shapes = [
            StateShape { heads: 3, key_dim: 5, value_dim: 20, channels: 33, taps: 4 },
            StateShape { channels: 7, taps: 1, ..StateShape::default() },
            StateShape { heads: 1, key_dim: 16, value_dim: 16, channels: 16, taps: 17 },
        ];
        let store = StateStore::new(&shapes, 3).unwrap();
        let mut parts = Vec::new();
        for (layer, shape) in shapes.iter().enumerate() {
            for slot in 0..3 {
                parts.push((store.tail(layer, slot), shape.tail_floats()));
                parts.push((store.inputs(layer, slot), BLOCK_TOKENS * shape.channel_stride()));
                for head in 0..shape.heads {
                    let rows = store.head_rows(layer, slot, head);
                    parts.push((store.matrix(layer, slot, head), shape.matrix_floats()));
                    parts.push((rows.keys, BLOCK_TOKENS * shape.key_dim));
                    parts.push((rows.values, BLOCK_TOKENS * shape.value_stride()));
                    parts.push((rows.sums, BLOCK_TOKENS));
                }
            }
        }
        parts.sort();
        let start = store.element(0) as usize;
        let mut next = start;
        for (first, floats) in parts {
            assert_eq!(first as usize % 64, 0);
            assert_eq!(first as usize, next);
            next += 4 * floats;
        }
        assert_eq!(next - start, 3 * shapes.iter().map(|shape| shape.bytes()).sum::<usize>());
        assert!(StateStore::new(&[StateShape { taps: 18, ..shapes[0] }], 1).is_err());
    }
}
