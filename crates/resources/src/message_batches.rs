//! Anthropic's API for batches of messages: they arrive with their requests, and results are returned from the store.
//! Foreign and missing ids answer alike. Runs no batch.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use headrace_call_api::BodySource;
use headrace_call_state::{Answer, AnswerBody, Rejection, delivery, keep_memory};
use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{Code, Endpoint, Stage, UnixNanos};
use headrace_identity::Principal;
use headrace_objects::{
    BatchCounts, BatchKind, BatchRecord, BatchState, BatchStatus, BatchTimes, LineRecord, fresh_id,
};
use headrace_wire::anthropic::message_batch;
use serde_json::{Value, json};

use crate::batches::results::{READ_BYTES, anthropic_line};
use crate::file_batches::{needs_key, not_found};
use crate::object_query::{ListParameters, ObjectQuery};
use crate::reads::ROW_BYTES;
use crate::requests::{ObjectAnswer, owned};
use crate::resources::StoredResources;
use crate::runner::CallRunner;

/// How long a batch may take, as in Anthropic's API.
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Requests that are stored in one step.
const STORED_LINES: usize = 512;
/// Bytes of results that may wait for a reader before reading pauses, and the memory that a download reserves.
const READER_BYTES: usize = 256 << 10;
const READER_MEMORY: u64 = 4 << 20;

impl StoredResources {
    /// `POST /v1/messages/batches`
    pub(crate) async fn create_message_batch<R: CallRunner>(
        self: &Arc<Self>,
        runner: &Arc<R>,
        principal: &Principal,
        body: impl BodySource,
    ) -> ObjectAnswer {
        needs_key(principal)?;
        let body = body.read().await.map_err(|refusal| Rejection::of_body(&refusal))?;
        let most = usize::try_from(self.file_limits()?.max_requests_per_batch).unwrap_or(usize::MAX);
        let memory = self.memory().reserve(&principal.key, (body.len() as u64).saturating_mul(3));
        let _memory = memory.map_err(|full| full.at(Stage::Parse))?;
        let limits = self.config().wire.clone();
        // A long body takes milliseconds, and the event loop's threads must stay free.
        let reading = tokio::task::spawn_blocking(move || message_batch(&body, &limits, most));
        let stopped =
            |_| Rejection::new(Code::InternalError, "The batch could not be read: its reading was stopped.");
        let requests = reading.await.map_err(stopped)??;
        let created = self.now();
        let batch = BatchRecord {
            id: fresh_id("msgbatch", created),
            project: principal.project.clone(),
            counts: BatchCounts::default(),
            state: BatchState {
                key: principal.key.clone(),
                endpoint: Endpoint::Messages,
                created,
                expires: created.after(WINDOW),
                status: BatchStatus::Validating,
                times: BatchTimes::default(),
                input: None,
                window: String::new(),
                metadata: None,
                kept_seconds: None,
                faults: Vec::new(),
                output: None,
                errors: None,
            },
        };
        let _creation = self.batches().create(&batch.id);
        self.store_batch(&batch).await?;
        let id = batch.id.clone();
        let storing = self.objects().ask_files(move |store| {
            let line = |(at, (custom_id, body)): (usize, (String, String))| LineRecord {
                at: at as u64,
                custom_id,
                body,
                noted: None,
            };
            let lines: Vec<LineRecord> = requests.into_iter().enumerate().map(line).collect();
            lines.chunks(STORED_LINES).try_for_each(|some| store.add_lines(&id, some).map(drop))
        });
        let stored = storing.await;
        let change = |state: &mut BatchState, now| {
            (state.status, state.times.in_progress) = (BatchStatus::InProgress, Some(now));
        };
        let begun = match stored {
            Ok(()) => self.change_batch(&batch.id, change).await?.ok_or_else(not_found)?,
            Err(rejection) => {
                // The client never gets its id, and none of its requests run.
                let fail = |state: &mut BatchState, _| state.status = BatchStatus::Failed;
                self.change_batch(&batch.id, fail).await?;
                let id = batch.id.clone();
                self.objects().ask_files(move |store| store.clear_lines(&id)).await?;
                return Err(rejection);
            }
        };
        self.run_batch(runner, begun.clone());
        Ok(shown(&begun))
    }

