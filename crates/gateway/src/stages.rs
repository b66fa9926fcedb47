//! The path of a request: one list of stages in the order in which they decide, with the reason for each position.
//! Stages after the hold belong to the call task: `pump.rs`.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use headrace_call_api::{AnswerFrames, BodySource, CallerInfo};
use headrace_domain::{Code, Dialect, Endpoint, KeyId, RequestId, Stage};
use headrace_identity::Principal;
use headrace_wire::{ErrorFacts, error_body};
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::objects::background;
use crate::rejection::Rejection;
use crate::request_context::{RequestContext, RequestStart};
use crate::shadows::{self, CopyLane, ShadowRole};
use crate::state::{AdmittedRequest, ArrivedRequest, KeyedCall};
use crate::{Answer, AnswerBody, Gateway, call_task};

// In the order of the path.
mod connect;

pub(crate) mod authenticate;

mod receive;

pub(crate) mod parse;

pub(crate) mod authorize;

mod likely;

pub(crate) mod route;

pub(crate) mod moderate;

pub(crate) mod render;

mod cache;

pub(crate) mod hold;

/// Longest time that one shadow copy of a call may take.
const LONGEST_COPY: Duration = Duration::from_secs(600);

/// An admitted call whose body has not been read yet. A drain waits for it.
pub(crate) struct EnteredCall {
    pub(crate) admitted: AdmittedRequest,
    pub(crate) dossier: RequestContext,
    stub: RequestStart,
    counted: TaskTrackerToken,
}

impl EnteredCall {
    /// The key that the call is for.
    pub(crate) fn key(&self) -> &KeyId {
        &self.admitted.principal.key
    }
}

/// Takes a call through the stages that need only its head, up to the admission check. `principal` is set if an
/// in-process caller acts for it.
pub(crate) fn enter(
    gateway: &Gateway,
    endpoint: Endpoint,
    caller: CallerInfo,
    principal: Option<Arc<Principal>>,
    describe: impl FnOnce(&mut RequestContext),
) -> Result<EnteredCall, Answer> {
    let stub = RequestStart::of(endpoint, &caller);
    // Counted before the drain check: a drain that has not begun by then waits for this call.
    let counted = gateway.counted();
    let enter = || {
        let mut dossier = stub.open(Arc::clone(&gateway.parts().clock));
        describe(&mut dossier);
        // Shadow copies take no slot in the in-flight table.
        if dossier.copy().is_none() {
            dossier.seat = gateway.board().sit(dossier.id, dossier.started_mono_ns());
        }
        let arrived = ArrivedRequest::new(endpoint, caller, &mut dossier);
        match decide_on_head(gateway, arrived, principal, &mut dossier) {
            Ok(admitted) => Ok(EnteredCall { admitted, dossier, stub, counted }),
            Err(why) => Err(refuse(gateway, dossier, &why)),
        }
    };
    catch_unwind(AssertUnwindSafe(enter)).unwrap_or_else(|_| Err(panicked(gateway, stub)))
}

/// Takes an admitted request to the head of its answer. Before the hold, dropping this future returns everything that
/// was taken (the client went away). From the hold on the request lives in a task of its own, and this future only
/// listens. The token that makes a drain wait moves into that task.
pub(crate) async fn travel(gateway: &Arc<Gateway>, entered: EnteredCall, body: impl BodySource) -> Answer {
    let EnteredCall { admitted, mut dossier, stub, counted } = entered;
    let travel = async {
        match decide(gateway, admitted, body, &mut dossier).await {
            Ok(keyed) if keyed.is_in_background(&dossier) => {
                // Boxed, so that the futures of other calls reserve no space for it.
                Box::pin(in_background(gateway, dossier, keyed, counted)).await
            }
            Ok(keyed) => dispatch(gateway, dossier, keyed, counted).await,
            Err(why) => refuse(gateway, dossier, &why),
        }
    };
    AssertUnwindSafe(travel).catch_unwind().await.unwrap_or_else(|_| panicked(gateway, stub))
}

