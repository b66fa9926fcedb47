//! What the edge refuses by itself, in the same shapes and traces as every other refusal.

use std::time::Duration;

use headrace_domain::{Code, Dialect, Endpoint, UnixNanos};

use crate::dossier::Dossier;
use crate::refused::Why;
use crate::{Answer, Gateway};

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
}

/// Why the body of a call is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyRefusal {
    /// It has more bytes than it may.
    TooLarge {
        /// The bound.
        limit_bytes: u64,
    },
    /// It made no progress for too long, or took too long in all.
    TooSlow {
        /// The bound.
        seconds: u64,
    },
    /// A `content-encoding` other than `identity`.
    Encoding {
        /// The encoding named.
        encoding: String,
    },
    /// A `content-type` other than JSON.
    MediaType,
    /// It broke off, or was not well-formed.
    Incomplete,
    /// It came in far more pieces than its bytes need.
    TooManyPieces {
        /// Pieces so far.
        pieces: u64,
        /// Bytes in them.
        bytes: u64,
    },
    /// The requests of its key fill the key's share of the memory for requests.
    MemoryOfKey {
        /// The share.
        limit_bytes: u64,
        /// What it would have come to.
        observed_bytes: u64,
    },
    /// All requests together fill that memory.
    Memory {
        /// The bound.
        limit_bytes: u64,
        /// What it would have come to.
        observed_bytes: u64,
    },
}

impl Gateway {
    /// An error of the edge's in the dialect's shape, with a request id, traced.
    pub fn refuse(
        &self,
        dialect: Dialect,
        refusal: &EdgeRefusal,
        endpoint: Option<Endpoint>,
        started: UnixNanos,
    ) -> Answer {
        let clock = std::sync::Arc::clone(&self.parts().clock);
        let waited = u64::try_from(clock.now().since(started).as_nanos()).unwrap_or(0);
        let started_mono_ns = clock.monotonic_nanos().saturating_sub(waited);
        let mut dossier = Dossier::open(clock, started, started_mono_ns, dialect);
        if let Some(endpoint) = endpoint {
            dossier.describe(endpoint, None);
        }
        let (answer, record) = dossier.refuse(&refusal.why());
        self.parts().traces.record(record);
        match refusal {
            EdgeRefusal::MethodNotAllowed { allowed } => answer.with_header("allow", *allowed),
            _ => answer,
        }
    }
}

/// When to try again where others must finish first.
const SHORT_WAIT: Duration = Duration::from_secs(1);

impl EdgeRefusal {
    pub(crate) fn why(&self) -> Why {
        match self {
            Self::NotFound { path, meant } => {
                let path = shown(path, 80);
                let message = match meant {
                    Some(meant) => format!(
                        "There is no `{path}` here, but `{}`. Set the client's base URL to this server's address: with `/v1` \
                         behind it for OpenAI's clients, without for Anthropic's, and no slash at its end.",
                        shown(meant, 80)
                    ),
                    None => format!("There is no `{path}` here. See the README for the paths."),
                };
                Why::new(Code::NotFound, message).keeping("There is no such path here.")
            }
            Self::MethodNotAllowed { allowed } => {
                Why::new(Code::MethodNotAllowed, format!("This path takes {allowed}."))
            }
            Self::HeadTooLarge { limit_bytes, most_headers } => Why::new(Code::HeadTooLarge,
                format!(
                    "A request's line and headers may have {limit_bytes} bytes (`server.max_header`), over HTTP/1.1 in no \
                     more than {most_headers} headers. Send fewer or shorter ones."
                ),
            ),
            Self::BadHead { what } => Why::new(Code::BadHead,
                format!(
                    "This is not the head of an HTTP/1.1 request: {what}. Look at what the client sends: TLS to a plain \
                     port, another protocol, or a header that is none."
                ),
            ),
            Self::HeaderTimeout { seconds } => Why::new(Code::HeaderTimeout,
                format!("The headers were not whole within {seconds} s. Send the request again."),
            ),
            Self::AmbiguousLength => Why::new(Code::AmbiguousLength,
                "The head does not say in one way where its request ends. Send one `content-length`, or `transfer-encoding: \
                 chunked` alone, and nothing behind a request to `upgrade`."
                    .to_owned(),
            ),
            Self::BadHost { hosts } => Why::new(Code::BadHost,
                format!("The head names {hosts} hosts. Send one `host` header."),
            ),
            Self::TooManyConnections { limit, of_peer } => Why::new(Code::TooManyConnections,
                match of_peer {
                    true => format!(
                        "Your address has {limit} connections with calls in flight, as many as one may have. Share connections, \
                         or try again shortly."
                    ),
                    false => format!(
                        "The server has {limit} connections with calls in flight, as many as it takes. Try again shortly."
                    ),
                },
            )
            .retry_after(SHORT_WAIT),
        }
    }
}

impl BodyRefusal {
    pub(crate) fn why(&self) -> Why {
        match self {
            Self::TooLarge { limit_bytes } => Why::new(Code::RequestTooLarge,
                format!("The body may have {limit_bytes} bytes. Shorten it, or raise `server.max_body`."),
            ),
            Self::TooSlow { seconds } => Why::new(Code::BodyTimeout,
                format!("The body made no progress for {seconds} s. Send the request again."),
            ),
            Self::Encoding { encoding } => Why::new(Code::UnsupportedEncoding,
                format!(
                    "The content-encoding `{}` is not taken. Send the body as it is.",
                    shown(encoding, 40)
                ),
            )
            .keeping("The content-encoding is not taken."),
            Self::MediaType => Why::new(Code::UnsupportedMediaType,
                "The body must be `content-type: application/json`.".to_owned(),
            ),
            Self::Incomplete => {
                Why::new(Code::IncompleteBody, "The body broke off before its end.".to_owned())
            }
            Self::TooManyPieces { pieces, bytes } => Why::new(Code::TooManyPieces,
                format!("The body came in {pieces} pieces for {bytes} bytes. Send it in larger chunks, or with a `content-length`."),
            ),
            Self::MemoryOfKey { limit_bytes, observed_bytes } => Why::new(Code::RequestMemoryPerKey,
                format!(
                    "With this one, the requests of this key that are being read or answered have {observed_bytes} \
                     bytes; they may have {limit_bytes} (`server.request_memory_per_key`). Wait for some of them."
                ),
            )
            .retry_after(SHORT_WAIT)
            .with_limit("request_memory_per_key", "bytes", *limit_bytes, *observed_bytes),
            Self::Memory { limit_bytes, observed_bytes } => Why::new(Code::RequestMemory,
                format!(
                    "With this one, the requests that are being read or answered have {observed_bytes} bytes; they \
                     may have {limit_bytes} (`server.request_memory`). Try again shortly."
                ),
            )
            .retry_after(SHORT_WAIT)
            .with_limit("request_memory", "bytes", *limit_bytes, *observed_bytes),
        }
    }
}

/// What the caller wrote, cut and without control characters.
fn shown(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}
