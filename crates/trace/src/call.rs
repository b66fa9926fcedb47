//! A finished call as a row of a list. Must not know where records are kept or who asks for them.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{
    CallLabels, CallOutcome, ClientAddress, ContentVerdict, EndUser, Endpoint, KeyId, NanoDollars, OrgId,
    ProjectId, RequestId, Stage, StageSpan, TraceRecord, UnixNanos,
};
use serde_json::{Value, json};

use crate::output_verdicts::verdict_json;
use crate::units::{bare_dollars, micros};

/// Maximum bytes of a refusal's or failure's message that is kept for search.
const MAX_SAID_BYTES: usize = 1024;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallEndKind {
    /// Answered to the end.
    Completed,
    /// Refused before any work.
    Refused,
    /// The client disconnected or stopped reading.
    Cancelled,
    /// This server or an upstream failed.
    Failed,
}

impl CallEndKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Refused, Self::Cancelled, Self::Failed];

    /// The kind's name in queries and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind of an outcome.
    pub const fn of(outcome: &CallOutcome) -> Self {
        match outcome {
            CallOutcome::Completed { .. } => Self::Completed,
            CallOutcome::Refused(_) => Self::Refused,
            CallOutcome::Cancelled { .. } => Self::Cancelled,
            CallOutcome::Failed { .. } => Self::Failed,
        }
    }
}

/// One row of a list of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// The call's request id.
    pub id: RequestId,
    /// When the request's first byte arrived.
    pub started: UnixNanos,
    /// Nanoseconds from the first byte to settlement.
    pub duration_ns: u64,
    /// Nanoseconds of `duration_ns` that the server took, without waiting for the client.
    pub server_ns: u64,
    /// Nanoseconds from the complete request to its first token.
    pub first_token_ns: Option<u64>,
    /// The organisation that pays. `None` if the caller is unknown.
    pub org: Option<OrgId>,
    /// The caller's project. `None` if the caller is unknown.
    pub project: Option<ProjectId>,
    /// The public id of the caller's key. `None` if the caller is unknown.
    pub key: Option<KeyId>,
    /// The end user that the caller named.
    pub user: Option<EndUser>,
    /// The address of the client, as far as it is recorded.
    pub client: Option<ClientAddress>,
    /// The labels that the caller gave to the call.
    pub labels: Option<Box<CallLabels>>,
    /// The endpoint that was called.
    pub endpoint: Option<Endpoint>,
    /// Whether the answer was streamed.
    pub stream: bool,
    /// The model that the client asked for.
    pub asked: Option<String>,
    /// The model that served the call.
    pub served: Option<String>,
    /// The upstream that answered. `None` if a local engine answered, or if the call got no answer.
    pub upstream: Option<String>,
    /// The worker of the last attempt.
    pub worker: Option<String>,
    /// How the call ended.
    pub ended: CallEndKind,
    /// The stage that refused or failed the call. For other calls, the stage that took the most time.
    pub stage: Option<Stage>,
    /// HTTP status of a refusal or failure.
    pub status: Option<u16>,
    /// Error code of a refusal or failure.
    pub code: Option<String>,
    /// Rule of a refusal.
    pub rule: Option<String>,
    /// Message of a refusal, a failure or a cancellation.
    pub message: Option<String>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub completion_tokens: u64,
    /// The amount charged to the caller.
    pub charged: NanoDollars,
    /// The amount that upstreams charge for the call, if it is known.
    pub paid: Option<NanoDollars>,
    /// The gateway's call that a worker job was run for. `None` for a call.
    pub job_of: Option<RequestId>,
    /// The content rules that matched the request and the answer.
    pub verdicts: Vec<ContentVerdict>,
}

