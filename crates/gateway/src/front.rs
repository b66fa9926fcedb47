//! What the edge refuses by itself, in the same shapes and traces as every other refusal.

use headrace_domain::{Dialect, Endpoint, Stage, UnixNanos};
use headrace_wire::ErrorKind;

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
    },
    /// The path exists, the method does not.
    MethodNotAllowed {
        /// The methods that do.
        allowed: &'static str,
    },
    /// The body has more bytes than it may.
    BodyTooLarge {
        /// The bound.
        limit_bytes: u64,
    },
    /// The body made no progress for too long.
    BodyTimeout {
        /// The bound.
        seconds: u64,
    },
    /// The headers were not whole in time.
    HeaderTimeout {
        /// The bound.
        seconds: u64,
    },
    /// Two headers say different things about where the body ends.
    AmbiguousLength,
    /// A `content-encoding` other than `identity`.
    UnsupportedEncoding {
        /// The encoding named.
        encoding: String,
    },
    /// A `content-type` other than JSON.
    UnsupportedMediaType,
    /// The body broke off.
    BadBody,
    /// More connections or calls than there is room for.
    TooManyConnections,
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
        let (answer, record) = dossier.refuse(refusal.why()).finish();
        self.parts().traces.record(record);
        match refusal {
            EdgeRefusal::MethodNotAllowed { allowed } => answer.with_header("allow", *allowed),
            _ => answer,
        }
    }
}

impl EdgeRefusal {
    fn why(&self) -> Why {
        let why = |status, kind, code, message: String| Why::new(Stage::Connect, status, kind, code, message);
        let bad = ErrorKind::InvalidRequest;
        match self {
            Self::NotFound { path } => {
                let shown: String = path.chars().filter(|c| !c.is_control()).take(80).collect();
                why(
                    404,
                    ErrorKind::NotFound,
                    "not_found",
                    format!("There is no `{shown}` here. See the README for the paths."),
                )
            }
            Self::MethodNotAllowed { allowed } => {
                why(405, bad, "method_not_allowed", format!("This path takes {allowed}."))
            }
            Self::BodyTooLarge { limit_bytes } => why(
                413,
                ErrorKind::RequestTooLarge,
                "request_too_large",
                format!("The body may have {limit_bytes} bytes. Shorten it, or raise `server.max_body`."),
            ),
            Self::BodyTimeout { seconds } => why(
                408,
                ErrorKind::Timeout,
                "body_timeout",
                format!("The body made no progress for {seconds} s. Send the request again."),
            ),
            Self::HeaderTimeout { seconds } => why(
                408,
                ErrorKind::Timeout,
                "header_timeout",
                format!("The headers were not whole within {seconds} s. Send the request again."),
            ),
            Self::AmbiguousLength => why(
                400,
                bad,
                "ambiguous_length",
                "The headers say more than one thing about where the body ends. Send one `content-length`."
                    .to_owned(),
            ),
            Self::UnsupportedEncoding { encoding } => {
                let shown: String = encoding.chars().filter(|c| !c.is_control()).take(40).collect();
                why(
                    415,
                    bad,
                    "unsupported_encoding",
                    format!("The content-encoding `{shown}` is not taken. Send the body as it is."),
                )
            }
            Self::UnsupportedMediaType => why(
                415,
                bad,
                "unsupported_media_type",
                "The body must be `content-type: application/json`.".to_owned(),
            ),
            Self::BadBody => {
                why(400, bad, "incomplete_body", "The body broke off before its end.".to_owned())
            }
            Self::TooManyConnections => why(
                503,
                ErrorKind::Overloaded,
                "too_many_connections",
                "The server has as many connections as it takes. Try again shortly.".to_owned(),
            )
            .retry_after(std::time::Duration::from_secs(1)),
        }
    }
}