    /// `GET /v1/messages/batches`
    pub(crate) async fn list_message_batches(
        &self,
        principal: &Principal,
        query: &[(String, String)],
    ) -> ObjectAnswer {
        let ask = ObjectQuery::read_of(query, &ListParameters::MESSAGE_BATCHES)?.page;
        if ask.after.is_some() && ask.before.is_some() {
            let message = "`before_id`: send it or `after_id`.";
            return Err(Rejection::new(Code::BadPage, message).with_param("before_id"));
        }
        let memory = self.reserve_page(principal, &ask, ROW_BYTES)?;
        let (batches, has_more) = self.batches_of(principal, BatchKind::OfMessages, ask).await?;
        let page = json!({
            "data": batches.iter().map(to_json).collect::<Vec<_>>(),
            "has_more": has_more,
            "first_id": batches.first().map(|batch| &batch.id),
            "last_id": batches.last().map(|batch| &batch.id),
        });
        Ok(keep_memory(memory, Answer::json(200, page.to_string())))
    }

    /// `GET /v1/messages/batches/ID`
    pub(crate) async fn show_message_batch(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        Ok(shown(&self.batch_of(principal, BatchKind::OfMessages, id).await?))
    }

    /// `POST /v1/messages/batches/ID/cancel`
    pub(crate) async fn cancel_message_batch(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        Ok(shown(&self.cancelled(principal, BatchKind::OfMessages, id).await?))
    }

    /// `DELETE /v1/messages/batches/ID`
    pub(crate) async fn delete_message_batch(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        self.batch_of(principal, BatchKind::OfMessages, id).await?;
        let (project, own) = owned(principal, id);
        if !self.objects().ask_files(move |store| store.delete_batch(&project, &own)).await? {
            return Err(not_ended());
        }
        Ok(Answer::json(200, json!({"id": id, "type": "message_batch_deleted"}).to_string()))
    }

    /// `GET /v1/messages/batches/ID/results`
    pub(crate) async fn message_results(self: &Arc<Self>, principal: &Principal, id: &str) -> ObjectAnswer {
        let batch = self.batch_of(principal, BatchKind::OfMessages, id).await?;
        if !batch.state.status.is_over() {
            return Err(not_ended());
        }
        let memory = self.memory().reserve(&principal.key, READER_MEMORY);
        let memory = memory.map_err(|full| full.at(Stage::Deliver))?;
        let (sender, body) = delivery::channel(READER_BYTES, Arc::new(memory));
        let resources = Arc::clone(self);
        tokio::spawn(async move {
            let mut from = 0;
            loop {
                if sender.abort_reason().is_some() {
                    return;
                }
                if sender.is_full() {
                    sender.reader_moved().await;
                    continue;
                }
                let id = batch.id.clone();
                let Ok(results) =
                    resources.objects().ask_files(move |store| store.results(&id, from, READ_BYTES)).await
                else {
                    return sender.break_off();
                };
                let Some(last) = results.last() else { return sender.finish() };
                from = last.at + 1;
                for result in &results {
                    sender.push(&mut BytesMut::from(anthropic_line(result).as_str()), 0);
                }
            }
        });
        let body = AnswerBody::Stream(body);
        Ok(Answer { status: 200, content_type: "application/x-jsonl", headers: Vec::new(), body })
    }
}

fn shown(batch: &BatchRecord) -> Answer {
    Answer::json(200, to_json(batch).to_string())
}

/// A batch in Anthropic's JSON. `results_url` is a path, which clients append to their base URL.
fn to_json(batch: &BatchRecord) -> Value {
    let BatchRecord { id, state, counts, .. } = batch;
    let time = |time: Option<UnixNanos>| time.map(|time| Rfc3339(time).to_string());
    let is_over = state.status.is_over();
    let ended =
        state.times.completed.or(state.times.expired).or(state.times.cancelled).or(state.times.failed);
    let BatchCounts { total, completed, failed, cancelled, expired } = *counts;
    let processing = total.saturating_sub(completed + failed + cancelled + expired);
    json!({
        "id": id,
        "type": "message_batch",
        "processing_status": match state.status {
            BatchStatus::Cancelling => "canceling",
            _ if is_over => "ended",
            _ => "in_progress",
        },
        "request_counts": {
            "processing": processing,
            "succeeded": completed,
            "errored": failed,
            "canceled": cancelled,
            "expired": expired,
        },
        "created_at": time(Some(state.created)),
        "expires_at": time(Some(state.expires)),
        "ended_at": time(ended),
        "archived_at": null,
        "cancel_initiated_at": time(state.times.cancelling),
        "results_url": is_over.then(|| format!("/v1/messages/batches/{id}/results")),
    })
}

fn not_ended() -> Rejection {
    let message =
        "The batch has not ended: ask for it until its `processing_status` is `ended`, or cancel it.";
    Rejection::new(Code::BatchNotEnded, message)
}
