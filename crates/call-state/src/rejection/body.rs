//! The refusals of bodies, as rejections.

use std::time::Duration;

use headrace_call_api::BodyRefusal;
use headrace_domain::Code;

use super::Rejection;

/// When to try again if other calls must finish first.
const SHORT_WAIT: Duration = Duration::from_secs(1);

impl Rejection {
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
