//! The stages of the path, and the time that a call spent in one of them.
//! Must not know clocks, or who draws them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A stage of the path. The names are the same in traces, metrics and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The connection and the request's head.
    Connect,
    /// Credential to principal.
    Authenticate,
    /// The body, as fast as the client sends it. In records of versions that read it before they asked who sends it, it
    /// is part of `connect`.
    Receive,
    /// Bytes to one meaning.
    Parse,
    /// May this key use this model and endpoint.
    Authorize,
    /// The name asked for to the model that serves.
    Route,
    /// The input against the rules.
    Moderate,
    /// Template and tokenizer.
    Render,
    /// The longest cached prefix, estimated.
    Cache,
    /// Limits and money, all or nothing.
    Hold,
    /// Which worker.
    Place,
    /// Waiting for the first words of somebody else's server, which does not tell its queue and its prefill apart.
    Upstream,
    /// Waiting in the scheduler.
    Queue,
    /// Computing the prompt.
    Prefill,
    /// Generating.
    Decode,
    /// Between tasks and threads: waiting to be woken, and what neither side accounts for.
    Handover,
    /// Waiting for a client that does not read.
    Reader,
    /// Tool calls out of the text.
    Postprocess,
    /// Bytes to the client.
    Deliver,
    /// Usage to money; counters given back.
    Settle,
}

impl Stage {
    /// Every stage, in the order of declaration, which is that of the path (`handover` and `reader` may come up twice).
    pub const ALL: [Self; 20] = [
        Self::Connect,
        Self::Authenticate,
        Self::Receive,
        Self::Parse,
        Self::Authorize,
        Self::Route,
        Self::Moderate,
        Self::Render,
        Self::Cache,
        Self::Hold,
        Self::Place,
        Self::Upstream,
        Self::Queue,
        Self::Prefill,
        Self::Decode,
        Self::Handover,
        Self::Reader,
        Self::Postprocess,
        Self::Deliver,
        Self::Settle,
    ];

    /// The span's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Authenticate => "authenticate",
            Self::Receive => "receive",
            Self::Parse => "parse",
            Self::Authorize => "authorize",
            Self::Route => "route",
            Self::Moderate => "moderate",
            Self::Render => "render",
            Self::Cache => "cache",
            Self::Hold => "hold",
            Self::Place => "place",
            Self::Upstream => "upstream",
            Self::Queue => "queue",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Handover => "handover",
            Self::Reader => "reader",
            Self::Postprocess => "postprocess",
            Self::Deliver => "deliver",
            Self::Settle => "settle",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One stage of one request. Those that are not `inside` another partition the request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSpan {
    /// Which.
    pub stage: Stage,
    /// Nanoseconds from the request's start.
    pub start_ns: u64,
    /// Nanoseconds it took.
    pub duration_ns: u64,
    /// The stage beside whose work this was done, and whose span it stands behind: the duration is a share of that span's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Stage>,
}
