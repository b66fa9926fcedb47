//! What an edge refuses by itself. The words, and the shape that a caller sees, are a front's.

/// A request that does not get as far as the gateway's stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeRefusal {
    /// No such path.
    NotFound {
        /// The path asked for.
        path: String,
        /// The path that was most likely meant.
        meant: Option<String>,
    },
    /// The path exists, the method does not.
    MethodNotAllowed {
        /// The methods that do.
        allowed: &'static str,
    },
    /// The head is larger than one may be.
    HeadTooLarge {
        /// The bound.
        limit_bytes: usize,
        /// Headers that one over HTTP/1.1 may have.
        most_headers: usize,
    },
    /// What came is not the head of an HTTP request.
    BadHead {
        /// What is wrong with it, in words that repeat nothing of it.
        what: String,
    },
    /// The headers were not whole in time.
    HeaderTimeout {
        /// The bound.
        seconds: u64,
    },
    /// The head does not say in one way where its request ends.
    AmbiguousLength,
    /// The head names no host, or several.
    BadHost {
        /// How many.
        hosts: usize,
    },
    /// More connections than there is room for.
    TooManyConnections {
        /// The bound.
        limit: usize,
        /// Whether it is the bound for one peer.
        of_peer: bool,
    },
    /// More WebSockets than there is room for.
    TooManySockets {
        /// How many are open.
        limit: usize,
        /// Whether they are those of the caller's key.
        of_key: bool,
    },
}
