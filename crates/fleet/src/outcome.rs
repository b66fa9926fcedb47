//! How a call ended for the worker that had it: what of it says something about the worker's health, and what does not.
//! Must not know what the client is told.

use std::fmt;
use std::time::Duration;

use headrace_engine_api::{JobError, RelayError, SubmitRefusal};

/// How a call ended, as far as it concerns the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered to its end.
    Answered,
    /// The worker has too much to do, or the caller's share there is used up. That is not a failure of its health.
    Refused {
        /// When it wants to be asked again; `None`: it has not said.
        retry_after: Option<Duration>,
    },
    /// It failed.
    Failed {
        /// How.
        failure: Failure,
        /// In words, for operators.
        why: String,
    },
    /// What was asked was wrong: every worker would say the same. Says nothing about this one.
    CallersFault,
    /// Nobody waits for it any longer. Says nothing about the worker.
    Cancelled,
}

/// How a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// There was no connection.
    Connect,
    /// Nothing came in time.
    Timeout,
    /// It answered with an error of its own.
    Status(u16),
    /// It answered with what is no answer.
    NoAnswer,
    /// It broke within the answer.
    Broke,
}

impl Outcome {
    /// Whether what the caller sent may have led to it. No body makes a server refuse connections.
    pub(crate) fn may_be_of_the_body(&self) -> bool {
        !matches!(self, Self::Failed { failure: Failure::Connect, .. })
    }
}

impl Failure {
    /// Whether the server behind the worker may be gone, with all its models.
    pub(crate) fn is_of_the_site(self) -> bool {
        match self {
            Self::Connect | Self::Timeout | Self::Broke => true,
            Self::Status(_) | Self::NoAnswer => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("no connection"),
            Self::Timeout => f.write_str("too slow"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::NoAnswer => f.write_str("no answer of its dialect"),
            Self::Broke => f.write_str("broke off"),
        }
    }
}

impl From<&SubmitRefusal> for Outcome {
    fn from(refusal: &SubmitRefusal) -> Self {
        match refusal {
            SubmitRefusal::QueueFull { retry_after, .. } => Self::Refused { retry_after: Some(*retry_after) },
            SubmitRefusal::Unavailable { why } => {
                Self::Failed { failure: Failure::Connect, why: why.clone() }
            }
            // They concern the length of this prompt and this deadline.
            SubmitRefusal::DoesNotFit { .. }
            | SubmitRefusal::TooLate { .. }
            | SubmitRefusal::Invalid { .. } => Self::CallersFault,
        }
    }
}

impl From<&JobError> for Outcome {
    fn from(error: &JobError) -> Self {
        match error {
            JobError::Cancelled => Self::Cancelled,
            // The call itself may have done it.
            JobError::Expired { .. }
            | JobError::Panicked { .. }
            | JobError::NotFinite { .. }
            | JobError::Form { .. } => Self::CallersFault,
            JobError::Refused(refusal) => Self::from(refusal),
            JobError::ShuttingDown => Self::Failed { failure: Failure::Broke, why: error.to_string() },
            JobError::Internal { detail } => Self::Failed { failure: Failure::Broke, why: detail.clone() },
        }
    }
}

impl From<&RelayError> for Outcome {
    fn from(error: &RelayError) -> Self {
        let failure = match error {
            RelayError::Connect { .. } | RelayError::ConnectTimeout { .. } => Failure::Connect,
            RelayError::Timeout { .. } => Failure::Timeout,
            RelayError::Status { status, retry_after, .. } => match status {
                // 529 is Anthropic's word for too much to do.
                429 | 529 => return Self::Refused { retry_after: *retry_after },
                503 if retry_after.is_some() => return Self::Refused { retry_after: *retry_after },
                // Our key, our account there, or our name of the model is wrong; or it took too long.
                401..=404 | 408 | 500..=599 => Failure::Status(*status),
                _ => return Self::CallersFault,
            },
            RelayError::Redirect { status, .. } => Failure::Status(*status),
            RelayError::NotTheDialect { .. } | RelayError::TooLarge { .. } => Failure::NoAnswer,
            RelayError::NoMemory => return Self::CallersFault,
            RelayError::Cut { .. } => Failure::Broke,
            RelayError::Unavailable { retry_after, .. } => {
                return Self::Refused { retry_after: *retry_after };
            }
        };
        Self::Failed { failure, why: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_upstream_says_counts_against_it_only_where_it_is_its_own_doing() {
        let status = |status, seconds: Option<u64>| {
            let retry_after = seconds.map(Duration::from_secs);
            Outcome::from(&RelayError::Status { status, body: bytes::Bytes::new(), retry_after })
        };
        for (outcome, expected) in [
            (status(429, Some(7)), "refused Some(7s)"),
            (status(429, None), "refused None"),
            (status(529, None), "refused None"),
            (status(503, Some(1)), "refused Some(1s)"),
            (status(503, None), "failed status 503"),
            (status(500, None), "failed status 500"),
            (status(401, None), "failed status 401"),
            (status(404, None), "failed status 404"),
            (status(400, None), "caller"),
            (status(422, None), "caller"),
        ] {
            let told = match &outcome {
                Outcome::Refused { retry_after } => format!("refused {retry_after:?}"),
                Outcome::Failed { failure, .. } => format!("failed {failure}"),
                Outcome::CallersFault => "caller".to_owned(),
                other => format!("{other:?}"),
            };
            assert_eq!(told, expected);
        }
    }
}
