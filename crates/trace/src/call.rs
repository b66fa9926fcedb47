//! A finished call as a list shows it: one row's worth of its record. Must not know where records are kept or who asks.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{
    EndUser, Endpoint, KeyId, NanoDollars, OrgId, Outcome, ProjectId, RequestId, Stage, StageSpan,
    TraceRecord, UnixNanos,
};
use serde_json::{Value, json};

use crate::units::{bare_dollars, micros};

/// Longest text of a refusal or failure that is kept for a search, in bytes.
const MAX_SAID_BYTES: usize = 1024;

/// How a call ended, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ended {
    /// Answered to the end.
    Completed,
    /// Turned away before any work.
    Refused,
    /// The client went away or stopped reading.
    Cancelled,
    /// We or an upstream failed.
    Failed,
}

impl Ended {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Refused, Self::Cancelled, Self::Failed];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind of an outcome.
    pub const fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Completed { .. } => Self::Completed,
            Outcome::Refused(_) => Self::Refused,
            Outcome::Cancelled { .. } => Self::Cancelled,
            Outcome::Failed { .. } => Self::Failed,
        }
    }
}

/// One row of a list of calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// Which call.
    pub id: RequestId,
    /// When its first byte arrived.
    pub started: UnixNanos,
    /// Nanoseconds from there to settled.
    pub duration_ns: u64,
    /// Of those, the nanoseconds that the server took.
    pub server_ns: u64,
    /// Nanoseconds from when the request was whole to its first token.
    pub first_token_ns: Option<u64>,
    /// Who pays; `None`: nobody who is known.
    pub org: Option<OrgId>,
    /// As `org`.
    pub project: Option<ProjectId>,
    /// As `org`; the public id.
    pub key: Option<KeyId>,
    /// Whom its caller says that it is for.
    pub user: Option<EndUser>,
    /// What was called.
    pub endpoint: Option<Endpoint>,
    /// Whether the answer streamed.
    pub stream: bool,
    /// The model asked for.
    pub asked: Option<String>,
    /// The model that served it.
    pub served: Option<String>,
    /// Whose server answered; `None`: an engine of ours, or nobody.
    pub upstream: Option<String>,
    /// Who was asked last to answer it.
    pub worker: Option<String>,
    /// How it ended.
    pub ended: Ended,
    /// Where it was refused or failed; else where most of its time went.
    pub stage: Option<Stage>,
    /// HTTP status of a refusal.
    pub status: Option<u16>,
    /// Code of a refusal.
    pub code: Option<String>,
    /// Rule of a refusal.
    pub rule: Option<String>,
    /// What was said of a refusal, a failure or a cancellation.
    pub message: Option<String>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of those, tokens from the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub completion_tokens: u64,
    /// What was charged.
    pub charged: NanoDollars,
    /// What others charge us for it, where that is known.
    pub paid: Option<NanoDollars>,
    /// The gateway's call that a worker job was run for. `None` for a call.
    pub job_of: Option<RequestId>,
}

impl CallRow {
    /// Of a record.
    pub fn of(record: &TraceRecord) -> Self {
        let (mut status, mut code, mut rule, mut message) = (None, None, None, None);
        let mut stage = dearest_stage(&record.stages);
        match &record.outcome {
            Outcome::Completed { .. } => {}
            Outcome::Cancelled { why } => message = Some(cut(why)),
            Outcome::Failed { stage: at, message: said } => {
                stage = Some(*at);
                message = Some(cut(said));
                if let Some(failure) = record.failure() {
                    (status, code) = (Some(failure.status), Some(failure.code));
                }
            }
            Outcome::Refused(refusal) => {
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
            endpoint: record.endpoint,
            stream: record.stream,
            asked: record.model_asked.clone(),
            served: record.model_served.clone(),
            upstream: record.upstream.as_deref().map(str::to_owned),
            worker: record.attempts.last().map(|attempt| attempt.worker.to_string()),
            ended: Ended::of(&record.outcome),
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
        }
    }

    /// The model that served it, or else the one that was asked for.
    pub fn model(&self) -> Option<&str> {
        self.served.as_deref().or(self.asked.as_deref())
    }

    /// Everything that was said of why it was refused, failed or cancelled: code, rule and message, in this order.
    pub fn said(&self) -> Option<String> {
        let parts = [&self.code, &self.rule, &self.message];
        let said: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
        (!said.is_empty()).then(|| said.join(" "))
    }

    /// As JSON, in the names of the whole record's: durations in microseconds, money in dollars and in nano-dollars.
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
        if matches!(self.ended, Ended::Refused | Ended::Failed) {
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
        if let Some(call) = self.job_of {
            row["worker_job"] = json!({ "call": call.to_string() });
        }
        row
    }
}

/// Where most of a call's time went, what ran inside a stage counted with it.
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
