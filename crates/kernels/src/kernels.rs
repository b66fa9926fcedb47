//! The handle that a model computes with: an instruction set, a thread pool and the scratch memory of the operations.
//! The operations are in `ops`.

use crate::attention::KvType;
use crate::attention::workspace::Workspace;
use crate::error::KernelError;
use crate::inputs::Inputs;
use crate::isa::{Isa, IsaError};
use crate::mode::ComputeMode;
use crate::pool::Pool;

/// Version of the arithmetic. Raised whenever the result bits of any kernel change.
pub const KERNEL_VERSION: u32 = 2;

/// An instruction set, a thread pool and scratch memory. One operation runs at a time. Operations of other handles
/// may run concurrently.
pub struct Kernels {
    pub(crate) isa: Isa,
    mode: ComputeMode,
    pub(crate) pool: Pool,
    /// The input rows of a product.
    pub(crate) inputs: Inputs,
    /// Scratch memory of attention.
    pub(crate) attention: Workspace,
}

impl Kernels {
    /// Creates kernels on `isa` with `threads` threads of their own, including the caller, in compute mode `exact`.
    /// Fails if the machine lacks the instruction set or a thread cannot be started.
    pub fn new(isa: Isa, threads: usize) -> Result<Kernels, KernelError> {
        Kernels::with_mode(isa, threads, ComputeMode::Exact)
    }

    /// Same as [`Kernels::new`], in the given compute mode.
    pub fn with_mode(isa: Isa, threads: usize, mode: ComputeMode) -> Result<Kernels, KernelError> {
        Kernels::over(isa, Pool::new(threads)?, mode)
    }

    /// Creates kernels on a pool, which may share its threads with other pools. Fails if the machine lacks the
    /// instruction set.
    pub fn over(isa: Isa, pool: Pool, mode: ComputeMode) -> Result<Kernels, KernelError> {
        if !isa.is_supported() {
            return Err(IsaError::Unsupported { asked: isa, supported: Isa::supported() }.into());
        }
        Ok(Kernels { isa, mode, pool, inputs: Inputs::default(), attention: Workspace::default() })
    }

    /// Returns the instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the compute mode.
    pub fn mode(&self) -> ComputeMode {
        self.mode
    }

    pub(crate) fn pool_and_inputs(&mut self) -> (&mut Pool, &mut Inputs) {
        (&mut self.pool, &mut self.inputs)
    }

    /// Returns the pool, for work that is not a kernel, such as packing weights at load.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Returns the fingerprint of everything that decides result bits: instruction set, compute mode, KV type, kernel
    /// version.
    pub fn numerics(&self, kv: KvType) -> String {
        let pairs = match self.mode == ComputeMode::Fast && self.isa.multiplies_bf16_pairs() {
            true => "+bf16",
            false => "",
        };
        format!("{}{pairs}/{}/kv-{}/v{KERNEL_VERSION}", self.isa, self.mode, kv.name())
    }
}
