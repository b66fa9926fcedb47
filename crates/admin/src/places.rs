//! Views of upstreams and routes for operators. Must not know who requests them.

use headrace_domain::{ModelName, Region};
use serde::{Deserialize, Serialize};

/// An operator's act on an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum UpstreamAct {
    /// Stop sending new calls to the upstream. Running calls continue.
    Drain {
        /// The upstream's name.
        upstream: String,
    },
    /// Send calls to the upstream again.
    Resume {
        /// The upstream's name.
        upstream: String,
    },
    /// Ask the upstream now which models it serves.
    Probe {
        /// The upstream's name.
        upstream: String,
    },
}

impl UpstreamAct {
    /// The name of the act in the audit log.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Drain { .. } => "upstream.drain",
            Self::Resume { .. } => "upstream.resume",
            Self::Probe { .. } => "upstream.probe",
        }
    }

    /// The upstream's name.
    pub fn upstream(&self) -> &str {
        match self {
            Self::Drain { upstream } | Self::Resume { upstream } | Self::Probe { upstream } => upstream,
        }
    }
}

/// A route: a name that leads to several models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// The route's name.
    pub name: ModelName,
    /// What binds a call to the model of an earlier call: `none`, `key`, `user` or `conversation`.
    pub sticky: String,
    /// The models of the route.
    pub to: Vec<RouteArmView>,
}

/// A model of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteArmView {
    /// The model.
    pub model: ModelName,
    /// The configured weight, relative to the sum of all weights.
    pub weight: u32,
    /// The canary figures. `None` if the model is no canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryFigures>,
}

/// Figures of a canary in its window. Each pair is the canary's figure and that of the other models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryFigures {
    /// Calls in the window.
    pub calls: [u64; 2],
    /// Calls that failed.
    pub errors: [u64; 2],
    /// Calls whose content was refused.
    pub refusals: [u64; 2],
    /// The 95th percentile of the time to the first token, in microseconds.
    pub first_token_p95_us: [Option<u32>; 2],
    /// When the canary was rolled back, in Unix seconds. `None` if it gets calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back_unix_s: Option<u64>,
    /// The evidence for the rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// An upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamView {
    /// The name in the configuration.
    pub name: String,
    /// The kind of server, such as `openai` or `vllm`.
    pub kind: String,
    /// The kind of backend: `tokens`, `messages`, or both.
    #[serde(default)]
    pub lane: String,
    /// Host and port.
    pub at: String,
    /// The region. `None` if none is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Region>,
    /// Whether it takes calls, as text.
    pub state: String,
    /// The models that it listed when it was last asked, or why it did not.
    pub said: String,
    /// Calls in progress.
    pub in_flight: u64,
    /// Calls that wait for a slot.
    pub waiting: u64,
    /// Calls since the start.
    pub calls: u64,
    /// Calls that failed by the upstream's fault, without those in `rate_limited`.
    pub failed: u64,
    /// Calls that the upstream refused because there were too many.
    pub rate_limited: u64,
    /// The last error.
    pub last_error: Option<String>,
    /// Seconds since the last error.
    pub last_error_age_s: Option<u64>,
    /// Seconds since the upstream last answered.
    pub last_contact_age_s: Option<u64>,
    /// Why its load is unknown. `None` if it reports its load, or is not asked.
    pub load_fault: Option<String>,
    /// Why its cache contents are unknown, wholly or in part. `None` if it reports them, or is not expected to.
    pub cache_fault: Option<String>,
    /// Its models that are served here.
    pub models: Vec<UpstreamModelView>,
}

/// A model at an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamModelView {
    /// The name of the served model.
    pub model: ModelName,
    /// The worker's id in traces.
    pub worker: String,
    /// Whether it gets calls, and if not, why not, as text.
    pub standing: String,
    /// The state of the breaker: `closed`, `open` or `half-open`.
    pub breaker: String,
    /// How often the breaker opened.
    pub trips: u64,
    /// Calls in progress.
    pub in_flight: u32,
    /// Failed calls per thousand in the last minute. `None` if there were no calls.
    pub failed_permille_last_minute: Option<u32>,
    /// Failed calls per thousand in the last five minutes. `None` if there were no calls.
    pub failed_permille_last_5_minutes: Option<u32>,
    /// The recent time to the first event of an answer, in milliseconds.
    pub first_ms: Option<u64>,
    /// Blocks that are assumed to be in its cache.
    pub cached_blocks: u64,
    /// The load that it reported. `None` if it does not report any.
    pub load: Option<LoadView>,
}

/// The load of a model at an upstream, as the upstream last reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadView {
    /// Running calls, including those of other clients.
    pub running: u32,
    /// Waiting calls.
    pub waiting: u32,
    /// The used part of its KV cache, in thousandths. `None` if it is not reported.
    pub cache_used_permille: Option<u16>,
    /// The age of the report, in seconds.
    pub age_s: u64,
}
