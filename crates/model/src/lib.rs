//! Architectures over loaded weights: Llama, Qwen2 and Qwen3 dense decoders behind the `Forward` seam; encoders of BERT's family,
//! ModernBERT, and decoders read as encoders, behind `Encode`.
//! Must not know: scheduling, sampling, requests, or how an operation is computed (that is `kernels`).

pub mod batch;
mod encoder;
mod error;
mod load;
mod memory;
mod model;
mod quantize;
pub mod rope;
mod weights;

pub use encoder::{Encoder, EncoderOptions};
pub use error::ModelError;
pub use load::LoadOptions;
pub use memory::{kv_bytes_per_block, weight_bytes};
pub use model::Model;
