//! How operators see the servers that calls are sent on to, and the names that lead to their models. Must not know who asks.

use headrace_domain::{ModelName, Region};
use serde::{Deserialize, Serialize};

/// What is to be done with a server that calls are sent on to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum UpstreamAct {
    /// It takes no new calls; those under way go on.
    Drain {
        /// Its name.
        upstream: String,
    },
    /// It takes calls again.
    Resume {
        /// Its name.
        upstream: String,
    },
    /// It is asked now what it serves.
    Probe {
        /// Its name.
        upstream: String,
    },
}

impl UpstreamAct {
    /// As the audit log names it.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Drain { .. } => "upstream.drain",
            Self::Resume { .. } => "upstream.resume",
            Self::Probe { .. } => "upstream.probe",
        }
    }

    /// With which server.
    pub fn upstream(&self) -> &str {
        match self {
            Self::Drain { upstream } | Self::Resume { upstream } | Self::Probe { upstream } => upstream,
        }
    }
}

/// A name that leads to several models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// The name.
    pub name: ModelName,
    /// What stays with a model: `none`, `key`, `user`, `conversation`.
    pub sticky: String,
    /// Where it leads.
    pub to: Vec<RouteArmView>,
}

/// A model that a name leads to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteArmView {
    /// The model.
    pub model: ModelName,
    /// Its share by the configuration, relative to the sum of all.
    pub weight: u32,
    /// What is seen of it, where it is on trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryFigures>,
}

/// What is seen of a model on trial in its window, and of the models beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryFigures {
    /// Calls.
    pub calls: [u64; 2],
    /// Of these, those that failed.
    pub errors: [u64; 2],
    /// Of these, those whose content was refused.
    pub refusals: [u64; 2],
    /// The 95th percentile of times to the first token, in microseconds.
    pub first_token_p95_us: [Option<u32>; 2],
    /// When it was taken out, in seconds since 1970; `None`: it gets calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back_unix_s: Option<u64>,
    /// The evidence for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A server that calls are sent on to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamView {
    /// Its name in the configuration.
    pub name: String,
    /// What it is: `openai`, `vllm`.
    pub kind: String,
    /// In what terms it is asked: `tokens`, `messages`, or both.
    #[serde(default)]
    pub lane: String,
    /// Host and port.
    pub at: String,
    /// Where it is; `None`: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Region>,
    /// Whether it takes calls, in words.
    pub state: String,
    /// What it said when it was last asked what it serves.
    pub said: String,
    /// Calls under way.
    pub in_flight: u64,
    /// Calls that wait for a place.
    pub waiting: u64,
    /// Calls so far.
    pub calls: u64,
    /// Of those, the ones that came to nothing by its fault.
    pub failed: u64,
    /// Of those, the ones that it turned away for their number.
    pub rate_limited: u64,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Seconds since then.
    pub last_error_age_s: Option<u64>,
    /// Seconds since it last answered anything.
    pub last_contact_age_s: Option<u64>,
    /// Why it is not known how busy it is; `None`: it told, or is not asked.
    pub load_fault: Option<String>,
    /// Why it is not known, or not all of it, what it has in its cache; `None`: it tells, or is not to tell.
    pub cache_fault: Option<String>,
    /// Its models, as far as they are served here.
    pub models: Vec<UpstreamModelView>,
}

/// A model at a server that calls are sent on to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamModelView {
    /// Which of ours it answers for.
    pub model: ModelName,
    /// By which traces know it.
    pub worker: String,
    /// Whether it gets calls, and if not, why not.
    pub standing: String,
    /// `closed`, `open` or `half-open`.
    pub breaker: String,
    /// How often it was opened.
    pub trips: u64,
    /// Calls under way.
    pub in_flight: u32,
    /// Failed calls in a thousand, of the last minute; `None`: there were none.
    pub failed_permille_last_minute: Option<u32>,
    /// The same, of the last five minutes.
    pub failed_permille_last_5_minutes: Option<u32>,
    /// How long the first thing of an answer took lately, in milliseconds.
    pub first_ms: Option<u64>,
    /// Blocks that it is taken to have in its cache.
    pub cached_blocks: u64,
    /// How busy it said it is; `None`: it does not say.
    pub load: Option<LoadView>,
}

/// How busy a model at a server is, as that said last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadView {
    /// Calls being computed, also those of others.
    pub running: u32,
    /// Calls waiting.
    pub waiting: u32,
    /// Part of its KV memory in use, in thousandths, where it says so.
    pub cache_used_permille: Option<u16>,
    /// Seconds since it said so.
    pub age_s: u64,
}
