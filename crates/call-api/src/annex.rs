//! What answers beside the API, at paths of its own and to whom it knows: other servers of ours ask there. Plain data and bytes.

use std::pin::Pin;

use bytes::Bytes;
use headrace_domain::{KeyId, UnixNanos};

use crate::{Answer, BodyRefusal, Frames};

/// An answer of an annex.
pub type AnnexAnswer = Answer<Box<dyn Frames>>;

/// An answer of an annex in the making.
pub type AnnexAnswering = Pin<Box<dyn Future<Output = AnnexAnswer> + Send>>;

/// The head of a request to an annex.
#[derive(Debug, Clone, Copy)]
pub struct AnnexHead<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, with its query if it has one.
    pub path: &'a str,
    /// The `authorization` header, if there is one and no more.
    pub authorization: Option<&'a [u8]>,
    /// The `traceparent` header, if there is exactly one and it is text. Unchecked.
    pub traceparent: Option<&'a str>,
    /// When the head was whole.
    pub now: UnixNanos,
}

/// What answers at paths that are no part of the API.
pub trait Annex: Send + Sync + 'static {
    /// Decides by its head whether a request comes in. An answer is a refusal, and one of status 401 says that whoever asks is
    /// not known: its body is left with the peer.
    fn admit(&self, head: &AnnexHead<'_>) -> Result<Box<dyn AnnexCall>, AnnexAnswer>;
}

/// A request that was let in.
pub trait AnnexCall: Send {
    /// Under whose name its body takes memory.
    fn payer(&self) -> &KeyId;

    /// The answer, now that its body is here. It may take a while, but holds up no thread.
    fn answer(self: Box<Self>, body: Bytes) -> AnnexAnswering;

    /// What is said to a body that is not taken.
    fn refuse(self: Box<Self>, refusal: &BodyRefusal) -> AnnexAnswer;
}
