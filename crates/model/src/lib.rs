//! Architectures over loaded weights. Llama, Qwen2 and Qwen3 dense decoders implement `Forward`. BERT-like encoders,
//! ModernBERT, and decoders used as encoders implement `Encode`. Must not know: scheduling, sampling, requests, or how
//! an operation is computed, which is the task of `kernels`.

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
