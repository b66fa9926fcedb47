//! The seam between the gateway and upstream servers that take messages. The gateway sends a body in a dialect and
//! reads the bytes of the answer, event by event. This module knows neither their meaning nor their transport.

use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Dialect, Endpoint, RequestId};

use crate::{EngineHealth, LoadReport, Tenant};

/// A model at an upstream server that takes messages in a dialect and answers in that dialect.
pub trait MessageRelay: Send + Sync {
    /// Facts about the upstream. They do not change while the server runs.
    fn facts(&self) -> &RelayFacts;

    /// Sends a body and returns at once. The response is read from the returned answer. Dropping the answer aborts the
    /// request.
    fn send(&self, ask: RelayAsk) -> Box<dyn RelayAnswer>;

    /// Asks the upstream to count the prompt tokens of a body of messages. Upstreams do not charge for this and
    /// generate nothing. Otherwise like [`Self::send`]. Returns `None` if the upstream has no such endpoint.
    fn count(&self, ask: RelayAsk) -> Option<Box<dyn RelayAnswer>>;

    /// Checks whether the upstream may be sent URLs that it would fetch. Host names are resolved for this, within a
    /// time limit.
    ///
    /// # Errors
    /// The index of the first URL that must not be sent.
    fn screen(&self, urls: Vec<String>) -> Screening {
        Box::pin(ready(if urls.is_empty() { Ok(()) } else { Err(0) }))
    }

    /// Current load, as far as it is known.
    fn load(&self) -> LoadReport;

    /// Whether the upstream takes calls.
    fn health(&self) -> EngineHealth;
}

/// A future that resolves to the verdict on the URLs of a call.
pub type Screening = Pin<Box<dyn Future<Output = Result<(), usize>> + Send>>;

/// A relay that several components share.
pub type SharedRelay = Arc<dyn MessageRelay>;

/// Facts about a relay's upstream, fixed while the server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayFacts {
    /// The upstream's name in the configuration. Shown in headers and traces.
    pub upstream: Arc<str>,
    /// The dialect that the upstream speaks.
    pub dialect: Dialect,
    /// The model's name at the upstream.
    pub model: Arc<str>,
    /// The name of the field that limits the output tokens of a chat call.
    pub max_tokens_field: &'static str,
    /// Maximum tokens of prompt and answer together. `None` if the upstream has not published it.
    pub context_window: Option<u32>,
    /// What happens to an answer whose client disconnects.
    pub abandoned: AbandonPolicy,
    /// How the upstream resumes an answer that another upstream began.
    pub resumes: MessageResume,
    /// How the upstream's prefix cache separates tenants.
    pub cache: PrefixCache,
    /// The extras that calls may use although no price is set for them.
    pub allow_unpriced: Arc<[&'static str]>,
}

/// How a server's prefix cache separates the tenants who share one upstream credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefixCache {
    /// By a label in this field of every body.
    Labelled(&'static str),
    /// By a label in this field of bodies that ask for text. Other bodies have no such field.
    LabelledText(&'static str),
    /// Not at all. If there are several organisations, callers do not see cached-token counts.
    Hidden,
    /// Not at all, and callers see cached-token counts, because an operator decided so.
    #[default]
    Disclosed,
}

impl PrefixCache {
    /// Returns the field for the tenant's label in a body that is sent to `endpoint`.
    pub const fn label_field(self, endpoint: Endpoint) -> Option<&'static str> {
        let encodes = matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score);
        match self {
            Self::Labelled(field) => Some(field),
            Self::LabelledText(field) if !encodes => Some(field),
            Self::LabelledText(_) => None,
            Self::Hidden | Self::Disclosed => None,
        }
    }
}

/// How a server resumes an answer in messages that another server began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MessageResume {
    /// Not at all. The server starts a new answer.
    #[default]
    Never,
    /// It continues the last turn if that is the assistant's.
    LastTurn,
    /// It continues the last turn if that is the assistant's and a flag of the request asks for it.
    LastTurnFlagged,
}

/// What happens to an answer whose client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AbandonPolicy {
    /// The connection is closed at once. Most servers stop generating then.
    #[default]
    Abort,
    /// The answer is read to its end, so that its usage is known.
    Drain,
}

/// One request to an upstream.
#[derive(Debug, Clone)]
pub struct RelayAsk {
    /// The request's id. Shown to the upstream, without any other effect.
    pub request: RequestId,
    /// The tenant that a fair queue charges.
    pub tenant: Tenant,
    /// The tenant's share relative to others, at least 1.
    pub weight: u32,
    /// The endpoint to call, in the relay's dialect.
    pub endpoint: Endpoint,
    /// The body: JSON in the relay's dialect, with the model's name at the upstream.
    pub body: Bytes,
    /// Whether the body asks for a stream.
    pub stream: bool,
    /// Headers by which the dialect changes the meaning of a body, such as `anthropic-beta`. Never credentials.
    pub headers: Vec<(&'static str, String)>,
    /// Time limit for the head of the answer, from now on. The relay's own limit applies if it is shorter.
    pub head_within: Option<Duration>,
    /// Limits on the size of the answer.
    pub bounds: AnswerBounds,
}

/// Limits on the size of an answer, and the memory account that it fills.
#[derive(Debug, Clone)]
pub struct AnswerBounds {
    /// Maximum bytes of the body, comments and pings included. A larger body ends the answer with
    /// [`RelayError::TooLarge`].
    pub most_bytes: u64,
    /// Maximum bytes of one event. The relay's own limit may be lower.
    pub most_event_bytes: usize,
    /// The memory account for the buffered answer. `None` if the sender accounts for it otherwise.
    pub memory: Option<Arc<dyn AnswerMemory>>,
}

impl AnswerBounds {
    /// Bytes of an answer that may be buffered without a reservation: the call's memory estimate includes them.
    pub const FREE_BYTES: usize = 16 << 10;

