//! Background responses with an idempotency key. The client is answered before the call runs, so a claim of its own
//! covers that answer, and the call's hold makes none. The claim ends before the call starts: a crash in between leaves
//! a response that failed, and never a call that runs twice.

use std::sync::Arc;

use headrace_call_state::{Answer, Rejection};
use headrace_domain::RequestId;
use headrace_ledger::{DurableFuture, LedgerRefusal};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::features::{KeyClaim, store_answer};
use crate::refusal::{internal_error, refuse};
use crate::request_context::RequestContext;
use crate::state::KeyedCall;
use crate::{Gateway, background, features};

/// Answers with the queued response, and starts the call. A task does so, because a client that goes away must not leave
/// a response that never starts.
pub(crate) async fn answer(
    gateway: &Arc<Gateway>,
    context: RequestContext,
    keyed: KeyedCall,
    counted: TaskTrackerToken,
) -> Answer {
    let (id, dialect, gateway) = (context.id, context.dialect, Arc::clone(gateway));
    let work = async move { queue(&gateway, context, keyed, counted).await };
    tokio::spawn(work).await.unwrap_or_else(|_| internal_error(id, dialect))
}

async fn queue(
    gateway: &Arc<Gateway>,
    mut context: RequestContext,
    keyed: KeyedCall,
    counted: TaskTrackerToken,
) -> Answer {
    let claim = match take(gateway, &mut context, &keyed).await {
        Ok(claim) => claim,
        Err(rejection) => return features::on_refused(gateway, context, &rejection).await,
    };
    let begun = match background::begin(gateway, &context, &keyed).await {
        Ok(begun) => begun,
        Err(rejection) => {
            claim.free().await;
            return refuse(gateway, context, &rejection);
        }
    };
    // The events of a stream depend on when they are read. They can be read again from the response itself.
    let body = begun.whole_answer().filter(|_| !gateway.config().idempotency.keep.is_zero());
    let answer = match body {
        Some(body) => {
            let to = (claim.hold(), keyed.principal.project.clone());
            store_answer(gateway, to, 200, "application/json", body.as_bytes().into()).await
        }
        None => None,
    };
    claim.complete(answer).await;
    context.idempotency = None;
    background::start(gateway, context, keyed, counted, begun)
}

async fn take(
    gateway: &Arc<Gateway>,
    context: &mut RequestContext,
    keyed: &KeyedCall,
) -> Result<KeyClaim, Rejection> {
    let now = gateway.parts().clock.now();
    let request = context.idempotency.as_deref_mut();
    let Some((request, claim)) =
        request.and_then(|request| request.claim().cloned().map(|claim| (request, claim)))
    else {
        return Err(LedgerRefusal::Inconsistent { why: "a request without a key claims one" }.into());
    };
    let hold = RequestId::fresh(now).hold();
    let taken: Result<_, (LedgerRefusal, DurableFuture)> =
        KeyClaim::take(gateway, &keyed.principal.principal, hold, claim).await;
    match taken {
        Ok(claim) => Ok(claim),
        Err((refusal, durable)) => Err(request.refused(refusal, now, durable).await),
    }
}
