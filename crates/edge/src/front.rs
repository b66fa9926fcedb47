//! The seam to what answers: a [`Front`] takes requests by their heads and gives replies. [`Gateway`] is the real one; tests
//! and the benchmark's bare hello-world are others, on the same sockets.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Dialect, Endpoint, UnixNanos};
use headrace_gateway::{
    Answer, AnswerBody, Arrival, BodySource, Broken, Credentials, Delivery, EdgeRefusal, Gateway, GiveUp,
    Outlet,
};

/// What answers requests.
pub trait Front: Send + Sync + 'static {
    /// The body of an answer that comes in pieces.
    type Stream: Frames;

    /// A call of one of the [`Endpoint`]s. The body is read when it is asked for; what is never asked for is left with the
    /// peer. Dropping the future says that the client went away.
    fn call<B: BodySource>(
        self: &Arc<Self>,
        arrival: Arrival<B>,
    ) -> impl Future<Output = Reply<Self::Stream>> + Send;

    /// Whether these are a caller's that would be let in.
    fn knows(&self, credentials: &Credentials) -> bool;

    /// `GET /v1/models`
    fn list_models(&self, credentials: &Credentials, dialect: Dialect) -> Reply<Self::Stream>;

    /// `GET /v1/models/{name}`
    fn show_model(&self, credentials: &Credentials, name: &str, dialect: Dialect) -> Reply<Self::Stream>;

    /// `GET /v1/requests/{id}`
    fn show_request(
        self: &Arc<Self>,
        credentials: &Credentials,
        id: &str,
    ) -> impl Future<Output = Reply<Self::Stream>> + Send;

    /// A refusal of the edge's own, in the dialect's shape. `endpoint` is what was called, if that was understood.
    fn refuse(
        &self,
        dialect: Dialect,
        refusal: &EdgeRefusal,
        endpoint: Option<Endpoint>,
        started: UnixNanos,
    ) -> Reply<Self::Stream>;

    /// Why new calls would not be served, for operators; empty: they would.
    fn not_ready(&self) -> Vec<String>;

    /// Takes no new calls, waits up to `within` for those in flight, cuts off what is left; returns how many.
    fn drain(&self, within: Duration) -> impl Future<Output = usize> + Send;
}

/// The pieces of an answer. Dropping it early says that the client went away.
pub trait Frames: Send + Unpin + 'static {
    /// The next piece; `None` at the end, an error where the answer stops before its end. Bounded and timed out by
    /// whoever makes the pieces, also while the network is full and nobody polls.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>>;

    /// Says, before the first piece is asked for, where they go, for whoever times out a peer that takes none.
    fn leads_to(&mut self, outlet: Arc<dyn Outlet>);

    /// Says, before it is dropped, why no more is taken, where it is not the client that went away.
    fn give_up(&mut self, why: GiveUp);
}

/// An answer.
#[derive(Debug)]
pub struct Reply<S> {
    /// HTTP status.
    pub status: u16,
    /// `content-type`
    pub content_type: &'static str,
    /// Further headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: ReplyBody<S>,
}

/// The body of an answer.
#[derive(Debug)]
pub enum ReplyBody<S> {
    /// All of it.
    Whole(Bytes),
    /// Piece by piece, as it is made.
    Stream(S),
    /// All of it, in pieces.
    Long {
        /// The pieces.
        body: S,
        /// All of them together, in bytes.
        bytes: u64,
    },
}

impl Frames for Delivery {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        Self::poll_frame(self, cx)
    }

    fn leads_to(&mut self, outlet: Arc<dyn Outlet>) {
        Self::leads_to(self, outlet);
    }

    fn give_up(&mut self, why: GiveUp) {
        Self::give_up(self, why);
    }
}

impl Front for Gateway {
    type Stream = Delivery;

    async fn call<B: BodySource>(self: &Arc<Self>, arrival: Arrival<B>) -> Reply<Delivery> {
        Self::call(self, arrival).await.into()
    }

    fn knows(&self, credentials: &Credentials) -> bool {
        Self::knows(self, credentials)
    }

    fn list_models(&self, credentials: &Credentials, dialect: Dialect) -> Reply<Delivery> {
        Self::list_models(self, credentials, dialect).into()
    }

    fn show_model(&self, credentials: &Credentials, name: &str, dialect: Dialect) -> Reply<Delivery> {
        Self::show_model(self, credentials, name, dialect).into()
    }

    async fn show_request(self: &Arc<Self>, credentials: &Credentials, id: &str) -> Reply<Delivery> {
        Self::show_request(self, credentials, id).await.into()
    }

    fn refuse(
        &self,
        dialect: Dialect,
        refusal: &EdgeRefusal,
        endpoint: Option<Endpoint>,
        started: UnixNanos,
    ) -> Reply<Delivery> {
        Self::refuse(self, dialect, refusal, endpoint, started).into()
    }

    fn not_ready(&self) -> Vec<String> {
        Self::not_ready(self)
    }

    async fn drain(&self, within: Duration) -> usize {
        Self::drain(self, within).await
    }
}

impl From<Answer> for Reply<Delivery> {
    fn from(answer: Answer) -> Self {
        let body = match answer.body {
            AnswerBody::Whole(bytes) => ReplyBody::Whole(bytes),
            AnswerBody::Stream(delivery) => ReplyBody::Stream(delivery),
            AnswerBody::Long { body, bytes } => ReplyBody::Long { body, bytes },
        };
        Self { status: answer.status, content_type: answer.content_type, headers: answer.headers, body }
    }
}
