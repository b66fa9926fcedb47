//! One round of a call in its trace: what served it, its times, its tokens and its end. Must not know why a call runs
//! another round.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Usage;

/// One round: one rendering of the call's prompts and its answer. A call has several if an answer that violated its
/// format is requested again, or if a fallback model takes over. All rounds share one hold. A worker that continues the
/// answer of a lost worker is another attempt of the same round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRound {
    /// The model that served the round, if it is not the model that handled the call in the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// The upstream that served the round, by its name in the configuration. `None` for a local engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Arc<str>>,
    /// The worker that answered, or the last one that was tried. For several prompts: that of the last prompt. `None` if
    /// the record lists none of the round's attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<Arc<str>>,
    /// Start of the round's first attempt, in nanoseconds from the call's first byte.
    pub start_ns: u64,
    /// Nanoseconds from there to the end of the round.
    pub duration_ns: u64,
    /// Tokens by class. Tokens of a discarded round are not part of the call's usage, and are not charged.
    pub usage: Usage,
    /// The engine's own times. `None` if a server in a dialect answered, or if no job of the round ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<RoundTimes>,
    /// How the round ended.
    pub outcome: RoundOutcome,
}

/// The times that an engine measured in a round. For several prompts: those of the first prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RoundTimes {
    /// Nanoseconds from arrival to the first step that computed any of it.
    pub queue_ns: u64,
    /// Nanoseconds from that step to the first token.
    pub prefill_ns: u64,
    /// Nanoseconds from the first token to the last.
    pub decode_ns: u64,
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RoundOutcome {
    /// The whole answer was read.
    Answered {
        /// The finish reason of the first choice. `None` if the answer has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish: Option<Cow<'static, str>>,
    },
    /// The round failed.
    Failed {
        /// Code of the failure.
        code: Cow<'static, str>,
    },
    /// The call ended before the round did: its client left, or its key became invalid.
    CutShort,
}

impl RoundOutcome {
    /// Returns the name in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Answered { .. } => "answered",
            Self::Failed { .. } => "failed",
            Self::CutShort => "cut_short",
        }
    }
}
