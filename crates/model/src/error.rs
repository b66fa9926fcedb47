//! Why a model could not be loaded. Must not know: what the model was for.

use std::fmt;

use headrace_checkpoint::CheckpointError;
use headrace_kernels::KernelError;

/// Why a model could not be loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// The checkpoint is incomplete or contradicts itself.
    Checkpoint(CheckpointError),
    /// A tensor contradicts the configuration, or cannot be quantized.
    Tensor {
        /// The tensor's name.
        name: String,
        /// What is wrong with the tensor.
        problem: String,
    },
    /// A kernel error: memory, threads or the instruction set.
    Kernel(KernelError),
    /// An option is invalid.
    Option {
        /// The option's name.
        name: &'static str,
        /// What is wrong with the option.
        problem: String,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::Checkpoint(error) => error.fmt(out),
            ModelError::Tensor { name, problem } => write!(out, "tensor {name}: {problem}"),
            ModelError::Kernel(error) => error.fmt(out),
            ModelError::Option { name, problem } => write!(out, "option {name}: {problem}"),
        }
    }
}

impl std::error::Error for ModelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ModelError::Checkpoint(error) => Some(error),
            ModelError::Kernel(error) => Some(error),
            ModelError::Tensor { .. } | ModelError::Option { .. } => None,
        }
    }
}

impl From<CheckpointError> for ModelError {
    fn from(error: CheckpointError) -> Self {
        ModelError::Checkpoint(error)
    }
}

impl From<KernelError> for ModelError {
    fn from(error: KernelError) -> Self {
        ModelError::Kernel(error)
    }
}
