//! OpenAI's API for batches of files: create, look up, list and cancel. Foreign and missing ids answer alike. Runs no
//! batch.

use std::sync::Arc;

use headrace_call_api::BodySource;
use headrace_call_state::{Answer, Rejection, keep_memory};
use headrace_domain::{Code, UnixNanos};
use headrace_identity::Principal;
use headrace_objects::{
    BatchCounts, BatchFault, BatchKind, BatchRecord, BatchState, BatchStatus, BatchTimes, ItemPage,
    ItemRecord, PageAsk, fresh_id,
};
use headrace_wire::openai::{BatchBody, batch_body, batch_path};
use serde_json::{Map, Value, json};

use crate::object_query::{ListParameters, ObjectQuery};
use crate::reads::BATCH_ROW_BYTES;
use crate::requests::{ObjectAnswer, owned};
use crate::resources::StoredResources;
use crate::runner::CallRunner;

/// Name of the limit on unfinished batches.
const OPEN_RULE: &str = "max_open_batches_per_project";
/// The purpose of an uploaded file of requests.
const PURPOSE: &str = "batch";

/// Refuses a batch of a caller who signed in with a token: the batch would outlive the token.
///
/// # Errors
/// The caller has no key.
pub(crate) fn needs_key(principal: &Principal) -> Result<(), Rejection> {
    if principal.user.is_none() {
        return Ok(());
    }
    Err(Rejection::new(
        Code::EndpointNotEntitled,
        "A batch runs longer than a JWT is valid, so it needs an API key. Send the request with a key of the project.",
    ))
}

impl StoredResources {
    /// `POST /v1/batches`
    pub(crate) async fn create_batch<R: CallRunner>(
        self: &Arc<Self>,
        runner: &Arc<R>,
        principal: &Principal,
        body: impl BodySource,
    ) -> ObjectAnswer {
        needs_key(principal)?;
        let body = body.read().await.map_err(|refusal| Rejection::of_body(&refusal))?;
        let BatchBody { input, endpoint, window, within, metadata, kept_seconds } =
            batch_body(&body, &self.config().wire)?;
        let file = self
            .file_of(principal, &input)
            .await
            .map_err(|rejection| rejection.with_param("input_file_id"))?;
        if file.purpose != PURPOSE {
            let message = format!(
                "`input_file_id`: the file is for `{}`; upload it with purpose `batch`.",
                file.purpose
            );
            return Err(Rejection::new(Code::InvalidValue, message).with_param("input_file_id"));
        }
        let created = self.now();
        let batch = BatchRecord {
            id: fresh_id("batch", created),
            project: principal.project.clone(),
            counts: BatchCounts::default(),
            state: BatchState {
                key: principal.key.clone(),
                endpoint,
                created,
                expires: created.after(within),
                status: BatchStatus::Validating,
                times: BatchTimes::default(),
                input: Some(input),
                window,
                metadata,
                kept_seconds,
                faults: Vec::new(),
                output: None,
                errors: None,
            },
        };
        let _creation = self.batches().create(&batch.id);
        self.store_batch(&batch).await?;
        self.run_batch(runner, batch.clone());
        Ok(shown(&batch))
    }

    /// Stores a new batch.
    ///
    /// # Errors
    /// The project has too many unfinished batches.
    pub(crate) async fn store_batch(&self, batch: &BatchRecord) -> Result<(), Rejection> {
        let batch = batch.clone();
        let stored = self.objects().ask_files(move |store| store.create_batch(&batch)).await;
        stored.map_err(|rejection| match rejection.code {
            Code::ObjectsFull if rejection.limit.as_ref().is_some_and(|limit| limit.rule == OPEN_RULE) => {
                let mut full = Rejection::new(Code::BatchesFull, rejection.message.clone())
                    .retry_after(std::time::Duration::from_secs(60));
                full.limit.clone_from(&rejection.limit);
                full
            }
            _ => rejection,
        })
    }

    /// `GET /v1/batches`
    pub(crate) async fn list_batches(
        &self,
        principal: &Principal,
        query: &[(String, String)],
    ) -> ObjectAnswer {
        let ask = ObjectQuery::read_of(query, &ListParameters::BATCHES)?.page;
        let memory = self.reserve_page(principal, &ask, BATCH_ROW_BYTES)?;
        let (batches, has_more) = self.batches_of(principal, BatchKind::OfFiles, ask).await?;
        let item = |batch: BatchRecord| ItemRecord { json: to_json(&batch).to_string(), id: batch.id };
        let page = ItemPage { items: batches.into_iter().map(item).collect(), has_more };
        Ok(keep_memory(memory, Answer::json(200, page.json())))
    }

