//! What can go wrong in the arithmetic.
//! Must not know: requests or models.

use std::fmt;

use crate::isa::IsaError;

/// An operation that could not be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelError {
    /// The instruction set is unknown or lacking.
    Isa(IsaError),
    /// A task panicked; the pool lives on, the operation's output is incomplete.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The system gave no memory.
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A thread could not be started.
    Threads {
        /// The system's message.
        message: String,
    },
    /// A slice, shape or index does not fit the operation.
    Shape {
        /// What was expected of what.
        message: String,
    },
}

impl KernelError {
    /// A shape error.
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
