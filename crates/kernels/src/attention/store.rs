//! The paged store of keys and values: the layout of a token's vectors in a block of 16 tokens, for each KV type.
//! Must not know: which sequence a block belongs to, or what is computed from it.

use std::fmt;

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use headrace_kv_layout::{BLOCK_TOKENS, KvGroup};

use crate::error::KernelError;
use crate::memory::Region;
use crate::shapes::LANES;

/// How keys and values are stored. They are rounded when they are stored, and attention reads only stored values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KvType {
    /// 32-bit floats, without rounding.
    #[default]
    F32,
    /// 16-bit floats with 11 significant bits. Finite values beyond ±65504 are clamped to ±65504.
    F16,
    /// 16-bit floats with 8 significant bits and the range of f32.
    Bf16,
    /// Eight bits: each key vector and each value vector of a head is `scale · q` with q in −127..=127. The vector's
    /// f32 scale is its largest magnitude / 127. The error of an element is at most half a step, scale / 2.
    ///
    /// Each vector has one scale, rather than one per 32 elements. The scale is then outside both sums: it multiplies
    /// a finished score, or a weight once for the whole vector. This takes 8.25–8.5 bits per element. Over normally
    /// distributed elements, the steps of a group of 64 or 128 are 10–25 % wider than those of a group of 32.
    Q8,
}

impl KvType {
    /// Every type, widest first.
    pub const ALL: [KvType; 4] = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8];

    /// Returns the name used in configuration and in the numerics fingerprint.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q8 => "q8",
        }
    }

    /// Returns the type with this [`KvType::name`].
    pub fn from_name(name: &str) -> Option<KvType> {
        KvType::ALL.into_iter().find(|kv_type| kv_type.name() == name)
    }

    /// Returns the bytes of one block of 16 tokens, over all layers.
    pub fn block_bytes(self, shape: KvShape) -> usize {
        let head = Layout::new(self, shape.head_dim, shape.values).head_bytes;
        shape.layers.saturating_mul(shape.kv_heads).saturating_mul(head)
    }

    /// Returns the cache group of `blocks` blocks of this type.
    pub fn group(self, shape: KvShape, blocks: usize) -> KvGroup {
        KvGroup::full(blocks, self.block_bytes(shape))
    }

    /// Returns the bytes of one token over all layers: a sixteenth of a block, rounded up.
    pub fn bytes_per_token(self, shape: KvShape) -> usize {
        self.block_bytes(shape).div_ceil(BLOCK_TOKENS)
    }

    /// Returns the bytes of one element, without scales.
    fn element_bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 | KvType::Bf16 => 2,
            KvType::Q8 => 1,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The shape of the keys and values of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvShape {
    /// Number of layers.
    pub layers: usize,
    /// Key/value heads per layer.
    pub kv_heads: usize,
    /// Elements of the key of one head.
    pub head_dim: usize,
    /// The values of a head.
    pub values: KvValues,
}

/// What the values of a head are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KvValues {
    /// Vectors of their own, as wide as the keys.
    #[default]
    Own,
    /// The first elements of the keys, as many as this says: at least 1 and at most as many as a key has. Only the keys
    /// are stored, as in latent attention.
    FirstOfKeys(usize),
}

impl KvShape {
    /// Returns the elements of a value.
    pub fn value_width(self) -> usize {
        match self.values {
            KvValues::Own => self.head_dim,
            KvValues::FirstOfKeys(width) => width,
        }
    }
}

/// Where a token's keys and values are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvSlot {
    /// The physical block.
    pub block: u32,
    /// The token's index in the block, below 16.
    pub offset: usize,
}

