//! Background responses: internal calls for clients that do not wait. They outlive their client and can be cancelled
//! by id. They are stored before they start and after they end, with any outcome.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use headrace_call_api::AnswerFrames;
use headrace_call_state::{Answer, AnswerBody, Rejection};
use headrace_domain::{Code, KeyId, RequestId, ResponseAsk, UnixNanos};
use headrace_identity::Principal;
use headrace_objects::{ItemRecord, ResponseRecord};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::resources::StoredResources;
use crate::response_records::{begun, ended};
use crate::running_response::{ReplaySplitter, RunningResponse};

/// The most background responses that run concurrently.
const MOST_RUNNING: usize = 1_024;
/// Slots reserved for organisations that run fewer than [`FEW`] responses.
const KEPT_FOR_FEW: usize = MOST_RUNNING / 4;
/// See [`KEPT_FOR_FEW`].
const FEW: usize = 32;
/// The most bytes of a response's events that are kept.
const MOST_EVENT_BYTES: usize = 8 << 20;
/// Bytes that a follower reserves besides the data that waits for it.
const FOLLOWER_MEMORY: u64 = 128 << 10;
/// A bound on the copies of a background response's record that exist at once: the record, a copy for the store, and
/// the store's own copies.
const RECORD_COPIES: u64 = 4;
/// Attempts to store a response that has ended.
const TRIES: u32 = 10;

/// A call that is to run in the background.
pub struct BackgroundCall<'a> {
    /// The call's id.
    pub id: RequestId,
    /// When it arrived.
    pub created: UnixNanos,
    /// The caller.
    pub principal: &'a Principal,
    /// What the client asks of the response.
    pub ask: &'a ResponseAsk,
    /// The response's body while it is queued.
    pub body: String,
    /// Whether the client wants its events.
    pub stream: bool,
}

/// The outcome of the work.
enum BackgroundOutcome {
    /// The last event of the stream.
    Last(Bytes),
    /// The call was refused: the body of the answer.
    Refused(Bytes),
    Cancelled,
    Broken,
}

/// A response that is stored as queued and has not started.
pub struct BackgroundResponse {
    record: ResponseRecord,
    running: Arc<RunningResponse>,
    key: KeyId,
    wants_stream: bool,
}

impl BackgroundResponse {
    /// The body with which [`Self::start`] answers. `None` if it answers with a stream.
    pub fn whole_answer(&self) -> Option<&str> {
        (!self.wants_stream).then_some(&self.record.body)
    }

    /// Starts the work in a task of its own and answers the client with the response's id.
    pub fn start(
        self,
        resources: &Arc<StoredResources>,
        work: impl Future<Output = Answer> + Send + 'static,
    ) -> Answer {
        let Self { record, running, key, wants_stream } = self;
        let body = record.body.clone();
        tokio::spawn(run(Arc::clone(resources), work, Arc::clone(&running), record));
        let stream = wants_stream.then(|| resources.follow(&key, &running, 0));
        // If there is no memory for a follower now, the client can follow the response later. It has started.
        stream.and_then(Result::ok).unwrap_or_else(|| Answer::json(200, body))
    }
}

impl StoredResources {
    /// Stores a response as queued.
    ///
    /// # Errors
    /// The response cannot be stored, or too many are running.
    pub async fn begin_background(&self, call: BackgroundCall<'_>) -> Result<BackgroundResponse, Rejection> {
        let BackgroundCall { id, created, principal, ask, body, stream } = call;
        let (project, org, key) = (principal.project.clone(), principal.org.clone(), principal.key.clone());
        let expires = self.objects().expires(created);
        let record = begun(id, project.clone(), (created, expires), ask, body);
        // The record is kept, and copied for the store, even after the call has given back its own memory.
        let memory = self.memory().reserve(&key, record.bytes().saturating_mul(RECORD_COPIES));
        let memory = memory.map_err(|full| full.at(headrace_domain::Stage::Render))?;
        let events = if stream { MOST_EVENT_BYTES } else { 0 };
        let running = Arc::new(RunningResponse::new((project, org.clone()), events, memory));
        {
            let mut all = self.objects().running.lock();
            let of_org = all.values().filter(|other| other.org == org).count();
            check_slot(all.len(), of_org)?;
            all.insert(record.id.clone(), Arc::clone(&running));
        }
        match self.objects().put(record.clone(), Vec::new()).await {
            Ok(()) => Ok(BackgroundResponse { record, running, key, wants_stream: stream }),
            Err(rejection) => {
                self.objects().running.lock().remove(&record.id);
                Err(rejection)
            }
        }
    }
}

