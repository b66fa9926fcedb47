//! The task that owns a call from its hold to its end, whether or not a client still listens.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use headrace_call_state::Answer;
use headrace_domain::Stage;
use tokio::sync::oneshot;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::refusal::{internal_error, leave_trace};
use crate::request_context::RequestContext;
use crate::state::KeyedCall;
use crate::{Gateway, call_task, features, settle};

/// Starts the task of a call and waits for the head of its answer.
pub(crate) async fn dispatch(
    gateway: &Arc<Gateway>,
    context: RequestContext,
    keyed: KeyedCall,
    counted: TaskTrackerToken,
) -> Answer {
    let (id, dialect) = (context.id, context.dialect);
    let (head, answer) = oneshot::channel();
    // Boxed: starting a task copies its future several times.
    tokio::spawn(Box::pin(own(Arc::clone(gateway), context, keyed, head, counted)));
    answer.await.unwrap_or_else(|_| internal_error(id, dialect))
}

/// Owns a request from its hold to its end. The ledger may take its time, and every hold that it grants must have an
/// owner. `_counted` keeps a drain waiting until this task ends.
async fn own(
    gateway: Arc<Gateway>,
    mut context: RequestContext,
    keyed: KeyedCall,
    head: oneshot::Sender<Answer>,
    _counted: TaskTrackerToken,
) {
    let (start, hold) = (context.start(), context.id.hold());
    let taken = async {
        context.end_stage(Stage::Handover);
        // Limits and money are taken together or not at all. Once taken, they are settled in every case.
        match keyed.hold(&gateway, &mut context).await {
            Ok(funded) => Some((context, funded, head)),
            Err(rejection) => {
                // If the listener is gone, no answer is needed.
                let _ = head.send(features::on_refused(&gateway, context, &rejection).await);
                None
            }
        }
    };
    match AssertUnwindSafe(taken).catch_unwind().await {
        // Boxed, so that starting the task does not copy the space for everything that a call may need.
        Ok(Some((context, funded, head))) => {
            let copy = Box::pin(call_task::run_call(Arc::clone(&gateway), context, funded, head)).await;
            features::after_end(gateway, copy);
        }
        Ok(None) => {}
        Err(_) => {
            leave_trace(&gateway, start);
            // It is unknown whether the ledger took the hold. Boxed, so that other tasks reserve no space for it.
            Box::pin(settle::release_unowned(&gateway, hold)).await;
        }
    }
}
