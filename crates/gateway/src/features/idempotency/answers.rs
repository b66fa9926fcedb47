//! The stored answers of requests with an idempotency key: written, and read again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_state::{Answer, AnswerBody, KEPT_ANSWER_BYTES, Rejection, keep_memory};
use headrace_domain::{Code, HoldId, KeyId, ProjectId, RequestId, Stage};
use headrace_ledger::StoredAnswer;
use headrace_objects::AnswerRecord;
use headrace_relay::model_named;

use super::digest::AnswerDigest;
use crate::Gateway;
use crate::idempotent_request::FirstRequest;

/// Bodies longer than this many bytes are hashed off the event loop.
const INLINE_BYTES: usize = 256 << 10;
/// The content types of answers.
const CONTENT_TYPES: [&str; 2] = ["application/json", EVENT_STREAM];
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// The digest of a body and, if `names_model`, the model that it names.
pub(super) async fn read(body: Bytes, names_model: bool) -> Result<([u8; 32], Option<String>), Rejection> {
    let is_short = body.len() <= INLINE_BYTES;
    let read = move || {
        let model = if names_model { model_named(&body) } else { None };
        (*blake3::hash(&body).as_bytes(), model)
    };
    if is_short {
        return Ok(read());
    }
    tokio::task::spawn_blocking(read).await.map_err(|_| unreadable())
}

/// Stores an answer. Returns what the ledger keeps of it. `None` if it cannot be stored: the key then says that the
/// request has run and that its answer is gone.
pub(crate) async fn store(
    gateway: &Gateway,
    (hold, project): (HoldId, ProjectId),
    status: u16,
    content_type: &'static str,
    body: Arc<[u8]>,
) -> Option<StoredAnswer> {
    let created = gateway.parts().clock.now();
    let expires = created.after(gateway.config().idempotency.keep);
    let record = AnswerRecord { hold, project, created, expires, body };
    let answers = Arc::clone(&gateway.parts().answers);
    // The semaphore is never closed.
    let slot = gateway.answer_slots().acquire().await.ok();
    let put = move || answers.put(&record).map(|()| AnswerDigest::of(&record.body));
    let stored = tokio::task::spawn_blocking(put).await;
    drop(slot);
    match stored {
        Ok(Ok(digest)) => Some(StoredAnswer {
            status,
            content_type: content_type.to_owned(),
            body: digest.to_bytes().as_slice().into(),
        }),
        Ok(Err(error)) => {
            tracing::warn!(%hold, %error, "an answer could not be stored for repeated requests");
            None
        }
        Err(_) => None,
    }
}

/// Marks an answer as that of the request with this hold.
fn marked(answer: Answer, first: HoldId) -> Answer {
    let first = RequestId::from_bits(first.bits()).to_string();
    answer.with_header("idempotent-replayed", "true").with_header("x-headrace-original-request", first)
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
    read.map_err(|_| unreadable())?.map_err(|error| {
        tracing::error!(%hold, %error, "a stored answer cannot be read");
        unreadable()
    })
}

/// The answer exists, and cannot be read now.
pub(super) fn unreadable() -> Rejection {
    let message = "The stored answer of this `Idempotency-Key` cannot be read now. Try again.";
    Rejection::new(Code::ObjectsUnavailable, message).retry_after(Duration::from_secs(1))
}