/// Answers at once with the queued response, and runs the call while no client waits.
async fn in_background(
    gateway: &Arc<Gateway>,
    dossier: RequestContext,
    mut keyed: KeyedCall,
    counted: TaskTrackerToken,
) -> Answer {
    let begun = match background::begin(gateway, &dossier, &mut keyed).await {
        Ok(begun) => begun,
        Err(why) => return refuse(gateway, dossier, &why),
    };
    let headers: Vec<_> = dossier.id_headers().collect();
    let owner = Arc::clone(gateway);
    let work = async move { dispatch(&owner, dossier, keyed, counted).await };
    begun.start(gateway, work).with_headers(headers.into_iter())
}

/// Takes a request as far as its token counts. No hold is taken, and no model is asked.
///
/// # Errors
/// The answer to a request that some stage rejects.
pub(crate) async fn count(
    gateway: &Arc<Gateway>,
    entered: EnteredCall,
    body: impl BodySource,
) -> Result<u64, Answer> {
    let EnteredCall { admitted, mut dossier, stub, .. } = entered;
    let walk = async {
        match decide(gateway, admitted, body, &mut dossier).await {
            Ok(keyed) => Ok(keyed.work.prompt_tokens()),
            Err(why) => Err(refuse(gateway, dossier, &why)),
        }
    };
    let walked = AssertUnwindSafe(walk).catch_unwind().await;
    walked.unwrap_or_else(|_| Err(panicked(gateway, stub)))
}

/// Turns the rejection of any stage into one answer and one trace.
pub(crate) fn refuse(gateway: &Gateway, dossier: RequestContext, why: &Rejection) -> Answer {
    let (answer, record) = dossier.refuse(why);
    gateway.parts().traces.record(record);
    answer
}

/// Handles a panic before the hold, when nothing is taken yet. From the hold on the call task handles its own panics.
fn panicked(gateway: &Gateway, stub: RequestStart) -> Answer {
    leave_trace(gateway, stub);
    internal_error(stub.id, stub.dialect)
}

/// Records the trace of a call that panicked.
fn leave_trace(gateway: &Gateway, stub: RequestStart) {
    let record = || gateway.parts().traces.record(stub.panicked(Arc::clone(&gateway.parts().clock)));
    let _ = catch_unwind(AssertUnwindSafe(record));
}

/// The first part of the list, up to the admission check: no body has been read yet. The first stage that rejects ends
/// it.
fn decide_on_head(
    gateway: &Gateway,
    arrived: ArrivedRequest,
    principal: Option<Arc<Principal>>,
    dossier: &mut RequestContext,
) -> Result<AdmittedRequest, Rejection> {
    // Who the caller is, before anything that costs more than a hash.
    let authenticated = match principal {
        None => arrived.authenticate(gateway, dossier)?,
        Some(principal) => arrived.identify_as(principal, gateway, dossier)?,
    };
    authenticated
        // The admission check: a request rejected from here on has counted against the caller's limits. Callers at a
        // limit, or without funds, are rejected before their body is read.
        .admit(gateway, dossier)
}

/// The second part of the list, from the admission check on.
pub(crate) async fn decide(
    gateway: &Arc<Gateway>,
    admitted: AdmittedRequest,
    body: impl BodySource,
    dossier: &mut RequestContext,
) -> Result<KeyedCall, Rejection> {
    let keyed = admitted
        // The body: only a known caller with funds may fill memory with it.
        .receive(gateway, body, dossier)
        .await?
        // One meaning of the bytes, with every parameter honoured or rejected by name. It depends on the model that
        // takes the call.
        .parse(gateway, dossier)
        .await?
        // Whether the key may use the name that it asked for, wherever the name leads. An alias cannot widen access,
        // and a caller without access does not learn where the name leads.
        .authorize(dossier)?
        // The model that serves the name, in a region where the call may run. Prices and tokenizers depend on it.
        .route(gateway, dossier)?
        // Everything the caller wrote, checked against the rules before the template adds words of its own.
        .moderate(dossier)
        .await?
        // Text to token ids: holds and placement need counts. From here on the call owns the memory that it may take.
        .render(gateway, dossier)
        .await?
        // The keys by which cached prefixes are found. They are hashed once, before anything is taken.
        .cache(gateway, dossier)
        .await?;
    Ok(keyed)
}

