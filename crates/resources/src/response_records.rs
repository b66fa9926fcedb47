//! The stored record of a response: that it has begun, and how it ended. Must not know who waits for it.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_domain::{KeyId, ProjectId, RequestId, ResponseAsk, UnixNanos};
use headrace_objects::{ItemRecord, ResponseRecord, ResponseStatus, input_items, items_with_ids, list_of};
use headrace_wire::responses::response_id;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::batch_line::BatchLine;
use crate::resources::StoredResources;
use crate::socket_session::SocketSession;

/// A call whose answer is a response, as far as storing it needs to know.
pub struct StoredCall<'a> {
    /// The call's id.
    pub id: RequestId,
    /// When it arrived.
    pub created: UnixNanos,
    /// The caller's project.
    pub project: &'a ProjectId,
    /// The caller's key.
    pub key: &'a KeyId,
    /// What the client asks of the response.
    pub ask: &'a Arc<ResponseAsk>,
    /// Bytes of the call's text.
    pub body_bytes: usize,
}

impl StoredResources {
    /// Stores that an answer has begun. `body` is its beginning.
    ///
    /// # Errors
    /// The answer cannot be stored, so the caller must not see it.
    pub async fn store_begun(&self, call: StoredCall<'_>, body: String) -> Result<(), Rejection> {
        self.store_state(call, body, |_| Vec::new()).await
    }

    /// Stores a finished answer.
    ///
    /// # Errors
    /// The answer cannot be stored, so the call must fail.
    pub async fn store_ended(&self, call: StoredCall<'_>, body: &[u8]) -> Result<(), Rejection> {
        self.store_state(call, String::from_utf8_lossy(body).into_owned(), ended).await
    }

    /// Keeps a finished answer for the next turn of its WebSocket session.
    pub fn keep_for_next_turn(&self, session: &SocketSession, call: StoredCall<'_>, body: &[u8]) {
        let StoredCall { id, created, project, key, ask, .. } = call;
        let body = String::from_utf8_lossy(body).into_owned();
        let mut record = begun(id, project.clone(), (created, created), ask, body);
        ended(&mut record);
        let ResponseRecord { id, project, input, output, .. } = record;
        session.ended((id, project), [input, output], self.memory(), key);
    }

    /// Stores the whole answer to a batch request before it is paid for, so that a crash after this does not lose it.
    ///
    /// # Errors
    /// The answer cannot be stored.
    pub async fn note_line(&self, line: &BatchLine, id: RequestId, answer: String) -> Result<(), Rejection> {
        let (batch, at, request) = (line.batch.clone(), line.at, id.to_string());
        self.objects().ask_files(move |store| store.note_answer(&batch, at, &request, &answer)).await
    }

    async fn store_state(
        &self,
        call: StoredCall<'_>,
        body: String,
        turned: fn(&mut ResponseRecord) -> Vec<ItemRecord>,
    ) -> Result<(), Rejection> {
        let StoredCall { id, created, project, ask, body_bytes, .. } = call;
        let (project, ask) = (project.clone(), Arc::clone(ask));
        let expires = self.objects().expires(created);
        let at_once = body_bytes + body.len() <= self.config().inline_bytes;
        let make = move || {
            let mut record = begun(id, project, (created, expires), &ask, body);
            let items = turned(&mut record);
            (record, items)
        };
        // Long texts take milliseconds, and the event loop's threads must stay free.
        let (record, items) = if at_once { make() } else { self.objects().off_loop(make).await? };
        self.objects().put(record, items).await
    }
}

/// The record of a response in progress.
pub(crate) fn begun(
    id: RequestId,
    project: ProjectId,
    (created, expires): (UnixNanos, UnixNanos),
    ask: &ResponseAsk,
    body: String,
) -> ResponseRecord {
    let id = response_id(id);
    let input = list_of(&input_items(&ask.input, &id));
    ResponseRecord {
        input,
        id,
        project,
        created,
        expires,
        status: ResponseStatus::InProgress,
        previous: ask.previous.clone(),
        conversation: ask.conversation.clone(),
        output: "[]".to_owned(),
        body,
        events: None,
    }
}

/// The fields of a response's body that say how it ended.
#[derive(Default, Deserialize)]
struct ResponseFields<'a> {
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    status: Option<String>,
}

/// Marks the record as ended, according to its body. Returns the items that the response adds to its conversation.
pub(crate) fn ended(record: &mut ResponseRecord) -> Vec<ItemRecord> {
    record.status = ResponseStatus::Ended;
    let body = serde_json::from_str::<ResponseFields<'_>>(&record.body).unwrap_or_default();
    let output = body.output.map(RawValue::get).filter(|output| output.starts_with('['));
    record.output = output.unwrap_or("[]").to_owned();
    // A failed response adds nothing, because its request will be repeated.
    let said = matches!(body.status.as_deref(), Some("completed" | "incomplete"));
    if record.conversation.is_none() || !said {
        return Vec::new();
    }
    let mut items = items_with_ids(&record.input, &record.id);
    items.extend(items_with_ids(&record.output, &record.id));
    items
}
