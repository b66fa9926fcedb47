//! The interface between edge and gateway, in three verbs: admit a request by its head, serve it with its body, drain.
//! Heads, answer heads and refusals are owned, plain data, so that an edge could be in another process than the
//! gateway. Bodies and streamed answers are read piece by piece through traits. Must not know sockets, HTTP libraries,
//! tokens, money or the meaning of a call.
//!
//! Refusals by the edge itself do not cross this interface: the edge writes them, because a server under attack must
//! refuse without a round trip.

mod answer;
mod body;
mod head;
mod idempotency;
mod internal_api;
mod memory;
mod target;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use answer::{AbortReason, AnswerBody, AnswerFrames, BrokenBody, CallAnswer, TransportOutlet};
pub use body::{BodyPieces, BodyRefusal, BodySource};
pub use head::{CallerInfo, ClientCertificate, Credentials, DIALECT_HEADERS, PeerAddress, RequestHead};
pub use idempotency::IdempotencyHeader;
pub use internal_api::{InternalAnswer, InternalAnswerFuture, InternalApi, InternalHead, InternalRequest};
pub use memory::{MemoryAccount, MemoryReservation, NoRoom};
pub use target::{ObjectMethod, ObjectOperation, Question, RequestTarget, SessionId};

use headrace_domain::KeyId;

/// A future that ends when a request can be admitted or refused.
pub type AdmissionWait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The call service: it answers requests.
pub trait CallService: Send + Sync + 'static {
    /// The body of an answer that is streamed.
    type Stream: AnswerFrames;

    /// An admitted request. A type of the service, so that a request is served without another allocation.
    type Admission: RequestAdmission;

    /// Admits or refuses a request by its head. The error is the refusal. The body of a refused request is left unread.
    fn admit(self: &Arc<Self>, head: RequestHead) -> Result<Self::Admission, CallAnswer<Self::Stream>>;

    /// Returns a future to await before [`CallService::admit`] if a request with these raw credential headers needs I/O
    /// to be identified. `None` for almost every request.
    fn wait_before_admission(
        &self,
        authorization: Option<&[u8]>,
        x_api_key: Option<&[u8]>,
    ) -> Option<AdmissionWait> {
        let _ = (authorization, x_api_key);
        None
    }

    /// Returns a future to await before [`CallService::admit`] if the caller's limits are kept by another server. `None` if
    /// they are kept in this process. `caller` is called only if they are not.
    fn wait_for_limits(&self, caller: impl FnOnce() -> CallerInfo) -> Option<AdmissionWait> {
        let _ = caller;
        None
    }

    /// Answers an admitted request. The body is read when the service asks for it. Dropping the future means that the
    /// client went away.
    fn serve<B: BodySource>(
        self: &Arc<Self>,
        admission: Self::Admission,
        body: B,
    ) -> impl Future<Output = CallAnswer<Self::Stream>> + Send;

    /// Stops accepting calls, waits up to `within` for calls in flight, then cancels the rest. Returns how many were
    /// cancelled.
    fn drain(&self, within: Duration) -> impl Future<Output = usize> + Send;

    /// Returns why new calls, or calls for one model, would not be served. For operators. Empty if they would be
    /// served.
    fn not_ready(&self, model: Option<&str>) -> Vec<String>;
}

/// A request that was admitted by its head. Dropping it means that the client went away, and releases what it reserved.
pub trait RequestAdmission: Send + 'static {
    /// Returns the key whose share of memory the body counts against.
    fn payer(&self) -> &KeyId;

    /// Returns the session of an admitted handshake ([`RequestTarget::SocketHandshake`]). It ends when the admission is
    /// dropped.
    fn session(&self) -> Option<SessionId> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::panic::{RefUnwindSafe, UnwindSafe};

    use super::*;

    /// Accepts owned data. Trait objects, closures, borrowed data and locks lack one of these traits.
    const fn is_plain<T: Clone + Debug + Send + Sync + Unpin + UnwindSafe + RefUnwindSafe + 'static>() {}

    #[test]
    fn data_that_crosses_between_edge_and_service_is_plain() {
        is_plain::<RequestHead>();
        is_plain::<RequestTarget>();
        is_plain::<CallerInfo>();
        is_plain::<Credentials>();
        is_plain::<PeerAddress>();
        is_plain::<SessionId>();
        is_plain::<BodyRefusal>();
        is_plain::<AbortReason>();
        is_plain::<BrokenBody>();
        // An answer without its stream: the head, and the body if it is whole.
        is_plain::<CallAnswer<()>>();
        is_plain::<AnswerBody<()>>();
    }
}
