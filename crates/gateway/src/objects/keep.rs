//! The stored record of a response: that it has begun, and how it ended. Must not know who waits for it.

use headrace_domain::{ProjectId, RequestId, ResponseAsk, UnixNanos};
use headrace_objects::{ItemRecord, ResponseRecord, ResponseStatus, input_items, items_with_ids, list_of};
use headrace_wire::responses::response_id;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Gateway;
use crate::rejection::Rejection;
use crate::request_context::RequestContext;
use crate::state::RenderedWork;

/// How far storing a response has progressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StoreProgress {
    /// Nothing is stored.
    #[default]
    Nothing,
    /// The beginning is stored.
    Begun,
    /// The end is stored.
    Ended,
}

/// Whether the call's task stores its answer. A background response is stored by its reader, and a shadow copy is
/// never stored.
pub(crate) fn is_kept(dossier: &RequestContext, work: &RenderedWork) -> bool {
    let wants = work.call.dialect.response().is_some_and(|ask| ask.store && !ask.background);
    wants && dossier.copy().is_none()
}

/// Stores that an answer has begun.
///
/// # Errors
/// The answer cannot be stored, so the caller must not see it.
pub(crate) async fn note(
    gateway: &Gateway,
    dossier: &RequestContext,
    work: &RenderedWork,
    body: String,
) -> Result<(), Rejection> {
    put(gateway, dossier, work, body, |_| Vec::new()).await
}

/// Stores a finished answer.
///
/// # Errors
/// The answer cannot be stored, so the call must fail.
pub(crate) async fn end(
    gateway: &Gateway,
    dossier: &RequestContext,
    work: &RenderedWork,
    body: &[u8],
) -> Result<(), Rejection> {
    put(gateway, dossier, work, String::from_utf8_lossy(body).into_owned(), ended).await
}

/// Keeps a finished answer for the next turn of its WebSocket session, if it belongs to one.
pub(crate) fn for_next_turn(gateway: &Gateway, dossier: &RequestContext, work: &RenderedWork, body: &[u8]) {
    let (Some(turns), Some(ask)) = (&dossier.turns, work.call.dialect.response()) else { return };
    let (Some(project), Some(key)) = (dossier.record.project.clone(), &dossier.record.key) else { return };
    let created = dossier.record.started;
    let body = String::from_utf8_lossy(body).into_owned();
    let mut record = begun(dossier.id, project, (created, created), ask, body);
    ended(&mut record);
    let ResponseRecord { id, project, input, output, .. } = record;
    turns.ended((id, project), [input, output], gateway.memory(), key);
}

async fn put(
    gateway: &Gateway,
    dossier: &RequestContext,
    work: &RenderedWork,
    body: String,
    turned: fn(&mut ResponseRecord) -> Vec<ItemRecord>,
) -> Result<(), Rejection> {
    let Some(ask) = work.call.dialect.response().cloned() else { return Ok(()) };
    let Some(project) = dossier.record.project.clone() else { return Ok(()) };
    let (id, created) = (dossier.id, dossier.record.started);
    let expires = gateway.objects().expires(created);
    let at_once = work.body_bytes + body.len() <= gateway.config().render_inline_bytes;
    let make = move || {
        let mut record = begun(id, project, (created, expires), &ask, body);
        let items = turned(&mut record);
        (record, items)
    };
    // As in the stage `render`: long texts take milliseconds, and the event loop's threads must stay free.
    let (record, items) = if at_once { make() } else { gateway.objects().off_loop(make).await? };
    gateway.objects().put(record, items).await
}

/// The record of a response in progress.
pub(super) fn begun(
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
pub(super) fn ended(record: &mut ResponseRecord) -> Vec<ItemRecord> {
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
