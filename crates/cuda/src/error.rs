//! Why a model could not be loaded onto a device. Must not know: what the model was for.

use std::fmt;

use headrace_checkpoint::CheckpointError;

use crate::device::DeviceError;

/// Why a model could not be loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The checkpoint is incomplete or contradicts itself.
    Checkpoint(CheckpointError),
    /// A tensor contradicts the configuration, or has a type that is not supported here.
    Tensor {
        /// The tensor's name.
        name: String,
        /// What is wrong with the tensor.
        problem: String,
    },
    /// A size of the model that the kernels do not support, or an invalid option.
    Unsupported {
        /// The field or option.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The model does not fit into the device's memory.
    TooLarge {
        /// The sizes, and what would fit.
        problem: String,
    },
    /// The device reported an error.
    Device(DeviceError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Checkpoint(error) => error.fmt(out),
            LoadError::Tensor { name, problem } => write!(out, "tensor {name}: {problem}"),
            LoadError::Unsupported { name, problem } => write!(out, "{name}: {problem}"),
            LoadError::TooLarge { problem } => out.write_str(problem),
            LoadError::Device(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Checkpoint(error) => Some(error),
            LoadError::Device(error) => Some(error),
            LoadError::Tensor { .. } | LoadError::Unsupported { .. } | LoadError::TooLarge { .. } => None,
        }
    }
}

impl From<CheckpointError> for LoadError {
    fn from(error: CheckpointError) -> Self {
        LoadError::Checkpoint(error)
    }
}

impl From<DeviceError> for LoadError {
    fn from(error: DeviceError) -> Self {
        LoadError::Device(error)
    }
}
