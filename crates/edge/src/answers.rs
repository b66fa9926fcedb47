//! Converts answers to HTTP: to a response for the HTTP library, or to bytes if no library is involved. Also the
//! answers that need no call service. Must not know requests.

use bytes::Bytes;
use headrace_call_api::{AnswerBody, AnswerFrames, CallAnswer};
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::activity::InFlight;
use crate::body::{OutBody, StreamedBody};
use crate::stats::{EdgeStats, count};

/// The answer to a peer that has used up its allowance of refusals, in a form that clients of both dialects can parse.
const CUT_SHORT: &[u8] = br#"{"type":"error","error":{"type":"rate_limit_error","code":"too_many_refusals","message":"Requests from this address were refused so often that they are not looked at any more. Wait a minute, and see what the first refusals said."}}"#;

/// The answer to a liveness check.
pub(crate) fn health<S>() -> CallAnswer<S> {
    CallAnswer::json(200, Bytes::from_static(br#"{"status":"alive"}"#))
}

/// The answer to a readiness check.
pub(crate) fn ready<S>(is_ready: bool) -> CallAnswer<S> {
    if is_ready {
        return CallAnswer::json(200, Bytes::from_static(br#"{"status":"ready"}"#));
    }
    CallAnswer::json(503, Bytes::from_static(br#"{"status":"not_ready"}"#)).with_header("retry-after", "1")
}

/// Converts an answer to a response. A response to `HEAD` has no body.
pub(crate) fn response<S: AnswerFrames>(
    answer: CallAnswer<S>,
    in_flight: InFlight,
    is_head: bool,
) -> Response<OutBody<S>> {
    let streams = matches!(answer.body, AnswerBody::Stream(_));
    let mut length = None;
    let body = match answer.body {
        AnswerBody::Whole(bytes) if is_head => {
            length = Some(HeaderValue::from(bytes.len()));
            OutBody::Whole(Bytes::new())
        }
        AnswerBody::Stream(_) | AnswerBody::Long { .. } if is_head => OutBody::Whole(Bytes::new()),
        AnswerBody::Whole(bytes) => OutBody::Whole(bytes),
        AnswerBody::Stream(frames) => OutBody::Pieces(StreamedBody::new(frames, None, in_flight)),
        AnswerBody::Long { body, bytes } => OutBody::Pieces(StreamedBody::new(body, Some(bytes), in_flight)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.reserve(answer.headers.len().saturating_add(3));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    if streams {
        // Proxies must neither cache nor buffer the pieces.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    }
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, length);
    }
    for (name, value) in answer.headers {
        match (named(name), HeaderValue::try_from(value)) {
            (Some(name), Ok(value)) => {
                headers.insert(name, value);
            }
            _ => tracing::error!(name, "a header of an answer is not one and was left out"),
        }
    }
    response
}

/// Returns the name of a header, or `None` if it is invalid.
fn named(name: &str) -> Option<HeaderName> {
    // The names in nearly all answers are constants, which need neither parsing nor copying.
    macro_rules! usual {
        ($($usual:literal),+) => {
            match name {
                $($usual => Some(const { HeaderName::from_static($usual) }),)+
                _ => HeaderName::from_bytes(name.as_bytes()).ok(),
            }
        };
    }
    usual!(
        "x-request-id",
        "request-id",
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "x-headrace-model",
        "x-headrace-upstream",
        "cache-control"
    )
}

/// Writes an answer as the bytes of an HTTP/1.1 response after which the connection closes.
pub(crate) fn written_out<S>(answer: &CallAnswer<S>) -> Vec<u8> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body: &[u8] = if let AnswerBody::Whole(bytes) = &answer.body { bytes } else { &[] };
    let mut out = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n",
        status.as_str(),
        status.canonical_reason().unwrap_or_default(),
        answer.content_type,
        body.len()
    );
    let is_plain = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    for (name, value) in answer.headers.iter().filter(|(name, value)| is_plain(name) && is_plain(value)) {
        out.push_str(name);
        out.push_str(": ");
        out.push_str(value);
        out.push_str("\r\n");
    }
    out.push_str("\r\n");
    let mut out = out.into_bytes();
    out.extend_from_slice(body);
    out
}

/// The answer to a peer that has used up its allowance of refusals.
pub(crate) fn cut_short<S>(stats: &EdgeStats) -> CallAnswer<S> {
    count(&stats.refusals_cut_short);
    CallAnswer::json(429, Bytes::from_static(CUT_SHORT)).with_header("retry-after", "60")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_it_says_whether_it_is_usual_or_not() {
        for name in ["x-request-id", "x-ratelimit-reset-tokens", "cache-control", "retry-after", "x-other"] {
            assert_eq!(named(name), HeaderName::from_bytes(name.as_bytes()).ok(), "{name}");
        }
        assert_eq!(named("no name"), None);
    }
}