/// Checks that another response may start while `all` run, `of_org` of them in its organisation. An organisation with
/// many responses leaves slots for others.
fn check_slot(all: usize, of_org: usize) -> Result<(), Rejection> {
    let most = if of_org < FEW { MOST_RUNNING } else { MOST_RUNNING - KEPT_FOR_FEW };
    if all < most {
        return Ok(());
    }
    let message = format!(
        "{all} responses run in the background, {of_org} of them your organisation's: one that has {FEW} or more takes no \
         further place of {most}. Wait for some of yours, cancel them, or send `background: false`."
    );
    Err(Rejection::new(Code::BackgroundFull, message).retry_after(std::time::Duration::from_secs(1)))
}

async fn run(
    resources: Arc<StoredResources>,
    work: impl Future<Output = Answer> + Send + 'static,
    running: Arc<RunningResponse>,
    mut record: ResponseRecord,
) {
    // A drain waits until the outcome is stored.
    let _counted = resources.parts().tasks.token();
    let work = async { read(work.await, &running).await };
    let came = tokio::select! {
        biased;
        // Dropping the answer has the same effect as a client that goes away: the call ends and is charged for its
        // work so far.
        () = running.cancel.cancelled() => BackgroundOutcome::Cancelled,
        came = AssertUnwindSafe(work).catch_unwind() => came.unwrap_or(BackgroundOutcome::Broken),
    };
    record.body = body_of(&record.body, came);
    record.events = running.events();
    let items = ended(&mut record);
    store(&resources, &record, &items).await;
    running.is_over();
    resources.objects().running.lock().remove(&record.id);
}

/// Reads an answer to its end.
async fn read(answer: Answer, running: &RunningResponse) -> BackgroundOutcome {
    let mut body = match answer.body {
        AnswerBody::Whole(bytes) => return BackgroundOutcome::Refused(bytes),
        AnswerBody::Stream(body) | AnswerBody::Long { body, .. } => body,
    };
    let (mut splitter, mut last) = (ReplaySplitter::default(), None);
    while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
        let Ok(frame) = frame else { return BackgroundOutcome::Broken };
        splitter.push(&frame, |event| {
            last = Some(event.clone());
            running.push(event);
        });
    }
    last.map_or(BackgroundOutcome::Broken, BackgroundOutcome::Last)
}

/// The response's body with its outcome.
fn body_of(begun: &str, came: BackgroundOutcome) -> String {
    let mut body: Value = serde_json::from_str(begun).unwrap_or_default();
    let (status, error) = match came {
        BackgroundOutcome::Last(event) => {
            /// The response in the last event, as raw JSON.
            #[derive(Deserialize)]
            struct FinalEvent<'a> {
                #[serde(borrow)]
                response: &'a RawValue,
            }
            #[derive(Deserialize)]
            struct StatusField {
                status: Option<String>,
            }
            let is_over = |response: &&RawValue| {
                serde_json::from_str::<StatusField>(response.get())
                    .is_ok_and(|told| told.status.as_deref() != Some("in_progress"))
            };
            let event = serde_json::from_slice::<FinalEvent<'_>>(&event).ok();
            match event.map(|event| event.response).filter(is_over) {
                Some(response) => return response.get().to_owned(),
                None => ("failed", json!({"code": "server_error", "message": "The answer broke off."})),
            }
        }
        BackgroundOutcome::Refused(bytes) => {
            let refusal: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let told = |field| refusal.pointer(field).cloned().unwrap_or_else(|| json!("server_error"));
            ("failed", json!({"code": told("/error/code"), "message": told("/error/message")}))
        }
        BackgroundOutcome::Cancelled => ("cancelled", Value::Null),
        BackgroundOutcome::Broken => {
            ("failed", json!({"code": "server_error", "message": "The answer broke off."}))
        }
    };
    body["status"] = json!(status);
    body["error"] = error;
    body.to_string()
}