    pub(crate) async fn batches_of(
        &self,
        principal: &Principal,
        kind: BatchKind,
        ask: PageAsk,
    ) -> Result<(Vec<BatchRecord>, bool), Rejection> {
        let project = principal.project.clone();
        self.objects().ask_files(move |store| store.batches(&project, kind, &ask)).await
    }

    /// `GET /v1/batches/ID`
    pub(crate) async fn show_batch(&self, principal: &Principal, id: &str) -> ObjectAnswer {
        Ok(shown(&self.batch_of(principal, BatchKind::OfFiles, id).await?))
    }

    pub(crate) async fn batch_of(
        &self,
        principal: &Principal,
        kind: BatchKind,
        id: &str,
    ) -> Result<BatchRecord, Rejection> {
        let (project, id) = owned(principal, id);
        let found = self.objects().ask_files(move |store| store.batch(&project, &id)).await?;
        found.filter(|batch| BatchKind::of(batch.state.endpoint) == kind).ok_or_else(not_found)
    }

    /// `POST /v1/batches/ID/cancel`
    pub(crate) async fn cancel_batch(self: &Arc<Self>, principal: &Principal, id: &str) -> ObjectAnswer {
        Ok(shown(&self.cancelled(principal, BatchKind::OfFiles, id).await?))
    }

    /// Cancels a batch. A batch that is already being cancelled stays as it is.
    pub(crate) async fn cancelled(
        &self,
        principal: &Principal,
        kind: BatchKind,
        id: &str,
    ) -> Result<BatchRecord, Rejection> {
        self.batch_of(principal, kind, id).await?;
        let batch = self.end_batch_now(id).await?.ok_or_else(not_found)?;
        if batch.state.status.is_over() {
            let message = format!("The batch is {}: there is nothing to cancel.", word(batch.state.status));
            return Err(Rejection::new(Code::BatchEnded, message));
        }
        Ok(batch)
    }

    /// Cancels a batch of any project and returns its new state.
    pub(crate) async fn end_batch_now(&self, id: &str) -> Result<Option<BatchRecord>, Rejection> {
        let change = |state: &mut BatchState, now| {
            // A batch that is already writing its results is not cancelled.
            if matches!(state.status, BatchStatus::Validating | BatchStatus::InProgress) {
                state.status = BatchStatus::Cancelling;
                state.times.cancelling = Some(now);
            }
        };
        let batch = self.change_batch(id, change).await?;
        self.end_batch(id);
        Ok(batch)
    }
}

fn shown(batch: &BatchRecord) -> Answer {
    Answer::json(200, to_json(batch).to_string())
}

/// A batch in OpenAI's JSON.
fn to_json(batch: &BatchRecord) -> Value {
    let BatchRecord { id, state, counts, .. } = batch;
    let fault = |fault: &BatchFault| json!({"code": fault.code, "line": fault.line, "message": fault.message, "param": fault.param});
    let faults: Vec<Value> = state.faults.iter().map(fault).collect();
    let errors = (!faults.is_empty()).then(|| json!({"object": "list", "data": faults}));
    let metadata = state.metadata.as_deref().and_then(|labels| serde_json::from_str::<Value>(labels).ok());
    let mut body = json!({
        "id": id,
        "object": "batch",
        "endpoint": batch_path(state.endpoint),
        "errors": errors,
        "input_file_id": state.input,
        "completion_window": state.window,
        "status": word(state.status),
        "output_file_id": state.output,
        "error_file_id": state.errors,
        "created_at": state.created.seconds(),
        "expires_at": state.expires.seconds(),
        "request_counts": {"total": counts.total, "completed": counts.completed, "failed": counts.failed},
        "metadata": metadata,
    });
    if let Some(fields) = body.as_object_mut() {
        times(fields, &state.times);
    }
    body
}

fn times(fields: &mut Map<String, Value>, times: &BatchTimes) {
    let BatchTimes { in_progress, finalizing, completed, failed, expired, cancelling, cancelled } = times;
    for (name, time) in [
        ("in_progress_at", in_progress),
        ("finalizing_at", finalizing),
        ("completed_at", completed),
        ("failed_at", failed),
        ("expired_at", expired),
        ("cancelling_at", cancelling),
        ("cancelled_at", cancelled),
    ] {
        fields.insert(name.to_owned(), json!(time.map(UnixNanos::seconds)));
    }
}

const fn word(status: BatchStatus) -> &'static str {
    match status {
        BatchStatus::Validating => "validating",
        BatchStatus::Failed => "failed",
        BatchStatus::InProgress => "in_progress",
        BatchStatus::Finalizing => "finalizing",
        BatchStatus::Cancelling => "cancelling",
        BatchStatus::Completed => "completed",
        BatchStatus::Expired => "expired",
        BatchStatus::Cancelled => "cancelled",
    }
}

pub(crate) fn not_found() -> Rejection {
    Rejection::new(Code::BatchNotFound, "There is no such batch for your project.")
}
