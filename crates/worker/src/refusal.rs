//! Why a worker refuses a job, as JSON: the engine's reason, or that the job is invalid. Both directions.

use std::time::Duration;

use headrace_engine_api::SubmitRefusal;
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_WAIT, SAID_CHARS};

/// Why a worker refuses a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum JobRefusal {
    /// The engine's queue is full.
    QueueFull {
        /// Whether the limit counts prompt tokens instead of sequences.
        of_tokens: bool,
        /// The limit.
        limit: u64,
        /// Milliseconds until the queue may have space.
        retry_after_ms: u64,
    },
    /// Prompt and output can never fit.
    DoesNotFit {
        /// What the job needs, in tokens.
        needed: u64,
        /// The available tokens.
        limit: u64,
    },
    /// The first token cannot be generated in time.
    TooLate {
        /// Wait for other jobs, in milliseconds.
        wait_ms: u64,
        /// Duration of the job's own prompt, in milliseconds.
        prefill_ms: u64,
        /// Milliseconds after which the wait may be short enough.
        retry_after_ms: Option<u64>,
    },
    /// A value that the engine or the protocol does not accept.
    Invalid {
        /// The value.
        what: String,
    },
    /// The worker takes no jobs for this model.
    Unavailable {
        /// The cause.
        why: String,
    },
    /// The ticket was refused. The reason is in the worker's log.
    Ticket,
}

impl JobRefusal {
    /// Returns the HTTP status of the refusal.
    pub(crate) const fn status(&self) -> u16 {
        match self {
            Self::Ticket => 401,
            Self::Invalid { .. } | Self::DoesNotFit { .. } => 400,
            Self::QueueFull { .. } | Self::TooLate { .. } => 429,
            Self::Unavailable { .. } => 503,
        }
    }
}

impl From<SubmitRefusal> for JobRefusal {
    fn from(refusal: SubmitRefusal) -> Self {
        match refusal {
            SubmitRefusal::QueueFull { what, limit, retry_after } => {
                Self::QueueFull { of_tokens: what == "tokens", limit, retry_after_ms: ms(retry_after) }
            }
            SubmitRefusal::DoesNotFit { needed, limit } => Self::DoesNotFit { needed, limit },
            SubmitRefusal::TooLate { wait, prefill, retry_after } => Self::TooLate {
                wait_ms: ms(wait),
                prefill_ms: ms(prefill),
                retry_after_ms: retry_after.map(ms),
            },
            SubmitRefusal::Invalid { what } => Self::Invalid { what },
            SubmitRefusal::Unavailable { why } => Self::Unavailable { why },
        }
    }
}

impl From<JobRefusal> for SubmitRefusal {
    fn from(refusal: JobRefusal) -> Self {
        let wait = |ms| Duration::from_millis(ms).min(MAX_WAIT);
        match refusal {
            JobRefusal::QueueFull { of_tokens, limit, retry_after_ms } => Self::QueueFull {
                what: if of_tokens { "tokens" } else { "sequences" },
                limit,
                retry_after: wait(retry_after_ms),
            },
            JobRefusal::DoesNotFit { needed, limit } => Self::DoesNotFit { needed, limit },
            JobRefusal::TooLate { wait_ms, prefill_ms, retry_after_ms } => Self::TooLate {
                wait: wait(wait_ms),
                prefill: wait(prefill_ms),
                retry_after: retry_after_ms.map(wait),
            },
            JobRefusal::Invalid { what } => Self::Invalid { what: said(&what) },
            JobRefusal::Unavailable { why } => Self::Unavailable { why: said(&why) },
            JobRefusal::Ticket => Self::Unavailable {
                why: "the worker does not take our ticket: is the secret the same at both ends, and do their clocks agree?"
                    .to_owned(),
            },
        }
    }
}

fn ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// Makes the other side's text safe to repeat: no control characters, limited length.
pub(crate) fn said(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SAID_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_an_engine_come_as_they_were() {
        let second = Duration::from_secs(1);
        for refusal in [
            SubmitRefusal::QueueFull { what: "tokens", limit: 7, retry_after: second },
            SubmitRefusal::QueueFull { what: "sequences", limit: 7, retry_after: second },
            SubmitRefusal::DoesNotFit { needed: 9, limit: 8 },
            SubmitRefusal::TooLate { wait: second, prefill: second * 2, retry_after: None },
            SubmitRefusal::TooLate { wait: second, prefill: second * 2, retry_after: Some(second) },
            SubmitRefusal::Invalid { what: "n = 0".into() },
            SubmitRefusal::Unavailable { why: "it drains".into() },
        ] {
            let json = serde_json::to_vec(&JobRefusal::from(refusal.clone())).unwrap();
            let read: JobRefusal = serde_json::from_slice(&json).unwrap();
            assert_eq!(SubmitRefusal::from(read), refusal);
        }
    }

    #[test]
    fn what_is_repeated_is_one_bounded_line() {
        let what = format!("a\nb\u{1b}{}", "x".repeat(1000));
        let SubmitRefusal::Invalid { what } = SubmitRefusal::from(JobRefusal::Invalid { what }) else {
            panic!("it is invalid")
        };
        assert!(what.len() == SAID_CHARS && what.starts_with("a b x"), "{what}");
        let far = JobRefusal::QueueFull { of_tokens: false, limit: 1, retry_after_ms: u64::MAX };
        let SubmitRefusal::QueueFull { retry_after, .. } = SubmitRefusal::from(far) else {
            panic!("it is full")
        };
        assert_eq!(retry_after, MAX_WAIT);
    }
}
