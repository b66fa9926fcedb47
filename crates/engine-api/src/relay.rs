//! The seam between the gateway and servers of others that take messages: a body in a dialect goes out, and the bytes of the
//! answer come back, event by event. It knows neither what they mean nor how they travel.

use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Dialect, Endpoint, RequestId};

use crate::{Health, LoadReport, Tenant};

/// A model at somebody's server that takes messages in a dialect and answers in it.
pub trait Relay: Send + Sync {
    /// What it is. Fixed while it runs.
    fn facts(&self) -> &RelayFacts;

    /// Sends a body. Returns at once; what comes back is read from the answer. Dropping the answer breaks it off.
    fn send(&self, ask: RelayAsk) -> Box<dyn RelayAnswer>;

    /// Asks how many tokens the prompt of a body of messages has, which is free there: nothing is generated. As [`Self::send`]
    /// otherwise. `None`: it does not tell.
    fn count(&self, ask: RelayAsk) -> Option<Box<dyn RelayAnswer>>;

    /// Whether the server may be handed addresses that it would fetch. A name is looked up for that, within a bound of time.
    ///
    /// # Errors
    /// The index of the first address that it may not be handed.
    fn screen(&self, urls: Vec<String>) -> Screening {
        Box::pin(ready(if urls.is_empty() { Ok(()) } else { Err(0) }))
    }

    /// How busy it is, as far as that is known.
    fn load(&self) -> LoadReport;

    /// Whether it takes calls.
    fn health(&self) -> Health;
}

/// The verdict on addresses, when it is known.
pub type Screening = Pin<Box<dyn Future<Output = Result<(), usize>> + Send>>;

/// A relay that several rooms share.
pub type SharedRelay = Arc<dyn Relay>;

/// What a relay is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayFacts {
    /// The upstream's name in our configuration: shown in headers and traces.
    pub upstream: Arc<str>,
    /// The dialect it speaks.
    pub dialect: Dialect,
    /// The model's name there.
    pub model: Arc<str>,
    /// In which field it wants to be told how many tokens an answer to a chat may have.
    pub max_tokens_field: &'static str,
    /// Prompt and answer together, in tokens; `None`: it has not said.
    pub context_window: Option<u32>,
    /// What becomes of an answer whose client goes away.
    pub abandoned: Abandoned,
    /// How it goes on with an answer that somebody else began.
    pub resumes: Resumes,
    /// How its cache of prefixes separates tenants.
    pub cache: PrefixCache,
    /// The extras that calls may ask for without a price of their own.
    pub allow_unpriced: Arc<[&'static str]>,
}

/// How a server's cache of prefixes separates the tenants who share our credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefixCache {
    /// By a label in this field of every body.
    Labelled(&'static str),
    /// By a label in this field of bodies that ask for text. Others have no such field.
    LabelledText(&'static str),
    /// Not at all. Callers do not see what was cached if there are several organisations.
    Hidden,
    /// Not at all, and callers see what was cached: an operator decided that.
    #[default]
    Disclosed,
}

impl PrefixCache {
    /// The field for the tenant's label in a body that is sent to `endpoint`.
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

/// How a server goes on with an answer in messages that somebody else began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resumes {
    /// Not at all: it answers anew.
    #[default]
    Never,
    /// With the last turn, where that is the assistant's.
    LastTurn,
    /// The same, if a flag of the request says so.
    LastTurnFlagged,
}

/// What becomes of an answer whose client goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Abandoned {
    /// It is broken off at once: most servers stop generating then.
    #[default]
    Abort,
    /// It is read to its end, so that its usage is known.
    Drain,
}

/// What is sent.
#[derive(Debug, Clone)]
pub struct RelayAsk {
    /// For which request: shown to the upstream, decides nothing.
    pub request: RequestId,
    /// Whom to charge in a fair queue.
    pub tenant: Tenant,
    /// The tenant's share relative to others, at least 1.
    pub weight: u32,
    /// Where to, in the relay's dialect.
    pub endpoint: Endpoint,
    /// The body, JSON in the relay's dialect, with the model's name there.
    pub body: Bytes,
    /// Whether the body asks for a stream.
    pub stream: bool,
    /// Headers by which the dialect changes what a body means, such as `anthropic-beta`. Never credentials.
    pub headers: Vec<(&'static str, String)>,
    /// By when the head of the answer must be here, from now on; the relay's own bound may be nearer.
    pub head_within: Option<Duration>,
    /// How much of the answer is taken.
    pub bounds: AnswerBounds,
}

/// How much of an answer is taken, and whose memory it fills.
#[derive(Debug, Clone)]
pub struct AnswerBounds {
    /// The most bytes of the body, comments and pings included. More of them end the answer with [`RelayError::TooLarge`].
    pub most_bytes: u64,
    /// The most bytes of one event; the relay's own bound may be lower.
    pub most_event_bytes: usize,
    /// Pays for what is kept of the answer. `None` if the asker accounts for it otherwise.
    pub memory: Option<Arc<dyn AnswerMemory>>,
}

impl AnswerBounds {
    /// Bytes of an answer that are kept without a reservation of their own: the estimate of the call has them.
    pub const FREE_BYTES: usize = 16 << 10;

