//! Refusals by the edge itself, in the caller's dialect and with a trace like all other refusals. They are written here,
//! because a server under attack must refuse without a round trip to the call service. The shape of an error is the
//! only part of a dialect that the edge knows.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_api::CallAnswer;
use headrace_domain::{
    CallOutcome, Clock, Code, Dialect, Endpoint, RequestId, Timeline, TraceRecord, TraceSink, TracedRefusal,
    UnixNanos,
};
use headrace_wire::{ErrorFacts, error_body};

/// When to try again if other calls must finish first.
const SHORT_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of characters of a path that a message repeats.
const MOST_SHOWN: usize = 80;

/// A request that the edge refuses before the gateway's stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EdgeRefusal {
    /// The path does not exist.
    NotFound {
        /// The requested path.
        path: String,
        /// The path that the client most likely meant.
        meant: Option<String>,
    },
    /// The path exists, but not with this method.
    MethodNotAllowed {
        /// The methods that exist.
        allowed: &'static str,
    },
    /// The head is too large.
    HeadTooLarge {
        /// The limit in bytes.
        limit_bytes: usize,
        /// Maximum number of headers over HTTP/1.1.
        most_headers: usize,
    },
    /// The bytes received are not the head of an HTTP request.
    BadHead {
        /// What is wrong. The text repeats nothing of the head.
        what: String,
    },
    /// The headers were not complete in time.
    HeaderTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The head does not state unambiguously where the request ends.
    AmbiguousLength,
    /// The head names no host, or more than one.
    BadHost {
        /// Number of hosts named.
        hosts: usize,
    },
    /// The limit on connections is reached.
    TooManyConnections {
        /// The limit.
        limit: usize,
        /// Whether it is the limit for one peer.
        of_peer: bool,
    },
    /// The limit on WebSockets is reached.
    TooManySockets {
        /// The limit.
        limit: usize,
        /// Whether it is the limit for the caller's key.
        of_key: bool,
    },
}

impl EdgeRefusal {
    const fn code(&self) -> Code {
        match self {
            Self::NotFound { .. } => Code::NotFound,
            Self::MethodNotAllowed { .. } => Code::MethodNotAllowed,
            Self::HeadTooLarge { .. } => Code::HeadTooLarge,
            Self::BadHead { .. } => Code::BadHead,
            Self::HeaderTimeout { .. } => Code::HeaderTimeout,
            Self::AmbiguousLength => Code::AmbiguousLength,
            Self::BadHost { .. } => Code::BadHost,
            Self::TooManyConnections { .. } | Self::TooManySockets { .. } => Code::TooManyConnections,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::NotFound { path, meant } => {
                let path = shown(path);
                match meant {
                    Some(meant) => format!(
                        "There is no `{path}` here, but `{}`. Set the client's base URL to this server's address: with `/v1` \
                         behind it for OpenAI's clients, without for Anthropic's, and no slash at its end.",
                        shown(meant)
                    ),
                    None => format!("There is no `{path}` here. See the README for the paths."),
                }
            }
            Self::MethodNotAllowed { allowed } => format!("This path takes {allowed}."),
            Self::HeadTooLarge { limit_bytes, most_headers } => format!(
                "A request's line and headers may have {limit_bytes} bytes (`server.max_header`), over HTTP/1.1 in no \
                 more than {most_headers} headers. Send fewer or shorter ones."
            ),
            Self::BadHead { what } => format!(
                "This is not the head of an HTTP/1.1 request: {what}. Look at what the client sends: TLS to a plain \
                 port, another protocol, or a header that is none."
            ),
            Self::HeaderTimeout { seconds } => {
                format!("The headers were not whole within {seconds} s. Send the request again.")
            }
            Self::AmbiguousLength => {
                "The head does not say in one way where its request ends. Send one `content-length`, or \
                 `transfer-encoding: chunked` alone, and nothing behind a request to `upgrade`."
                    .to_owned()
            }
            Self::BadHost { hosts } => format!("The head names {hosts} hosts. Send one `host` header."),
            Self::TooManyConnections { limit, of_peer: true } => format!(
                "Your address has {limit} connections with calls in flight, as many as one may have. Share connections, \
                 or try again shortly."
            ),
            Self::TooManyConnections { limit, of_peer: false } => format!(
                "The server has {limit} connections with calls in flight, as many as it takes. Try again shortly."
            ),
            Self::TooManySockets { limit, of_key: true } => format!(
                "This key has {limit} WebSockets, as many as one key may have now. Close some of them, or send turns as \
                 `POST /v1/responses`."
            ),
            Self::TooManySockets { limit, of_key: false } => format!(
                "The server has {limit} WebSockets, as many as it takes. Send turns as `POST /v1/responses`, or try again \
                 shortly."
            ),
        }
    }