    /// Limits an answer to `most_bytes`, for which the sender accounts itself.
    pub const fn up_to(most_bytes: u64) -> Self {
        Self { most_bytes, most_event_bytes: usize::MAX, memory: None }
    }
}

/// A caller's memory account, from which an answer reserves.
pub trait AnswerMemory: fmt::Debug + Send + Sync {
    /// Reserves memory before `bytes` of an answer are buffered at the same time. A lower figure than before changes
    /// nothing.
    ///
    /// # Errors
    /// Fails if the caller's share or the memory for all calls is full. The answer then ends with
    /// [`RelayError::NoMemory`].
    fn reserve(&self, bytes: u64) -> Result<(), AnswerMemoryFull>;
}

/// No memory is left for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerMemoryFull;

/// An answer in progress.
pub trait RelayAnswer: Send {
    /// Returns the next event. The first is a [`RelayEvent::Head`] or a failure. `None` follows the last event and
    /// every failure.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RelayEvent>>;
}

impl dyn RelayAnswer {
    /// Waits for the next event. Cancel-safe: the future may be dropped at any time.
    pub async fn next(&mut self) -> Option<RelayEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

/// One event of an upstream's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum RelayEvent {
    /// The status line and headers of an answer that is not a failure.
    Head(RelayHead),
    /// One event of a stream.
    Event(RelayedEvent),
    /// The body of an answer that is not a stream.
    Whole(Bytes),
    /// Terminal: the answer failed, or broke off.
    Failed(RelayError),
}

/// Fields from the head of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RelayHead {
    /// The upstream's own id of the request (`x-request-id`, `request-id`).
    pub request_id: Option<String>,
}

/// One event of a stream, both raw and parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedEvent {
    /// The event's bytes as received, with the blank line that ends it. Comments and a byte order mark before it are
    /// left out.
    pub raw: Bytes,
    /// The event's name. Empty if it has none.
    pub name: Bytes,
    /// The event's data in UTF-8. Several lines are joined with line feeds.
    pub data: Bytes,
}

/// Why an answer failed or broke off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayError {
    /// No connection could be made. Nothing was sent.
    Connect {
        /// The cause: the name, the port or TLS.
        why: String,
    },
    /// No connection came about in time: nothing was sent.
    ConnectTimeout {
        /// How long was waited.
        after: Duration,
        /// What may lie in the way, and the way out. Empty, or text that continues the sentence.
        hint: String,
    },
    /// A wait exceeded its time limit.
    Timeout {
        /// What the relay waited for.
        what: RelayWait,
        /// How long it waited.
        after: Duration,
    },
    /// The upstream answered with an error status.
    Status {
        /// The HTTP status, 400 to 599.
        status: u16,
        /// The body, cut at a limit.
        body: Bytes,
        /// When the upstream accepts a retry, if it names a time.
        retry_after: Option<Duration>,
    },
    /// The upstream redirects. Redirects are not followed, because the key would be sent along.
    Redirect {
        /// The HTTP status, 300 to 399.
        status: u16,
        /// The target, without parts that may be secret.
        to: String,
    },
    /// The answer is not in the dialect, for example an HTML page or an empty body.
    NotTheDialect {
        /// A description of what was received.
        what: String,
        /// Its first bytes as text, for operators.
        beginning: String,
    },
    /// The answer exceeds a size limit.
    TooLarge {
        /// The part that is too large: `headers`, `event` or `body`; `answer` if it far exceeds what the call asked
        /// for.
        what: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// The caller's memory account is full.
    NoMemory,
    /// The connection ended within an answer, or carried bytes that are not HTTP.
    Cut {
        /// How it ended.
        why: String,
    },
    /// The relay takes no calls: an operator drained it, or its local queue is full.
    Unavailable {
        /// The reason.
        why: String,
        /// When the relay may accept calls again.
        retry_after: Option<Duration>,
    },
}

/// What a relay waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayWait {
    /// The head of the answer.
    Head,
    /// The next bytes of the answer.
    Idle,
    /// The next event of the answer. Only comments arrived.
    Event,
    /// The end of the answer.
    Whole,
}

impl fmt::Display for RelayWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "the head of its answer",
            Self::Idle => "the next bytes of its answer",
            Self::Event => "the next event of its answer",
            Self::Whole => "the end of its answer",
        })
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { why } => write!(f, "no connection: {why}"),
            Self::ConnectTimeout { after, hint } => {
                write!(f, "no connection within {} s{hint}", after.as_secs_f64())
            }
            Self::Timeout { what, after } => {
                write!(f, "{what} did not come within {} s", after.as_secs_f64())
            }
            Self::Status { status, .. } => write!(f, "it answered with status {status}"),
            Self::Redirect { status, to } => {
                write!(f, "it answered with status {status} and points to {to}; redirects are not followed")
            }
            Self::NotTheDialect { what, .. } => write!(f, "its answer is not of its dialect: {what}"),
            Self::TooLarge { what: "answer", limit } => {
                write!(f, "its answer has more than {limit} bytes, four times what was asked for")
            }
            Self::TooLarge { what, limit } => write!(f, "its answer's {what} has more than {limit} bytes"),
            Self::NoMemory => {
                f.write_str("the memory of the caller's calls is full; the answer was not read further")
            }
            Self::Cut { why } => write!(f, "its answer broke off: {why}"),
            Self::Unavailable { why, .. } => write!(f, "it takes no calls: {why}"),
        }
    }
}

impl std::error::Error for RelayError {}
