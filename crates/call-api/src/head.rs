//! The head of a request, as the edge parsed it: owned, plain data that could cross a network. Must not know an HTTP
//! library.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use headrace_domain::{ConnectionTrace, UnixNanos};

use crate::{IdempotencyHeader, RequestTarget};

/// The head of a request. Its body may still be arriving.
#[derive(Debug, Clone)]
pub struct RequestHead {
    /// What the request asks for.
    pub target: RequestTarget,
    /// Who sent it, over which connection, and when.
    pub caller: CallerInfo,
}

/// The sender of a request, its connection, and the time.
#[derive(Debug, Clone)]
pub struct CallerInfo {
    /// The caller's credential headers.
    pub credentials: Credentials,
    /// The client's address.
    pub peer: PeerAddress,
    /// The `traceparent` header, if it was text.
    pub traceparent: Option<String>,
    /// The headers in [`DIALECT_HEADERS`] that the request has, as text.
    pub dialect_headers: Vec<(&'static str, String)>,
    /// The idempotency key. `None` if the request has none, or is no `POST`.
    pub idempotency: Option<Box<IdempotencyHeader>>,
    /// Wall time of the first byte.
    pub started: UnixNanos,
    /// The same moment in the clock's monotonic time, in nanoseconds.
    pub started_mono_ns: u64,
    /// State of the connection. `None` if the request did not come on one.
    pub connection: Option<ConnectionTrace>,
}

impl CallerInfo {
    /// Describes a caller inside the process, which shows no credentials and has no connection.
    pub fn in_process(started: UnixNanos, started_mono_ns: u64) -> Self {
        Self {
            credentials: Credentials::default(),
            peer: PeerAddress { address: ([127, 0, 0, 1], 0).into() },
            traceparent: None,
            dialect_headers: Vec::new(),
            idempotency: None,
            started,
            started_mono_ns,
            connection: None,
        }
    }
}

/// Headers by which a dialect changes the meaning of a body. They are forwarded with a relayed body.
pub const DIALECT_HEADERS: [&str; 3] = ["anthropic-version", "anthropic-beta", "openai-beta"];

/// The client of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAddress {
    /// The socket's peer address, or the address that a trusted proxy names, with port 0.
    pub address: SocketAddr,
}

/// Raw credential headers, and the client certificate. Never shown by `Debug`.
#[derive(Clone, Default)]
pub struct Credentials {
    /// `Authorization`
    pub authorization: Option<Vec<u8>>,
    /// `x-api-key`
    pub x_api_key: Option<Vec<u8>>,
    /// The certificate of the client, verified. `None` if the connection has none.
    pub certificate: Option<Arc<ClientCertificate>>,
}

/// A certificate that a client has shown, and whose private key it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The alternative names: URIs as they are, and host names after `dns:`.
    pub names: Vec<String>,
    /// SHA-256 of the certificate in DER (`x5t#S256` of RFC 8705).
    pub sha256: [u8; 32],
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}
