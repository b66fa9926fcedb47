//! One set of facts of an error, written in each dialect's shape. Knows no HTTP headers and no stage's rules.
//!
//! Sources: <https://platform.openai.com/docs/guides/error-codes>, <https://docs.anthropic.com/en/api/errors>.

use bytes::BytesMut;
use headrace_domain::{Dialect, RequestId, Stage};

use crate::json_out::{raw, value};

/// The page that explains the codes; a code is an anchor on it.
pub const ERROR_DOCS: &str = "https://github.com/headrace/headrace/blob/main/docs/errors.md";

/// What kind of error: decides each dialect's `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request itself is wrong (400, 409, 415, 422).
    InvalidRequest,
    /// Who calls is not known (401).
    Authentication,
    /// Who calls may not (403).
    Permission,
    /// There is no such thing, or none that the caller may know of (404).
    NotFound,
    /// Money: none left, or all of it held (402).
    Billing,
    /// A limit of the caller's (429).
    RateLimit,
    /// Too many bytes (413, 431).
    RequestTooLarge,
    /// It took too long (408, 504).
    Timeout,
    /// The service is full (503).
    Overloaded,
    /// We or an upstream failed (500, 502).
    Internal,
    /// A rule on content (400).
    ContentPolicy,
}

impl ErrorKind {
    /// OpenAI's `type`.
    pub const fn openai_type(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::NotFound | Self::RequestTooLarge | Self::ContentPolicy => {
                "invalid_request_error"
            }
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::Billing => "insufficient_quota",
            Self::RateLimit => "rate_limit_error",
            Self::Timeout => "timeout_error",
            Self::Overloaded => "overloaded_error",
            Self::Internal => "server_error",
        }
    }

    /// Anthropic's `error.type`.
    pub const fn anthropic_type(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::ContentPolicy => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::Billing => "billing_error",
            Self::RateLimit => "rate_limit_error",
            Self::RequestTooLarge => "request_too_large",
            Self::Timeout => "timeout_error",
            Self::Overloaded => "overloaded_error",
            Self::Internal => "api_error",
        }
    }
}

/// The limit that a request hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitFacts {
    /// The rule's name, such as `requests_per_minute`.
    pub rule: String,
    /// Whose, such as `project:demo`.
    pub scope: String,
    /// The limit, in the rule's unit.
    pub limit: u64,
    /// What was asked for or is in use, in the same unit.
    pub observed: u64,
}

/// Facts of an error, the same for each dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFacts {
    /// HTTP status.
    pub status: u16,
    /// Decides the dialect's `type`.
    pub kind: ErrorKind,
    /// A short name of the exact rule, such as `context_length_exceeded`; an anchor on [`ERROR_DOCS`].
    pub code: String,
    /// What happened, the number hit and the way out. Never holds prompt text or secrets.
    pub message: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// Where on the path.
    pub stage: Stage,
    /// Which request.
    pub request_id: RequestId,
    /// Seconds after which another try makes sense, at least 1.
    pub retry_after_s: Option<u64>,
    /// The limit that was hit.
    pub limit: Option<LimitFacts>,
}

impl ErrorFacts {
    /// Facts without parameter, limit and time to wait.
    pub fn new(
        status: u16,
        kind: ErrorKind,
        code: impl Into<String>,
        message: impl Into<String>,
        stage: Stage,
        request_id: RequestId,
    ) -> Self {
        Self {
            status,
            kind,
            code: code.into(),
            message: message.into(),
            param: None,
            stage,
            request_id,
            retry_after_s: None,
            limit: None,
        }
    }
}

/// The body of an error's answer, `application/json`.
pub fn error_body(dialect: Dialect, facts: &ErrorFacts) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(512);
    write_error(dialect, facts, &mut out);
    out.to_vec()
}

/// The same into `out`: also the data of a stream's error event.
pub(crate) fn write_error(dialect: Dialect, facts: &ErrorFacts, out: &mut BytesMut) {
    let kind = match dialect {
        Dialect::OpenAi => {
            raw(out, "{\"error\":{\"message\":");
            value(out, &facts.message);
            facts.kind.openai_type()
        }
        Dialect::Anthropic => {
            raw(out, "{\"type\":\"error\",\"error\":{\"message\":");
            value(out, &facts.message);
            facts.kind.anthropic_type()
        }
    };
    raw(out, ",\"type\":");
    value(out, kind);
    raw(out, ",\"param\":");
    value(out, &facts.param);
    raw(out, ",\"code\":");
    value(out, &facts.code);
    raw(out, ",\"stage\":");
    value(out, facts.stage.name());
    raw(out, ",\"request_id\":");
    value(out, &facts.request_id);
    if let Some(seconds) = facts.retry_after_s {
        raw(out, ",\"retry_after_s\":");
        value(out, &seconds);
    }
    if let Some(limit) = &facts.limit {
        raw(out, ",\"limit\":{\"rule\":");
        value(out, &limit.rule);
        raw(out, ",\"scope\":");
        value(out, &limit.scope);
        raw(out, ",\"limit\":");
        value(out, &limit.limit);
        raw(out, ",\"observed\":");
        value(out, &limit.observed);
        raw(out, "}");
    }
    raw(out, ",\"doc_url\":\"");
    raw(out, ERROR_DOCS);
    raw(out, "#");
    crate::json_out::escaped(out, &facts.code);
    raw(out, "\"}");
    if dialect == Dialect::Anthropic {
        raw(out, ",\"request_id\":");
        value(out, &facts.request_id);
    }
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let id = RequestId::from_bits(0xabc);
        let mut facts =
            ErrorFacts::new(400, ErrorKind::InvalidRequest, "invalid_type", "no \"n\"", Stage::Parse, id);
        facts.param = Some("messages[0].content".to_owned());
        assert_eq!(
            String::from_utf8(error_body(Dialect::OpenAi, &facts)).unwrap(),
            concat!(
                r#"{"error":{"message":"no \"n\"","type":"invalid_request_error","param":"messages[0].content","#,
                r#""code":"invalid_type","stage":"parse","request_id":"req_00000000000000000000000000000abc","#,
                r#""doc_url":"https://github.com/headrace/headrace/blob/main/docs/errors.md#invalid_type"}}"#
            )
        );
        let limited = ErrorFacts {
            retry_after_s: Some(7),
            limit: Some(LimitFacts { rule: "rpm".into(), scope: "key:k".into(), limit: 3, observed: 4 }),
            ..ErrorFacts::new(429, ErrorKind::RateLimit, "rate_limited", "slow", Stage::Hold, id)
        };
        assert_eq!(
            String::from_utf8(error_body(Dialect::Anthropic, &limited)).unwrap(),
            concat!(
                r#"{"type":"error","error":{"message":"slow","type":"rate_limit_error","param":null,"code":"rate_limited","#,
                r#""stage":"hold","request_id":"req_00000000000000000000000000000abc","retry_after_s":7,"#,
                r#""limit":{"rule":"rpm","scope":"key:k","limit":3,"observed":4},"#,
                r#""doc_url":"https://github.com/headrace/headrace/blob/main/docs/errors.md#rate_limited"},"#,
                r#""request_id":"req_00000000000000000000000000000abc"}"#
            )
        );
    }
}
