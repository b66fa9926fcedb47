//! What a request asks for. The edge builds it from method, path and query. Plain data.

use bytes::Bytes;
use headrace_domain::{Dialect, Endpoint};

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestTarget {
    /// A call. Its parameters are in the body.
    Call(Endpoint),
    /// A question about tokens. The question itself is in the body.
    Question(Question),
    /// An operation on stored objects. `POST` may have a body.
    Object(ObjectOperation),
    /// `GET /v1/models`
    ModelList {
        /// The dialect of the answer.
        dialect: Dialect,
        /// The query fields, decoded, in order.
        query: Vec<(String, String)>,
    },
    /// `GET /v1/models/{name}`
    Model {
        /// The dialect of the answer.
        dialect: Dialect,
        /// The name, decoded.
        name: String,
    },
    /// `GET /v1/requests/{id}`
    RequestTrace {
        /// The id, decoded.
        id: String,
    },
    /// `GET /v1/receipts/{id}`
    Receipt {
        /// The id of the request, decoded.
        id: String,
    },
    /// The handshake of a responses socket. It counts as a request of the caller's key. Its admission may have a
    /// session, which ends when the admission is dropped. The admission is kept for as long as the socket is open, and
    /// is not served.
    SocketHandshake,
    /// A message of a responses socket, which becomes a call. It has no further body. The call may continue from the
    /// last response of the session.
    SocketTurn {
        /// The session of the socket, if the service keeps one.
        session: Option<SessionId>,
        /// The message.
        message: Bytes,
    },
    /// Whether the caller's key is valid. Nothing is counted or traced. The admission is dropped, not served.
    KeyCheck,
}

/// The kind of a question. Questions are requests with a body that are not calls. They are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// `POST /v1/messages/count_tokens`: the number of prompt tokens that a message would have.
    CountTokens,
    /// `POST /tokenize`: the tokens of a text, or of a conversation after the template.
    Tokenize,
    /// `POST /detokenize`: the text of tokens.
    Detokenize,
}

impl Question {
    /// Returns the dialect of the question.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::CountTokens => Dialect::Anthropic,
            Self::Tokenize | Self::Detokenize => Dialect::OpenAi,
        }
    }

    /// Returns the endpoint that a key must be allowed to use for this question.
    pub const fn endpoint(self) -> Endpoint {
        match self {
            Self::CountTokens => Endpoint::Messages,
            Self::Tokenize => Endpoint::ChatCompletions,
            Self::Detokenize => Endpoint::Completions,
        }
    }
}

/// An operation on stored objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectOperation {
    /// The method.
    pub method: ObjectMethod,
    /// The path after `/v1/`, decoded.
    pub path: String,
    /// The query fields, decoded, in order.
    pub query: Vec<(String, String)>,
}

/// The method of an operation on stored objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectMethod {
    /// Reads an object or a list.
    Get,
    /// Creates or changes an object.
    Post,
    /// Deletes an object.
    Delete,
}

/// The session of a responses socket: what one call of it leaves for the next. The call service issues the id for an
/// admitted handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(u64);

impl SessionId {
    /// Creates the id with this number, which no other session of the service has.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}
