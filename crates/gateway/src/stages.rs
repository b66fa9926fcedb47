//! The path of a request: one list, in the order in which things are decided, with a word on why each stands there.
//! What follows the hold is the task's: `pump.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::FutureExt;
use headrace_domain::{Code, Dialect, RequestId, Stage};
use headrace_wire::{ErrorFacts, error_body};
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::dossier::{Dossier, Stub};
use crate::refused::Why;
use crate::state::{Arrived, Rendered};
use crate::{Answer, Arrival, BodySource, Gateway, pump};

// In the order of the path.
mod connect;

pub(crate) mod authenticate;

mod receive;

mod parse;

pub(crate) mod authorize;

mod route;

mod moderate;

mod render;

mod cache;

mod hold;

impl Gateway {
    /// One call, from its head to the head of its answer. Dropping the future says that the client went away.
    pub async fn call<B: BodySource>(self: &Arc<Self>, arrival: Arrival<B>) -> Answer {
        let stub = Stub::of(&arrival);
        // Before it is asked whether a drain has begun: one that has not begun then will wait for this call.
        let counted = self.counted();
        let travel = async {
            let dossier = stub.open(Arc::clone(&self.parts().clock));
            travel(self, dossier, arrival, counted).await
        };
        AssertUnwindSafe(travel).catch_unwind().await.unwrap_or_else(|_| {
            // Before the hold: nothing is taken. From there on the call's task answers for itself.
            self.panicked(stub);
            internal_error(stub.id, stub.dialect)
        })
    }

    /// Leaves a trace of a call that a panic ended.
    fn panicked(&self, stub: Stub) {
        let record = || self.parts().traces.record(stub.panicked(Arc::clone(&self.parts().clock)));
        let _ = catch_unwind(AssertUnwindSafe(record));
    }
}

/// Carries a request from its head to the head of its answer. `counted` is what a drain waits for: it goes with the
/// request into its task. Before the hold, what was taken is given back by dropping this future (the client went away); from
/// the hold on the request lives in a task of its own, and this future is only a listener.
async fn travel<B: BodySource>(
    gateway: &Arc<Gateway>,
    mut dossier: Dossier,
    arrival: Arrival<B>,
    counted: TaskTrackerToken,
) -> Answer {
    let arrived = Arrived::new(arrival, &mut dossier);
    match decide(gateway, arrived, &mut dossier).await {
        Ok(rendered) => dispatch(gateway, dossier, rendered, counted).await,
        // Whatever stage refused: one answer and one trace.
        Err(why) => {
            let (answer, record) = dossier.refuse(&why);
            gateway.parts().traces.record(record);
            answer
        }
    }
}

/// The list. The first stage that refuses ends it.
async fn decide<B: BodySource>(
    gateway: &Arc<Gateway>,
    arrived: Arrived<B>,
    dossier: &mut Dossier,
) -> Result<Rendered, Why> {
    let rendered = arrived
        // Who is it: before anything that costs more than a hash.
        .authenticate(gateway, dossier)?
        // The door: whatever is refused from here on has counted against the caller's limits. Who is at them, or could not
        // pay at all, is turned away before its bytes are taken in.
        .admit(gateway, dossier)?
        // The body: only a caller who is known, and could pay, fills memory with it.
        .receive(gateway, dossier)
        .await?
        // One meaning of the bytes, every parameter honoured or refused by name.
        .parse(gateway, dossier)
        .await?
        // May this key use the name that it asked for: before the name is resolved, so that an alias cannot widen it.
        .authorize(dossier)?
        // The name to the model that serves: prices and tokenizers hang on it.
        .route(gateway, dossier)?
        // Everything the caller wrote against the rules: before the template adds words of its own.
        .moderate(gateway, dossier)
        .await?
        // Words to ids: holds and placement need counts. From here on the memory that the call may take is its own.
        .render(gateway, dossier)
        .await?
        // By what cached prefixes are found: hashed once, before anything is taken.
        .cache(dossier);
    Ok(rendered)
}

async fn dispatch(
    gateway: &Arc<Gateway>,
    dossier: Dossier,
    rendered: Rendered,
    counted: TaskTrackerToken,
) -> Answer {
    let (id, dialect) = (dossier.id, dossier.dialect);
    let (head, answer) = oneshot::channel();
    let owned = own(Arc::clone(gateway), dossier, rendered, head);
    tokio::spawn(async move {
        owned.await;
        drop(counted);
    });
    answer.await.unwrap_or_else(|_| internal_error(id, dialect))
}

/// Owns a request from its hold on, whoever listens: the books may take their time, and nothing of what they gave is lost.
async fn own(gateway: Arc<Gateway>, mut dossier: Dossier, rendered: Rendered, head: oneshot::Sender<Answer>) {
    let (stub, hold) = (dossier.stub(), dossier.id.hold());
    let taken = async {
        dossier.mark(Stage::Handover);
        // Limits and money, all or nothing; what has them is settled whatever happens.
        match rendered.hold(&gateway, &mut dossier).await {
            Ok(funded) => Some((dossier, funded, head)),
            Err(why) => {
                let (answer, record) = dossier.refuse(&why);
                gateway.parts().traces.record(record);
                // A listener that is gone needs no answer.
                let _ = head.send(answer);
                None
            }
        }
    };
    match AssertUnwindSafe(taken).catch_unwind().await {
        Ok(Some((dossier, funded, head))) => pump::carry(gateway, dossier, funded, head).await,
        Ok(None) => {}
        Err(_) => {
            gateway.panicked(stub);
            // Whether the books took it is not known.
            pump::settle::let_go(&gateway, hold).await;
        }
    }
}

fn internal_error(id: RequestId, dialect: Dialect) -> Answer {
    tracing::error!(request = %id, "a call ended without an answer");
    let message = "The call failed inside. It was not charged. Its request id is in the log.";
    let facts = ErrorFacts { stage: Stage::Deliver, ..ErrorFacts::new(Code::InternalError, message, id) };
    Answer::json(500, error_body(dialect, &facts)).with_header("x-request-id", id.to_string())
}
