//! The internal API: paths beside the public API for other servers of the same installation, with credentials of their
//! own. Plain data and bytes.

use std::pin::Pin;

use bytes::Bytes;
use headrace_domain::{KeyId, UnixNanos};

use crate::{AnswerFrames, BodyRefusal, CallAnswer};

/// An answer of the internal API.
pub type InternalAnswer = CallAnswer<Box<dyn AnswerFrames>>;

/// A future that produces an answer of the internal API.
pub type InternalAnswerFuture = Pin<Box<dyn Future<Output = InternalAnswer> + Send>>;

/// The head of a request to the internal API.
#[derive(Debug, Clone, Copy)]
pub struct InternalHead<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, with its query if it has one.
    pub path: &'a str,
    /// The `authorization` header, if the request has exactly one.
    pub authorization: Option<&'a [u8]>,
    /// The `traceparent` header, if there is exactly one and it is text. Unchecked.
    pub traceparent: Option<&'a str>,
    /// When the head was complete.
    pub now: UnixNanos,
}

/// The internal API: it answers at paths that are not part of the public API.
pub trait InternalApi: Send + Sync + 'static {
    /// Admits or refuses a request by its head. The error is the refusal. If its status is 401, the sender is unknown,
    /// and the body is left unread.
    fn admit(&self, head: &InternalHead<'_>) -> Result<Box<dyn InternalRequest>, InternalAnswer>;
}

/// An admitted request.
pub trait InternalRequest: Send {
    /// Returns the key whose share of memory the body counts against.
    fn payer(&self) -> &KeyId;

    /// Produces the answer, once the body has arrived. It may take a while, but blocks no thread.
    fn answer(self: Box<Self>, body: Bytes) -> InternalAnswerFuture;

    /// Produces the answer for a body that was refused.
    fn refuse(self: Box<Self>, refusal: &BodyRefusal) -> InternalAnswer;
}
