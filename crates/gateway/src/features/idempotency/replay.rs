//! Returns the stored answer of the request that ran first.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_state::{Answer, AnswerBody, KEPT_ANSWER_BYTES, Rejection, keep_memory};
use headrace_domain::{CallOutcome, Code, HoldId, KeyId, ProjectId, RequestId, Stage};
use headrace_ledger::StoredAnswer;

use super::{AnswerDigest, FirstRequest, marked};
use crate::Gateway;
use crate::refusal::refuse;
use crate::request_context::RequestContext;

/// The content types of answers.
const CONTENT_TYPES: [&str; 2] = ["application/json", EVENT_STREAM];
const EVENT_STREAM: &str = "text/event-stream";

/// The answer to a call that ran before. It costs nothing, and its trace names the first request.
pub(in crate::features) async fn replay(gateway: &Gateway, mut context: RequestContext) -> Answer {
    context.end_stage(Stage::Hold);
    let first = context.idempotency.as_deref_mut().and_then(|request| request.first.take());
    let caller = context.record.project.clone().zip(context.record.key.clone());
    let (Some(first), Some((project, key))) = (first, caller) else {
        return refuse(gateway, context, &stopped());
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

/// The stored answer of the first request, which must be the one that the ledger knows.
pub(super) async fn stored_answer(
    gateway: &Gateway,
    (project, key): (&ProjectId, &KeyId),
    first: FirstRequest,
) -> Result<Answer, Rejection> {
    let FirstRequest { hold, answer } = first;
    let gone = || Rejection::answer_gone(hold);
    let stored = answer.ok_or_else(gone)?;
    let StoredAnswer { status, content_type, body } = &*stored;
    let digest = AnswerDigest::from_bytes(body).ok_or_else(gone)?;
    let content_type = CONTENT_TYPES.into_iter().find(|known| known == content_type).ok_or_else(gone)?;
    // Twice: the store has the body while it is copied.
    let needed = digest.bytes.saturating_mul(2).saturating_add(KEPT_ANSWER_BYTES);
    let memory = gateway.memory().reserve(key, needed).map_err(|full| full.at(Stage::Deliver))?;
    let body = body_of(gateway, project.clone(), hold).await?.ok_or_else(gone)?;
    if AnswerDigest::of(&body) != digest {
        tracing::error!(%hold, "a stored answer is not the one that was sent, and is not returned");
        return Err(gone());
    }
    let body = AnswerBody::Whole(Bytes::from(body));
    let mut answer = Answer { status: *status, content_type, headers: Vec::new(), body };
    if content_type == EVENT_STREAM {
        answer.headers.push(("cache-control", "no-cache".to_owned()));
    }
    Ok(marked(keep_memory(memory, answer), hold))
}

async fn body_of(gateway: &Gateway, project: ProjectId, hold: HoldId) -> Result<Option<Vec<u8>>, Rejection> {
    let (answers, now) = (Arc::clone(&gateway.parts().answers), gateway.parts().clock.now());
    // The semaphore is never closed.
    let slot = gateway.answer_slots().acquire().await.ok();
    let read = tokio::task::spawn_blocking(move || answers.body(&project, hold, now)).await;
    drop(slot);
    read.map_err(|_| stopped())?.map_err(|error| {
        tracing::error!(%hold, %error, "a stored answer cannot be read");
        stopped()
    })
}

/// The answer exists, and cannot be read now.
pub(super) fn stopped() -> Rejection {
    let message = "The stored answer of this `Idempotency-Key` cannot be read now. Try again.";
    Rejection::new(Code::ObjectsUnavailable, message).retry_after(Duration::from_secs(1))
}
