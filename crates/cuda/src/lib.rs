//! Llama, Qwen2 and Qwen3 on one NVIDIA GPU, behind the `Forward` seam: kernels of our own in CUDA C++, compiled when a model is
//! loaded, over a narrow seam to the device.
//! Must not know: scheduling, sampling, requests, HTTP. Weights, keys and values are bf16, sums f32; bits depend on the device
//! and never on the batch, the chunking or the blocks.

pub mod device;
mod error;
pub mod kernels;
mod load;
mod model;
pub mod ops;
mod options;
mod scratch;
mod step;
mod weights;

pub use error::LoadError;
pub use load::{bytes_beside_kv, kv_bytes_per_block};
pub use model::CudaModel;
pub use options::LoadOptions;
pub use weights::Tensors;
