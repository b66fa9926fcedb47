//! The stages of the request path, and the time that a call spent in one of them. Must not know clocks or how stages
//! are displayed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A stage of the request path. Traces, metrics and errors use the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The connection and the request's head.
    Connect,
    /// Resolves the credential to a principal.
    Authenticate,
    /// Receives the body, as fast as the client sends it. In records of versions that read the body before
    /// authentication, this time is part of `connect`.
    Receive,
    /// Parses the body into a dialect-free call.
    Parse,
    /// Checks that the key may use this model and endpoint.
    Authorize,
    /// Resolves the requested model name to the model that serves it.
    Route,
    /// Checks the input against the rules.
    Moderate,
    /// Applies the template and the tokenizer.
    Render,
    /// Estimates the longest cached prefix.
    Cache,
    /// Takes limits and money, all or nothing.
    Hold,
    /// Picks the worker.
    Place,
    /// Waiting for the first output of an upstream. Its queue and its prefill cannot be distinguished.
    Upstream,
    /// Waiting in the scheduler's queue.
    Queue,
    /// Computing the prompt.
    Prefill,
    /// Generating.
    Decode,
    /// Time between tasks and threads: waiting to be woken, and time that neither side accounts for.
    Handover,
    /// Waiting for a client that does not read.
    Reader,
    /// Extracts tool calls from the text.
    Postprocess,
    /// Sends bytes to the client.
    Deliver,
    /// Converts usage to money and gives unused limits back.
    Settle,
}

impl Stage {
    /// Every stage, in the order of declaration, which is the order of the path. `handover` and `reader` may occur
    /// twice.
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

    /// Returns the span's name.
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

/// The time of one stage in one request. Spans that are not `inside` another partition the request's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSpan {
    /// The stage.
    pub stage: Stage,
    /// Nanoseconds from the request's start.
    pub start_ns: u64,
    /// Length in nanoseconds.
    pub duration_ns: u64,
    /// Set if this work ran during another stage. The span then follows that stage's span, and its duration is a share
    /// of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Stage>,
}
