//! The formats by name, id and size. Must not know: how a weight becomes a code.

/// ggml's block formats, and formats of this project for the weights of safetensors files (`F8…` and `W4…`).
///
/// A row is cut into blocks of [`Self::block_weights`] weights along its inner dimension. Each block has
/// [`Self::block_bytes`] bytes, little-endian, without padding. [`crate::layout`] documents the layout of each block
/// and the formula of a weight. Sources: ggml's `ggml-common.h` and `ggml-quants.c`. MXFP4 is OCP's microscaling
/// format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockType {
    /// 32 weights of 8 bits around zero, with one f16 scale.
    Q8_0,
    /// 32 weights of 4 bits around 8, with one f16 scale.
    Q4_0,
    /// 32 weights of 4 bits, with an f16 scale and an f16 minimum.
    Q4_1,
    /// 32 weights of 5 bits around 16, with one f16 scale.
    Q5_0,
    /// 32 weights of 5 bits, with an f16 scale and an f16 minimum.
    Q5_1,
    /// 256 weights of 2 bits. Every 16 have a 4-bit scale and a 4-bit minimum, which two f16 values multiply.
    Q2K,
    /// 256 weights of 3 bits around 4. Every 16 have a 6-bit scale, which one f16 value multiplies.
    Q3K,
    /// 256 weights of 4 bits. Every 32 have a 6-bit scale and a 6-bit minimum, which two f16 values multiply.
    Q4K,
    /// 256 weights of 5 bits. Every 32 have a 6-bit scale and a 6-bit minimum, which two f16 values multiply.
    Q5K,
    /// 256 weights of 6 bits around 32. Every 16 have an 8-bit scale, which one f16 value multiplies.
    Q6K,
    /// 32 codes of 4 bits that index [`IQ4_NL_VALUES`], with one f16 scale.
    Iq4Nl,
    /// 256 codes of 4 bits that index [`IQ4_NL_VALUES`]. Every 32 have a 6-bit scale, which one f16 value multiplies.
    Iq4Xs,
    /// 32 codes of 4 bits (e2m1, see [`MXFP4_VALUES`]), with one power of two as the scale (e8m0).
    Mxfp4,
    /// 32 weights of 8-bit floats (e4m3, see [`crate::E4M3_VALUES`]), with one f32 scale.
    F8G32,
    /// 128 weights of 8-bit floats (e4m3), with one f32 scale.
    F8G128,
    /// 32 weights of 4 bits, with an f16 scale and a whole number as the zero.
    W4F16G32,
    /// 128 weights of 4 bits, with an f16 scale and a whole number as the zero.
    W4F16G128,
    /// 32 weights of 4 bits, with a bf16 scale and a whole number as the zero.
    W4Bf16G32,
    /// 128 weights of 4 bits, with a bf16 scale and a whole number as the zero.
    W4Bf16G128,
}

