//! The head of a call, as an edge has understood it. Knows no HTTP library.

use std::fmt;
use std::net::SocketAddr;

use headrace_domain::{ConnectionTrace, Endpoint, UnixNanos};

/// A call whose head has arrived. Its body may still be on its way.
#[derive(Debug)]
pub struct Head {
    /// What was called.
    pub endpoint: Endpoint,
    /// What the caller shows of itself.
    pub credentials: Credentials,
    /// Where it comes from.
    pub peer: Peer,
    /// The `traceparent` header, if it was text.
    pub traceparent: Option<String>,
    /// Those of [`DIALECT_HEADERS`] that stand there, as text.
    pub dialect: Vec<(&'static str, String)>,
    /// Wall time of its first byte.
    pub started: UnixNanos,
    /// The same moment on the clock's monotonic time, in nanoseconds.
    pub started_mono_ns: u64,
    /// How its connection stands; `None`: it came on none.
    pub connection: Option<ConnectionTrace>,
}

/// Headers by which a dialect changes what a body means. They go along where a body is sent on.
pub const DIALECT_HEADERS: [&str; 3] = ["anthropic-version", "anthropic-beta", "openai-beta"];

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// As the socket has it: of a proxy, where there is one.
    pub address: SocketAddr,
}

/// Raw credential headers. Never shown by `Debug`.
#[derive(Clone, Default)]
pub struct Credentials {
    /// `Authorization`
    pub authorization: Option<Vec<u8>>,
    /// `x-api-key`
    pub x_api_key: Option<Vec<u8>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}
