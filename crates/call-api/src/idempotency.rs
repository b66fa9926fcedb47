//! The idempotency key of a request, as the edge received it. Must not know what a key means.

/// The `idempotency-key` header of a `POST`, and what the request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyHeader {
    /// The value as it was sent. Several headers are joined with commas.
    pub value: Vec<u8>,
    /// Whether the header was sent more than once.
    pub is_repeated: bool,
    /// Method, path and query, such as `POST /v1/messages?beta=true`.
    pub target: String,
}
