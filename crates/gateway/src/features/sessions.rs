//! WebSocket sessions of responses: a turn continues from the newest response of its session, which is forgotten if the
//! turn fails.

use std::sync::Arc;

use bytes::Bytes;
use headrace_domain::{Call, DialectExtras};

use crate::request_context::RequestContext;

/// Whether a refusal of the turn needs its body.
pub(super) fn need_body(context: &RequestContext) -> bool {
    context.turns.is_some()
}

/// Forgets the response that a refused turn names.
pub(super) fn on_unread(context: &RequestContext, body: Option<&Bytes>) {
    if let (Some(session), Some(body)) = (&context.turns, body) {
        session.refused(body);
    }
}

/// Begins the turn. Drops the input as it was sent if no later call can continue from it.
pub(super) fn on_parsed(context: &RequestContext, call: &mut Call) {
    let session = context.turns.as_ref();
    if let DialectExtras::Responses(ask) = &mut call.dialect
        && let Some(ask) = Arc::get_mut(ask)
        && !ask.store
        && ask.conversation.is_none()
        && session.is_none()
    {
        ask.input = String::new();
    }
    if let Some(session) = session {
        session.begun();
    }
}
