//! Returns the stored answer of the request that ran first.

use headrace_call_state::Answer;
use headrace_domain::{CallOutcome, RequestId, Stage};

use super::answers::{EVENT_STREAM, stored_answer, unreadable};
use crate::Gateway;
use crate::refusal::refuse;
use crate::request_context::RequestContext;

/// The answer to a call that ran before. It costs nothing, and its trace names the first request.
pub(crate) async fn replay(gateway: &Gateway, mut context: RequestContext) -> Answer {
    context.end_stage(Stage::Hold);
    let first = context.idempotency.as_deref_mut().and_then(|request| request.take_first());
    let caller = context.record.project.clone().zip(context.record.key.clone());
    let (Some(first), Some((project, key))) = (first, caller) else {
        return refuse(gateway, context, &unreadable());
    };
    let hold = first.hold;
    match stored_answer(gateway, (&project, &key), first).await {
        Ok(answer) => {
            context.record.replay_of = Some(RequestId::from_bits(hold.bits()));
            context.record.stream = answer.content_type == EVENT_STREAM;
            context.end_stage(Stage::Deliver);
            let answer = answer.with_headers(context.id_headers());
            let record = context.into_record(CallOutcome::Completed { finish: Vec::new() });
            gateway.parts().traces.record(record);
            answer
        }
        Err(rejection) => refuse(gateway, context, &rejection),
    }
}
