//! The client's errors, with everything that the server reported: type, code, request id and remedy. Does not decide
//! about retries.

use std::fmt;
use std::time::Duration;

use crate::chat_bodies::{ErrorBody, ErrorDetail};
use headrace_wire::sse::SseError;

/// Maximum characters of an unknown error body that are shown.
const MAX_SHOWN_CHARS: usize = 400;

/// Why a call failed.
#[derive(Debug)]
pub enum ClientError {
    /// The configuration is invalid.
    Config(String),
    /// The request was not sent, because servers would refuse it. The text names the message and the remedy.
    Request(String),
    /// No server could be reached at the address. The text names the address and the cause.
    Connection(String),
    /// The server was reached, but disconnected before it answered.
    Broken(String),
    /// TLS failed: the server does not use TLS, or its certificate is not trusted. The text names the address and the
    /// remedy.
    Tls(String),
    /// The server was reached and then silent for too long. It may still be working, so the call is not retried.
    Timeout(String),
    /// The server answered with an error, or a stream ended with one.
    Api(Box<ApiError>),
    /// The stream ended without its end mark, so the answer is incomplete.
    CutOff {
        /// The request id, if the server sent one.
        request_id: Option<String>,
        /// The transport's error, if it failed.
        cause: Option<String>,
    },
    /// The server sent something that is not a valid answer.
    Protocol(String),
}

impl ClientError {
    /// The id of the failed request, if the server sent one.
    pub fn request_id(&self) -> Option<&str> {
        match self {
            Self::Api(error) => error.request_id.as_deref(),
            Self::CutOff { request_id, .. } => request_id.as_deref(),
            Self::Config(_)
            | Self::Request(_)
            | Self::Connection(_)
            | Self::Broken(_)
            | Self::Tls(_)
            | Self::Timeout(_)
            | Self::Protocol(_) => None,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(what)
            | Self::Request(what)
            | Self::Connection(what)
            | Self::Broken(what)
            | Self::Tls(what)
            | Self::Timeout(what) => f.write_str(what),
            Self::Api(error) => error.fmt(f),
            Self::CutOff { request_id, cause } => {
                f.write_str("the answer was cut off before its end")?;
                if let Some(cause) = cause {
                    write!(f, ": {cause}")?;
                }
                match request_id {
                    Some(id) => write!(f, " [{id}]"),
                    None => Ok(()),
                }
            }
            Self::Protocol(what) => write!(f, "the server's answer cannot be read: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<SseError> for ClientError {
    fn from(error: SseError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// An error as the server reported it. Other servers may omit everything but the status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiError {
    /// The HTTP status. `None` for an error inside a stream that started with status 200.
    pub status: Option<u16>,
    /// The error type, such as `rate_limit_error`.
    pub kind: Option<String>,
    /// The error code, such as `context_length_exceeded`. Empty if there is none.
    pub code: String,
    /// What happened, and the remedy.
    pub message: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// The stage that refused or failed the call, such as `hold`.
    pub stage: Option<String>,
    /// The request id.
    pub request_id: Option<String>,
    /// How long to wait before a retry.
    pub retry_after: Option<Duration>,
    /// The URL of the page that explains the code.
    pub doc_url: Option<String>,
}

impl ApiError {
    /// Reads an error from a response body, with the values of the headers `x-request-id` and `retry-after`.
    pub(crate) fn from_body(
        status: u16,
        body: &[u8],
        request_id: Option<String>,
        retry_after: Option<Duration>,
    ) -> Self {
        let detail = match serde_json::from_slice::<ErrorBody>(body) {
            Ok(body) => body.error,
            // A proxy's page or an unknown format. Its start is better than nothing.
            Err(_) => ErrorDetail {
                message: String::from_utf8_lossy(body).trim().chars().take(MAX_SHOWN_CHARS).collect(),
                ..ErrorDetail::default()
            },
        };
        let said = Self::from_detail(detail, request_id);
        Self { status: Some(status), retry_after: retry_after.or(said.retry_after), ..said }
    }

    /// Reads an error from an event inside a stream.
    pub(crate) fn from_detail(detail: ErrorDetail, request_id: Option<String>) -> Self {
        Self {
            status: None,
            code: detail.code_text(),
            kind: detail.kind,
            message: detail.message,
            param: detail.param,
            stage: detail.stage,
            request_id: detail.request_id.or(request_id),
            retry_after: detail.retry_after_s.map(Duration::from_secs),
            doc_url: detail.doc_url,
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_deref().unwrap_or("error");
        match self.status {
            Some(status) => write!(f, "{status} {kind}")?,
            None => f.write_str(kind)?,
        }
        if !self.code.is_empty() {
            write!(f, " ({})", self.code)?;
        }
        if let Some(stage) = &self.stage {
            write!(f, " at {stage}")?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if let Some(wait) = self.retry_after {
            write!(f, " (try again in {} s)", wait.as_secs_f64().ceil())?;
        }
        if let Some(id) = &self.request_id {
            write!(f, " [{id}]")?;
        }
        match &self.doc_url {
            Some(url) => write!(f, " See {url}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ApiError {}

/// The causes of a transport error, outermost first. The error's own text only names the address, which the caller adds
/// itself.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
        source = cause.source();
    }
    if parts.is_empty() { error.to_string() } else { parts.join(": ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_the_server_said_is_kept() {
        let body = br#"{"error":{"message":"slow down","type":"rate_limit_error","param":null,
            "code":"requests_per_minute","stage":"hold","request_id":"req_1","retry_after_s":7,"doc_url":"https://d#x"}}"#;
        let error = ApiError::from_body(429, body, Some("req_header".into()), None);
        assert_eq!(
            error.to_string(),
            "429 rate_limit_error (requests_per_minute) at hold: slow down (try again in 7 s) [req_1] See https://d#x"
        );
        assert_eq!(error.retry_after, Some(Duration::from_secs(7)));
        let header = ApiError::from_body(429, body, None, Some(Duration::from_millis(1500)));
        assert_eq!(header.retry_after, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn foreign_bodies_are_shown_in_part() {
        let rows: &[(&[u8], &str)] = &[
            (b"<html>bad gateway</html>", "502 error: <html>bad gateway</html> [r]"),
            (b"", "502 error [r]"),
            (br#"{"error":"text"}"#, "502 error: {\"error\":\"text\"} [r]"),
            (b"\xff\xfe", "502 error: \u{fffd}\u{fffd} [r]"),
        ];
        for (body, shown) in rows {
            assert_eq!(ApiError::from_body(502, body, Some("r".into()), None).to_string(), *shown);
        }
        let long = ApiError::from_body(500, &b"x".repeat(10_000), None, None);
        assert_eq!(long.message.len(), MAX_SHOWN_CHARS);
    }
}
