//! Parses the errors that upstreams return, in any shape: the message, and the class of the failure.
//! Does not decide about retries or about what the caller sees.

mod too_long;

use headrace_domain::Dialect;
use serde_json::Value;

use too_long::is_too_long;

/// The kind of failure that an upstream reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureClass {
    /// Prompt and answer exceed the model's context window.
    ContextTooLong,
    /// Too many requests or tokens per minute.
    RateLimited,
    /// The upstream has no capacity now, or is not ready yet.
    Overloaded,
    /// A content filter refused the caller's input.
    ContentRefused,
    /// Another fault of the request.
    BadRequest,
    /// The operator's own key is wrong or lacks a permission. The message must never reach the caller.
    AuthOfOurs,
    /// The model or endpoint does not exist.
    NotFound,
    /// The operator's account at the upstream has no credit left.
    Quota,
    /// The body is too large.
    TooLarge,
    /// The upstream took too long.
    Timeout,
    /// A fault of the upstream itself.
    ServerError,
}

impl FailureClass {
    /// Every class.
    pub const ALL: [Self; 11] = [
        Self::ContextTooLong,
        Self::RateLimited,
        Self::Overloaded,
        Self::ContentRefused,
        Self::BadRequest,
        Self::AuthOfOurs,
        Self::NotFound,
        Self::Quota,
        Self::TooLarge,
        Self::Timeout,
        Self::ServerError,
    ];

    /// The name in configuration, traces and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ContextTooLong => "context_too_long",
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::ContentRefused => "content_refused",
            Self::BadRequest => "bad_request",
            Self::AuthOfOurs => "auth",
            Self::NotFound => "not_found",
            Self::Quota => "quota",
            Self::TooLarge => "too_large",
            Self::Timeout => "timeout",
            Self::ServerError => "server_error",
        }
    }

    /// Whether the same request may succeed at the same upstream a little later.
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::RateLimited | Self::Overloaded | Self::Timeout | Self::ServerError)
    }
}

/// A failure as the upstream described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamFailure {
    /// The message: one line of at most [`MESSAGE_BYTES`] bytes, plus an ellipsis if it was cut. Likely keys are
    /// masked.
    pub message: String,
    /// The upstream's name for the error: `code`, or `type` if there is no `code`.
    pub code: Option<String>,
    /// The parameter at fault.
    pub param: Option<String>,
    /// The class of the failure.
    pub class: FailureClass,
}

/// Longest message that is kept, in bytes.
const MESSAGE_BYTES: usize = 1024;
/// Longest code or parameter that is kept, in bytes.
const WORD_BYTES: usize = 128;

/// The longest error that is parsed as JSON, in bytes. As a tree, it takes up to forty times as much memory.
pub(super) const MOST_ERROR_BYTES: usize = 64 << 10;

/// Parses the body of an answer with an error status.
pub fn failure(dialect: Dialect, status: u16, body: &[u8]) -> UpstreamFailure {
    let body = body.get(..MOST_ERROR_BYTES).unwrap_or(body);
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => of_json(dialect, status, &value),
        Err(_) => of_text(status, body),
    }
}

/// Parses an error inside an answer whose status reported none. `value` is the whole body or event.
pub(super) fn inside(dialect: Dialect, value: &Value) -> UpstreamFailure {
    // Some servers put the status here, because they can no longer send it in the head.
    let error = error_of(value);
    let status = [error.get("code"), error.get("status"), error.get("status_code")]
        .into_iter()
        .flatten()
        .find_map(|code| code.as_u64().or_else(|| code.as_str()?.parse().ok()))
        .and_then(|code| u16::try_from(code).ok())
        .filter(|code| (400..600).contains(code));
    of_json(dialect, status.unwrap_or(0), value)
}

