//! Whether an engine takes jobs, and why not if it does not.

use std::fmt;

/// The health of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineHealth {
    /// The engine takes jobs.
    Up,
    /// The engine is shutting down. It finishes running jobs and accepts no new ones.
    Draining,
    /// The engine's loop failed. The engine restarts in a moment.
    Restarting {
        /// What failed.
        why: String,
    },
    /// The engine's loop failed too often. The engine takes no more jobs.
    Dead {
        /// The last failure.
        why: String,
    },
}

impl EngineHealth {
    /// Returns whether the engine takes jobs.
    pub fn is_up(&self) -> bool {
        *self == Self::Up
    }
}

impl fmt::Display for EngineHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up => f.write_str("it takes calls"),
            Self::Draining => f.write_str("it is shutting down"),
            Self::Restarting { why } => write!(f, "it broke and begins again: {why}"),
            Self::Dead { why } => {
                write!(f, "it broke again and again, and is dead until the server is started anew: {why}")
            }
        }
    }
}
