//! What features do with a call, at fixed points of its path. Each feature has a file. The functions here list the
//! features of each point in the order in which they act. A call without a feature costs one comparison for it.

mod batches;
mod canaries;
mod sessions;
mod shadow_copies;
mod stored_responses;

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_state::{Rejection, delivery::DeliveredCopy};
use headrace_catalog::Catalog;
use headrace_domain::{Endpoint, NanoDollars, UnixNanos};
use headrace_ledger::{IdempotencyClaim, LedgerRefusal};
use headrace_resources::ReferencedBody;
use headrace_rollout::{CallVerdict, ShadowCopy};

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{AdmittedCaller, ParsedCall, RenderedWork};

/// When the body has arrived: it may name stored items.
pub(crate) async fn on_body(
    gateway: &Gateway,
    catalog: &Catalog,
    caller: &AdmittedCaller,
    (endpoint, body): (Endpoint, Bytes),
) -> Result<ReferencedBody, Rejection> {
    stored_responses::on_body(gateway, catalog, caller, (endpoint, body)).await
}

/// Whether a feature needs the body after it was read.
pub(crate) fn need_body(context: &RequestContext, catalog: &Catalog) -> bool {
    sessions::need_body(context) || shadow_copies::need_body(context, catalog)
}

/// When the body cannot be read. `body` is there if [`need_body`] said so.
pub(crate) fn on_unread(context: &RequestContext, body: Option<&Bytes>) {
    sessions::on_unread(context, body);
}

/// When the meaning of the body is known.
pub(crate) async fn on_parsed(
    gateway: &Gateway,
    context: &mut RequestContext,
    mut parsed: ParsedCall,
    body: Option<Bytes>,
) -> Result<ParsedCall, Rejection> {
    batches::on_parsed(context, &mut parsed.call)?;
    canaries::on_parsed(context, &parsed);
    shadow_copies::on_parsed(gateway, context, &parsed, body);
    stored_responses::check_room(gateway, context, &parsed.call)?;
    sessions::on_parsed(context, &mut parsed.call);
    stored_responses::on_parsed(gateway, context, parsed).await
}

/// Before the hold, which may cover at most `most`: what is held instead.
pub(crate) async fn on_hold(
    context: &mut RequestContext,
    most: NanoDollars,
    now: UnixNanos,
) -> Result<HoldTerms, Rejection> {
    let claim = batches::claim(context);
    match shadow_copies::on_hold(context, most, now).await? {
        Some(amount) => Ok(HoldTerms { amount, takes_limits: false, claim }),
        None => Ok(HoldTerms { amount: most, takes_limits: true, claim }),
    }
}

/// The terms of a hold.
pub(crate) struct HoldTerms {
    pub(crate) amount: NanoDollars,
    /// The call counts against the limits of its caller and its model.
    pub(crate) takes_limits: bool,
    /// Makes sure that a call is paid for once, however often it is started.
    pub(crate) claim: Option<IdempotencyClaim>,
}

/// When the ledger refuses the hold.
pub(crate) fn on_hold_refused(context: &RequestContext, refusal: &LedgerRefusal) {
    batches::on_hold_refused(context, refusal);
}

/// When the call's task begins: a buffer for a copy of everything that goes out, if a feature needs it when the call
/// has ended.
pub(crate) fn on_task(context: &RequestContext, work: &RenderedWork) -> Option<DeliveredCopy> {
    batches::on_task(context, work).or_else(|| shadow_copies::on_task(context))
}

/// When it is known what the end of a call says about its model: at the end, or when another model takes it over.
pub(crate) fn on_verdict(gateway: &Gateway, context: &mut RequestContext, verdict: Option<CallVerdict>) {
    canaries::on_verdict(gateway, context, verdict);
}

/// When the call has ended, before its trace is recorded. `sent` is the copy of what went out. Returns the shadow copy
/// that is to be made.
pub(crate) async fn on_end(
    gateway: &Gateway,
    context: &mut RequestContext,
    sent: Option<Bytes>,
) -> Option<Box<ShadowCopy>> {
    shadow_copies::on_end(gateway, context, sent).await
}

/// When the call is answered, settled and traced.
pub(crate) fn after_end(gateway: Arc<Gateway>, copy: Option<Box<ShadowCopy>>) {
    shadow_copies::after_end(gateway, copy);
}
