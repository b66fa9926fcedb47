//! The path of a request: one list, in the order in which things are decided, with a word on why each stands there.
//! What follows the hold is the task's: `pump.rs`.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use headrace_call_api::{BodySource, Frames, Head};
use headrace_domain::{Code, Dialect, RequestId, Stage};
use headrace_identity::Principal;
use headrace_wire::{ErrorFacts, error_body};
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::dossier::{Dossier, Stub};
use crate::objects::background;
use crate::refused::Why;
use crate::shadows::{self, CopyLane, Shadow};
use crate::state::{Admitted, Arrived, Keyed};
use crate::{Answer, AnswerBody, Gateway, pump};

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

/// How long a copy of a call may take.
const LONGEST_COPY: Duration = Duration::from_secs(600);

/// A call that was let in, before its body is read. A drain waits for it.
pub struct Entered {
    pub(crate) admitted: Admitted,
    pub(crate) dossier: Dossier,
    stub: Stub,
    counted: TaskTrackerToken,
}

impl Gateway {
    /// As [`Front::admit`](headrace_call_api::Front::admit), of a caller inside the house, who shows no credentials: it acts for a
    /// principal that is known already, within its limits, what it may use, and its money.
    ///
    /// # Errors
    /// The answer to whoever is not let in.
    pub fn admit_as(&self, principal: Arc<Principal>, head: Head) -> Result<Entered, Answer> {
        enter(self, head, Some(principal), |_| ())
    }
}

/// Brings a request by its head to the door, and in; of a caller inside the house with whom it acts for.
pub(crate) fn enter(
    gateway: &Gateway,
    head: Head,
    vouched: Option<Arc<Principal>>,
    describe: impl FnOnce(&mut Dossier),
) -> Result<Entered, Answer> {
    let stub = Stub::of(&head);
    // Before it is asked whether a drain has begun: one that has not begun then will wait for this call.
    let counted = gateway.counted();
    let enter = || {
        let mut dossier = stub.open(Arc::clone(&gateway.parts().clock));
        describe(&mut dossier);
        // A copy is nobody's call.
        if dossier.copy().is_none() {
            dossier.seat = gateway.board().sit(dossier.id, dossier.started_mono_ns());
        }
        let arrived = Arrived::new(head, &mut dossier);
        match decide_on_head(gateway, arrived, vouched, &mut dossier) {
            Ok(admitted) => Ok(Entered { admitted, dossier, stub, counted }),
            Err(why) => Err(refuse(gateway, dossier, &why)),
        }
    };
    catch_unwind(AssertUnwindSafe(enter)).unwrap_or_else(|_| Err(panicked(gateway, stub)))
}

/// Carries a request that was let in to the head of its answer. Before the hold, what was taken is given back by dropping
/// this future (the client went away); from the hold on the request lives in a task of its own, and this future is only a
/// listener. What a drain waits for goes with it into its task.
pub(crate) async fn travel(gateway: &Arc<Gateway>, entered: Entered, body: impl BodySource) -> Answer {
    let Entered { admitted, mut dossier, stub, counted } = entered;
    let travel = async {
        match decide(gateway, admitted, body, &mut dossier).await {
            Ok(keyed) if keyed.is_in_background(&dossier) => {
                // Apart, so that no other call has room for it.
                Box::pin(in_background(gateway, dossier, keyed, counted)).await
            }
            Ok(keyed) => dispatch(gateway, dossier, keyed, counted).await,
            Err(why) => refuse(gateway, dossier, &why),
        }
    };
    AssertUnwindSafe(travel).catch_unwind().await.unwrap_or_else(|_| panicked(gateway, stub))
}

