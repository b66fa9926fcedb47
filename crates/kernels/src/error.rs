//! The errors of the kernels.
//! Must not know: requests or models.

use std::fmt;

use crate::isa::IsaError;

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelError {
    /// The instruction set is unknown, or this machine lacks it.
    Isa(IsaError),
    /// A task panicked. The pool stays usable, but the operation's output is incomplete.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The system refused to allocate memory.
    OutOfMemory {
        /// Bytes requested.
        bytes: usize,
    },
    /// A thread could not be started.
    Threads {
        /// The system's message.
        message: String,
    },
    /// A slice, shape or index does not fit the operation.
    Shape {
        /// What was expected and what was found.
        message: String,
    },
}

impl KernelError {
    /// Returns a shape error with this message.
    pub(crate) fn shape(message: impl Into<String>) -> Self {
        KernelError::Shape { message: message.into() }
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::Isa(error) => error.fmt(out),
            KernelError::Panicked { message } => write!(out, "a kernel panicked: {message}"),
            KernelError::OutOfMemory { bytes } => write!(out, "no memory for {bytes} bytes"),
            KernelError::Threads { message } => write!(out, "could not start a kernel thread: {message}"),
            KernelError::Shape { message } => write!(out, "shapes do not fit: {message}"),
        }
    }
}

impl std::error::Error for KernelError {}

impl From<IsaError> for KernelError {
    fn from(error: IsaError) -> Self {
        KernelError::Isa(error)
    }
}
