//! Whether an engine takes jobs, and if not, why and for how long.

use std::fmt;

/// How an engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It takes jobs.
    Up,
    /// It is shutting down: what runs goes on, nothing new is taken.
    Draining,
    /// Its loop broke. It begins again in a moment.
    Restarting {
        /// What broke it.
        why: String,
    },
    /// Its loop broke too often. It takes no job any more.
    Dead {
        /// What broke it last.
        why: String,
    },
}

impl Health {
    /// Whether it takes jobs.
    pub fn is_up(&self) -> bool {
        *self == Self::Up
    }
}

impl fmt::Display for Health {
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
