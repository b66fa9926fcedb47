//! Scales of quantized matrices, as safetensors files store them: one number for each group, row, tile or matrix. Must
//! not know: what they multiply.

use half::{bf16, f16};

use crate::QuantError;

/// The element type of stored scales, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE 754 binary32.
    F32,
}

impl ScaleType {
    /// Returns the bytes of a scale.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// Returns scale `index` of `scales`, widened.
    ///
    /// # Errors
    /// Fails if there is no such scale, or if it is NaN or infinite.
    pub fn read(self, scales: &[u8], index: usize) -> Result<f32, QuantError> {
        let half = |of: fn([u8; 2]) -> f32| scales.as_chunks().0.get(index).map(|bytes| of(*bytes));
        let value = match self {
            Self::F16 => half(|bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::Bf16 => half(|bytes| bf16::from_le_bytes(bytes).to_f32()),
            Self::F32 => scales.as_chunks().0.get(index).map(|bytes| f32::from_le_bytes(*bytes)),
        };
        let value = value.unwrap_or(f32::NAN);
        if value.is_finite() { Ok(value) } else { Err(QuantError::Scale { index, value }) }
    }
}

/// Fails if the buffer `what` does not have the length that the other sizes call for.
pub(crate) fn check_length(
    what: &'static str,
    expected: Option<usize>,
    found: usize,
) -> Result<(), QuantError> {
    match expected {
        Some(expected) if expected == found => Ok(()),
        _ => Err(QuantError::Part { what, expected: expected.unwrap_or(usize::MAX), found }),
    }
}
