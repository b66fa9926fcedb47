//! Formats of quantized weights: the layouts of blocks, and a scalar quantizer and dequantizer that serve as the
//! reference for all other code. Also the decoders of matrices whose scales are stored apart.
//! Must not know: files, kernels or models.

mod block_type;
mod dequantize;
mod e4m3;
mod error;
mod int4;
mod iq4_nl;
mod k_quants;
pub mod layout;
mod quantize;
mod scales;
mod search;

pub use block_type::{BlockType, IQ4_NL_VALUES, MXFP4_VALUES};
pub use dequantize::dequantize_row;
pub use e4m3::{E4M3_VALUES, E4m3Matrix};
pub use error::QuantError;
pub use int4::{Int4Matrix, WordOrder, mxfp4_blocks};
pub use layout::{BlockScales, codes, sub_scales};
pub use quantize::quantize_row;
pub use scales::ScaleType;
