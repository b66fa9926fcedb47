//! Block formats of quantized weights: their layouts, and a scalar quantizer and dequantizer that serve as the
//! reference for all other code.
//! Must not know: files, kernels or models.

mod block_type;
mod dequantize;
mod error;
mod iq4_nl;
mod k_quants;
pub mod layout;
mod quantize;
mod search;

pub use block_type::{BlockType, IQ4_NL_VALUES, MXFP4_VALUES};
pub use dequantize::dequantize_row;
pub use error::QuantError;
pub use layout::{BlockScales, codes, sub_scales};
pub use quantize::quantize_row;
