//! The path of a request: one list, in the order in which things are decided, with a word on why each stands there.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::{Arrived, Held};
use crate::{Answer, Arrival, BodySource, Gateway, pump};

/// Carries a request from its head to the head of its answer. `counted` is what a drain waits for: it goes with the
/// request into its task. Up to the hold, what was taken is given back by dropping this future (the client went away); from
/// the hold on the request lives in a task of its own, and this future is only a listener.
pub(crate) async fn travel<B: BodySource>(
    gateway: &Arc<Gateway>,
    mut dossier: Dossier,
    arrival: Arrival<B>,
    counted: TaskTrackerToken,
) -> Answer {
    let arrived = Arrived::new(arrival, &mut dossier);
    match decide(gateway, arrived, &mut dossier).await {
        // No await between the hold and the task: a future dropped here would leave a hold behind.
        Ok(held) => dispatch(gateway, dossier, held, counted).await,
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
) -> Result<Held, Why> {
    arrived
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
        // Limits and money, all or nothing; from here on a task owns the request and settles it whatever happens.
        .hold(gateway, dossier)
}

async fn dispatch(gateway: &Arc<Gateway>, dossier: Dossier, held: Held, counted: TaskTrackerToken) -> Answer {
    let (id, dialect) = (dossier.id, dossier.dialect);
    let (head, answer) = oneshot::channel();
    let carried = pump::carry(Arc::clone(gateway), dossier, held, head);
    tokio::spawn(async move {
        carried.await;
        drop(counted);
    });
    answer.await.unwrap_or_else(|_| gateway.internal_error(id, dialect))
}
