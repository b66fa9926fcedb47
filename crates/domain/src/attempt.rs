//! A try to have a prompt of a call answered: by whom, when, and what came of it. Must not know why anybody was chosen.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::NanoDollars;

/// One try. A prompt has several where the one before it came to nothing before a client could see anything of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Which prompt of the call, from 0.
    pub prompt: u32,
    /// Who was asked, by the id that operators know it by.
    pub worker: Arc<str>,
    /// For which model, where that is not the one that handled the call in the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// When, in nanoseconds from the call's first byte.
    pub start_ns: u64,
    /// Nanoseconds from there to its outcome.
    pub duration_ns: u64,
    /// What came of it.
    pub outcome: AttemptOutcome,
    /// What whoever was asked charges us for it, by their report and our sheet of their prices; `None`: nobody knows. For
    /// operators alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid: Option<NanoDollars>,
}

impl Attempt {
    /// What tries cost together; `None` where that is not known of each, but for those that were turned away before any work.
    pub fn paid_for(attempts: &[Self]) -> Option<NanoDollars> {
        let refused = |attempt: &&Self| {
            attempt.paid.is_none() && matches!(attempt.outcome, AttemptOutcome::Refused { .. })
        };
        let mut known = attempts.iter().filter(|attempt| !refused(attempt)).peekable();
        known.peek()?;
        known.try_fold(NanoDollars::ZERO, |sum, attempt| sum.checked_add(attempt.paid?).ok())
    }
}

/// An answer that another worker went on with where one was lost in its middle, and not as that one would have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continued {
    /// Which of the call's choices.
    pub choice: u32,
    /// Tokens of it that were there by then.
    pub after_tokens: u64,
    /// Who went on with it.
    pub worker: Arc<str>,
}

/// Stands for what a server said of a failure, where that may not be kept.
const UNSAID: &str = "its words are not kept here: the call is pinned to other regions";

impl AttemptOutcome {
    /// Leaves out what the server said of it: that may repeat words of the call.
    pub fn without_words(&mut self) {
        match self {
            Self::Answered | Self::Outrun | Self::CutShort => {}
            Self::Refused { why, .. } | Self::Failed { why, .. } => UNSAID.clone_into(why),
        }
    }
}

/// What came of a try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AttemptOutcome {
    /// The whole answer.
    Answered,
    /// It was turned away before any work.
    Refused {
        /// The code of a refusal of this kind.
        code: String,
        /// Why, as the worker said it.
        why: String,
    },
    /// It was taken, and failed.
    Failed {
        /// The code of a failure of this kind.
        code: String,
        /// Why, as the worker said it.
        why: String,
    },
    /// A second worker that was asked as well was faster with the first word, and this one was let go of.
    Outrun,
    /// The call ended before it did.
    CutShort,
}

impl AttemptOutcome {
    /// The name in JSON.
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
