//! One attempt to have a prompt answered: the worker, the times and the outcome. Must not know why a worker was chosen.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::NanoDollars;

/// One attempt. A prompt has several if earlier attempts failed before the client could see any output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Index of the prompt within the call, from 0.
    pub prompt: u32,
    /// The worker that was tried, by the id that operators use.
    pub worker: Arc<str>,
    /// The model of this attempt, if it is not the model that handled the call in the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Start of the attempt, in nanoseconds from the call's first byte.
    pub start_ns: u64,
    /// Nanoseconds from the start to the outcome.
    pub duration_ns: u64,
    /// How the attempt ended.
    pub outcome: AttemptOutcome,
    /// What the upstream charges us for this attempt, from its usage report and our list of its prices. `None` if the
    /// charge is unknown. For operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid: Option<NanoDollars>,
}

impl Attempt {
    /// Returns the total cost of the attempts. Attempts that were refused before any work and have no cost are ignored.
    /// Returns `None` if the cost of another attempt is unknown, if no other attempt is left, or if the sum overflows.
    pub fn paid_for(attempts: &[Self]) -> Option<NanoDollars> {
        let refused = |attempt: &&Self| {
            attempt.paid.is_none() && matches!(attempt.outcome, AttemptOutcome::Refused { .. })
        };
        let mut known = attempts.iter().filter(|attempt| !refused(attempt)).peekable();
        known.peek()?;
        known.try_fold(NanoDollars::ZERO, |sum, attempt| sum.checked_add(attempt.paid?).ok())
    }
}

/// An answer that was lost in the middle and continued by another worker whose tokens may differ from those of the lost
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContinuedAnswer {
    /// Index of the call's choice.
    pub choice: u32,
    /// Tokens of the answer that existed before the switch.
    pub after_tokens: u64,
    /// The worker that continued the answer.
    pub worker: Arc<str>,
}

/// Replaces a server's failure message if that message may not be kept.
const UNSAID: &str = "its words are not kept here: the call is pinned to other regions";

impl AttemptOutcome {
    /// Removes the server's failure message, which may repeat words of the call.
    pub fn without_words(&mut self) {
        match self {
            Self::Answered | Self::Outrun | Self::CutShort => {}
            Self::Refused { why, .. } | Self::Failed { why, .. } => UNSAID.clone_into(why),
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AttemptOutcome {
    /// The worker gave the whole answer.
    Answered,
    /// The worker refused the prompt before any work.
    Refused {
        /// Code of the refusal.
        code: String,
        /// The worker's own explanation.
        why: String,
    },
    /// The worker accepted the prompt and then failed.
    Failed {
        /// Code of the failure.
        code: String,
        /// The worker's own explanation.
        why: String,
    },
    /// A second worker, tried in parallel, produced the first token earlier, so this attempt was cancelled.
    Outrun,
    /// The call ended before this attempt did.
    CutShort,
}

impl AttemptOutcome {
    /// Returns the name in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused { .. } => "refused",
            Self::Failed { .. } => "failed",
            Self::Outrun => "outrun",
            Self::CutShort => "cut_short",
        }
    }
}
