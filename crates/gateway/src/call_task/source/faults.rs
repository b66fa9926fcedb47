//! Faults of an upstream server, and what the client learns of them. A client gets the details that it can act on. Of
//! problems between us and the upstream (keys, names, addresses) it learns only that they exist. Must not know who else
//! could answer.

use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_domain::{Code, Dialect, Stage};
use headrace_engine_api::RelayError;
use headrace_fleet::{FailureKind, WorkerOutcome};
use headrace_relay::{FailureClass, FaultKind, ReplyFault, failure};

/// The retry time if an upstream is full and names none.
const USUAL_WAIT: Duration = Duration::from_secs(1);

/// What went wrong.
pub(crate) struct SourceFault {
    /// The rejection for the client if no other target answers.
    pub(crate) rejection: Rejection,
    /// For operators, in the upstream's words.
    pub(crate) cause: String,
    /// Another target may succeed.
    pub(crate) may_move: bool,
    /// The server broke over the call, and another one might too.
    pub(super) broke: bool,
}

impl SourceFault {
    fn moving(code: Code, message: &str, cause: String) -> Self {
        let message = format!("{message} What was not delivered is not charged.");
        Self { rejection: Rejection::new(code, message), cause, may_move: true, broke: false }
    }

    /// What the fault says about the server that gave the answer.
    pub(super) fn outcome(&self) -> WorkerOutcome {
        match self.may_move {
            true => WorkerOutcome::Failed { failure: FailureKind::NoAnswer, why: self.cause.clone() },
            false => WorkerOutcome::CallersFault,
        }
    }

    fn retry_after(mut self, wait: Option<Duration>) -> Self {
        if let Some(wait) = wait {
            self.rejection = self.rejection.retry_after(wait);
        }
        self
    }
}

/// The fault for an error that the relay reports.
pub(crate) fn of_relay(error: &RelayError, dialect: Dialect) -> SourceFault {
    let cause = error.to_string();
    match error {
        RelayError::Connect { .. } => SourceFault::moving(
            Code::UpstreamUnreachable,
            "The upstream of the model cannot be reached.",
            cause,
        ),
        RelayError::ConnectTimeout { .. } => SourceFault::moving(
            Code::UpstreamUnreachable,
            "The upstream of the model cannot be reached in time.",
            cause,
        ),
        RelayError::Timeout { what, after } => {
            let message = format!(
                "The upstream of the model took too long: {what} did not come within {} s.",
                after.as_secs_f64()
            );
            SourceFault::moving(Code::UpstreamTimeout, &message, cause)
        }
        RelayError::Unavailable { retry_after, .. } => {
            let message = "The upstream of the model takes no calls now.";
            SourceFault::moving(Code::UpstreamOverloaded, message, cause)
                .retry_after(Some(retry_after.unwrap_or(USUAL_WAIT)))
        }
        RelayError::Status { status, body, retry_after } => of_status(*status, body, *retry_after, dialect),
        RelayError::TooLarge { what, limit } => {
            let bound = match *what {
                "answer" => format!("{limit} bytes, four times what the request asks for"),
                part => format!("the {limit} bytes that the {part} of its answer may have"),
            };
            let message = format!("The upstream of the model sent more than {bound}.");
            SourceFault::moving(Code::UpstreamAnswerTooLarge, &message, cause)
        }
        // Another target would fill the same memory. The caller of this function knows which bound it is.
        RelayError::NoMemory => {
            let rejection = Rejection::new(Code::MemoryFull, "The memory for calls is full. Try again.")
                .at(Stage::Upstream);
            SourceFault { rejection, cause, may_move: false, broke: false }
        }
        RelayError::Redirect { .. } | RelayError::NotTheDialect { .. } | RelayError::Cut { .. } => {
            SourceFault::moving(
                Code::UpstreamFailed,
                "The answer of the model's upstream broke off, or was none.",
                cause,
            )
        }
    }
}

/// The fault of an answer that exceeds what was requested or the memory for it. Its message has no words of the
/// upstream.
pub(super) fn of_bounds(rejection: Rejection) -> SourceFault {
    let (cause, may_move) = (rejection.message.clone(), rejection.code == Code::UpstreamAnswerTooLarge);
    SourceFault { rejection, cause, may_move, broke: false }
}