/// Stores a response that has ended, with a limited number of attempts.
async fn store(resources: &StoredResources, record: &ResponseRecord, items: &[ItemRecord]) {
    for attempt in 0..TRIES {
        match resources.objects().put(record.clone(), items.to_vec()).await {
            Ok(()) => return,
            Err(rejection) if rejection.code == Code::ObjectsFull => break,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50 << attempt)).await,
        }
    }
    tracing::error!(id = record.id, "a response in the background ended and could not be stored");
}

impl StoredResources {
    /// A stream of a running response's events, starting at event number `from`.
    pub(crate) fn follow(
        &self,
        key: &KeyId,
        running: &Arc<RunningResponse>,
        from: usize,
    ) -> Result<Answer, Rejection> {
        let memory = self.memory().reserve(key, FOLLOWER_MEMORY);
        let memory = memory.map_err(|full| full.at(headrace_domain::Stage::Deliver))?;
        let kept_call = self.parts().keeper.join_stream(key.clone());
        let body = AnswerBody::Stream(running.follow(from, self.config().keep_alive, memory, kept_call));
        Ok(Answer { status: 200, content_type: "text/event-stream", headers: Vec::new(), body })
    }

    /// Removes some of the expired objects. Returns how many were removed.
    ///
    /// # Errors
    /// The reason why they cannot be removed.
    pub async fn sweep_objects(&self) -> Result<u64, String> {
        let now = self.now();
        let swept = self
            .objects()
            .ask(move |store| store.sweep(now))
            .await
            .map_err(|rejection| rejection.message.clone())?;
        if self.objects().files().is_none() {
            return Ok(swept);
        }
        let files = self.objects().ask_files(move |store| store.sweep_files(now)).await;
        files.map(|files| swept + files).map_err(|rejection| rejection.message.clone())
    }

    /// Marks all responses that an earlier process started as failed, because they no longer run. Returns how many
    /// there were.
    ///
    /// # Errors
    /// The reason why they cannot be read or written.
    pub async fn fail_unfinished(&self) -> Result<usize, String> {
        self.fail_unfinished_before(UnixNanos::new(u64::MAX)).await
    }

    /// As [`Self::fail_unfinished`], only for responses created before `before`. Lets a caller clean up while this
    /// process already runs newer responses.
    ///
    /// # Errors
    /// The same as [`Self::fail_unfinished`].
    pub async fn fail_unfinished_before(&self, before: UnixNanos) -> Result<usize, String> {
        let now = self.now();
        let told = self.objects().ask(move |store| {
            let mut count = 0;
            // One at a time, because each may be as large as any object.
            for (project, id) in store.unfinished(now)? {
                let Some(mut record) = store.response(&project, &id, now)? else { continue };
                if record.created >= before {
                    continue;
                }
                count += 1;
                record.body = body_of(&record.body, BackgroundOutcome::Broken);
                ended(&mut record);
                store.put_response(&record, &[])?;
            }
            Ok(count)
        });
        told.await.map_err(|rejection| rejection.message.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_organisation_leaves_places_to_others_in_the_background() {
        // Two organisations together take all the slots they can.
        let (mut orgs, mut all) = ([0, 0], 0);
        while let Some(org) = (0..2).find(|org| check_slot(all, orgs[*org]).is_ok()) {
            (orgs[org], all) = (orgs[org] + 1, all + 1);
        }
        assert!(all <= MOST_RUNNING - KEPT_FOR_FEW + FEW, "{all}");
        // Seven more organisations each take the slots reserved for few.
        for _ in 0..7 {
            let mut own = 0;
            while own < FEW {
                assert!(check_slot(all, own).is_ok(), "{all} {own}");
                (own, all) = (own + 1, all + 1);
            }
        }
        assert!(check_slot(all, 0).is_err() || all < MOST_RUNNING);
        assert!(check_slot(MOST_RUNNING, 0).is_err(), "the bound holds for all");
    }
}
