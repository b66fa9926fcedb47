//! What features do with a call, at fixed points of its path. Each feature has a file. The functions here list the
//! features of each point in the order in which they act. A call without a feature costs one comparison for it.

mod batches;
mod canaries;
mod idempotency;
mod recorded_content;
mod sent_answers;
mod sessions;
mod shadow_copies;
mod stored_responses;

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{BodySource, IdempotencyHeader, ObjectOperation};
use headrace_call_state::{
    Answer, RecordedCopy, Rejection,
    delivery::{DeliveredCopy, DeliverySender},
};
use headrace_catalog::Catalog;
use headrace_domain::{Endpoint, NanoDollars, UnixNanos};
use headrace_identity::Principal;
use headrace_ledger::{DurableFuture, IdempotencyClaim, LedgerRefusal};
use headrace_resources::ReferencedBody;
use headrace_rollout::{CallVerdict, ShadowCopy};

use crate::Gateway;
use crate::idempotent_request::IdempotentRequest;
use crate::refusal::refuse;
use crate::request_context::RequestContext;
use crate::state::{AdmittedCaller, ParsedCall, ReceivedRequest, RenderedWork};

pub(crate) use idempotency::{KeyClaim, store_answer};

/// When the caller is known: whether features can act on the head.
pub(crate) fn on_head(context: &RequestContext) -> Result<(), Rejection> {
    idempotency::on_head(context)
}

/// When the caller's organisation could not pay for a call.
pub(crate) fn on_no_funds(
    gateway: &Gateway,
    principal: &Principal,
    context: &RequestContext,
    rejection: Rejection,
) -> Result<(), Rejection> {
    idempotency::on_no_funds(gateway, principal, context, rejection)
}

/// When the body has arrived, before anything is read of it: whether it needs to be read.
pub(crate) async fn on_received(
    gateway: &Gateway,
    received: &ReceivedRequest,
    context: &mut RequestContext,
) -> Result<(), Rejection> {
    if context.idempotency.is_none() {
        return Ok(());
    }
    Box::pin(idempotency::on_received(gateway, received, context)).await
}

/// When a request ends before its call: the answer to it.
pub(crate) async fn on_refused(gateway: &Gateway, context: RequestContext, rejection: &Rejection) -> Answer {
    if idempotency::has_replay(&context) {
        return Box::pin(idempotency::replay(gateway, context)).await;
    }
    refuse(gateway, context, rejection)
}

/// The idempotency key that an operation on stored resources heeds.
pub(crate) fn on_operation(
    operation: &ObjectOperation,
    header: Option<Box<IdempotencyHeader>>,
) -> Option<Box<IdempotentRequest>> {
    let header = header.filter(|_| idempotency::is_honoured(operation))?;
    Some(Box::new(IdempotentRequest::new(*header)))
}

/// Answers an operation on stored resources that has an idempotency key.
pub(crate) async fn answer_object(
    gateway: &Arc<Gateway>,
    principal: Arc<Principal>,
    context: RequestContext,
    operation: ObjectOperation,
    body: impl BodySource,
) -> Answer {
    idempotency::answer_object(gateway, principal, context, operation, body).await
}

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
    sessions::need_body(context)
        || shadow_copies::need_body(context, catalog)
        || recorded_content::need_body(context)
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
    recorded_content::on_parsed(gateway, context, body.as_ref());
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
    let claim = batches::claim(context).or_else(|| idempotency::claim(context));
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

/// When the ledger refuses the hold at `now`. `durable` is the promise of what the refusal rests on.
pub(crate) async fn on_hold_refused(
    context: &mut RequestContext,
    refusal: LedgerRefusal,
    (now, durable): (UnixNanos, DurableFuture),
) -> Rejection {
    batches::on_hold_refused(context, &refusal);
    if context.idempotency.is_none() {
        return refusal.into();
    }
    Box::pin(idempotency::on_hold_refused(context, refusal, now, durable)).await
}

/// When the call's task begins: a buffer for a copy of everything that goes out, if a feature needs it when the call
/// has ended.
pub(crate) fn on_task(
    gateway: &Gateway,
    context: &RequestContext,
    work: &RenderedWork,
) -> Option<DeliveredCopy> {
    batches::on_task(context, work)
        .or_else(|| idempotency::on_task(gateway, context, work))
        .or_else(|| shadow_copies::on_task(context))
}

/// When the call's task begins: a buffer for the answer, if it is recorded.
pub(crate) fn on_recorded_task(
    gateway: &Gateway,
    context: &mut RequestContext,
    work: &RenderedWork,
) -> Option<RecordedCopy> {
    recorded_content::on_task(gateway, context, work)
}

/// When the call's task begins: whether the answer's bytes are hashed.
pub(crate) fn is_answer_hashed(gateway: &Gateway, context: &RequestContext, work: &RenderedWork) -> bool {
    sent_answers::on_task(gateway, context, work)
}

/// When the call has ended, before its trace is recorded. `sent` is what was recorded of the answer.
pub(crate) fn on_recorded_end(gateway: &Gateway, context: &mut RequestContext, sent: Option<(Bytes, bool)>) {
    recorded_content::on_end(gateway, context, sent);
}

/// Whether a call continues if its client leaves before it has a part of the answer.
pub(crate) fn runs_on(gateway: &Gateway, context: &RequestContext, work: &RenderedWork) -> bool {
    idempotency::runs_on(gateway, context, work)
}

/// When a call has completed and is about to be settled: what was sent of its answer, its end, and its content type.
pub(crate) async fn before_settle(
    gateway: &Gateway,
    context: &mut RequestContext,
    answer: (&DeliverySender, &[u8], &'static str),
) {
    if context.idempotency.is_some() {
        Box::pin(idempotency::before_settle(gateway, context, answer)).await;
    }
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