impl CallRow {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.as_ref()?.get(name)
    }

    /// Builds the row of a record.
    pub fn of(record: &TraceRecord) -> Self {
        let (mut status, mut code, mut rule, mut message) = (None, None, None, None);
        let mut stage = dearest_stage(&record.stages);
        match &record.outcome {
            CallOutcome::Completed { .. } => {}
            CallOutcome::Cancelled { why } => message = Some(cut(why)),
            CallOutcome::Failed { stage: at, message: said } => {
                stage = Some(*at);
                message = Some(cut(said));
                if let Some(failure) = record.failure() {
                    (status, code) = (Some(failure.status), Some(failure.code));
                }
            }
            CallOutcome::Refused(refusal) => {
                stage = Some(refusal.stage);
                status = Some(refusal.status);
                (code, rule) = (Some(refusal.code.clone()), Some(refusal.rule.clone()));
                message = Some(cut(&refusal.message));
            }
        }
        Self {
            id: record.request_id,
            started: record.started,
            duration_ns: record.duration_ns,
            server_ns: record.server_ns(),
            first_token_ns: record.time_to_first_token_ns(),
            org: record.org.clone(),
            project: record.project.clone(),
            key: record.key.clone(),
            user: record.user.clone(),
            client: record.client,
            labels: record.labels.clone(),
            endpoint: record.endpoint,
            stream: record.stream,
            asked: record.model_asked.clone(),
            served: record.model_served.clone(),
            upstream: record.upstream.as_deref().map(str::to_owned),
            worker: record.attempts.last().map(|attempt| attempt.worker.to_string()),
            ended: CallEndKind::of(&record.outcome),
            stage,
            status,
            code,
            rule,
            message,
            prompt_tokens: record.usage.prompt_tokens(),
            cached_tokens: record.usage.cached_input,
            completion_tokens: record.usage.completion_tokens(),
            charged: record.cost,
            paid: record.paid,
            job_of: record.worker_job.as_ref().map(|job| job.call),
            verdicts: record.content_verdicts(),
        }
    }

    /// The model that served the call, or else the model that the client asked for.
    pub fn model(&self) -> Option<&str> {
        self.served.as_deref().or(self.asked.as_deref())
    }

    /// The code, rule and message of a refusal, failure or cancellation, joined in this order. `None` if there are
    /// none.
    pub fn said(&self) -> Option<String> {
        let parts = [&self.code, &self.rule, &self.message];
        let said: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        (!said.is_empty()).then(|| said.join(" "))
    }

    /// The row as JSON, with the field names of the whole record: durations in microseconds, money in dollars and
    /// nano-dollars.
    pub fn json(&self) -> Value {
        let mut outcome = json!({ "kind": self.ended.name() });
        if let Some(message) = &self.message {
            outcome["message"] = message.as_str().into();
        }
        if let (Some(status), Some(code), Some(rule)) = (self.status, &self.code, &self.rule) {
            outcome["status"] = status.into();
            outcome["code"] = code.as_str().into();
            outcome["rule"] = rule.as_str().into();
        }
        if matches!(self.ended, CallEndKind::Refused | CallEndKind::Failed) {
            outcome["stage"] = self.stage.map(Stage::name).into();
        }
        let mut cost = json!({
            "charged_nano_dollars": self.charged.get(),
            "charged_dollars": bare_dollars(self.charged),
        });
        if let Some(paid) = self.paid {
            cost["paid_nano_dollars"] = paid.get().into();
            cost["paid_dollars"] = bare_dollars(paid).into();
        }
        let mut row = json!({
            "id": self.id.to_string(),
            "started": Rfc3339(self.started).to_string(),
            "started_unix_us": self.started.get() / 1_000,
            "duration_us": micros(self.duration_ns),
            "server_us": micros(self.server_ns),
            "time_to_first_token_us": self.first_token_ns.map(micros),
            "org": self.org.as_ref().map(|id| id.as_str()),
            "project": self.project.as_ref().map(|id| id.as_str()),
            "key": self.key.as_ref().map(|id| id.as_str()),
            "user": self.user,
            "endpoint": self.endpoint.map(Endpoint::name),
            "stream": self.stream,
            "model": { "asked": self.asked, "served": self.served },
            "upstream": self.upstream,
            "worker": self.worker,
            "stage": self.stage.map(Stage::name),
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_input_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
            },
            "cost": cost,
            "outcome": outcome,
        });
        if !self.verdicts.is_empty() {
            row["verdicts"] = self.verdicts.iter().map(verdict_json).collect();
        }
        if let Some(call) = self.job_of {
            row["worker_job"] = json!({ "call": call.to_string() });
        }
        row
    }
}

/// The stage that took the most time. Spans inside another stage count towards that stage.
fn dearest_stage(spans: &[StageSpan]) -> Option<Stage> {
    let mut times = [0_u64; Stage::ALL.len()];
    for span in spans.iter().filter(|span| span.inside.is_none()) {
        if let Some(time) = times.get_mut(span.stage as usize) {
            *time = time.saturating_add(span.duration_ns);
        }
    }
    let dearest = Stage::ALL.into_iter().zip(times).filter(|(_, time)| *time > 0);
    dearest.max_by_key(|(_, time)| *time).map(|(stage, _)| stage)
}

fn cut(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_SAID_BYTES)).unwrap_or(text).to_owned()
}