async fn dispatch(
    gateway: &Arc<Gateway>,
    dossier: RequestContext,
    keyed: KeyedCall,
    counted: TaskTrackerToken,
) -> Answer {
    let (id, dialect) = (dossier.id, dossier.dialect);
    let (head, answer) = oneshot::channel();
    // Boxed: starting a task copies its future several times.
    tokio::spawn(Box::pin(own(Arc::clone(gateway), dossier, keyed, head, counted)));
    answer.await.unwrap_or_else(|_| internal_error(id, dialect))
}

/// Owns a request from its hold to its end, whether or not a client still listens. The ledger may take its time, and
/// every hold that it grants must have an owner. `_counted` keeps a drain waiting until this task ends.
async fn own(
    gateway: Arc<Gateway>,
    mut dossier: RequestContext,
    keyed: KeyedCall,
    head: oneshot::Sender<Answer>,
    _counted: TaskTrackerToken,
) {
    let (stub, hold) = (dossier.stub(), dossier.id.hold());
    let taken = async {
        dossier.end_stage(Stage::Handover);
        // Limits and money are taken together or not at all. Once taken, they are settled in every case.
        match keyed.hold(&gateway, &mut dossier).await {
            Ok(funded) => Some((dossier, funded, head)),
            Err(why) => {
                // If the listener is gone, no answer is needed.
                let _ = head.send(refuse(&gateway, dossier, &why));
                None
            }
        }
    };
    match AssertUnwindSafe(taken).catch_unwind().await {
        // Boxed, so that starting the task does not copy the space for everything that a call may need.
        Ok(Some((dossier, funded, head))) => {
            let copy = Box::pin(call_task::run_call(Arc::clone(&gateway), dossier, funded, head)).await;
            if let Some((copy, lane)) = copy.and_then(shadows::ShadowCopy::enter) {
                tokio::spawn(copies(gateway, lane, copy));
            }
        }
        Ok(None) => {}
        Err(_) => {
            leave_trace(&gateway, stub);
            // It is unknown whether the ledger took the hold. Boxed, so that other tasks reserve no space for it.
            Box::pin(call_task::settle::release_unowned(&gateway, hold)).await;
        }
    }
}

/// [`make_copies`] behind a boxed type. A copy is itself a call whose task can make copies, so the unboxed type would
/// contain itself.
fn copies(
    gateway: Arc<Gateway>,
    lane: Arc<CopyLane>,
    first: Box<shadows::ShadowCopy>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(make_copies(gateway, lane, first))
}

/// Makes one copy after another, until none is queued. A drain does not wait for copies: it cancels the one in
/// progress, and the rest are counted as left out.
async fn make_copies(gateway: Arc<Gateway>, lane: Arc<CopyLane>, first: Box<shadows::ShadowCopy>) {
    let mut next = Some(first);
    while let Some(copy) = next {
        if gateway.is_draining() {
            lane.leave_out();
        } else {
            let making = AssertUnwindSafe(make_copy(&gateway, *copy)).catch_unwind();
            tokio::select! {
                biased;
                () = gateway.draining().cancelled() => {}
                _ = tokio::time::timeout(LONGEST_COPY, making) => {}
            }
        }
        next = lane.next();
    }
}

/// Takes a copy through the path as an in-process caller, and discards its answer.
async fn make_copy(gateway: &Arc<Gateway>, copy: shadows::ShadowCopy) {
    let Some(((endpoint, caller), house, body, running, of)) = copy.into_call(&*gateway.parts().clock) else {
        return;
    };
    let entered = enter(gateway, endpoint, caller, Some(house), |dossier| {
        dossier.record.shadow_of = Some(Box::new(of));
        dossier.shadow = Some(Box::new(ShadowRole::Copy(running)));
    });
    let Ok(entered) = entered else { return };
    let answer = travel(gateway, entered, body).await;
    if let AnswerBody::Stream(mut body) | AnswerBody::Long { mut body, .. } = answer.body {
        while let Some(Ok(_)) = poll_fn(|cx| body.poll_frame(cx)).await {}
    }
}

fn internal_error(id: RequestId, dialect: Dialect) -> Answer {
    tracing::error!(request = %id, "a call ended without an answer");
    let message = "The call failed inside. It was not charged. Its request id is in the log.";
    let facts = ErrorFacts { stage: Stage::Deliver, ..ErrorFacts::new(Code::InternalError, message, id) };
    Answer::json(500, error_body(dialect, &facts)).with_header("x-request-id", id.to_string())
}
