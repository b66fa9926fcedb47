//! Stored responses: a call may name stored items and continue stored conversations, and its answer may be stored.

use bytes::Bytes;
use headrace_call_state::Rejection;
use headrace_catalog::Catalog;
use headrace_domain::{Call, Endpoint};
use headrace_resources::{ReferencedBody, may_refer};

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{AdmittedCaller, ParsedCall};

/// Inserts the stored items that the body of a response names, and decides whether the body may be forwarded unchanged
/// to a server that speaks the Responses API.
pub(super) async fn on_body(
    gateway: &Gateway,
    catalog: &Catalog,
    caller: &AdmittedCaller,
    (endpoint, body): (Endpoint, Bytes),
) -> Result<ReferencedBody, Rejection> {
    if endpoint == Endpoint::Responses {
        let passes = catalog.models().any(|model| model.backend.passes_responses());
        if passes || may_refer(&body) {
            // Boxed, so that the futures of other calls reserve no space for it.
            return Box::pin(gateway.resources().with_state(body, passes, caller)).await;
        }
    }
    Ok(ReferencedBody { body, may_pass: false, memory: None })
}

/// Refuses a call whose answer is to be stored if there is no room.
pub(super) fn check_room(gateway: &Gateway, context: &RequestContext, call: &Call) -> Result<(), Rejection> {
    let is_stored = call.dialect.response().is_some_and(|ask| ask.store || ask.conversation.is_some());
    if is_stored && context.copy().is_none() { gateway.resources().check_room() } else { Ok(()) }
}

/// Adds the stored history that the call continues.
pub(super) async fn on_parsed(
    gateway: &Gateway,
    context: &RequestContext,
    parsed: ParsedCall,
) -> Result<ParsedCall, Rejection> {
    let continues = parsed
        .call
        .dialect
        .response()
        .is_some_and(|ask| ask.previous.is_some() || ask.conversation.is_some());
    if !continues {
        return Ok(parsed);
    }
    let ParsedCall { principal, call, taken, catalog, asked, model } = parsed;
    let session = context.turns.as_ref();
    // Boxed, so that the futures of other calls reserve no space for it.
    let history = Box::pin(gateway.resources().with_history(call, taken, &principal, session));
    let (call, taken) = history.await?;
    Ok(ParsedCall { principal, call, taken, catalog, asked, model })
}