/// The memory layout of one head of one block: keys, key scales, values, value scales. All offsets are in bytes.
///
/// The keys are one panel, `[key_dim][16 tokens]`. The values are `[value_dim / 16]` panels of `[16 tokens][16]`.
/// Each panel is an operand of the register tile, so that neither scores nor weighted sums need a horizontal
/// addition. In bf16 two adjacent rows of a panel are interleaved (`[rows / 2][16][2]`), so that one shift and one
/// mask widen a load of 64 bytes.
///
/// If the values are the first elements of the keys, the head ends after the key scales. With `Q8` there are two scales
/// for each key then: one for the elements that are also the value, and one for the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Rows of the key panel: the head's elements, plus a row of zeros if their number is odd.
    pub(crate) key_dim: usize,
    /// Elements of a value.
    pub(crate) value_width: usize,
    /// Elements of a value, rounded up to whole vectors.
    pub(crate) value_dim: usize,
    /// Whether the values are the first elements of the keys.
    pub(crate) shares_keys: bool,
    /// Offset of the 16 key scales (with `Q8`) from the start of the head.
    pub(crate) key_scales: usize,
    /// Offset of the values.
    pub(crate) values: usize,
    /// Bytes of one panel of values.
    pub(crate) value_panel_bytes: usize,
    /// Offset of the 16 value scales (with `Q8`), or of those of the elements that are not part of the value.
    pub(crate) value_scales: usize,
    /// Bytes of the whole head: a multiple of a cache line.
    pub(crate) head_bytes: usize,
}

impl Layout {
    pub(crate) fn new(kv_type: KvType, head_dim: usize, values: KvValues) -> Layout {
        let (value_width, shares_keys) = match values {
            KvValues::Own => (head_dim, false),
            KvValues::FirstOfKeys(width) => (width, true),
        };
        let (key_dim, value_dim) = (head_dim.next_multiple_of(2), value_width.next_multiple_of(LANES));
        let row = BLOCK_TOKENS * kv_type.element_bytes();
        let scales = if kv_type == KvType::Q8 { BLOCK_TOKENS * 4 } else { 0 };
        let key_scales = (key_dim.saturating_mul(row)).next_multiple_of(64);
        let values = key_scales.saturating_add(scales);
        let value_bytes = if shares_keys { 0 } else { value_dim.saturating_mul(row) };
        let value_scales = values.saturating_add(value_bytes);
        Layout {
            key_dim,
            value_width,
            value_dim,
            shares_keys,
            key_scales,
            values,
            value_panel_bytes: LANES * row,
            value_scales,
            head_bytes: value_scales.saturating_add(scales),
        }
    }

    /// Returns the layout of the same keys and values after they are widened to f32, with values of their own.
    pub(crate) fn widened(self) -> Layout {
        let row = BLOCK_TOKENS * 4;
        let values = self.key_dim * row;
        let value_scales = values + self.value_dim * row;
        Layout {
            shares_keys: false,
            key_scales: values,
            values,
            value_panel_bytes: LANES * row,
            value_scales,
            head_bytes: value_scales,
            ..self
        }
    }
}

/// Keys and values of every layer in blocks of 16 tokens: `[layer][block][kv head]`, each head laid out as
/// the private `Layout` describes.
pub struct KvStore {
    region: Region,
    shape: KvShape,
    kv_type: KvType,
    layout: Layout,
    blocks: usize,
}

impl KvStore {
    /// Reserves memory for `blocks` blocks of `kv_type`. The system commits the memory on first write. Fails if the
    /// system refuses, or if values are wider than their keys.
    pub fn new(shape: KvShape, kv_type: KvType, blocks: usize) -> Result<KvStore, KernelError> {
        let width = shape.value_width();
        if width > shape.head_dim || width == 0 && shape.head_dim > 0 {
            let keys = shape.head_dim;
            return Err(KernelError::shape(format!("values of {width} elements in keys of {keys}")));
        }
        let region = Region::zeroed(kv_type.block_bytes(shape).saturating_mul(blocks))?;
        let layout = Layout::new(kv_type, shape.head_dim, shape.values);
        Ok(KvStore { region, shape, kv_type, layout, blocks })
    }

    /// Returns the shape of the keys and values.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Returns the type of the stored elements.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the start of a head of a block. See [`Layout`].
    pub(crate) fn head(&self, layer: usize, block: u32, kv_head: usize) -> *mut u8 {
        let head = (layer * self.blocks + block as usize) * self.shape.kv_heads + kv_head;
        debug_assert!(
            layer < self.shape.layers && (block as usize) < self.blocks && kv_head < self.shape.kv_heads
        );
        self.region.start().wrapping_add(head * self.layout.head_bytes)
    }

