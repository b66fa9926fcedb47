//! The refusals that an edge makes by itself, and those of bodies, as rejections.

use std::time::Duration;

use headrace_call_api::{BodyRefusal, EdgeRefusal};
use headrace_domain::Code;

use super::Rejection;

/// When to try again if other calls must finish first.
const SHORT_WAIT: Duration = Duration::from_secs(1);

impl Rejection {
    /// Converts a refusal that the edge made.
    pub fn of_edge(refusal: &EdgeRefusal) -> Self {
        match refusal {
            EdgeRefusal::NotFound { path, meant } => {
                let path = shown(path, 80);
                let message = match meant {
                    Some(meant) => format!(
                        "There is no `{path}` here, but `{}`. Set the client's base URL to this server's address: with `/v1` \
                         behind it for OpenAI's clients, without for Anthropic's, and no slash at its end.",
                        shown(meant, 80)
                    ),
                    None => format!("There is no `{path}` here. See the README for the paths."),
                };
                Self::new(Code::NotFound, message).keeping("There is no such path here.")
            }
            EdgeRefusal::MethodNotAllowed { allowed } => {
                Self::new(Code::MethodNotAllowed, format!("This path takes {allowed}."))
            }
            EdgeRefusal::HeadTooLarge { limit_bytes, most_headers } => Self::new(Code::HeadTooLarge,
                format!(
                    "A request's line and headers may have {limit_bytes} bytes (`server.max_header`), over HTTP/1.1 in no \
                     more than {most_headers} headers. Send fewer or shorter ones."
                ),
            ),
            EdgeRefusal::BadHead { what } => Self::new(Code::BadHead,
                format!(
                    "This is not the head of an HTTP/1.1 request: {what}. Look at what the client sends: TLS to a plain \
                     port, another protocol, or a header that is none."
                ),
            ),
            EdgeRefusal::HeaderTimeout { seconds } => Self::new(Code::HeaderTimeout,
                format!("The headers were not whole within {seconds} s. Send the request again."),
            ),
            EdgeRefusal::AmbiguousLength => Self::new(Code::AmbiguousLength,
                "The head does not say in one way where its request ends. Send one `content-length`, or `transfer-encoding: \
                 chunked` alone, and nothing behind a request to `upgrade`."
                    .to_owned(),
            ),
            EdgeRefusal::BadHost { hosts } => Self::new(Code::BadHost,
                format!("The head names {hosts} hosts. Send one `host` header."),
            ),
            EdgeRefusal::TooManyConnections { limit, of_peer } => Self::new(Code::TooManyConnections,
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
            EdgeRefusal::TooManySockets { limit, of_key } => Self::new(Code::TooManyConnections,
                match of_key {
                    true => format!(
                        "This key has {limit} WebSockets, as many as one key may have now. Close some of them, or send turns as \
                         `POST /v1/responses`."
                    ),
                    false => format!(
                        "The server has {limit} WebSockets, as many as it takes. Send turns as `POST /v1/responses`, or try again \
                         shortly."
                    ),
                },
            )
            .retry_after(SHORT_WAIT),
        }
    }

    /// Converts the refusal of a body.
    pub fn of_body(refusal: &BodyRefusal) -> Self {
        match refusal {
            BodyRefusal::TooLarge { limit_bytes } => Self::new(Code::RequestTooLarge,
                format!("The body may have {limit_bytes} bytes. Shorten it, or raise `server.max_body`."),
            ),
            BodyRefusal::TooSlow { seconds } => Self::new(Code::BodyTimeout,
                format!("The body made no progress for {seconds} s. Send the request again."),
            ),
            BodyRefusal::Encoding { encoding } => Self::new(Code::UnsupportedEncoding,
                format!(
                    "The content-encoding `{}` is not taken. Send the body as it is.",
                    shown(encoding, 40)
                ),
            )
            .keeping("The content-encoding is not taken."),
            BodyRefusal::MediaType => Self::new(Code::UnsupportedMediaType,
                "The body must be `content-type: application/json`.".to_owned(),
            ),
            BodyRefusal::Incomplete => {
                Self::new(Code::IncompleteBody, "The body broke off before its end.".to_owned())
            }
            BodyRefusal::TooManyPieces { pieces, bytes } => Self::new(Code::TooManyPieces,
                format!("The body came in {pieces} pieces for {bytes} bytes. Send it in larger chunks, or with a `content-length`."),
            ),
            BodyRefusal::MemoryOfKey { limit_bytes, observed_bytes } => Self::new(Code::RequestMemoryPerKey,
                format!(
                    "With this one, the requests of this key that are being read or answered have {observed_bytes} \
                     bytes; they may have {limit_bytes} (`server.request_memory_per_key`). Wait for some of them."
                ),
            )
            .retry_after(SHORT_WAIT)
            .with_limit("request_memory_per_key", "bytes", *limit_bytes, *observed_bytes),
            BodyRefusal::Memory { limit_bytes, observed_bytes } => Self::new(Code::RequestMemory,
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

/// Text that the caller wrote, cut to `most` characters and without control characters.
fn shown(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}