fn of_json(dialect: Dialect, status: u16, body: &Value) -> UpstreamFailure {
    let error = error_of(body);
    let words = words_of(error).or_else(|| words_of(body)).unwrap_or_default();
    let text = |name| error.get(name).and_then(Value::as_str).filter(|text: &&str| !text.is_empty());
    let (kind, code) = (text("type"), text("code"));
    // Azure puts the name of the rule into an inner object.
    let inner = error.pointer("/innererror/code").and_then(Value::as_str);
    // Servers use generic names for anything, so the message and the status count more than those.
    let class = named(dialect, [inner, code, kind])
        .filter(|class| !matches!(class, FailureClass::BadRequest | FailureClass::ServerError))
        .or_else(|| by_words(status, &words))
        .or_else(|| by_status(status))
        .or_else(|| named(dialect, [inner, code, kind]))
        .unwrap_or(if status == 0 { FailureClass::ServerError } else { FailureClass::BadRequest });
    let named_code = code.or(kind).map(|code| bounded(code, WORD_BYTES));
    let message = if words.is_empty() { format!("status {status} without a message") } else { words };
    UpstreamFailure {
        message: presentable(&message),
        code: named_code.map(|code| masked(&code)),
        param: text("param").map(|param| masked(&bounded(param, WORD_BYTES))),
        class,
    }
}

/// Returns the object that has the message. Most servers nest it, some do not.
fn error_of(body: &Value) -> &Value {
    let body = body.as_array().and_then(|list| list.first()).unwrap_or(body);
    match body.get("error") {
        Some(error) if error.is_object() => error,
        _ => body,
    }
}

/// Returns the message of an error object. Servers use several names for it.
fn words_of(error: &Value) -> Option<String> {
    let said = ["message", "detail", "error", "msg", "error_message"]
        .into_iter()
        .filter_map(|name| error.get(name))
        .chain(error.is_string().then_some(error))
        .find(|value| !value.is_null())?;
    match said {
        Value::String(text) => Some(text.clone()),
        // FastAPI's list of faults.
        Value::Array(list) => Some(
            list.iter()
                .filter_map(|each| each.get("msg").or(Some(each)).and_then(Value::as_str))
                .collect::<Vec<_>>()
                .join("; "),
        ),
        other => words_of(other).or_else(|| Some(other.to_string())),
    }
    .filter(|words| !words.is_empty())
}

fn of_text(status: u16, body: &[u8]) -> UpstreamFailure {
    let start = body.get(..MESSAGE_BYTES).unwrap_or(body);
    let text = String::from_utf8_lossy(start);
    let text = text.trim();
    let message = if text.is_empty() {
        format!("status {status} with an empty body")
    } else if text.starts_with('<') {
        format!("status {status} with a page of HTML")
    } else {
        text.to_owned()
    };
    let class = by_words(status, text).or_else(|| by_status(status)).unwrap_or(FailureClass::ServerError);
    UpstreamFailure { message: presentable(&message), code: None, param: None, class }
}

/// Classifies by the upstream's own names. The most exact name comes first.
fn named(dialect: Dialect, names: [Option<&str>; 3]) -> Option<FailureClass> {
    names.into_iter().flatten().find_map(|name| by_name(dialect, name))
}

