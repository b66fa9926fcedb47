//! Idempotency keys: a request with a key runs once and is charged once, over all gateways. A repeat of it gets the stored
//! answer, byte for byte. The claim on a key is a part of the call's hold, so the ledger decides on both at once; the
//! answer is stored before the call is settled, and the settlement keeps its digest. A call that ends without a charge
//! frees its key.
//!
//! <https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07>

mod answers;
mod claim;
mod digest;
mod objects;
mod replay;

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_call_state::delivery::{DeliveredCopy, DeliverySender};
use headrace_domain::{RequestId, UnixNanos};
use headrace_identity::{Principal, may_use};
use headrace_ledger::{DurableFuture, IdempotencyClaim, LedgerOperation, LedgerRefusal, ReleaseReason};

use crate::Gateway;
use crate::idempotent_request::IdempotentRequest;
use crate::request_context::RequestContext;
use crate::state::{ReceivedRequest, RenderedWork};

pub(super) use objects::{answer_object, is_honoured};
pub(super) use replay::replay;

pub(crate) use answers::store as store_answer;
pub(crate) use claim::KeyClaim;

use answers::store;
use claim::{decide, zero_hold};

/// Checks the key.
pub(super) fn on_head(context: &RequestContext) -> Result<(), Rejection> {
    match &context.idempotency {
        Some(request) => request.ledger_key().map(drop),
        None => Ok(()),
    }
}

/// Admits a caller without funds if its key was claimed before, because an answer that is returned again costs nothing.
/// A call that has to run needs a hold, which is then refused.
pub(super) fn on_no_funds(
    gateway: &Gateway,
    principal: &Principal,
    context: &RequestContext,
    rejection: Rejection,
) -> Result<(), Rejection> {
    let known = |request: &IdempotentRequest| request.is_known(&*gateway.parts().ledger, &principal.project);
    if context.idempotency.as_deref().is_some_and(known) { Ok(()) } else { Err(rejection) }
}

/// When the body has arrived: claims the key, and ends the request if the same one runs or has run.
pub(super) async fn on_received(
    gateway: &Gateway,
    received: &ReceivedRequest,
    context: &mut RequestContext,
) -> Result<(), Rejection> {
    let Some(request) = context.idempotency.as_deref_mut() else { return Ok(()) };
    let ReceivedRequest { principal, endpoint, body } = received;
    let is_known = request.is_known(&*gateway.parts().ledger, &principal.project);
    let (content, model) = answers::read(body.clone(), is_known).await?;
    let claim = request.claims(content)?;
    // A caller that may not make this request gets the same refusal as without a key, from the stages that follow.
    let may = may_use(&principal.principal, model.as_deref().unwrap_or_default(), *endpoint);
    if !is_known || (model.is_some() && may.is_err()) || !principal.endpoints.allows(*endpoint) {
        return Ok(());
    }
    let now = gateway.parts().clock.now();
    principal.check_key(&gateway.parts().directory, now)?;
    // The key may be free by now. Then this hold ends within the same batch, and the call takes its own.
    let probe = RequestId::fresh(now).hold();
    let hold = zero_hold(gateway, &principal.principal, probe, claim);
    let release = LedgerOperation::Release { hold: probe, why: ReleaseReason::Refused };
    let (decided, durable) = decide(gateway, &principal.principal, vec![hold, release]).await;
    match decided {
        Ok(()) => Ok(()),
        Err(refusal) => Err(request.refused(refusal, now, durable).await),
    }
}

/// The claim that the call's hold makes.
pub(super) fn claim(context: &RequestContext) -> Option<IdempotencyClaim> {
    context.idempotency.as_ref().and_then(|request| request.claim().cloned())
}

/// The rejection of a call whose hold was refused. `durable` is the promise of what the refusal rests on.
pub(super) async fn on_hold_refused(
    context: &mut RequestContext,
    refusal: LedgerRefusal,
    now: UnixNanos,
    durable: DurableFuture,
) -> Rejection {
    match context.idempotency.as_deref_mut() {
        Some(request) => request.refused(refusal, now, durable).await,
        None => refusal.into(),
    }
}

/// A copy of the answer, if it may be stored.
pub(super) fn on_task(
    gateway: &Gateway,
    context: &RequestContext,
    work: &RenderedWork,
) -> Option<DeliveredCopy> {
    let config = gateway.config().idempotency;
    let is_stored = context.idempotency.is_some() && !config.keep.is_zero();
    is_stored.then(|| DeliveredCopy::new(Arc::clone(&work.terms.memory), config.max_answer_bytes))
}

/// Whether the call continues without its client. A client that leaves while it waits for a whole answer has often given up
/// too early, and comes back for it. Leaving a stream is how clients stop a call.
pub(super) fn runs_on(gateway: &Gateway, context: &RequestContext, work: &RenderedWork) -> bool {
    context.idempotency.is_some() && !work.call.stream && !gateway.config().idempotency.keep.is_zero()
}

/// Before a completed call is settled: stores what was sent and `end`, which is still to be sent.
pub(super) async fn before_settle(
    gateway: &Gateway,
    context: &mut RequestContext,
    (sender, end, content_type): (&DeliverySender, &[u8], &'static str),
) {
    let Some(request) = context.idempotency.as_deref_mut() else { return };
    let config = gateway.config().idempotency;
    if config.keep.is_zero() {
        return;
    }
    let (hold, Some(project)) = (context.id.hold(), context.record.project.clone()) else { return };
    let Some(body) = sender.copied_with(end, config.max_answer_bytes) else {
        tracing::warn!(%hold, "an answer is too long to be stored, or there is no memory for its copy");
        return;
    };
    let answer = store(gateway, (hold, project), 200, content_type, body).await;
    request.keep(answer);
}

/// Whether the request is to be answered with what another one got.
pub(super) fn has_replay(context: &RequestContext) -> bool {
    context.idempotency.as_deref().is_some_and(|request| request.has_first())
}

impl Gateway {
    /// Removes stored answers that have expired or have no room. Returns their number.
    ///
    /// # Errors
    /// Why they cannot be removed.
    pub async fn sweep_answers(&self) -> Result<u64, String> {
        let (answers, now) = (Arc::clone(&self.parts().answers), self.parts().clock.now());
        let swept = tokio::task::spawn_blocking(move || answers.sweep(now)).await;
        swept.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}
