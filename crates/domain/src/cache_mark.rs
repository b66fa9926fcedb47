//! Which parts of a prompt the caller wants to keep cached, and for how long without use. Must not know a cache.

use serde::{Deserialize, Serialize};

use crate::RequestId;

/// How long a marked prefix is kept after its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheLife {
    /// Five minutes.
    Minutes,
    /// An hour.
    Hour,
}

impl CacheLife {
    /// Every lifetime, shortest first.
    pub const ALL: [Self; 2] = [Self::Minutes, Self::Hour];

    /// Returns the length in nanoseconds.
    pub const fn nanos(self) -> u64 {
        const MINUTE: u64 = 60_000_000_000;
        match self {
            Self::Minutes => 5 * MINUTE,
            Self::Hour => 60 * MINUTE,
        }
    }
}

/// Where a marked prefix ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMarkAt {
    /// After the tools and the instructions.
    Head,
    /// After this message of the caller's list.
    Message(u32),
    /// After the last message.
    Last,
}

/// A prefix that the caller wants to keep cached (Anthropic's `cache_control`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheMark {
    /// Where the prefix ends.
    pub at: CacheMarkAt,
    /// How long it is kept.
    pub life: CacheLife,
}

/// Leading tokens of a prompt that the cache should keep while a call still needs them, for example between the rounds
/// of a call. They are kept until the call releases them, or until nothing has used them for
/// [`CacheLife::Minutes`]. No caller asked for this, so it is not billed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldPrefix {
    /// The call. It releases all that it holds at once.
    pub owner: RequestId,
    /// Number of tokens.
    pub tokens: u32,
}

/// Leading tokens of a prompt that the cache should keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePin {
    /// Number of tokens.
    pub tokens: u32,
    /// How long they are kept without use.
    pub life: CacheLife,
}
