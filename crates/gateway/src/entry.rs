//! The way of a call into the gateway: its head up to the admission check, then its body, up to the task that owns it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::FutureExt;
use headrace_call_api::{BodySource, CallerInfo};
use headrace_call_state::Answer;
use headrace_domain::{Endpoint, KeyId};
use headrace_identity::Principal;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::Gateway;
use crate::refusal::{panicked, refuse};
use crate::request_context::{RequestContext, RequestStart};
use crate::stages::{decide, decide_on_head};
use crate::state::{AdmittedRequest, ArrivedRequest};
use crate::task::dispatch;
use crate::{background, features, keyed_background};

/// An admitted call whose body has not been read yet. A drain waits for it.
pub struct EnteredCall {
    pub(crate) admitted: AdmittedRequest,
    pub(crate) context: RequestContext,
    pub(crate) start: RequestStart,
    counted: TaskTrackerToken,
}

impl EnteredCall {
    /// The key that the call is for.
    pub(crate) fn key(&self) -> &KeyId {
        &self.admitted.principal.key
    }
}

/// Takes a call through the stages that need only its head, up to the admission check. `known` is the principal that
/// an in-process caller acts for.
pub(crate) fn enter(
    gateway: &Gateway,
    endpoint: Endpoint,
    caller: CallerInfo,
    known: Option<Arc<Principal>>,
    describe: impl FnOnce(&mut RequestContext),
) -> Result<EnteredCall, Answer> {
    let start = RequestStart::of(endpoint, &caller);
    // Counted before the drain check: a drain that has not begun by then waits for this call.
    let counted = gateway.counted();
    let enter = || {
        let mut context = start.open(Arc::clone(&gateway.parts().clock));
        describe(&mut context);
        // Shadow copies take no slot in the in-flight table.
        if context.copy().is_none() {
            context.slot = gateway.table().take_slot(context.id, context.started_mono_ns());
        }
        let arrived = ArrivedRequest::new(endpoint, caller, &mut context);
        match decide_on_head(gateway, arrived, known, &mut context) {
            Ok(admitted) => Ok(EnteredCall { admitted, context, start, counted }),
            Err(rejection) => Err(refuse(gateway, context, &rejection)),
        }
    };
    catch_unwind(AssertUnwindSafe(enter)).unwrap_or_else(|_| Err(panicked(gateway, start)))
}

/// Takes an admitted request to the head of its answer. Before the hold, dropping this future returns everything that
/// was taken (the client went away). From the hold on the request lives in a task of its own, and this future only
/// listens. The token that makes a drain wait moves into that task.
pub(crate) async fn run(gateway: &Arc<Gateway>, entered: EnteredCall, body: impl BodySource) -> Answer {
    let EnteredCall { admitted, mut context, start, counted } = entered;
    let run = async {
        match decide(gateway, admitted, body, &mut context).await {
            Ok(keyed) if background::is_wanted(&context, &keyed) => {
                // Boxed, so that the futures of other calls reserve no space for it.
                if context.idempotency.is_some() {
                    Box::pin(keyed_background::answer(gateway, context, keyed, counted)).await
                } else {
                    Box::pin(background::answer(gateway, context, keyed, counted)).await
                }
            }
            Ok(keyed) => dispatch(gateway, context, keyed, counted).await,
            Err(rejection) => features::on_refused(gateway, context, &rejection).await,
        }
    };
    AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|_| panicked(gateway, start))
}
