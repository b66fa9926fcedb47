//! Architectures over loaded weights, behind the `Forward` seam: Llama, Qwen2 and Qwen3 dense decoders.
//! Must not know: scheduling, sampling, requests, or how an operation is computed (that is `kernels`).

mod batch;
mod error;
mod load;
mod memory;
mod model;
mod quantize;
mod rope;
mod weights;

pub use error::ModelError;
pub use load::LoadOptions;
pub use memory::{kv_bytes_per_block, weight_bytes};
pub use model::Model;