fn by_name(dialect: Dialect, name: &str) -> Option<FailureClass> {
    Some(match name {
        "context_length_exceeded" | "exceed_context_size_error" | "model_context_window_exceeded" => {
            FailureClass::ContextTooLong
        }
        "insufficient_quota" | "billing_error" | "billing_hard_limit_reached" | "billing_not_active" => {
            FailureClass::Quota
        }
        "rate_limit_exceeded" | "rate_limit_error" | "RateLimitError" | "RateLimitReached" => {
            FailureClass::RateLimited
        }
        "overloaded_error" | "unavailable_error" | "ServiceUnavailableError" | "engine_overloaded" => {
            FailureClass::Overloaded
        }
        "content_filter" | "content_policy_violation" | "ResponsibleAIPolicyViolation" => {
            FailureClass::ContentRefused
        }
        "moderation_blocked" | "data_inspection_failed" => FailureClass::ContentRefused,
        // Reasoning models: the prompt was flagged.
        "invalid_prompt" if dialect == Dialect::OpenAi => FailureClass::ContentRefused,
        "model_not_found" | "not_found_error" | "NotFoundError" | "DeploymentNotFound" => {
            FailureClass::NotFound
        }
        "authentication_error" | "permission_error" | "invalid_api_key" | "AuthenticationError" => {
            FailureClass::AuthOfOurs
        }
        "PermissionDeniedError" | "invalid_authentication_error" => FailureClass::AuthOfOurs,
        "request_too_large" => FailureClass::TooLarge,
        "timeout_error" | "TimeoutError" => FailureClass::Timeout,
        "api_error" | "server_error" | "InternalServerError" | "internal_server_error" => {
            FailureClass::ServerError
        }
        "invalid_request_error" | "BadRequestError" | "Bad Request" => FailureClass::BadRequest,
        _ => return None,
    })
}

fn by_words(status: u16, words: &str) -> Option<FailureClass> {
    // The message counts only for these statuses, because a failing server may mention anything. 500 is among them:
    // some servers send it for a prompt that is too long.
    if !matches!(status, 0 | 400 | 403 | 413 | 422 | 500) {
        return None;
    }
    if is_too_long(words) {
        return Some(FailureClass::ContextTooLong);
    }
    if words.to_ascii_lowercase().contains("credit balance is too low") {
        return Some(FailureClass::Quota);
    }
    None
}

const fn by_status(status: u16) -> Option<FailureClass> {
    Some(match status {
        401 | 403 | 407 => FailureClass::AuthOfOurs,
        402 => FailureClass::Quota,
        404 | 405 | 410 => FailureClass::NotFound,
        408 | 504 | 524 => FailureClass::Timeout,
        413 => FailureClass::TooLarge,
        429 => FailureClass::RateLimited,
        // 529 is Anthropic's own status for an overload.
        503 | 529 => FailureClass::Overloaded,
        500..=599 => FailureClass::ServerError,
        _ => return None,
    })
}

/// Makes a text presentable: one line, no control characters, limited length, keys masked.
pub(super) fn presentable(text: &str) -> String {
    let line: String =
        bounded(text, MESSAGE_BYTES).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    masked(line.trim())
}

/// Cuts a text to at most `bytes` bytes, at a character boundary. An ellipsis marks the cut.
fn bounded(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut kept = text.get(..text.floor_char_boundary(bytes)).unwrap_or_default().to_owned();
    kept.push('…');
    kept
}

/// Prefixes of the keys of well-known services.
const KEY_STARTS: [&str; 9] = ["sk-", "sk_", "hf_", "gsk_", "xai-", "AIza", "pplx-", "key-", "ghp_"];
/// Shorter words are not keys.
const KEY_BYTES: usize = 9;

/// Masks everything in a text that looks like a key. Of a known kind of key, the prefix stays. The word after `bearer`
/// is masked whole.
fn masked(text: &str) -> String {
    let in_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '*' | '.');
    let mut out = String::with_capacity(text.len());
    let mut bearer = false;
    for word in text.split_inclusive(|c| !in_key(c)) {
        let body = word.trim_end_matches(|c| !in_key(c));
        let key = KEY_STARTS.iter().find(|start| body.starts_with(**start) && body.len() >= KEY_BYTES);
        match key {
            Some(start) => out.push_str(start),
            None if bearer && !body.is_empty() => {}
            None => out.push_str(body),
        }
        if key.is_some() || (bearer && !body.is_empty()) {
            out.push_str("***");
        }
        out.push_str(word.get(body.len()..).unwrap_or_default());
        bearer = body.eq_ignore_ascii_case("bearer") || (bearer && body.is_empty());
    }
    out
}

#[cfg(test)]
mod tests;
