//! CPU kernels: dense GEMM and GEMV, paged attention, norms, RoPE, run-time dispatch and the thread pool.
//! Must not know: architectures, requests, files. Weights keep their stored type. Activations are f32 (`exact`) or
//! rounded (`fast`). Result bits depend on the instruction set and the compute mode. They never depend on the batch,
//! the chunking or the threads.

mod activation;
mod activations;
pub mod attention;
pub mod encode;
mod entry;
mod entry_ints;
mod error;
mod expand;
mod flush;
mod formats;
pub mod forward;
mod gemm;
mod gemm_bf16;
mod gemm_int;
mod inputs;
pub mod isa;
mod kernels;
mod limit_loops;
mod logits;
pub mod math;
pub mod matrix;
mod memory;
mod mode;
mod opened;
mod ops;
mod pack;
mod packed;
pub mod pool;
mod quantized_group;
pub mod roofline;
mod rows;
mod section;
mod shapes;
mod simd;
mod simd_bf16;
mod simd_int;
#[cfg(target_arch = "aarch64")]
mod simd_int_neon;
#[cfg(target_arch = "x86_64")]
mod simd_int_x86;
#[cfg(target_arch = "aarch64")]
mod simd_neon;
#[cfg(target_arch = "x86_64")]
mod simd_x86;
pub mod states;
mod tile;
mod tile_attention;
mod tile_bf16;
mod tile_int;
mod tiles;
pub mod vocab;
mod weight_type;

pub use activation::Activation;
pub use error::KernelError;
pub use isa::Isa;
pub use kernels::{KERNEL_VERSION, Kernels};
pub use math::exp_f32;
pub use mode::ComputeMode;
pub use ops::{
    GroupNorm, HeadColumns, HeadRecurrence, HeadRows, ProjectedRows, Queries, RecurrenceRule, RopeTable,
    ShortConvolution, Write,
};
pub use rows::RowNorm;
pub use states::HeadSharing;
pub use vocab::{argmax, argmax_allowed, logsumexp};
