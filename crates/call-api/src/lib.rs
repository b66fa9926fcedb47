//! The interface between edge and gateway: heads and bodies in, answers out, and how either side stops early. Plain
//! data and bytes. Must not know sockets, HTTP libraries, tokens, money or the meaning of a call.

mod answer;
mod arrival;
mod body;
mod internal_api;
mod memory;
mod object;
mod question;
mod refusal;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use answer::{AbortReason, AnswerBody, AnswerFrames, BrokenBody, CallAnswer, TransportOutlet};
pub use arrival::{CallHead, Credentials, DIALECT_HEADERS, PeerAddress};
pub use body::{BodyPieces, BodyRefusal, BodySource};
pub use internal_api::{InternalAnswer, InternalAnswerFuture, InternalApi, InternalHead, InternalRequest};
pub use memory::{MemoryAccount, MemoryReservation, NoRoom};
pub use object::{ObjectAsk, ObjectMethod};
pub use question::Question;
pub use refusal::EdgeRefusal;

use headrace_domain::{Dialect, Endpoint, KeyId, UnixNanos};

/// The call service: it answers requests.
pub trait CallService: Send + Sync + 'static {
    /// The body of an answer that is streamed.
    type Stream: AnswerFrames;

    /// An admitted call. Dropping it means that the client went away, and releases what it reserved.
    type AdmittedWork: Admitted;

    /// An admitted question.
    type Questioner: Admitted;

    /// State that one responses socket keeps between its calls, for as long as it is open.
    type Turns: Default + Send + Sync;

    /// Admits or refuses a call by its head. The error is the refusal. The body of a refused call is left unread.
    fn admit(self: &Arc<Self>, head: CallHead) -> Result<Self::AdmittedWork, CallAnswer<Self::Stream>>;

    /// Serves an admitted call. The body is read when the service asks for it. Dropping the future means that the
    /// client went away.
    fn call<B: BodySource>(
        self: &Arc<Self>,
        admitted: Self::AdmittedWork,
        body: B,
    ) -> impl Future<Output = CallAnswer<Self::Stream>> + Send;

    /// Admits or refuses a responses socket by the head of its handshake. Returns the key that opens it. The handshake
    /// counts as a request of that key.
    ///
    /// # Errors
    /// A refusal, as for a call with this head.
    fn admit_socket(self: &Arc<Self>, head: CallHead) -> Result<KeyId, CallAnswer<Self::Stream>> {
        self.admit(head).map(|admitted| admitted.payer().clone())
    }

    /// Attaches the state of a responses socket to a call of it. The call may continue from that state, and is kept in
    /// it.
    fn in_turns(&self, admitted: Self::AdmittedWork, _turns: &Self::Turns) -> Self::AdmittedWork {
        admitted
    }

    /// Returns the body of the call that one message of a responses socket represents.
    ///
    /// # Errors
    /// A refusal, if the message is not valid.
    fn turn(&self, message: Bytes) -> Result<Bytes, CallAnswer<Self::Stream>>;

    /// Reports that a message of a responses socket did not become a call. Later calls cannot continue from the state
    /// that this one would have continued from.
    fn turn_refused(&self, _turns: &Self::Turns, _message: &[u8]) {}

    /// Admits or refuses a question. `headers` holds those of [`DIALECT_HEADERS`] that the request has, as text. The
    /// error is the refusal. The body of a refused question is left unread.
    fn admit_question(
        self: &Arc<Self>,
        question: Question,
        credentials: &Credentials,
        headers: Vec<(&'static str, String)>,
    ) -> Result<Self::Questioner, CallAnswer<Self::Stream>>;

    /// Answers an admitted question. The body is read when the service asks for it.
    fn answer_question<B: BodySource>(
        self: &Arc<Self>,
        asked: Self::Questioner,
        body: B,
    ) -> impl Future<Output = CallAnswer<Self::Stream>> + Send;

    /// An admitted request for stored objects.
    type Asked: Admitted;

    /// Admits or refuses a request for stored objects by its head. The error is the refusal.
    fn admit_asked(self: &Arc<Self>, ask: ObjectAsk) -> Result<Self::Asked, CallAnswer<Self::Stream>>;

    /// Answers a request for stored objects. The body is read if the request has one.
    fn answer_asked<B: BodySource>(
        self: &Arc<Self>,
        asked: Self::Asked,
        body: B,
    ) -> impl Future<Output = CallAnswer<Self::Stream>> + Send;

    /// Returns whether a request with these credentials would be admitted.
    fn knows(&self, credentials: &Credentials) -> bool;

    /// `GET /v1/models`, with the decoded query fields.
    fn list_models(
        &self,
        credentials: &Credentials,
        dialect: Dialect,
        query: &[(String, String)],
    ) -> CallAnswer<Self::Stream>;

    /// `GET /v1/models/{name}`
    fn show_model(&self, credentials: &Credentials, name: &str, dialect: Dialect)
    -> CallAnswer<Self::Stream>;

    /// `GET /v1/requests/{id}`
    fn show_request(
        self: &Arc<Self>,
        credentials: &Credentials,
        id: &str,
    ) -> impl Future<Output = CallAnswer<Self::Stream>> + Send;

    /// Formats a refusal by the edge in the dialect's shape. `endpoint` is the endpoint of the call, if it was
    /// recognized.
    fn refuse(
        &self,
        dialect: Dialect,
        refusal: &EdgeRefusal,
        endpoint: Option<Endpoint>,
        started: UnixNanos,
    ) -> CallAnswer<Self::Stream>;

    /// Returns why new calls, or calls for one model, would not be served. For operators. Empty if they would be
    /// served.
    fn not_ready(&self, model: Option<&str>) -> Vec<String>;

    /// Stops accepting calls, waits up to `within` for calls in flight, then cancels the rest. Returns how many were
    /// cancelled.
    fn drain(&self, within: Duration) -> impl Future<Output = usize> + Send;
}

/// A call or a question that was admitted by its head.
pub trait Admitted: Send {
    /// Returns the key whose share of memory the body counts against.
    fn payer(&self) -> &KeyId;
}
