//! Ends a request before the hold: one answer and one trace, whether a stage rejected it or a step panicked.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::{Answer, Rejection};
use headrace_domain::{Code, Dialect, RequestId, Stage};
use headrace_wire::{ErrorFacts, error_body};

use crate::Gateway;
use crate::request_context::{RequestContext, RequestStart};

/// Turns the rejection of any stage into one answer and one trace.
pub(crate) fn refuse(gateway: &Gateway, context: RequestContext, rejection: &Rejection) -> Answer {
    let (answer, record) = context.refuse(rejection);
    gateway.parts().traces.record(record);
    answer
}

/// Handles a panic before the hold, when nothing is taken yet. From the hold on the call task handles its own panics.
pub(crate) fn panicked(gateway: &Gateway, start: RequestStart) -> Answer {
    leave_trace(gateway, start);
    internal_error(start.id, start.dialect)
}

/// Records the trace of a call that panicked.
pub(crate) fn leave_trace(gateway: &Gateway, start: RequestStart) {
    let record = || gateway.parts().traces.record(start.panicked(Arc::clone(&gateway.parts().clock)));
    let _ = catch_unwind(AssertUnwindSafe(record));
}

/// The answer to a call whose task ended without one.
pub(crate) fn internal_error(id: RequestId, dialect: Dialect) -> Answer {
    tracing::error!(request = %id, "a call ended without an answer");
    let message = "The call failed inside. It was not charged. Its request id is in the log.";
    let facts = ErrorFacts { stage: Stage::Deliver, ..ErrorFacts::new(Code::InternalError, message, id) };
    Answer::json(500, error_body(dialect, &facts)).with_header("x-request-id", id.to_string())
}

/// The rejection of new requests during a shutdown.
pub(crate) fn draining() -> Rejection {
    Rejection::new(
        Code::ShuttingDown,
        "The server is shutting down and takes no new calls. Try again on another instance or in a moment.",
    )
    .retry_after(Duration::from_secs(2))
}
