//! What the edge hands in and what it gets back. Plain data; knows no HTTP library.

use std::fmt;

use bytes::Bytes;
use headrace_domain::{Endpoint, KeyId, UnixNanos};

use crate::{BodyRefusal, Delivery};

/// A request whose head has arrived. Its body is asked for once it is known who sends it.
#[derive(Debug)]
pub struct Arrival<B> {
    /// What was called.
    pub endpoint: Endpoint,
    /// What the caller shows of itself.
    pub credentials: Credentials,
    /// The `traceparent` header, if it was text.
    pub traceparent: Option<String>,
    /// Where the body comes from.
    pub body: B,
    /// Wall time of its first byte.
    pub started: UnixNanos,
    /// The same moment on the clock's monotonic time, in nanoseconds.
    pub started_mono_ns: u64,
}

/// A body that may still be on its way.
pub trait BodySource: Send {
    /// All of it. Until the call is answered, its bytes count against the share of `payer` in the memory for requests.
    fn read(self, payer: &KeyId) -> impl Future<Output = Result<Bytes, BodyRefusal>> + Send;
}

/// A body that is here already.
impl BodySource for Bytes {
    async fn read(self, _payer: &KeyId) -> Result<Bytes, BodyRefusal> {
        Ok(self)
    }
}

/// Raw credential headers. Never shown by `Debug`.
#[derive(Clone, Default)]
pub struct Credentials {
    /// `Authorization`
    pub authorization: Option<Vec<u8>>,
    /// `x-api-key`
    pub x_api_key: Option<Vec<u8>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// What goes back.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `content-type`
    pub content_type: &'static str,
    /// Further headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: AnswerBody,
}

/// The body of an answer.
#[derive(Debug)]
pub enum AnswerBody {
    /// All of it.
    Whole(Bytes),
    /// Piece by piece, as it is made. Dropping it says that the client went away.
    Stream(Delivery),
    /// All of it, in pieces no larger than a transport needs at once.
    Long {
        /// The pieces.
        body: Delivery,
        /// All of them together, in bytes.
        bytes: u64,
    },
}

impl Answer {
    pub(crate) fn json(status: u16, body: Vec<u8>) -> Self {
        Self {
            status,
            content_type: "application/json",
            headers: Vec::new(),
            body: AnswerBody::Whole(body.into()),
        }
    }

    pub(crate) fn with_headers(mut self, headers: impl Iterator<Item = (&'static str, String)>) -> Self {
        self.headers.extend(headers);
        self
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}