    /// Stores one token's key and value of one head.
    ///
    /// # Safety
    /// `layer`, `slot` and `kv_head` exist. `key` and `value` are `head_dim` long; `value` is empty if the values are the
    /// first elements of the keys. Nothing else accesses this head of this block meanwhile.
    pub(crate) unsafe fn write(
        &self,
        layer: usize,
        slot: KvSlot,
        kv_head: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let head = self.head(layer, slot.block, kv_head);
        let Layout { value_width, shares_keys, key_scales, values, value_scales, .. } = self.layout;
        let parts = match (shares_keys, self.kv_type) {
            (false, _) => [(Side::Keys, 0, key_scales, key), (Side::Values, values, value_scales, value)],
            // Two parts with a scale each. The elements are bytes, so the second part starts `value_width` rows later.
            (true, KvType::Q8) => {
                let (first, rest) = key.split_at(value_width.min(key.len()));
                let at = value_width * BLOCK_TOKENS;
                [(Side::Keys, 0, key_scales, first), (Side::Keys, at, value_scales, rest)]
            }
            (true, _) => [(Side::Keys, 0, 0, key), (Side::Keys, 0, 0, &[])],
        };
        for (side, start, scales, vector) in parts {
            // SAFETY: the caller's contract: both parts and their scales are inside the head's bytes, and no other
            // code accesses them.
            unsafe {
                let start = head.add(start);
                match self.kv_type {
                    KvType::F32 => put(start.cast(), side, slot.offset, vector, narrow_f32),
                    KvType::F16 => put(start.cast(), side, slot.offset, vector, narrow_f16),
                    KvType::Bf16 => put_pairs(start.cast(), side, slot.offset, vector),
                    KvType::Q8 => {
                        let (step, inverse) = step_of(vector);
                        head.add(scales).cast::<f32>().add(slot.offset).write(step);
                        put(start.cast(), side, slot.offset, vector, |from, to: &mut [i8; LANES]| {
                            for (to, &x) in to.iter_mut().zip(from) {
                                *to = quantized(x, inverse);
                            }
                        });
                    }
                }
            }
        }
    }
}

/// The half of a head to write.
#[derive(Clone, Copy)]
enum Side {
    Keys,
    Values,
}

/// Writes one token's vector into plain panels, narrowed in chunks of up to 16 elements.
///
/// # Safety
/// The panels have room for the vector and the token, and nothing else accesses them.
#[inline(always)]
unsafe fn put<T: Copy + Default>(
    start: *mut T,
    side: Side,
    token: usize,
    vector: &[f32],
    narrow: impl Fn(&[f32], &mut [T; LANES]),
) {
    let mut narrowed = [T::default(); LANES];
    for (panel, part) in vector.chunks(LANES).enumerate() {
        narrow(part, &mut narrowed);
        let (first, step) = match side {
            Side::Keys => (panel * LANES * BLOCK_TOKENS + token, BLOCK_TOKENS),
            Side::Values => ((panel * BLOCK_TOKENS + token) * LANES, 1),
        };
        for (i, &x) in narrowed.iter().take(part.len()).enumerate() {
            // SAFETY: the element's row and column of the panel exist.
            unsafe { start.add(first + i * step).write(x) };
        }
    }
}

/// Writes one token's vector as bf16 into panels whose rows are interleaved in pairs.
///
/// # Safety
/// As for [`put`].
#[inline(always)]
unsafe fn put_pairs(start: *mut u16, side: Side, token: usize, vector: &[f32]) {
    for (d, &x) in vector.iter().enumerate() {
        let (panel, row, column) = match side {
            Side::Keys => (0, d, token),
            Side::Values => (d / LANES, token, d % LANES),
        };
        let at = (panel * BLOCK_TOKENS + row / 2 * 2) * LANES + 2 * column + row % 2;
        // SAFETY: the row of the panel exists, because the number of key rows is even.
        unsafe { start.add(at).write(narrow_bf16(x)) };
    }
}

fn narrow_f32(from: &[f32], to: &mut [f32; LANES]) {
    for (to, &x) in to.iter_mut().zip(from) {
        *to = x;
    }
}

fn narrow_f16(from: &[f32], to: &mut [u16; LANES]) {
    let most = f16::MAX.to_f32();
    let mut bounded = [0.0; LANES];
    for (bounded, &x) in bounded.iter_mut().zip(from) {
        *bounded = if x.is_infinite() { x } else { x.clamp(-most, most) };
    }
    to.reinterpret_cast_mut::<f16>().convert_from_f32_slice(&bounded);
}

