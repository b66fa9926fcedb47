//! An answer and its body in pieces: the producer's side, the transport's side, and the reasons why either stops.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

/// An answer. Its head is plain data, and so is a whole body.
#[derive(Debug, Clone)]
pub struct CallAnswer<S> {
    /// HTTP status.
    pub status: u16,
    /// `content-type`
    pub content_type: &'static str,
    /// Further headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: AnswerBody<S>,
}

/// The body of an answer.
#[derive(Debug, Clone)]
pub enum AnswerBody<S> {
    /// The whole body.
    Whole(Bytes),
    /// Pieces, each sent when it is produced.
    Stream(S),
    /// A complete body of known length, in pieces no larger than a transport needs at once.
    Long {
        /// The pieces.
        body: S,
        /// Length of all pieces together, in bytes.
        bytes: u64,
    },
}

impl<S> CallAnswer<S> {
    /// A JSON answer with a whole body.
    pub fn json(status: u16, body: impl Into<Bytes>) -> Self {
        let body = AnswerBody::Whole(body.into());
        Self { status, content_type: "application/json", headers: Vec::new(), body }
    }

    /// Converts the body's stream with `other`. A whole body stays unchanged.
    pub fn map<T>(self, other: impl FnOnce(S) -> T) -> CallAnswer<T> {
        let Self { status, content_type, headers, body } = self;
        let body = match body {
            AnswerBody::Whole(bytes) => AnswerBody::Whole(bytes),
            AnswerBody::Stream(body) => AnswerBody::Stream(other(body)),
            AnswerBody::Long { body, bytes } => AnswerBody::Long { body: other(body), bytes },
        };
        CallAnswer { status, content_type, headers, body }
    }

    /// Adds headers.
    #[must_use]
    pub fn with_headers(mut self, headers: impl Iterator<Item = (&'static str, String)>) -> Self {
        self.headers.extend(headers);
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// The pieces of an answer. Dropping it early means that the client went away.
pub trait AnswerFrames: Send + Unpin + 'static {
    /// Returns the next piece, `None` at the end, or an error if the answer stops before its end. The producer of the
    /// pieces bounds and times them, even while the network is full and the transport does not poll.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenBody>>>;

    /// Passes the destination of the pieces, before the first piece is requested. The producer uses it to time out a
    /// peer that reads nothing.
    fn set_outlet(&mut self, outlet: Arc<dyn TransportOutlet>);

    /// States why the transport stops early, before it drops the body. Not called if the client went away. The first
    /// reason counts.
    fn abort(&mut self, reason: AbortReason);
}

impl AnswerFrames for Box<dyn AnswerFrames> {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenBody>>> {
        self.as_mut().poll_frame(cx)
    }

    fn set_outlet(&mut self, outlet: Arc<dyn TransportOutlet>) {
        self.as_mut().set_outlet(outlet);
    }

    fn abort(&mut self, reason: AbortReason) {
        self.as_mut().abort(reason);
    }
}

/// The destination of a transport's bytes. Reader timeouts use it, because bytes that a transport accepted may still
/// wait inside the transport.
pub trait TransportOutlet: Send + Sync {
    /// Returns for how long the peer has accepted none of its waiting bytes. Zero if no bytes wait.
    fn blocked_for(&self) -> Duration;
}

/// Why a transport drops a body before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortReason {
    /// The client closed the connection or reset the stream.
    ClientGone,
    /// The client took nothing for longer than the transport waits.
    ReaderStalled,
    /// The server shuts down.
    ShuttingDown,
}

/// The body stops before its end. The bytes already sent must not look complete: reset the stream or close the
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokenBody;

impl fmt::Display for BrokenBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer was broken off before its end")
    }
}

impl std::error::Error for BrokenBody {}
