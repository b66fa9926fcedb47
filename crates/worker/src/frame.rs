//! The frames of a worker's answer to a job: the engine's events, and heartbeats between them. Both directions. `audit`
//! checks their order.

use std::time::Duration;

use headrace_domain::{FinishReason, TokenLogprob};
use headrace_engine_api::{JobError, LoadReport, SubmitRefusal};
use serde::{Deserialize, Serialize};

use crate::limits::MAX_WAIT;
use crate::refusal::said;
use crate::report::{ReportExtras, WorkerReport, as_json};

/// One frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WorkerFrame {
    /// A heartbeat with the engine's load.
    Alive(LoadReport),
    /// The job's first step begins.
    Started {
        /// Prompt tokens taken from the prefix cache.
        cached_tokens: u32,
    },
    /// Scores of the next prompt tokens.
    Scored(Vec<TokenLogprob>),
    /// Tokens of one choice.
    Tokens {
        /// The choice.
        choice: u32,
        /// Ids since the last frame of this choice.
        ids: Vec<u32>,
        /// Text that may be delivered.
        text: String,
        /// One entry per id, if log-probabilities were requested.
        logprobs: Vec<TokenLogprob>,
    },
    /// The end of one choice.
    Finished {
        /// The choice.
        choice: u32,
        /// Why it ended.
        end: ChoiceEnd,
    },
    /// The end of the job. All choices have ended.
    Done(WorkerReport),
    /// The job failed.
    Failed {
        /// The error.
        error: JobFailure,
        /// What had been computed by then.
        report: WorkerReport,
    },
    /// The additional report, before the last frame and only for gateways that asked for it. Older gateways do not know
    /// this frame.
    Also(#[serde(with = "as_json")] ReportExtras),
}

/// Why a choice ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChoiceEnd {
    /// A token id that ends the choice.
    Stop,
    /// A stop string.
    Matched(String),
    /// The maximum length.
    Length,
    /// A reason that no engine has.
    Other,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobFailure {
    /// The worker cancelled the job.
    Cancelled,
    /// The job waited past its deadline.
    Expired {
        /// Milliseconds after which another job would not.
        retry_after_ms: u64,
    },
    /// The computation panicked.
    Panicked(String),
    /// The logits at this position were not finite numbers.
    NotFinite(u64),
    /// The worker is shutting down.
    ShuttingDown,
    /// Any other error.
    Internal(String),
    /// The answer could not continue in its form.
    Form(String),
}

impl From<FinishReason> for ChoiceEnd {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::StopString { matched } => Self::Matched(matched),
            FinishReason::Length => Self::Length,
            FinishReason::ToolCalls | FinishReason::ContentFilter => Self::Other,
        }
    }
}

impl From<JobError> for JobFailure {
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

impl From<JobFailure> for JobError {
    fn from(broken: JobFailure) -> Self {
        match broken {
            // No gateway cancelled the job, so the worker dropped it by itself.
            JobFailure::Cancelled => {
                let why = "the worker released the job".to_owned();
                Self::Refused(SubmitRefusal::Unavailable { why })
            }
            JobFailure::Expired { retry_after_ms } => {
                Self::Expired { retry_after: Duration::from_millis(retry_after_ms).min(MAX_WAIT) }
            }
            JobFailure::Panicked(detail) => Self::Panicked { detail: said(&detail) },
            JobFailure::NotFinite(position) => {
                Self::NotFinite { position: usize::try_from(position).unwrap_or(usize::MAX) }
            }
            JobFailure::Form(why) => Self::Form { why: said(&why) },
            JobFailure::ShuttingDown => Self::ShuttingDown,
            JobFailure::Internal(detail) => Self::Internal { detail: said(&detail) },
        }
    }
}
