//! Why a worker turns a job away, as JSON: what its engine said, or that the job is none. Both directions.

use std::time::Duration;

use headrace_engine_api::SubmitRefusal;
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_WAIT, SAID_CHARS};

/// Why a worker turns a job away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// Its queue is full.
    QueueFull {
        /// Of prompt tokens, not of sequences.
        of_tokens: bool,
        /// Its bound.
        limit: u64,
        /// When there may be room, in milliseconds.
        retry_after_ms: u64,
    },
    /// Prompt and output can never fit.
    DoesNotFit {
        /// What the job needs, in tokens.
        needed: u64,
        /// What there is.
        limit: u64,
    },
    /// Its first token cannot be there in time.
    TooLate {
        /// How long it would wait for others, in milliseconds.
        wait_ms: u64,
        /// How long its own prompt would take.
        prefill_ms: u64,
        /// When the wait may be short enough.
        retry_after_ms: Option<u64>,
    },
    /// A value that the engine or the protocol cannot take.
    Invalid {
        /// Which.
        what: String,
    },
    /// It takes no jobs for this model.
    Unavailable {
        /// Why.
        why: String,
    },
    /// The ticket is not taken. Why not stands in the worker's log.
    Ticket,
}

impl Refusal {
    /// The status that it has over HTTP.
    pub(crate) const fn status(&self) -> u16 {
        match self {
            Self::Ticket => 401,
            Self::Invalid { .. } | Self::DoesNotFit { .. } => 400,
            Self::QueueFull { .. } | Self::TooLate { .. } => 429,
            Self::Unavailable { .. } => 503,
        }
    }
}

impl From<SubmitRefusal> for Refusal {
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

impl From<Refusal> for SubmitRefusal {
    fn from(refusal: Refusal) -> Self {
        let wait = |ms| Duration::from_millis(ms).min(MAX_WAIT);
        match refusal {
            Refusal::QueueFull { of_tokens, limit, retry_after_ms } => Self::QueueFull {
                what: if of_tokens { "tokens" } else { "sequences" },
                limit,
                retry_after: wait(retry_after_ms),
            },
            Refusal::DoesNotFit { needed, limit } => Self::DoesNotFit { needed, limit },
            Refusal::TooLate { wait_ms, prefill_ms, retry_after_ms } => Self::TooLate {
                wait: wait(wait_ms),
                prefill: wait(prefill_ms),
                retry_after: retry_after_ms.map(wait),
            },
            Refusal::Invalid { what } => Self::Invalid { what: said(&what) },
            Refusal::Unavailable { why } => Self::Unavailable { why: said(&why) },
            Refusal::Ticket => Self::Unavailable {
                why: "the worker does not take our ticket: is the secret the same at both ends, and do their clocks agree?"
                    .to_owned(),
            },
        }
    }
}

fn ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// What the other end says, as it may be repeated.
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
            let json = serde_json::to_vec(&Refusal::from(refusal.clone())).unwrap();
            let read: Refusal = serde_json::from_slice(&json).unwrap();
            assert_eq!(SubmitRefusal::from(read), refusal);
        }
    }

    #[test]
    fn what_is_repeated_is_one_bounded_line() {
        let what = format!("a\nb\u{1b}{}", "x".repeat(1000));
        let SubmitRefusal::Invalid { what } = SubmitRefusal::from(Refusal::Invalid { what }) else {
            panic!("it is invalid")
        };
        assert!(what.len() == SAID_CHARS && what.starts_with("a b x"), "{what}");
        let far = Refusal::QueueFull { of_tokens: false, limit: 1, retry_after_ms: u64::MAX };
        let SubmitRefusal::QueueFull { retry_after, .. } = SubmitRefusal::from(far) else {
            panic!("it is full")
        };
        assert_eq!(retry_after, MAX_WAIT);
    }
}
