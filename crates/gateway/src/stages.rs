//! The path of a request: one list, in the order in which things are decided, with a word on why each stands there.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::refused::Refused;
use crate::state::{Arrived, Rendered};
use crate::{Answer, BodySource, Gateway, pump};

/// Carries a request from its head to the head of its answer. `counted` is what a drain waits for: it goes with the
/// request into its task. Up to the hold, what was taken is given back by dropping this future (the client went away); from
/// the hold on the request lives in a task of its own, and this future is only a listener.
pub(crate) async fn travel<B: BodySource>(
    gateway: &Arc<Gateway>,
    arrived: Arrived<B>,
    counted: TaskTrackerToken,
) -> Result<Answer, Refused> {
    let rendered = arrived
        // Who is it: before anything that costs more than a hash.
        .authenticate(gateway)?
        // The door: whatever is refused from here on has counted against the caller's limits. Who is at them, or could not
        // pay at all, is turned away before its bytes are taken in.
        .admit(gateway)?
        // The body: only a caller who is known, and could pay, fills memory with it.
        .receive(gateway)
        .await?
        // One meaning of the bytes, every parameter honoured or refused by name.
        .parse(gateway)
        .await?
        // May this key use the name that it asked for: before the name is resolved, so that an alias cannot widen it.
        .authorize()?
        // The name to the model that serves: prices and tokenizers hang on it.
        .route(gateway)?
        // Everything the caller wrote against the rules: before the template adds words of its own.
        .moderate(gateway)
        .await?
        // Words to ids: holds and placement need counts. From here on the memory that the call may take is its own.
        .render(gateway)
        .await?;
    // Limits and money, all or nothing; from here on a task owns the request and settles it whatever happens.
    dispatch(gateway, rendered, counted).await
}

async fn dispatch(
    gateway: &Arc<Gateway>,
    rendered: Rendered,
    counted: TaskTrackerToken,
) -> Result<Answer, Refused> {
    // No await between the hold and the task: a future dropped here would leave a hold behind.
    let held = rendered.hold(gateway)?;
    let (id, dialect) = (held.dossier.id, held.dossier.dialect);
    let (head, answer) = oneshot::channel();
    let carried = pump::carry(Arc::clone(gateway), held, head);
    tokio::spawn(async move {
        carried.await;
        drop(counted);
    });
    Ok(answer.await.unwrap_or_else(|_| gateway.internal_error(id, dialect)))
}
