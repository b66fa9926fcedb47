//! Writes the facts of an error in the shape of each dialect. Knows no HTTP headers and no stage's rules.
//!
//! Sources: <https://platform.openai.com/docs/guides/error-codes>, <https://docs.anthropic.com/en/api/errors>.

use bytes::BytesMut;
use headrace_domain::{Code, Dialect, ErrorKind, RequestId, Stage};

use crate::json::writer::{raw, value};

/// The base URL of the pages that explain the codes. Each code has a page with its name.
pub const ERROR_DOCS: &str = "https://github.com/headrace/headrace/blob/main/docs/errors";

/// OpenAI's `type` for a kind of error.
const fn openai_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidRequest
        | ErrorKind::NotFound
        | ErrorKind::RequestTooLarge
        | ErrorKind::ContentPolicy => "invalid_request_error",
        ErrorKind::Authentication => "authentication_error",
        ErrorKind::Permission => "permission_error",
        ErrorKind::Billing => "insufficient_quota",
        ErrorKind::RateLimit => "rate_limit_error",
        ErrorKind::Timeout => "timeout_error",
        ErrorKind::Overloaded => "overloaded_error",
        ErrorKind::Internal => "server_error",
    }
}

/// Anthropic's `error.type` for a kind of error.
const fn anthropic_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidRequest | ErrorKind::ContentPolicy => "invalid_request_error",
        ErrorKind::Authentication => "authentication_error",
        ErrorKind::Permission => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::Billing => "billing_error",
        ErrorKind::RateLimit => "rate_limit_error",
        ErrorKind::RequestTooLarge => "request_too_large",
        ErrorKind::Timeout => "timeout_error",
        ErrorKind::Overloaded => "overloaded_error",
        ErrorKind::Internal => "api_error",
    }
}

/// The limit that a request hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitFacts {
    /// The rule's name, such as `requests_per_minute`.
    pub rule: &'static str,
    /// The scope of the limit, such as `project:demo`.
    pub scope: String,
    /// The limit, in the rule's unit.
    pub limit: u64,
    /// The amount that was requested or is in use, in the same unit.
    pub observed: u64,
}

/// The facts of an error, in any dialect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFacts {
    /// HTTP status.
    pub status: u16,
    /// The kind of error. Decides the dialect's `type`.
    pub kind: ErrorKind,
    /// The exact rule. Its page is under [`ERROR_DOCS`].
    pub code: Code,
    /// An explanation, the limit that was hit, and the way out. Never contains prompt text or secrets.
    pub message: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// The stage at which the request failed.
    pub stage: Stage,
    /// The id of the request.
    pub request_id: RequestId,
    /// Seconds after which a retry makes sense, at least 1.
    pub retry_after_s: Option<u64>,
    /// The limit that was hit.
    pub limit: Option<LimitFacts>,
}

impl ErrorFacts {
    /// Creates the facts that belong to a code, without a parameter, a limit or a wait time.
    pub fn new(code: Code, message: impl Into<String>, request_id: RequestId) -> Self {
        Self {
            status: code.status(),
            kind: code.kind(),
            code,
            message: message.into(),
            param: None,
            stage: code.stage(),
            request_id,
            retry_after_s: None,
            limit: None,
        }
    }
}

/// The body of an error response, `application/json`.
pub fn error_body(dialect: Dialect, facts: &ErrorFacts) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(512);
    write_error(dialect, facts, &mut out);
    out.to_vec()
}

/// Writes the same body into `out`. It is also the data of a stream's error event.
pub(crate) fn write_error(dialect: Dialect, facts: &ErrorFacts, out: &mut BytesMut) {
    let kind = match dialect {
        Dialect::OpenAi => {
            raw(out, "{\"error\":{\"message\":");
            value(out, &facts.message);
            openai_type(facts.kind)
        }
        Dialect::Anthropic => {
            raw(out, "{\"type\":\"error\",\"error\":{\"message\":");
            value(out, &facts.message);
            anthropic_type(facts.kind)
        }
    };
    raw(out, ",\"type\":");
    value(out, kind);
    raw(out, ",\"param\":");
    value(out, &facts.param);
    raw(out, ",\"code\":");
    value(out, facts.code.name());
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
        value(out, limit.rule);
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
    raw(out, "/");
    raw(out, facts.code.name());
    raw(out, ".md\"}");
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
        let mut facts = ErrorFacts::new(Code::InvalidType, "no \"n\"", id);
        facts.param = Some("messages[0].content".to_owned());
        assert_eq!(
            String::from_utf8(error_body(Dialect::OpenAi, &facts)).unwrap(),
            concat!(
                r#"{"error":{"message":"no \"n\"","type":"invalid_request_error","param":"messages[0].content","#,
                r#""code":"invalid_type","stage":"parse","request_id":"req_00000000000000000000000000000abc","#,
                r#""doc_url":"https://github.com/headrace/headrace/blob/main/docs/errors/invalid_type.md"}}"#
            )
        );
        let limited = ErrorFacts {
            retry_after_s: Some(7),
            limit: Some(LimitFacts { rule: "rpm", scope: "key:k".into(), limit: 3, observed: 4 }),
            ..ErrorFacts::new(Code::Concurrency, "slow", id)
        };
        assert_eq!(
            String::from_utf8(error_body(Dialect::Anthropic, &limited)).unwrap(),
            concat!(
                r#"{"type":"error","error":{"message":"slow","type":"rate_limit_error","param":null,"code":"concurrency","#,
                r#""stage":"hold","request_id":"req_00000000000000000000000000000abc","retry_after_s":7,"#,
                r#""limit":{"rule":"rpm","scope":"key:k","limit":3,"observed":4},"#,
                r#""doc_url":"https://github.com/headrace/headrace/blob/main/docs/errors/concurrency.md"},"#,
                r#""request_id":"req_00000000000000000000000000000abc"}"#
            )
        );
    }
}