/// Rounds to the nearest bf16, ties to even. NaN stays NaN.
fn narrow_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// Returns the step of an eight-bit vector and its inverse. A vector with NaN or an infinity gets a step of NaN, so
/// that it reads back as NaN. A vector too small for a step (the inverse would overflow) becomes all zeros.
fn step_of(vector: &[f32]) -> (f32, f32) {
    let mut most = 0.0_f32;
    let mut finite = true;
    for &x in vector {
        finite &= x.is_finite();
        most = most.max(x.abs());
    }
    if !finite {
        (f32::NAN, 0.0)
    } else if most < 1e-30 {
        (0.0, 0.0)
    } else {
        (most / 127.0, 127.0 / most)
    }
}

/// Returns `x / step`, rounded to the nearest integer, ties to even.
fn quantized(x: f32, inverse: f32) -> i8 {
    (x * inverse).round_ties_even() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_elements_and_their_scales() {
        let shape = KvShape { layers: 3, kv_heads: 2, head_dim: 64, values: KvValues::Own };
        for (kv_type, per_head) in
            [(KvType::F32, 512), (KvType::F16, 256), (KvType::Bf16, 256), (KvType::Q8, 136)]
        {
            assert_eq!(kv_type.bytes_per_token(shape), 6 * per_head, "{kv_type}");
            assert_eq!(kv_type.block_bytes(shape), 16 * 6 * per_head, "{kv_type}");
            assert_eq!(KvType::from_name(kv_type.name()), Some(kv_type));
        }
        assert_eq!(KvType::from_name("q4"), None);
        for kv_type in KvType::ALL {
            for head_dim in 1..300_usize {
                for values in [KvValues::Own, KvValues::FirstOfKeys(head_dim.div_ceil(2))] {
                    let stored = Layout::new(kv_type, head_dim, values);
                    for layout in [stored, stored.widened()] {
                        for at in [layout.key_scales, layout.values, layout.value_scales, layout.head_bytes] {
                            assert_eq!(at % 64, 0, "{kv_type} {head_dim} {values:?}: on cache lines");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn values_within_keys_take_no_bytes_of_their_own() {
        let shape = KvShape { layers: 2, kv_heads: 1, head_dim: 576, values: KvValues::FirstOfKeys(512) };
        for (kv_type, per_layer) in
            [(KvType::F32, 2304), (KvType::F16, 1152), (KvType::Bf16, 1152), (KvType::Q8, 576 + 8)]
        {
            assert_eq!(kv_type.bytes_per_token(shape), 2 * per_layer, "{kv_type}");
        }
        for width in [0, 577] {
            let wrong = KvShape { values: KvValues::FirstOfKeys(width), ..shape };
            assert!(KvStore::new(wrong, KvType::F32, 1).is_err(), "{width}");
        }
    }

    #[test]
    fn halves_saturate_and_bytes_carry_what_is_not_finite_in_their_step() {
        let narrow = |x: f32| {
            let mut out = [0; LANES];
            narrow_f16(&[x], &mut out);
            f16::from_bits(out[0])
        };
        assert_eq!((narrow(1e9), narrow(-1e9)), (f16::MAX, f16::MIN));
        assert_eq!((narrow(f32::INFINITY), narrow(0.1)), (f16::INFINITY, f16::from_f32(0.1)));
        assert!(narrow(f32::NAN).is_nan());
        for i in 0..100_000_u32 {
            let x = f32::from_bits(i.wrapping_mul(42_949));
            let (got, want) = (half::bf16::from_bits(narrow_bf16(x)), half::bf16::from_f32(x));
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{x}");
        }
        assert!(step_of(&[1.0, f32::NAN]).0.is_nan() && step_of(&[f32::NEG_INFINITY]).0.is_nan());
        assert_eq!(step_of(&[1e-31, -1e-32]), (0.0, 0.0));
        let (step, inverse) = step_of(&[0.3, -2.54]);
        assert_eq!((quantized(-2.54, inverse), quantized(2.54, inverse)), (-127, 127));
        assert!((f32::from(quantized(0.3, inverse)) * step - 0.3).abs() <= step / 2.0);
    }
}
