//! How a weight is stored, and rows of weights as read from a file.
//! Must not know: how they are packed, or what a matrix means to a model.

use headrace_quant::BlockType;

use crate::simd::{bf16_to_f32, f16_to_f32};

/// How a weight is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightType {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16: the upper half of an f32.
    Bf16,
    /// Quantized blocks along a row.
    Block(BlockType),
}

impl WeightType {
    /// Returns the name used in configuration: `f32`, `f16`, `bf16`, or the block type's name.
    pub fn name(self) -> &'static str {
        match self {
            WeightType::F32 => "f32",
            WeightType::F16 => "f16",
            WeightType::Bf16 => "bf16",
            WeightType::Block(kind) => kind.name(),
        }
    }

    /// Returns the bytes of a stored row of `k` weights. `None` if blocks do not divide `k`, or on overflow.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        match self {
            WeightType::F32 => k.checked_mul(4),
            WeightType::F16 | WeightType::Bf16 => k.checked_mul(2),
            WeightType::Block(kind) => kind.row_bytes(k),
        }
    }

    /// Widens little-endian elements of this type to f32. Bytes past the last whole element or block are ignored.
    pub fn widen(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            WeightType::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            WeightType::F16 => {
                bytes.as_chunks().0.iter().map(|&b| f16_to_f32(u16::from_le_bytes(b))).collect()
            }
            WeightType::Bf16 => {
                bytes.as_chunks().0.iter().map(|&b| bf16_to_f32(u16::from_le_bytes(b))).collect()
            }
            WeightType::Block(kind) => {
                let blocks = bytes.len() / kind.block_bytes();
                let mut out = vec![0.0; blocks * kind.block_weights()];
                let whole = bytes.get(..blocks * kind.block_bytes()).unwrap_or_default();
                // Cannot fail: the lengths are whole blocks.
                let _ = headrace_quant::dequantize_row(kind, whole, &mut out);
                out
            }
        }
    }
}

/// Consecutive output rows of a matrix: row-major `rows × k`, little-endian, unaligned.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// How the elements are stored.
    pub weight_type: WeightType,
    /// Number of output rows.
    pub rows: usize,
    /// `rows` rows of [`WeightType::row_bytes`].
    pub bytes: &'a [u8],
    /// One value per row, added to that output. `None` means zero.
    pub bias: Option<&'a [f32]>,
}
