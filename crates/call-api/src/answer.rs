//! What goes back to a caller, and its body in pieces: who makes them, who takes them, and why either stops.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

/// An answer.
#[derive(Debug)]
pub struct Answer<S> {
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
#[derive(Debug)]
pub enum AnswerBody<S> {
    /// All of it.
    Whole(Bytes),
    /// Piece by piece, as it is made.
    Stream(S),
    /// All of it, in pieces no larger than a transport needs at once.
    Long {
        /// The pieces.
        body: S,
        /// All of them together, in bytes.
        bytes: u64,
    },
}

impl<S> Answer<S> {
    /// A whole one in JSON.
    pub fn json(status: u16, body: impl Into<Bytes>) -> Self {
        let body = AnswerBody::Whole(body.into());
        Self { status, content_type: "application/json", headers: Vec::new(), body }
    }

    /// The same, with its pieces as `other` has them.
    pub fn map<T>(self, other: impl FnOnce(S) -> T) -> Answer<T> {
        let Self { status, content_type, headers, body } = self;
        let body = match body {
            AnswerBody::Whole(bytes) => AnswerBody::Whole(bytes),
            AnswerBody::Stream(body) => AnswerBody::Stream(other(body)),
            AnswerBody::Long { body, bytes } => AnswerBody::Long { body: other(body), bytes },
        };
        Answer { status, content_type, headers, body }
    }

    /// With these headers, too.
    #[must_use]
    pub fn with_headers(mut self, headers: impl Iterator<Item = (&'static str, String)>) -> Self {
        self.headers.extend(headers);
        self
    }

    /// With this header, too.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// The pieces of an answer. Dropping it early says that the client went away.
pub trait Frames: Send + Unpin + 'static {
    /// The next piece; `None` at the end, an error where the answer stops before its end. Bounded and timed out by
    /// whoever makes the pieces, also while the network is full and nobody polls.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>>;

    /// Says, before the first piece is asked for, where they go, for whoever times out a peer that takes none.
    fn leads_to(&mut self, outlet: Arc<dyn Outlet>);

    /// Says, before it is dropped, why no more is taken, where it is not the client that went away. The first reason
    /// stands.
    fn give_up(&mut self, why: GiveUp);
}

impl Frames for Box<dyn Frames> {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        self.as_mut().poll_frame(cx)
    }

    fn leads_to(&mut self, outlet: Arc<dyn Outlet>) {
        self.as_mut().leads_to(outlet);
    }

    fn give_up(&mut self, why: GiveUp) {
        self.as_mut().give_up(why);
    }
}

/// Where a transport's bytes go. Asked by the one who times readers: what a transport has taken may still wait in it.
pub trait Outlet: Send + Sync {
    /// For how long the peer has taken none of the bytes that wait for it; zero where none wait.
    fn blocked_for(&self) -> Duration;
}

/// Why a transport lets go of a body before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// The client closed the connection or reset the stream.
    ClientGone,
    /// The client took nothing for longer than the transport waits.
    ReaderStalled,
    /// The server closes.
    ShuttingDown,
}

/// The body stops before its end. What was sent of it must not look whole: reset the stream or close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer was broken off before its end")
    }
}

impl std::error::Error for Broken {}
