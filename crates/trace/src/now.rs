//! A snapshot of the server as JSON for dashboards, put together from what other modules counted. Counts nothing
//! itself.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{KeyId, ModelName, OrgId, ProjectId, RequestId, Stage, UnixNanos};
use serde_json::{Map, Value, json};

use crate::call::CallEndKind;
use crate::live::LiveNote;
use crate::units::{bare_dollars, micros};
use crate::window::{MINUTE, MinuteStats, Percentiles};

/// Maximum number of calls in flight that are listed.
pub const MAX_CALLS_NAMED: usize = 100;

/// A snapshot of the server.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveView {
    /// The time of the snapshot.
    pub at: UnixNanos,
    /// Number of calls that have arrived and are not settled yet.
    pub in_flight: u64,
    /// The calls in flight whose stage is known, oldest first.
    pub calls: Vec<CallNow>,
    /// The figures of the minute before.
    pub minute: MinuteStats,
    /// The engines of this process.
    pub engines: Vec<EngineNow>,
    /// Notes about noteworthy calls and events.
    pub notes: Vec<LiveNote>,
}

/// A call in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallNow {
    /// The call's request id.
    pub id: RequestId,
    /// The stage that the call is in.
    pub stage: Stage,
    /// Nanoseconds since the call's first byte.
    pub age_ns: u64,
    /// The organisation that pays, once it is known.
    pub org: Option<OrgId>,
    /// The project of the caller's key, once it is known.
    pub project: Option<ProjectId>,
    /// The public id of the caller's key, once it is known.
    pub key: Option<KeyId>,
    /// The key's name, if the directory knows it.
    pub key_name: Option<String>,
    /// The model that serves the call, once it is known.
    pub model: Option<ModelName>,
    /// Number of tokens generated so far.
    pub completion_tokens: u64,
}

/// A snapshot of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineNow {
    /// The model that the engine serves.
    pub model: String,
    /// Sequences being computed.
    pub running: u32,
    /// Sequences that are paused until their readers catch up.
    pub paused: u32,
    /// Waiting sequences.
    pub waiting: u32,
    /// Waiting prompt tokens.
    pub waiting_tokens: u64,
    /// Total number of KV blocks.
    pub blocks: u32,
    /// Blocks held by sequences.
    pub used_blocks: u32,
    /// Blocks with a cached prefix that no sequence holds.
    pub cached_blocks: u32,
    /// Recent throughput in tokens per second.
    pub tokens_per_second: u32,
    /// Why the engine accepts no calls. `None` if it does.
    pub down: Option<String>,
}

impl LiveView {
    /// The snapshot as JSON, with times in microseconds. Tokens, batch, cache hits and money are those of the calls
    /// that ended in the minute before.
    pub fn json(&self) -> Value {
        let minute = &self.minute;
        let per_second = |tokens: u64| tokens as f64 / MINUTE as f64;
        let engines = || self.engines.iter();
        let sum = |of: fn(&EngineNow) -> u32| engines().map(|engine| u64::from(of(engine))).sum::<u64>();
        json!({
            "at": Rfc3339(self.at).to_string(),
            "in_flight": { "total": self.in_flight, "by_stage": self.by_stage() },
            "tokens_per_s": {
                "prompt": per_second(minute.prompt_tokens),
                "completion": per_second(minute.completion_tokens),
            },
            "ttft_us": percentiles(&minute.first_token),
            "queue_us": percentiles(&minute.queue),
            "queue_depth": sum(|engine| engine.waiting),
            "batch": {
                "now": sum(|engine| engine.running),
                "mean": minute.batch_mean,
                "max": minute.batch_max,
            },
            "kv": { "used_blocks": sum(|engine| engine.used_blocks), "blocks": sum(|engine| engine.blocks) },
            "cache": { "hit_tokens": minute.cached_tokens, "prompt_tokens": minute.prompt_tokens },
            "per_minute": {
                "calls": minute.calls(),
                "completed": minute.ended(CallEndKind::Completed),
                "refused": minute.ended(CallEndKind::Refused),
                "failed": minute.ended(CallEndKind::Failed),
                "cancelled": minute.ended(CallEndKind::Cancelled),
                "spend_dollars": bare_dollars(minute.charged),
                "spend_nano_dollars": minute.charged.get().to_string(),
            },
            "engines": engines().map(EngineNow::json).collect::<Vec<_>>(),
            "calls": self.calls.iter().take(MAX_CALLS_NAMED).map(CallNow::json).collect::<Vec<_>>(),
            "notes": self.notes.iter().map(LiveNote::json).collect::<Vec<_>>(),
        })
    }

    /// Number of calls per stage, in the order of the path.
    fn by_stage(&self) -> Map<String, Value> {
        let count = |stage: Stage| self.calls.iter().filter(|call| call.stage == stage).count();
        let counted = Stage::ALL.into_iter().map(|stage| (stage.name().to_owned(), count(stage)));
        counted.filter(|(_, count)| *count > 0).map(|(name, count)| (name, count.into())).collect()
    }
}

impl CallNow {
    fn json(&self) -> Value {
        json!({
            "id": self.id.to_string(),
            "stage": self.stage.name(),
            "age_us": micros(self.age_ns),
            "org": self.org.as_ref().map(OrgId::as_str),
            "project": self.project.as_ref().map(ProjectId::as_str),
            "key": self.key.as_ref().map(KeyId::as_str),
            "key_name": self.key_name,
            "model": self.model.as_ref().map(ModelName::as_str),
            "completion_tokens": self.completion_tokens,
        })
    }
}

impl EngineNow {
    fn json(&self) -> Value {
        json!({
            "model": self.model,
            "running": self.running,
            "paused": self.paused,
            "waiting": self.waiting,
            "waiting_tokens": self.waiting_tokens,
            "blocks": self.blocks,
            "used_blocks": self.used_blocks,
            "cached_blocks": self.cached_blocks,
            "tokens_per_s": self.tokens_per_second,
            "down": self.down,
        })
    }
}

/// Percentiles as JSON, with `null` if there were no calls.
fn percentiles(of: &Percentiles) -> Value {
    let known = |nanos| (of.calls > 0).then(|| micros(nanos));
    json!({ "p50": known(of.p50_ns), "p95": known(of.p95_ns), "calls": of.calls })
}
