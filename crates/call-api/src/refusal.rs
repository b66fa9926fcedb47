//! Refusals by the edge itself. The call service chooses their text and their shape.

/// A request that the edge refuses before the gateway's stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeRefusal {
    /// The path does not exist.
    NotFound {
        /// The requested path.
        path: String,
        /// The path that the client most likely meant.
        meant: Option<String>,
    },
    /// The path exists, but not with this method.
    MethodNotAllowed {
        /// The methods that exist.
        allowed: &'static str,
    },
    /// The head is too large.
    HeadTooLarge {
        /// The limit in bytes.
        limit_bytes: usize,
        /// Maximum number of headers over HTTP/1.1.
        most_headers: usize,
    },
    /// The bytes received are not the head of an HTTP request.
    BadHead {
        /// What is wrong. The text repeats nothing of the head.
        what: String,
    },
    /// The headers were not complete in time.
    HeaderTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The head does not state unambiguously where the request ends.
    AmbiguousLength,
    /// The head names no host, or more than one.
    BadHost {
        /// Number of hosts named.
        hosts: usize,
    },
    /// The limit on connections is reached.
    TooManyConnections {
        /// The limit.
        limit: usize,
        /// Whether it is the limit for one peer.
        of_peer: bool,
    },
    /// The limit on WebSockets is reached.
    TooManySockets {
        /// The limit.
        limit: usize,
        /// Whether it is the limit for the caller's key.
        of_key: bool,
    },
}