    /// At most `most_bytes`, which the asker accounts for.
    pub const fn up_to(most_bytes: u64) -> Self {
        Self { most_bytes, most_event_bytes: usize::MAX, memory: None }
    }
}

/// Memory of a caller that an answer fills.
pub trait AnswerMemory: fmt::Debug + Send + Sync {
    /// Reserves memory for an answer of which `bytes` are kept at once, before they are kept. A lower figure than before changes
    /// nothing.
    ///
    /// # Errors
    /// The caller's share, or all memory for calls, is full: the answer ends with [`RelayError::NoMemory`].
    fn reserve(&self, bytes: u64) -> Result<(), AnswerMemoryFull>;
}

/// No memory is left for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerMemoryFull;

/// An answer under way.
pub trait RelayAnswer: Send {
    /// The next thing that came. The first is a [`RelayEvent::Head`] or a failure; after the last event of an answer, and after
    /// a failure, comes `None`.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RelayEvent>>;
}

impl dyn RelayAnswer {
    /// Waits for the next thing. The wait may be given up at any time.
    pub async fn next(&mut self) -> Option<RelayEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

/// What came.
#[derive(Debug, Clone, PartialEq)]
pub enum RelayEvent {
    /// The status line and headers of an answer that is none of the failures.
    Head(RelayHead),
    /// One event of a stream.
    Event(RelayedEvent),
    /// The body of a whole answer.
    Whole(Bytes),
    /// Terminal: there is no answer, or no more of it.
    Failed(RelayError),
}

/// What the head of an answer says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RelayHead {
    /// By which the upstream knows the request (`x-request-id`, `request-id`).
    pub request_id: Option<String>,
}

/// One event of a stream, as it came and as it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedEvent {
    /// Its bytes as they came, with the blank line that ends it; comments and a byte order mark before it left out.
    pub raw: Bytes,
    /// Its name; empty where it has none.
    pub name: Bytes,
    /// Its data in UTF-8; several lines joined with line feeds.
    pub data: Bytes,
}

/// Why there is no answer, or no more of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayError {
    /// No connection came about: nothing was sent.
    Connect {
        /// Why not: the name, the port, TLS.
        why: String,
    },
    /// No connection came about in time: nothing was sent.
    ConnectTimeout {
        /// How long was waited.
        after: Duration,
        /// What may lie in the way, and the way out. Empty, or text that continues the sentence.
        hint: String,
    },
    /// It took too long.
    Timeout {
        /// What.
        what: RelayWait,
        /// How long was waited.
        after: Duration,
    },
    /// It answered with an error.
    Status {
        /// The HTTP status, 400 to 599.
        status: u16,
        /// The body, cut at a bound.
        body: Bytes,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// It points elsewhere. Redirects are not followed: the key would go along.
    Redirect {
        /// The HTTP status, 300 to 399.
        status: u16,
        /// Where to, without what may be secret in it.
        to: String,
    },
    /// What came is not what the dialect has: a page of HTML, an empty body.
    NotTheDialect {
        /// What came, in words.
        what: String,
        /// Its first bytes as text, for operators.
        beginning: String,
    },
    /// More came than is taken.
    TooLarge {
        /// Of what: `headers`, `event`, `body`; `answer` where it is far more than was asked for.
        what: &'static str,
        /// The bound, in bytes.
        limit: usize,
    },
    /// The memory of its caller is full.
    NoMemory,
    /// The connection ended within an answer, or what came on it is no HTTP.
    Cut {
        /// How.
        why: String,
    },
    /// It takes no calls: drained by an operator, or its queue here is full.
    Unavailable {
        /// Why.
        why: String,
        /// When it may again.
        retry_after: Option<Duration>,
    },
}

/// What was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayWait {
    /// The head of the answer.
    Head,
    /// The next bytes of the answer.
    Idle,
    /// The next event of the answer: what came instead were comments.
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
