//! The handle that a model computes with: an instruction set, a thread pool and the scratch memory of the operations.
//! Must not know: the operations, which stand in `ops`.

use crate::attention::KvType;
use crate::attention::workspace::Workspace;
use crate::error::KernelError;
use crate::inputs::Inputs;
use crate::isa::{Isa, IsaError};
use crate::mode::ComputeMode;
use crate::pool::Pool;

/// The version of the arithmetic: raised whenever any kernel's bits change.
pub const KERNEL_VERSION: u32 = 2;

/// An instruction set, a pool of threads and scratch memory. One operation runs at a time; those of other handles may run
/// beside it.
pub struct Kernels {
    pub(crate) isa: Isa,
    mode: ComputeMode,
    pub(crate) pool: Pool,
    /// Rows of a product.
    pub(crate) inputs: Inputs,
    /// Attention's.
    pub(crate) attention: Workspace,
}

impl Kernels {
    /// Kernels on `isa` with `threads` threads of their own, the caller included, in compute mode `exact`. Errors when the
    /// machine lacks the instruction set or a thread cannot be started.
    pub fn new(isa: Isa, threads: usize) -> Result<Kernels, KernelError> {
        Kernels::with_mode(isa, threads, ComputeMode::Exact)
    }

    /// The same in any compute mode.
    pub fn with_mode(isa: Isa, threads: usize, mode: ComputeMode) -> Result<Kernels, KernelError> {
        Kernels::over(isa, Pool::new(threads)?, mode)
    }

    /// Kernels that compute on a pool, which may share its threads with others. Errors when the machine lacks the
    /// instruction set.
    pub fn over(isa: Isa, pool: Pool, mode: ComputeMode) -> Result<Kernels, KernelError> {
        if !isa.is_supported() {
            return Err(IsaError::Unsupported { asked: isa, supported: Isa::supported() }.into());
        }
        Ok(Kernels { isa, mode, pool, inputs: Inputs::default(), attention: Workspace::default() })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The compute mode.
    pub fn mode(&self) -> ComputeMode {
        self.mode
    }

    pub(crate) fn pool_and_inputs(&mut self) -> (&mut Pool, &mut Inputs) {
        (&mut self.pool, &mut self.inputs)
    }

    /// The pool, for work that is not a kernel (packing weights at load).
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// What decides the bits: instruction set, compute mode, KV type, version.
    pub fn numerics(&self, kv: KvType) -> String {
        let pairs = match self.mode == ComputeMode::Fast && self.isa.multiplies_bf16_pairs() {
            true => "+bf16",
            false => "",
        };
        format!("{}{pairs}/{}/kv-{}/v{KERNEL_VERSION}", self.isa, self.mode, kv.name())
    }
}
