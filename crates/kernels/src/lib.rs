//! The arithmetic: dense GEMM and GEMV, paged attention, norms, RoPE, run-time dispatch, the thread pool.
//! Must not know: architectures, requests, files. Compute mode `exact`: f32 activations, f32 keys and values, weights
//! as stored and widened in registers. Bits depend on the instruction set alone: never on the batch, the chunking or the threads.

pub mod attention;
mod entry;
mod error;
mod flush;
pub mod forward;
mod gemm;
pub mod isa;
mod kernels;
pub mod math;
pub mod matrix;
mod memory;
pub mod pool;
pub mod roofline;
mod rows;
mod simd;
#[cfg(target_arch = "x86_64")]
mod simd_x86;
pub mod vocab;

pub use error::KernelError;
pub use isa::Isa;
pub use kernels::{HeadRows, KERNEL_VERSION, Kernels, Queries, RopeTable, Write};
pub use math::exp_f32;
pub use vocab::{argmax, logsumexp};
