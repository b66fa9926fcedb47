//! What a caller wishes to be kept of its prompt, and for how long nobody need use it. Knows no cache.

use serde::{Deserialize, Serialize};

/// For how long a marked prefix is kept after it was used last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheLife {
    /// Five minutes.
    Minutes,
    /// An hour.
    Hour,
}

impl CacheLife {
    /// Every one, shortest first.
    pub const ALL: [Self; 2] = [Self::Minutes, Self::Hour];

    /// Its length in nanoseconds.
    pub const fn nanos(self) -> u64 {
        const MINUTE: u64 = 60_000_000_000;
        match self {
            Self::Minutes => 5 * MINUTE,
            Self::Hour => 60 * MINUTE,
        }
    }
}

/// Where a prefix ends that its caller marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMarkAt {
    /// Behind the tools and the instructions.
    Head,
    /// Behind this message of the list that the caller sent.
    Message(u32),
    /// Behind the last one.
    Last,
}

/// A prefix that its caller wishes to be kept (Anthropic's `cache_control`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheMark {
    /// Where it ends.
    pub at: CacheMarkAt,
    /// For how long.
    pub life: CacheLife,
}

/// Tokens of a prompt, from the first on, that are to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePin {
    /// How many.
    pub tokens: u32,
    /// For how long nobody need use them.
    pub life: CacheLife,
}
