//! How a call ended for its worker, and whether that says something about the worker's health. Must not know what the
//! client receives.

use std::fmt;
use std::time::Duration;

use headrace_engine_api::{JobError, RelayError, SubmitRefusal};

/// How a call ended, as far as it concerns the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerOutcome {
    /// It was answered to its end.
    Answered,
    /// The worker is overloaded, or the caller's share there is used up. This is not a failure of its health.
    Refused {
        /// Retry time that the worker asked for. `None` if it gave none.
        retry_after: Option<Duration>,
    },
    /// It failed.
    Failed {
        /// The kind of failure.
        failure: FailureKind,
        /// Description for operators.
        why: String,
    },
    /// The request was wrong, and every worker would refuse it. Says nothing about this worker.
    CallersFault,
    /// The client no longer waits for it. Says nothing about the worker.
    Cancelled,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection.
    Connect,
    /// No answer in time.
    Timeout,
    /// An error status.
    Status(u16),
    /// A response that is not an answer in the dialect.
    NoAnswer,
    /// The answer broke off.
    Broke,
}

impl WorkerOutcome {
    /// Whether the request body may have caused it. No body makes a server refuse connections.
    pub(crate) fn may_be_of_the_body(&self) -> bool {
        !matches!(self, Self::Failed { failure: FailureKind::Connect, .. })
    }
}

impl FailureKind {
    /// Whether the server behind the worker may be down, with all its models.
    pub(crate) fn is_of_the_site(self) -> bool {
        match self {
            Self::Connect | Self::Timeout | Self::Broke => true,
            Self::Status(_) | Self::NoAnswer => false,
        }
    }
}

impl fmt::Display for FailureKind {
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

impl From<&SubmitRefusal> for WorkerOutcome {
    fn from(refusal: &SubmitRefusal) -> Self {
        match refusal {
            SubmitRefusal::QueueFull { retry_after, .. } => Self::Refused { retry_after: Some(*retry_after) },
            SubmitRefusal::Unavailable { why } => {
                Self::Failed { failure: FailureKind::Connect, why: why.clone() }
            }
            // These concern the length of this prompt and this deadline.
            SubmitRefusal::DoesNotFit { .. }
            | SubmitRefusal::TooLate { .. }
            | SubmitRefusal::Invalid { .. } => Self::CallersFault,
        }
    }
}

impl From<&JobError> for WorkerOutcome {
    fn from(error: &JobError) -> Self {
        match error {
            JobError::Cancelled => Self::Cancelled,
            // The call itself may have caused these.
            JobError::Expired { .. }
            | JobError::Panicked { .. }
            | JobError::NotFinite { .. }
            | JobError::Form { .. } => Self::CallersFault,
            JobError::Refused(refusal) => Self::from(refusal),
            JobError::ShuttingDown => Self::Failed { failure: FailureKind::Broke, why: error.to_string() },
            JobError::Internal { detail } => {
                Self::Failed { failure: FailureKind::Broke, why: detail.clone() }
            }
        }
    }
}

impl From<&RelayError> for WorkerOutcome {
    fn from(error: &RelayError) -> Self {
        let failure = match error {
            RelayError::Connect { .. } | RelayError::ConnectTimeout { .. } => FailureKind::Connect,
            RelayError::Timeout { .. } => FailureKind::Timeout,
            RelayError::Status { status, retry_after, .. } => match status {
                // 529 is Anthropic's status for an overloaded server.
                429 | 529 => return Self::Refused { retry_after: *retry_after },
                503 if retry_after.is_some() => return Self::Refused { retry_after: *retry_after },
                // Our key, our account or our name for the model is wrong there; or the server took too long.
                401..=404 | 408 | 500..=599 => FailureKind::Status(*status),
                _ => return Self::CallersFault,
            },
            RelayError::Redirect { status, .. } => FailureKind::Status(*status),
            RelayError::NotTheDialect { .. } | RelayError::TooLarge { .. } => FailureKind::NoAnswer,
            RelayError::NoMemory => return Self::CallersFault,
            RelayError::Cut { .. } => FailureKind::Broke,
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
            WorkerOutcome::from(&RelayError::Status { status, body: bytes::Bytes::new(), retry_after })
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
            let text = match &outcome {
                WorkerOutcome::Refused { retry_after } => format!("refused {retry_after:?}"),
                WorkerOutcome::Failed { failure, .. } => format!("failed {failure}"),
                WorkerOutcome::CallersFault => "caller".to_owned(),
                other => format!("{other:?}"),
            };
            assert_eq!(text, expected);
        }
    }
}