    /// Returns the message for the trace, if [`Self::message`] repeats words of the caller.
    const fn traced_message(&self) -> Option<&'static str> {
        if let Self::NotFound { .. } = self { Some("There is no such path here.") } else { None }
    }

    const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::TooManyConnections { .. } | Self::TooManySockets { .. } => Some(SHORT_WAIT),
            _ => None,
        }
    }
}

/// The time at which a request's headers were complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadTime {
    pub(crate) wall: UnixNanos,
    pub(crate) mono_ns: u64,
}

impl HeadTime {
    /// Returns the present time.
    pub(crate) fn now(clock: &dyn Clock) -> Self {
        Self { wall: clock.now(), mono_ns: clock.monotonic_nanos() }
    }
}

/// Writes refusals, and records their traces.
pub(crate) struct RefusalWriter {
    clock: Arc<dyn Clock>,
    traces: Arc<dyn TraceSink>,
}

impl RefusalWriter {
    pub(crate) const fn new(clock: Arc<dyn Clock>, traces: Arc<dyn TraceSink>) -> Self {
        Self { clock, traces }
    }

    /// Returns the answer to a refused request. `endpoint` is set if the request was recognized as a call.
    pub(crate) fn answer<S>(
        &self,
        refusal: &EdgeRefusal,
        dialect: Dialect,
        endpoint: Option<Endpoint>,
        started: HeadTime,
    ) -> CallAnswer<S> {
        let (id, code, message) = (RequestId::fresh(started.wall), refusal.code(), refusal.message());
        let traced = TracedRefusal {
            stage: code.stage(),
            rule: code.name().to_owned(),
            status: code.status(),
            code: code.name().to_owned(),
            message: refusal.traced_message().map_or_else(|| message.clone(), str::to_owned),
        };
        let mut record = Box::new(TraceRecord::new(id, started.wall, CallOutcome::Refused(traced)));
        let mut timeline = Timeline::new();
        timeline.mark(code.stage(), self.clock.monotonic_nanos().saturating_sub(started.mono_ns));
        record.endpoint = endpoint;
        record.duration_ns = timeline.end_ns();
        record.stages = timeline.into_spans();
        self.traces.record(record);

        let retry_after_s = refusal.retry_after().map(|wait| wait.as_secs());
        let facts = ErrorFacts { retry_after_s, ..ErrorFacts::new(code, message, id) };
        let mut answer = CallAnswer::json(code.status(), error_body(dialect, &facts))
            .with_header("x-request-id", id.to_string());
        if dialect == Dialect::Anthropic {
            answer = answer.with_header("request-id", id.to_string());
        }
        if let Some(seconds) = retry_after_s {
            answer = answer.with_header("retry-after", seconds.to_string());
        }
        if let EdgeRefusal::MethodNotAllowed { allowed } = refusal {
            answer = answer.with_header("allow", *allowed);
        }
        answer
    }
}

/// Returns text of the caller in a form that a message may repeat: short, and without control characters.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_SHOWN).collect()
}
