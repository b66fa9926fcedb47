//! The seam between edge and gateway: heads and bodies in, answers out, and what each tells the other when it goes no
//! further. It knows plain data and bytes; nothing of sockets, HTTP libraries, tokens, money or what a call means.

mod annex;
mod answer;
mod arrival;
mod body;
mod memory;
mod object;
mod question;
mod refusal;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use annex::{Annex, AnnexAnswer, AnnexAnswering, AnnexCall, AnnexHead};
pub use answer::{Answer, AnswerBody, Broken, Frames, GiveUp, Outlet};
pub use arrival::{Credentials, DIALECT_HEADERS, Head, Peer};
pub use body::{BodyPieces, BodyRefusal, BodySource};
pub use memory::{Memory, NoRoom, Reserved};
pub use object::{ObjectAsk, ObjectMethod};
pub use question::Question;
pub use refusal::EdgeRefusal;

use headrace_domain::{Dialect, Endpoint, KeyId, UnixNanos};

/// What answers requests.
pub trait Front: Send + Sync + 'static {
    /// The body of an answer that comes in pieces.
    type Stream: Frames;

    /// A call that was let in. Dropping it says that the client went away, and gives back what it was let in with.
    type Admitted: Admitted;

    /// A question that was let in.
    type Questioner: Admitted;

    /// What a connection of turns keeps from one to the next, for as long as it is open.
    type Turns: Default + Send + Sync;

    /// Decides by its head whether a call comes in. An answer is a refusal: its body is left with the peer.
    fn admit(self: &Arc<Self>, head: Head) -> Result<Self::Admitted, Answer<Self::Stream>>;

    /// Carries out a call that was let in. Its body is read when it is asked for. Dropping the future says that the
    /// client went away.
    fn call<B: BodySource>(
        self: &Arc<Self>,
        admitted: Self::Admitted,
        body: B,
    ) -> impl Future<Output = Answer<Self::Stream>> + Send;

    /// Decides by the head of its handshake whether a connection of turns may begin, and whose it is. The handshake counts as a
    /// request of its key.
    ///
    /// # Errors
    /// A refusal, as of a call with this head.
    fn admit_socket(self: &Arc<Self>, head: Head) -> Result<KeyId, Answer<Self::Stream>> {
        self.admit(head).map(|admitted| admitted.payer().clone())
    }

    /// The call as one of a connection of turns: it may go on from what that keeps, and is kept there.
    fn in_turns(&self, admitted: Self::Admitted, _turns: &Self::Turns) -> Self::Admitted {
        admitted
    }

    /// The body of the call that one message of a connection of turns stands for. An answer is a refusal.
    ///
    /// # Errors
    /// It is no such message.
    fn turn(&self, message: Bytes) -> Result<Bytes, Answer<Self::Stream>>;

    /// A message of a connection of turns has become no call: nothing goes on from what it would have gone on from.
    fn turn_refused(&self, _turns: &Self::Turns, _message: &[u8]) {}

    /// Decides whether a question comes in. `headers`: those of [`DIALECT_HEADERS`] that stand there, as text. An answer is a refusal:
    /// its body is left with the peer.
    fn admit_question(
        self: &Arc<Self>,
        question: Question,
        credentials: &Credentials,
        headers: Vec<(&'static str, String)>,
    ) -> Result<Self::Questioner, Answer<Self::Stream>>;

    /// Answers a question that was let in. Its body is read when it is asked for.
    fn answer_question<B: BodySource>(
        self: &Arc<Self>,
        asked: Self::Questioner,
        body: B,
    ) -> impl Future<Output = Answer<Self::Stream>> + Send;

    /// A request for what clients store, by somebody who is known.
    type Asked: Admitted;

    /// Decides by its head whether a request for what clients store comes in. An answer is a refusal.
    fn admit_asked(self: &Arc<Self>, ask: ObjectAsk) -> Result<Self::Asked, Answer<Self::Stream>>;

    /// Answers a request for what clients store. Its body is read where the request has one.
    fn answer_asked<B: BodySource>(
        self: &Arc<Self>,
        asked: Self::Asked,
        body: B,
    ) -> impl Future<Output = Answer<Self::Stream>> + Send;

    /// Whether these are a caller's that would be let in.
    fn knows(&self, credentials: &Credentials) -> bool;

    /// `GET /v1/models`, with the fields of its query, decoded.
    fn list_models(
        &self,
        credentials: &Credentials,
        dialect: Dialect,
        query: &[(String, String)],
    ) -> Answer<Self::Stream>;

    /// `GET /v1/models/{name}`
    fn show_model(&self, credentials: &Credentials, name: &str, dialect: Dialect) -> Answer<Self::Stream>;

    /// `GET /v1/requests/{id}`
    fn show_request(
        self: &Arc<Self>,
        credentials: &Credentials,
        id: &str,
    ) -> impl Future<Output = Answer<Self::Stream>> + Send;

    /// A refusal of the edge's own, in the dialect's shape. `endpoint` is what was called, if that was understood.
    fn refuse(
        &self,
        dialect: Dialect,
        refusal: &EdgeRefusal,
        endpoint: Option<Endpoint>,
        started: UnixNanos,
    ) -> Answer<Self::Stream>;

    /// Why new calls would not be served, or those for one model, for operators; empty: they would.
    fn not_ready(&self, model: Option<&str>) -> Vec<String>;

    /// Takes no new calls, waits up to `within` for those in flight, cuts off what is left; returns how many.
    fn drain(&self, within: Duration) -> impl Future<Output = usize> + Send;
}

/// A call or a question that was let in by its head.
pub trait Admitted: Send {
    /// Whose it is: the bytes of its body count against the share of this key.
    fn payer(&self) -> &KeyId;
}
