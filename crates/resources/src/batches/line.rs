//! One request of a batch, from its first attempt to its end. A request that failed for a passing reason is retried.
//! A request that an earlier process paid for is not run again. Must not know what the request asks or what the
//! answer says.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{AnswerFrames, CallerInfo};
use headrace_call_state::{Answer, AnswerBody, Rejection, unauthenticated};
use headrace_identity::Principal;
use headrace_objects::{LineEnd, LineRecord};
use serde_json::json;

use crate::batch_line::{BatchLine, PaidHold};
use crate::runner::CallRunner;

use super::BatchJob;

/// Attempts of a request that fails on the server's side without a `retry-after`.
const TRIES: u32 = 4;
/// The shortest and the longest wait before a retry.
const LEAST_WAIT: Duration = Duration::from_millis(250);
const MOST_WAIT: Duration = Duration::from_secs(60);

/// How an attempt ended.
enum LineOutcome {
    /// It succeeded, and the answer is written down.
    Well,
    /// An earlier attempt was paid for.
    PaidBefore,
    /// It was refused for good.
    Refused { status: u16, request: String, body: String },
    /// It came too early or failed on the server's side, so a retry may help.
    Later { wait: Option<Duration>, status: u16, request: String, body: String },
}

impl<R: CallRunner> BatchJob<'_, R> {
    /// Runs a request to its end, or until the batch starts no more requests. In that case the request stays
    /// unfinished.
    pub(super) async fn run_line(self, line: LineRecord) -> Result<(), Rejection> {
        let Self { resources, batch, .. } = self;
        let body = Bytes::from(line.body.into_bytes());
        let mut tries = 0;
        loop {
            if self.stops().is_some() {
                return Ok(());
            }
            tries += 1;
            let parts = resources.parts();
            let look = || parts.directory.principal(&batch.state.key, parts.clock.now());
            let org = match look() {
                Ok(principal) => principal.org.clone(),
                Err(refusal) => {
                    let rejection = unauthenticated(&refusal);
                    let json = json!({"error": {"message": rejection.message, "type": "authentication_error", "code": rejection.code.name()}});
                    return self.ends_with(line.at, rejection.status, String::new(), json.to_string()).await;
                }
            };
            let paid = PaidHold::default();
            let of = BatchLine::new(&batch.id, line.at, &line.custom_id, &body, Arc::clone(&paid));
            let place = tokio::select! {
                place = resources.objects().batches().slots.take(&org) => place,
                () = self.ends.cancelled() => continue,
                () = resources.parts().draining.cancelled() => continue,
            };
            // The wait for a slot may have been long.
            let Ok(principal) = look() else { continue };
            let came = self.call(principal, body.clone(), of, &paid).await;
            // Only writing and waiting follow. The slot is for requests that run.
            drop(place);
            match came {
                LineOutcome::Well => return self.ended(line.at).await,
                // A request whose answer was written down was ended before any request was started, so this one has
                // no answer.
                LineOutcome::PaidBefore => {
                    let message =
                        "The request was cut off after some of its answer was paid for; it is not run again.";
                    let json =
                        json!({"error": {"message": message, "type": "server_error", "code": "cut_off"}});
                    return self.ends_with(line.at, 500, String::new(), json.to_string()).await;
                }
                LineOutcome::Refused { status, request, body } => {
                    return self.ends_with(line.at, status, request, body).await;
                }
                LineOutcome::Later { wait: None, status, request, body } if tries >= TRIES => {
                    return self.ends_with(line.at, status, request, body).await;
                }
                LineOutcome::Later { wait, .. } => {
                    let grown = LEAST_WAIT * 2_u32.saturating_pow(tries.min(10));
                    let wait = wait.unwrap_or_default().max(grown).min(MOST_WAIT);
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.ends.cancelled() => {}
                        () = resources.parts().draining.cancelled() => {}
                    }
                }
            }
        }
    }

    /// Marks a request as ended with the answer that was written down.
    pub(super) async fn ended(self, at: u64) -> Result<(), Rejection> {
        let id = self.batch.id.clone();
        let ending = move |store: &dyn headrace_objects::BatchStore| {
            store.end_line(&id, at, LineEnd::Completed, 200, None)
        };
        self.resources.objects().ask_files(ending).await
    }

    async fn ends_with(self, at: u64, status: u16, request: String, body: String) -> Result<(), Rejection> {
        let id = self.batch.id.clone();
        let ending = move |store: &dyn headrace_objects::BatchStore| {
            store.end_line(&id, at, LineEnd::Failed, status, Some((&request, &body)))
        };
        self.resources.objects().ask_files(ending).await
    }

    /// Runs a request through all stages as an internal call.
    async fn call(
        self,
        principal: Arc<Principal>,
        body: Bytes,
        of: BatchLine,
        paid: &PaidHold,
    ) -> LineOutcome {
        let clock = &self.resources.parts().clock;
        let caller = CallerInfo::in_process(clock.now(), clock.monotonic_nanos());
        let endpoint = self.batch.state.endpoint;
        let answer = match self.runner.enter(principal, endpoint, caller, Some(of)).await {
            Ok(entered) => self.runner.run(entered, body).await,
            Err(refusal) => refusal,
        };
        if paid.get().is_some() {
            return LineOutcome::PaidBefore;
        }
        came(answer).await
    }
}

async fn came(answer: Answer) -> LineOutcome {
    let Answer { status, headers, body, .. } = answer;
    let header = |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
    let request = header("x-request-id").unwrap_or_default();
    let wait = header("retry-after").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let body = match body {
        AnswerBody::Whole(bytes) => bytes.to_vec(),
        AnswerBody::Stream(mut body) | AnswerBody::Long { mut body, .. } => {
            // A successful answer is written down already. Here it is only read to its end.
            let mut bytes = Vec::new();
            while let Some(Ok(frame)) = poll_fn(|cx| body.poll_frame(cx)).await {
                if status != 200 {
                    bytes.extend_from_slice(&frame);
                }
            }
            bytes
        }
    };
    let body = String::from_utf8_lossy(&body).into_owned();
    match status {
        200 => LineOutcome::Well,
        402 | 409 | 429 if wait.is_some() => LineOutcome::Later { wait, status, request, body },
        408 | 500.. => LineOutcome::Later { wait, status, request, body },
        _ => LineOutcome::Refused { status, request, body },
    }
}
