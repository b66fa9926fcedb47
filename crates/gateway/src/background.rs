//! Background responses: the client is answered at once with the queued response, and the call runs while no client
//! waits. Knows no store.

use std::sync::Arc;

use headrace_call_state::{Answer, Rejection};
use headrace_resources::{BackgroundCall, BackgroundResponse};
use headrace_wire::responses::response_begun;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::Gateway;
use crate::call_task::reply_meta;
use crate::refusal::refuse;
use crate::request_context::RequestContext;
use crate::state::KeyedCall;
use crate::task::dispatch;

/// Whether a call runs in the background. A shadow copy never does.
pub(crate) fn is_wanted(context: &RequestContext, keyed: &KeyedCall) -> bool {
    context.copy().is_none() && keyed.work.call.dialect.response().is_some_and(|ask| ask.background)
}

/// Answers at once with the queued response, and starts the call.
pub(crate) async fn answer(
    gateway: &Arc<Gateway>,
    context: RequestContext,
    keyed: KeyedCall,
    counted: TaskTrackerToken,
) -> Answer {
    let begun = match begin(gateway, &context, &keyed).await {
        Ok(begun) => begun,
        Err(rejection) => return refuse(gateway, context, &rejection),
    };
    start(gateway, context, keyed, counted, begun)
}

/// Starts the call of a stored response.
pub(crate) fn start(
    gateway: &Arc<Gateway>,
    context: RequestContext,
    mut keyed: KeyedCall,
    counted: TaskTrackerToken,
    begun: BackgroundResponse,
) -> Answer {
    // The answer is read here as it comes, so it must be a stream. The work is not shared yet.
    if let Some(work) = Arc::get_mut(&mut keyed.work) {
        work.call.stream = true;
    }
    let headers: Vec<_> = context.id_headers().collect();
    let owner = Arc::clone(gateway);
    let work = async move { dispatch(&owner, context, keyed, counted).await };
    begun.start(gateway.resources(), work).with_headers(headers.into_iter())
}

/// Stores the response as queued.
pub(crate) async fn begin(
    gateway: &Gateway,
    context: &RequestContext,
    keyed: &KeyedCall,
) -> Result<BackgroundResponse, Rejection> {
    let call = &keyed.work.call;
    let ask = call.dialect.response().cloned().unwrap_or_default();
    let call = BackgroundCall {
        id: context.id,
        created: context.record.started,
        principal: &keyed.principal,
        ask: &ask,
        body: response_begun(call, reply_meta(&keyed.work, context), "queued"),
        stream: call.stream,
    };
    gateway.resources().begin_background(call).await
}