/// Answers at once with what there will be, and has it worked on while nobody waits.
async fn in_background(
    gateway: &Arc<Gateway>,
    dossier: Dossier,
    mut keyed: Keyed,
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

/// Walks with a request as far as its tokens are counted. Nothing is held for it, and nobody answers it.
///
/// # Errors
/// The answer to what some stage refuses.
pub(crate) async fn count(
    gateway: &Arc<Gateway>,
    entered: Entered,
    body: impl BodySource,
) -> Result<u64, Answer> {
    let Entered { admitted, mut dossier, stub, .. } = entered;
    let walk = async {
        match decide(gateway, admitted, body, &mut dossier).await {
            Ok(keyed) => Ok(keyed.work.prompt_tokens()),
            Err(why) => Err(refuse(gateway, dossier, &why)),
        }
    };
    let walked = AssertUnwindSafe(walk).catch_unwind().await;
    walked.unwrap_or_else(|_| Err(panicked(gateway, stub)))
}

/// Whatever stage refused: one answer and one trace.
pub(crate) fn refuse(gateway: &Gateway, dossier: Dossier, why: &Why) -> Answer {
    let (answer, record) = dossier.refuse(why);
    gateway.parts().traces.record(record);
    answer
}

/// Before the hold: nothing is taken. From there on the call's task answers for itself.
fn panicked(gateway: &Gateway, stub: Stub) -> Answer {
    leave_trace(gateway, stub);
    internal_error(stub.id, stub.dialect)
}

/// Of a call that a panic ended.
fn leave_trace(gateway: &Gateway, stub: Stub) {
    let record = || gateway.parts().traces.record(stub.panicked(Arc::clone(&gateway.parts().clock)));
    let _ = catch_unwind(AssertUnwindSafe(record));
}

/// The list, as far as the door: nobody has sent a body yet. The first stage that refuses ends it.
fn decide_on_head(
    gateway: &Gateway,
    arrived: Arrived,
    vouched: Option<Arc<Principal>>,
    dossier: &mut Dossier,
) -> Result<Admitted, Why> {
    // Who is it: before anything that costs more than a hash.
    let authenticated = match vouched {
        None => arrived.authenticate(gateway, dossier)?,
        Some(principal) => arrived.vouched(principal, gateway, dossier)?,
    };
    authenticated
        // The door: whatever is refused from here on has counted against the caller's limits. Who is at them, or could not
        // pay at all, is turned away before its bytes are taken in.
        .admit(gateway, dossier)
}

/// The list, from the door on.
pub(crate) async fn decide(
    gateway: &Arc<Gateway>,
    admitted: Admitted,
    body: impl BodySource,
    dossier: &mut Dossier,
) -> Result<Keyed, Why> {
    let keyed = admitted
        // The body: only a caller who is known, and could pay, fills memory with it.
        .receive(gateway, body, dossier)
        .await?
        // One meaning of the bytes, every parameter honoured or refused by name; it depends on who takes the call.
        .parse(gateway, dossier)
        .await?
        // May this key use the name that it asked for, whatever that leads to: an alias cannot widen it, and who may not use it
        // does not learn where it leads.
        .authorize(dossier)?
        // The name to the model that serves, where the call may be worked on: prices and tokenizers hang on it.
        .route(gateway, dossier)?
        // Everything the caller wrote against the rules: before the template adds words of its own.
        .moderate(dossier)
        .await?
        // Words to ids: holds and placement need counts. From here on the memory that the call may take is its own.
        .render(gateway, dossier)
        .await?
        // By what cached prefixes are found: hashed once, before anything is taken.
        .cache(gateway, dossier)
        .await?;
    Ok(keyed)
}

async fn dispatch(
    gateway: &Arc<Gateway>,
    dossier: Dossier,
    keyed: Keyed,
    counted: TaskTrackerToken,
) -> Answer {
    let (id, dialect) = (dossier.id, dossier.dialect);
    let (head, answer) = oneshot::channel();
    // Apart: a task that is begun is copied several times.
    tokio::spawn(Box::pin(own(Arc::clone(gateway), dossier, keyed, head, counted)));
    answer.await.unwrap_or_else(|_| internal_error(id, dialect))
}

/// Owns a request from its hold on, whoever listens: the books may take their time, and nothing of what they gave is lost.
/// What is counted for a drain is counted until the end.
async fn own(
    gateway: Arc<Gateway>,
    mut dossier: Dossier,
    keyed: Keyed,
    head: oneshot::Sender<Answer>,
    _counted: TaskTrackerToken,
) {
    let (stub, hold) = (dossier.stub(), dossier.id.hold());
    let taken = async {
        dossier.mark(Stage::Handover);
        // Limits and money, all or nothing; what has them is settled whatever happens.
        match keyed.hold(&gateway, &mut dossier).await {
            Ok(funded) => Some((dossier, funded, head)),
            Err(why) => {
                // A listener that is gone needs no answer.
                let _ = head.send(refuse(&gateway, dossier, &why));
                None
            }
        }
    };
    match AssertUnwindSafe(taken).catch_unwind().await {
        // Apart, so that starting the task does not copy room for all that a call may need.
        Ok(Some((dossier, funded, head))) => {
            let copy = Box::pin(pump::carry(Arc::clone(&gateway), dossier, funded, head)).await;
            if let Some((copy, lane)) = copy.and_then(shadows::Copy::enter) {
                tokio::spawn(copies(gateway, lane, copy));
            }
        }
        Ok(None) => {}
        Err(_) => {
            leave_trace(&gateway, stub);
            // Whether the books took it is not known. Apart, so that no other task has room for it.
            Box::pin(pump::settle::let_go(&gateway, hold)).await;
        }
    }
}

/// [`make_copies`], as a type of its own: a copy is a call, whose task could make copies, for all that the compiler knows.
fn copies(
    gateway: Arc<Gateway>,
    lane: Arc<CopyLane>,
    first: Box<shadows::Copy>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(make_copies(gateway, lane, first))
}

/// Makes one copy after another, until none waits. Nobody waits for them: a drain lets go of what was begun.
async fn make_copies(gateway: Arc<Gateway>, lane: Arc<CopyLane>, first: Box<shadows::Copy>) {
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

/// Walks the path with a copy, as a caller inside the house, and lets its answer go by.
async fn make_copy(gateway: &Arc<Gateway>, copy: shadows::Copy) {
    let Some((head, house, body, running, of)) = copy.into_call(&*gateway.parts().clock) else { return };
    let entered = enter(gateway, head, Some(house), |dossier| {
        dossier.record.shadow_of = Some(Box::new(of));
        dossier.shadow = Some(Box::new(Shadow::Copy(running)));
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