/// The values of the 16 codes of [`BlockType::Iq4Nl`] and [`BlockType::Iq4Xs`].
pub const IQ4_NL_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of the 16 codes of [`BlockType::Mxfp4`], doubled so that they are whole numbers (e2m1's 0.5 is 1 here).
/// The scale is halved to match. See [`crate::layout::mxfp4_scale`].
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl BlockType {
    /// Every format, in the order of declaration.
    pub const ALL: [Self; 19] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::F8G32,
        Self::F8G128,
        Self::W4F16G32,
        Self::W4F16G128,
        Self::W4Bf16G32,
        Self::W4Bf16G128,
    ];

    /// The formats of GGUF files, in the order of declaration.
    pub const GGML: [Self; 13] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// The formats that [`crate::quantize_row`] makes. The others are only read.
    pub const QUANTIZED: [Self; 10] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Mxfp4,
    ];

    /// Whether [`crate::quantize_row`] makes this format.
    pub fn is_quantized_here(self) -> bool {
        Self::QUANTIZED.contains(&self)
    }

    /// Returns the lower-case name, as in configuration: `q8_0`, `q4_k`, `iq4_nl`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Mxfp4 => "mxfp4",
            Self::F8G32 => "f8_g32",
            Self::F8G128 => "f8_g128",
            Self::W4F16G32 => "w4_f16_g32",
            Self::W4F16G128 => "w4_f16_g128",
            Self::W4Bf16G32 => "w4_bf16_g32",
            Self::W4Bf16G128 => "w4_bf16_g128",
        }
    }

    /// Returns the format with this name. Ignores case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// Returns the id of the tensor type in a GGUF file. `None` for a format that GGUF files do not have.
    pub const fn ggml_id(self) -> Option<u32> {
        let id = match self {
            Self::Q8_0 => 8,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq4Nl => 20,
            Self::Iq4Xs => 23,
            Self::Mxfp4 => 39,
            Self::F8G32
            | Self::F8G128
            | Self::W4F16G32
            | Self::W4F16G128
            | Self::W4Bf16G32
            | Self::W4Bf16G128 => return None,
        };
        Some(id)
    }

    /// Returns the format of a GGUF tensor type. `None` for dense types and unsupported formats.
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        Self::GGML.into_iter().find(|kind| kind.ggml_id() == Some(id))
    }

    /// Returns the weights per block: 32, 128 or 256.
    pub const fn block_weights(self) -> usize {
        match self {
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
            Self::F8G128 | Self::W4F16G128 | Self::W4Bf16G128 => 128,
            _ => 32,
        }
    }

    /// Returns the bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
            Self::F8G32 => 36,
            Self::F8G128 => 132,
            Self::W4F16G32 | Self::W4Bf16G32 => 19,
            Self::W4F16G128 | Self::W4Bf16G128 => 67,
        }
    }

    /// Returns the number of weights that share one scale: 16 for Q2_K, Q3_K and Q6_K, 128 for the formats
    /// with that number in their name, 32 for the others.
    pub const fn sub_block_weights(self) -> usize {
        match self {
            Self::Q2K | Self::Q3K | Self::Q6K => 16,
            Self::F8G128 | Self::W4F16G128 | Self::W4Bf16G128 => 128,
            _ => 32,
        }
    }

    /// Returns the bits per code: 2, 3, 4, 5, 6 or 8.
    pub const fn code_bits(self) -> u32 {
        match self {
            Self::Q8_0 | Self::F8G32 | Self::F8G128 => 8,
            Self::Q6K => 6,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 5,
            Self::Q4_0 | Self::Q4_1 | Self::Q4K | Self::Iq4Nl | Self::Iq4Xs | Self::Mxfp4 => 4,
            Self::W4F16G32 | Self::W4F16G128 | Self::W4Bf16G32 | Self::W4Bf16G128 => 4,
            Self::Q3K => 3,
            Self::Q2K => 2,
        }
    }

    /// Returns the code that means zero in the formats around zero (128, 8, 16, 4, 32). Returns 0 for formats whose
    /// codes count up from a minimum, index a table, are floats, or have a zero in each block.
    pub const fn zero_code(self) -> u8 {
        match self {
            Self::Q8_0 => 128,
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q3K => 4,
            Self::Q6K => 32,
            Self::Q4_1
            | Self::Q5_1
            | Self::Q2K
            | Self::Q4K
            | Self::Q5K
            | Self::Iq4Nl
            | Self::Iq4Xs
            | Self::Mxfp4
            | Self::F8G32
            | Self::F8G128
            | Self::W4F16G32
            | Self::W4F16G128
            | Self::W4Bf16G32
            | Self::W4Bf16G128 => 0,
        }
    }

    /// Returns the bytes of a row of `weights` weights. `None` if that is not a whole number of blocks, or on
    /// overflow.
    pub fn row_bytes(self, weights: usize) -> Option<usize> {
        if !weights.is_multiple_of(self.block_weights()) {
            return None;
        }
        (weights / self.block_weights()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for BlockType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
