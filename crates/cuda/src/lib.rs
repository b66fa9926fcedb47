//! Dense decoders on one NVIDIA GPU, behind the `Forward` seam: attention over keys and values, and one gated network in
//! every layer. The kernels are our own CUDA C++, compiled when a model is loaded, and run over a narrow device seam. Must
//! not know: scheduling, sampling, requests, HTTP. Weights, keys and values are bf16, and sums are f32. Bits depend on the
//! device, and never on the batch, the chunking or the blocks.

pub mod attention;
mod checks;
pub mod device;
mod error;
pub mod kernels;
mod load;
mod model;
pub mod ops;
mod options;
mod plan;
mod rotary;
mod scratch;
mod step;
mod weights;

pub use error::LoadError;
pub use load::{bytes_beside_kv, kv_groups};
pub use model::CudaModel;
pub use options::LoadOptions;
pub use weights::Tensors;
