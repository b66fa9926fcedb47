//! The compute mode: how precisely activations are represented. Part of a model's identity.
//! Must not know: what is computed in it.

use std::fmt;

/// How activations enter the products with weights. Both modes use the weights as stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ComputeMode {
    /// f32: quantized and half-precision weights are widened to f32 and multiplied with f32 activations.
    #[default]
    Exact,
    /// Activations are rounded to the type that the processor multiplies fastest: int8 with one scale per 32 for
    /// quantized weights, bf16 for bf16 weights. f32, f16 and 8-bit float weights are multiplied as in
    /// [`ComputeMode::Exact`].
    Fast,
}

impl ComputeMode {
    /// Both modes.
    pub const ALL: [ComputeMode; 2] = [ComputeMode::Exact, ComputeMode::Fast];

    /// Returns the name used in configuration and in the numerics fingerprint.
    pub fn name(self) -> &'static str {
        match self {
            ComputeMode::Exact => "exact",
            ComputeMode::Fast => "fast",
        }
    }

    /// Returns the mode with this name. Ignores case.
    pub fn from_name(name: &str) -> Option<ComputeMode> {
        ComputeMode::ALL.into_iter().find(|mode| mode.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for ComputeMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}
