//! The hash of what a client gets as its answer, for the receipt of the call. Only of answers whose bytes go to a client
//! as they are: not of batches, background responses and WebSocket sessions, and not of shadow copies.

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::RenderedWork;

/// Whether the answer of this call is hashed.
pub(super) fn on_task(gateway: &Gateway, context: &RequestContext, work: &RenderedWork) -> bool {
    gateway.config().hash_answers
        && context.batch.is_none()
        && context.turns.is_none()
        && context.copy().is_none()
        && !work.call.dialect.response().is_some_and(|ask| ask.background)
}
