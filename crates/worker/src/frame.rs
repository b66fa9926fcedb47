//! What a worker says of a job, one frame each: the events of the seam, and signs of life between them. Both directions; what
//! may follow what is `audit`'s.

use std::time::Duration;

use headrace_domain::{FinishReason, TokenLogprob};
use headrace_engine_api::{JobError, LoadReport, SubmitRefusal};
use serde::{Deserialize, Serialize};

use crate::limits::MAX_WAIT;
use crate::refusal::said;
use crate::report::{Also, Report, as_json};

/// One frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Frame {
    /// It lives, and this is how busy the engine is.
    Alive(LoadReport),
    /// The job's first step begins.
    Started {
        /// Prompt tokens taken from the prefix cache.
        cached_tokens: u32,
    },
    /// Scores of the prompt's next tokens.
    Scored(Vec<TokenLogprob>),
    /// Tokens of one choice.
    Tokens {
        /// Which.
        choice: u32,
        /// Ids since the last frame of this choice.
        ids: Vec<u32>,
        /// Text that may be delivered.
        text: String,
        /// One per id where asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// One choice has ended.
    Finished {
        /// Which.
        choice: u32,
        /// Why.
        end: End,
    },
    /// All have ended.
    Done(Report),
    /// The job failed.
    Failed {
        /// Why.
        error: Broken,
        /// What had been computed by then.
        report: Report,
    },
    /// What else is to be told of the job, before its last word, and only to whoever asked for it: gateways of before know no
    /// such frame.
    Also(#[serde(with = "as_json")] Also),
}

/// Why a choice has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// An id that ends it.
    Stop,
    /// A stop string.
    Matched(String),
    /// As long as it may be.
    Length,
    /// What no engine ends with.
    Other,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Broken {
    /// It was cancelled there.
    Cancelled,
    /// It waited past its deadline.
    Expired {
        /// When another one would not, in milliseconds.
        retry_after_ms: u64,
    },
    /// Its computation panicked.
    Panicked(String),
    /// Its logits were not numbers, at this position.
    NotFinite(u64),
    /// The worker is shutting down.
    ShuttingDown,
    /// Anything else.
    Internal(String),
    /// The answer could not be held to its form any further.
    Form(String),
}

impl From<FinishReason> for End {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::StopString { matched } => Self::Matched(matched),
            FinishReason::Length => Self::Length,
            FinishReason::ToolCalls | FinishReason::ContentFilter => Self::Other,
        }
    }
}

impl From<JobError> for Broken {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Cancelled => Self::Cancelled,
            JobError::Expired { retry_after } => {
                Self::Expired { retry_after_ms: u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX) }
            }
            JobError::Panicked { detail } => Self::Panicked(said(&detail)),
            JobError::NotFinite { position } => Self::NotFinite(position as u64),
            JobError::Form { why } => Self::Form(said(&why)),
            JobError::ShuttingDown => Self::ShuttingDown,
            JobError::Internal { detail } => Self::Internal(said(&detail)),
            JobError::Refused(refusal) => Self::Internal(said(&refusal.to_string())),
        }
    }
}

impl From<Broken> for JobError {
    fn from(broken: Broken) -> Self {
        match broken {
            // Nobody here asked for that: the worker let go of it by itself.
            Broken::Cancelled => {
                let why = "the worker let go of the job".to_owned();
                Self::Refused(SubmitRefusal::Unavailable { why })
            }
            Broken::Expired { retry_after_ms } => {
                Self::Expired { retry_after: Duration::from_millis(retry_after_ms).min(MAX_WAIT) }
            }
            Broken::Panicked(detail) => Self::Panicked { detail: said(&detail) },
            Broken::NotFinite(position) => {
                Self::NotFinite { position: usize::try_from(position).unwrap_or(usize::MAX) }
            }
            Broken::Form(why) => Self::Form { why: said(&why) },
            Broken::ShuttingDown => Self::ShuttingDown,
            Broken::Internal(detail) => Self::Internal { detail: said(&detail) },
        }
    }
}
