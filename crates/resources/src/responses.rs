//! Look-ups of responses: the response itself, its events, its input items. Also deletes and cancels responses.
//! Foreign and missing ids answer alike.

use std::time::Duration;

use bytes::BytesMut;
use headrace_call_api::MemoryReservation;
use headrace_call_state::{Answer, AnswerBody, Rejection, keep_memory};
use headrace_domain::Code;
use headrace_identity::Principal;
use headrace_objects::{ResponseRecord, ResponseStatus, StoredLookup, items_with_ids, page};
use serde::Deserialize;
use serde_json::json;

use crate::object_query::ObjectQuery;
use crate::requests::{ObjectAnswer, owned};
use crate::resources::StoredResources;
use crate::running_response::{END, as_sse, ends_well};

/// How long a cancelled response may take to end before the request is answered anyway.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

impl StoredResources {
    pub(crate) async fn show_response(
        &self,
        principal: &Principal,
        id: &str,
        query: &[(String, String)],
    ) -> ObjectAnswer {
        let query = ObjectQuery::read(query)?;
        let from = query
            .starting_after
            .map_or(0, |after| usize::try_from(after.saturating_add(1)).unwrap_or(usize::MAX));
        if query.stream {
            let running = self.objects().running.lock().get(id).cloned();
            if let Some(running) = running.filter(|running| running.project == principal.project) {
                if !running.has_events() {
                    return Err(not_streamed());
                }
                return self.follow(&principal.key, &running, from);
            }
        }
        let (found, memory) = self.stored_response(principal, id).await?;
        let answer = if query.stream { replayed(&found, from)? } else { Answer::json(200, found.body) };
        Ok(keep_memory(memory, answer))
    }

    /// A response, and the memory that it and its answer take.
    async fn stored_response(
        &self,
        principal: &Principal,
        id: &str,
    ) -> Result<(ResponseRecord, MemoryReservation), Rejection> {
        let ((project, id), (whose, named)) = (owned(principal, id), owned(principal, id));
        let found = self.read_stored(
            principal,
            move |store, now| store.size(&whose, StoredLookup::Response(&named), now),
            move |store, now| store.response(&project, &id, now),
        );
        found.await?.ok_or_else(not_found)
    }

    pub(crate) async fn delete_response(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        let ((project, whose), now) = (owned(principal, id), self.now());
        // The running task must not store the response again after its deletion.
        let running = self.objects().running.lock().get(id).cloned();
        if let Some(running) = running.filter(|running| running.project == principal.project) {
            running.cancel.cancel();
            running.ended(CANCEL_WITHIN).await;
        }
        let gone = self.objects().ask(move |store| store.delete_response(&project, &whose, now)).await?;
        if !gone {
            return Err(not_found());
        }
        Ok(Answer::json(200, json!({"id": id, "object": "response", "deleted": true}).to_string()))
    }

    pub(crate) async fn cancel_response(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        let running = self.objects().running.lock().get(id).cloned();
        if let Some(running) = running.filter(|running| running.project == principal.project) {
            running.cancel.cancel();
            running.ended(CANCEL_WITHIN).await;
        }
        let (found, memory) = self.stored_response(principal, id).await?;
        let parsed = serde_json::from_str::<InBackground>(&found.body).unwrap_or_default();
        if parsed.background != Some(true) {
            let message = "Only a response in the background can be cancelled by its id; close the connection of this one.";
            return Err(Rejection::new(Code::ResponseNotInBackground, message));
        }
        Ok(keep_memory(memory, Answer::json(200, found.body)))
    }

    pub(crate) async fn input_items(
        &self,
        principal: &Principal,
        id: &str,
        query: &[(String, String)],
    ) -> ObjectAnswer {
        let query = ObjectQuery::read(query)?;
        let (found, memory) = self.stored_response(principal, id).await?;
        let items = items_with_ids(&found.input, &found.id);
        // The items are a copy. The page is another one.
        drop(found);
        Ok(keep_memory(memory, Answer::json(200, page(items, &query.page).json())))
    }
}

/// The field of a response that says whether it runs in the background.
#[derive(Default, Deserialize)]
struct InBackground {
    background: Option<bool>,
}

/// The stored events, starting at number `from`.
fn replayed(found: &ResponseRecord, from: usize) -> ObjectAnswer {
    let events = found.events.as_deref().filter(|_| found.status == ResponseStatus::Ended);
    let events: Vec<&serde_json::value::RawValue> =
        events.and_then(|events| serde_json::from_str(events).ok()).ok_or_else(not_streamed)?;
    let mut out = BytesMut::new();
    for event in events.iter().skip(from) {
        out.extend_from_slice(&as_sse(event.get().as_bytes()));
    }
    if events.last().is_some_and(|event| ends_well(event.get().as_bytes())) {
        out.extend_from_slice(END.as_bytes());
    }
    let body = AnswerBody::Whole(out.freeze());
    Ok(Answer { status: 200, content_type: "text/event-stream", headers: Vec::new(), body })
}

fn not_streamed() -> Rejection {
    let message =
        "The events of this response were not kept: create it with `background: true` and `stream: true`.";
    Rejection::new(Code::ResponseNotStreamed, message).with_param("stream")
}

fn not_found() -> Rejection {
    let message =
        "There is no such response for your project. Those with `store: true` are kept for a bounded time.";
    Rejection::new(Code::ResponseNotFound, message)
}
