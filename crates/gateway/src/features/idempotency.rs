//! Idempotency keys: a request with a key runs once and is charged once, over all gateways. A repeat of it gets the stored
//! answer, byte for byte. The claim on a key is a part of the call's hold, so the ledger decides on both at once; the
//! answer is stored before the call is settled, and the settlement keeps its digest. A call that ends without a charge
//! frees its key.
//!
//! <https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07>

mod background;
mod claim;
mod digest;
mod key;
mod objects;
mod replay;

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::IdempotencyHeader;
use headrace_call_state::delivery::{DeliveredCopy, DeliverySender};
use headrace_call_state::{Answer, Rejection};
use headrace_domain::{HoldId, ProjectId, RequestId, UnixNanos};
use headrace_identity::{Principal, may_use};
use headrace_ledger::{
    DurableFuture, IdempotencyClaim, LedgerOperation, LedgerRefusal, ReleaseReason, StoredAnswer,
};
use headrace_objects::AnswerRecord;
use headrace_relay::model_named;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{ReceivedRequest, RenderedWork};

pub(super) use background::answer as answer_background;
pub(super) use objects::{answer_object, is_honoured};
pub(super) use replay::replay;

use claim::{decide, zero_hold};
use digest::AnswerDigest;

/// Bodies longer than this many bytes are hashed off the event loop.
const INLINE_BYTES: usize = 256 << 10;

/// The idempotency key of a request, and what became of it.
pub(crate) struct IdempotentRequest {
    header: IdempotencyHeader,
    /// What the request claims. `None` until its body has arrived.
    claim: Option<IdempotencyClaim>,
    /// The request that ran before under the same key.
    first: Option<FirstRequest>,
    /// The answer, once it is stored and until it is settled.
    answer: Option<StoredAnswer>,
}

/// A request that has run, and was charged.
struct FirstRequest {
    hold: HoldId,
    /// `None` if the answer was not stored.
    answer: Option<Arc<StoredAnswer>>,
}

impl IdempotentRequest {
    pub(crate) const fn new(header: IdempotencyHeader) -> Self {
        Self { header, claim: None, first: None, answer: None }
    }

    /// Claims the key for a request with this body. `content` is the digest of the body, or of what it means if equal
    /// requests may have different bodies.
    fn claims(&mut self, content: [u8; 32]) -> Result<IdempotencyClaim, Rejection> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.header.target.as_bytes()).update(&[0]).update(&content);
        let claim = IdempotencyClaim {
            key: key::ledger_key(&self.header)?,
            request_hash: *hasher.finalize().as_bytes(),
        };
        self.claim = Some(claim.clone());
        Ok(claim)
    }

    /// The rejection of a claim that the ledger refused. Keeps what is needed to return the first answer again.
    async fn refused(&mut self, refusal: LedgerRefusal, now: UnixNanos, durable: DurableFuture) -> Rejection {
        match refusal {
            LedgerRefusal::IdempotencyReplay { hold, answer } => {
                // An answer that a crash could still undo must not be returned again.
                if let Err(failed) = durable.await {
                    return Rejection::journal_unavailable(&failed.why);
                }
                self.first = Some(FirstRequest { hold, answer });
                Rejection::answer_gone(hold)
            }
            LedgerRefusal::IdempotencyInFlight { hold } => Rejection::from(refusal).wait_for(hold, now),
            refusal => refusal.into(),
        }
    }
}

/// Checks the key.
pub(super) fn on_head(context: &RequestContext) -> Result<(), Rejection> {
    match &context.idempotency {
        Some(request) => key::ledger_key(&request.header).map(drop),
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
    let known = |request: &IdempotentRequest| is_known(gateway, principal, &request.header);
    if context.idempotency.as_deref().is_some_and(known) { Ok(()) } else { Err(rejection) }
}

/// Whether a request of the project claimed this key.
fn is_known(gateway: &Gateway, principal: &Principal, header: &IdempotencyHeader) -> bool {
    let key = key::ledger_key(header);
    key.is_ok_and(|key| gateway.parts().ledger.knows_key(&principal.project, &key))
}

/// When the body has arrived: claims the key, and ends the request if the same one runs or has run.
pub(super) async fn on_received(
    gateway: &Gateway,
    received: &ReceivedRequest,
    context: &mut RequestContext,
) -> Result<(), Rejection> {
    let Some(request) = context.idempotency.as_deref_mut() else { return Ok(()) };
    let ReceivedRequest { principal, endpoint, body } = received;
    let is_known = is_known(gateway, &principal.principal, &request.header);
    let (content, model) = read(body.clone(), is_known).await?;
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

/// The digest of a body and, if `names_model`, the model that it names.
async fn read(body: Bytes, names_model: bool) -> Result<([u8; 32], Option<String>), Rejection> {
    let is_short = body.len() <= INLINE_BYTES;
    let read = move || {
        let model = if names_model { model_named(&body) } else { None };
        (*blake3::hash(&body).as_bytes(), model)
    };
    if is_short {
        return Ok(read());
    }
    tokio::task::spawn_blocking(read).await.map_err(|_| replay::stopped())
}

/// The claim that the call's hold makes.
pub(super) fn claim(context: &RequestContext) -> Option<IdempotencyClaim> {
    context.idempotency.as_ref().and_then(|request| request.claim.clone())
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
    request.answer = store(gateway, (hold, project), 200, content_type, body).await;
}

/// Stores an answer. Returns what the ledger keeps of it. `None` if it cannot be stored: the key then says that the
/// request has run and that its answer is gone.
async fn store(
    gateway: &Gateway,
    (hold, project): (HoldId, ProjectId),
    status: u16,
    content_type: &'static str,
    body: Arc<[u8]>,
) -> Option<StoredAnswer> {
    let created = gateway.parts().clock.now();
    let expires = created.after(gateway.config().idempotency.keep);
    let record = AnswerRecord { hold, project, created, expires, body };
    let answers = Arc::clone(&gateway.parts().answers);
    // The semaphore is never closed.
    let slot = gateway.answer_slots().acquire().await.ok();
    let put = move || answers.put(&record).map(|()| AnswerDigest::of(&record.body));
    let stored = tokio::task::spawn_blocking(put).await;
    drop(slot);
    match stored {
        Ok(Ok(digest)) => Some(StoredAnswer {
            status,
            content_type: content_type.to_owned(),
            body: digest.to_bytes().as_slice().into(),
        }),
        Ok(Err(error)) => {
            tracing::warn!(%hold, %error, "an answer could not be stored for repeated requests");
            None
        }
        Err(_) => None,
    }
}

/// What the settlement keeps of the answer.
pub(super) fn take_answer(context: &mut RequestContext) -> Option<StoredAnswer> {
    context.idempotency.as_deref_mut()?.answer.take()
}

/// Whether the request is to be answered with what another one got.
pub(super) fn has_replay(context: &RequestContext) -> bool {
    context.idempotency.as_deref().is_some_and(|request| request.first.is_some())
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

/// Marks an answer as that of the request with this hold.
fn marked(answer: Answer, first: HoldId) -> Answer {
    let first = RequestId::from_bits(first.bits()).to_string();
    answer.with_header("idempotent-replayed", "true").with_header("x-headrace-original-request", first)
}