/// The fault of an answer that is an error.
fn of_status(status: u16, body: &[u8], retry_after: Option<Duration>, dialect: Dialect) -> SourceFault {
    let failure = failure(dialect, status, body);
    let cause = format!("status {status}: {}", failure.message);
    of_class(failure.class, &failure.message, cause, failure.param.as_deref()).retry_after(retry_after)
}

fn of_class(class: FailureClass, words: &str, cause: String, param: Option<&str>) -> SourceFault {
    let caller = |code: Code| {
        let mut rejection =
            Rejection::new(code, format!("The upstream rejected the request: {words}")).at(Stage::Upstream);
        // The upstream's words may repeat the caller's.
        rejection = rejection.keeping("The upstream rejected the request.");
        rejection.param = param.map(str::to_owned);
        // The cause may repeat the caller's words, which no trace keeps. They are removed when the attempt is recorded.
        SourceFault { rejection, cause: cause.clone(), may_move: false, broke: false }
    };
    match class {
        FailureClass::BadRequest => caller(Code::UpstreamRefused),
        FailureClass::ContextTooLong => caller(Code::ContextLengthExceeded),
        FailureClass::ContentRefused => caller(Code::ContentPolicy),
        FailureClass::TooLarge => caller(Code::RequestTooLarge),
        FailureClass::RateLimited | FailureClass::Overloaded => SourceFault::moving(
            Code::UpstreamOverloaded,
            "The upstream of the model is full, or our share of it.",
            cause,
        )
        .retry_after(Some(USUAL_WAIT)),
        FailureClass::AuthOfOurs | FailureClass::NotFound | FailureClass::Quota => SourceFault::moving(
            Code::UpstreamMisconfigured,
            "The upstream of the model does not serve us: its operator has to look.",
            cause,
        ),
        FailureClass::Timeout => {
            SourceFault::moving(Code::UpstreamTimeout, "The upstream of the model gave up in time.", cause)
        }
        FailureClass::ServerError => SourceFault {
            broke: true,
            ..SourceFault::moving(Code::UpstreamFailed, "The upstream of the model failed.", cause)
        },
    }
}

/// What a fault in an answer says about the server that gave it.
pub(super) fn outcome_of(fault: &ReplyFault) -> WorkerOutcome {
    let why = fault.to_string();
    let failed = |failure| WorkerOutcome::Failed { failure, why };
    match fault.kind {
        FaultKind::ErrorInside(class) => match class {
            FailureClass::RateLimited | FailureClass::Overloaded | FailureClass::Quota => {
                WorkerOutcome::Refused { retry_after: None }
            }
            FailureClass::ServerError => failed(FailureKind::Status(500)),
            FailureClass::Timeout => failed(FailureKind::Timeout),
            FailureClass::AuthOfOurs | FailureClass::NotFound => failed(FailureKind::Status(401)),
            FailureClass::ContextTooLong
            | FailureClass::ContentRefused
            | FailureClass::BadRequest
            | FailureClass::TooLarge => WorkerOutcome::CallersFault,
        },
        FaultKind::BrokeOff | FaultKind::GaveUp => failed(FailureKind::Broke),
        _ => failed(FailureKind::NoAnswer),
    }
}

/// The fault of an answer's content.
pub(super) fn of_reply(fault: &ReplyFault) -> SourceFault {
    match fault.kind {
        FaultKind::ErrorInside(class) => of_class(class, &fault.message, fault.to_string(), None),
        _ => {
            let message = "The answer of the model's upstream broke off, or was none.";
            SourceFault::moving(Code::UpstreamFailed, message, fault.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headrace_engine_api::RelayWait;

    use super::*;

    #[test]
    fn a_late_answer_names_the_limit_to_the_fraction_of_a_second() {
        for (millis, shown) in [(1_500, "within 1.5 s."), (400, "within 0.4 s."), (60_000, "within 60 s.")] {
            let late = RelayError::Timeout { what: RelayWait::Head, after: Duration::from_millis(millis) };
            let message = &of_relay(&late, Dialect::OpenAi).rejection.message;
            assert!(message.contains(shown), "{message}");
        }
    }
}
