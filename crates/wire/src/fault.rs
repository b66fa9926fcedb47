//! What is wrong with a request, and where: a path built from the inside out, a code, a message.
//! Messages never repeat what the caller wrote, save names of fields and numbers: it may be prompt text.

use std::fmt;

use headrace_domain::{RequestId, Stage};

use crate::{ErrorFacts, ErrorKind};

/// A request that is not understood or not supported: becomes 400 `invalid_request_error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRequest {
    /// The field, such as `messages[3].tool_calls[0].function.arguments`; `None` for the body as a whole.
    pub param: Option<String>,
    /// One of [`CODES`].
    pub code: &'static str,
    /// What is wrong and the way out.
    pub message: String,
}

impl BadRequest {
    /// The same as facts of an error of the stage `parse`.
    pub fn facts(&self, request_id: RequestId) -> ErrorFacts {
        ErrorFacts {
            param: self.param.clone(),
            ..ErrorFacts::new(
                400,
                ErrorKind::InvalidRequest,
                self.code,
                self.message.as_str(),
                Stage::Parse,
                request_id,
            )
        }
    }
}

/// Names that a path in a record may show: parameters and fields that everybody's requests have.
const NAMES: &[&str] = &[
    "arguments",
    "best_of",
    "cache_control",
    "cache_salt",
    "chat_template",
    "content",
    "description",
    "echo",
    "explain",
    "frequency_penalty",
    "function",
    "headrace",
    "id",
    "ignore_eos",
    "include_usage",
    "input",
    "input_schema",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "name",
    "parameters",
    "presence_penalty",
    "prompt",
    "prompt_logprobs",
    "properties",
    "reasoning_effort",
    "repetition_penalty",
    "required",
    "response_format",
    "return_token_ids",
    "role",
    "seed",
    "service_tier",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "stream",
    "stream_options",
    "strict",
    "system",
    "temperature",
    "text",
    "thinking",
    "timeout",
    "tool_call_id",
    "tool_calls",
    "tool_choice",
    "tool_use_id",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "type",
    "user",
];

impl BadRequest {
    /// What may be kept of it: nothing that the caller wrote, keys of objects and names of unknown parameters included.
    /// Somebody may have pasted a secret there.
    pub fn for_record(&self) -> String {
        let meaning = CODES.iter().find(|(code, _)| *code == self.code).map_or("", |(_, meaning)| meaning);
        let Some(param) = &self.param else { return meaning.to_owned() };
        let name =
            |part: &str| part.split('[').next().is_some_and(|name| name.is_empty() || NAMES.contains(&name));
        let parts: Vec<&str> = param.split('.').collect();
        let known = parts.iter().take_while(|part| name(part)).count();
        let mut shown = parts.get(..known).unwrap_or_default().join(".");
        if known < parts.len() {
            shown.push_str(if known == 0 { "…" } else { ".…" });
        }
        format!("`{shown}`: {meaning}")
    }
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BadRequest {}

/// Every code that a [`BadRequest`] can have, with what it means. OpenAI's own codes where it has one.
pub const CODES: &[(&str, &str)] = &[
    (code::INVALID_JSON, "The body is not one JSON object in UTF-8."),
    (code::JSON_TOO_DEEP, "Objects and arrays stand too deep inside each other."),
    (code::DUPLICATE_KEY, "An object names the same key twice, and so has no single meaning."),
    (code::MISSING, "A required parameter is missing."),
    (
        code::UNKNOWN,
        "There is no such parameter. It is refused, because dropping it could change the answer.",
    ),
    (code::UNSUPPORTED, "The parameter exists elsewhere but is not supported here."),
    (code::UNSUPPORTED_VALUE, "The parameter is supported, this value of it is not."),
    (code::UNSUPPORTED_CONTENT, "A content part is not text. Images, audio and files are not supported."),
    (code::INVALID_TYPE, "The value has the wrong JSON type."),
    (code::INVALID_VALUE, "The value has the right type and makes no sense."),
    (code::INTEGER_LOW, "The whole number is too small."),
    (code::INTEGER_HIGH, "The whole number is too large."),
    (code::DECIMAL_LOW, "The number is too small."),
    (code::DECIMAL_HIGH, "The number is too large."),
    (code::ARRAY_LONG, "The list has too many items."),
    (code::ARRAY_EMPTY, "The list has no items."),
    (code::OBJECT_LARGE, "The object has too many entries."),
    (code::STRING_LONG, "The string is too long."),
    (code::STRING_EMPTY, "The string is empty."),
];

/// The codes by name.
pub(crate) mod code {
    pub(crate) const INVALID_JSON: &str = "invalid_json";
    pub(crate) const JSON_TOO_DEEP: &str = "json_too_deep";
    pub(crate) const DUPLICATE_KEY: &str = "duplicate_key";
    pub(crate) const MISSING: &str = "missing_required_parameter";
    pub(crate) const UNKNOWN: &str = "unknown_parameter";
    pub(crate) const UNSUPPORTED: &str = "unsupported_parameter";
    pub(crate) const UNSUPPORTED_VALUE: &str = "unsupported_value";
    pub(crate) const UNSUPPORTED_CONTENT: &str = "unsupported_content";
    pub(crate) const INVALID_TYPE: &str = "invalid_type";
    pub(crate) const INVALID_VALUE: &str = "invalid_value";
    pub(crate) const INTEGER_LOW: &str = "integer_below_min_value";
    pub(crate) const INTEGER_HIGH: &str = "integer_above_max_value";
    pub(crate) const DECIMAL_LOW: &str = "decimal_below_min_value";
    pub(crate) const DECIMAL_HIGH: &str = "decimal_above_max_value";
    pub(crate) const ARRAY_LONG: &str = "array_above_max_length";
    pub(crate) const ARRAY_EMPTY: &str = "empty_array";
    pub(crate) const OBJECT_LARGE: &str = "object_above_max_properties";
    pub(crate) const STRING_LONG: &str = "string_above_max_length";
    pub(crate) const STRING_EMPTY: &str = "empty_string";
}

/// Longest part of a path that repeats a key of the request, in bytes.
const MAX_KEY_BYTES: usize = 64;
/// Longest path, in bytes; what would lead it is cut.
const MAX_PATH_BYTES: usize = 512;

/// A fault on its way out: each level that it passes puts itself before the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    path: String,
    code: &'static str,
    message: String,
    /// It was found at an item, and what holds the item is to blame.
    of_parent: bool,
}

/// What reading gives.
pub(crate) type Read<T> = Result<T, Fault>;

impl Fault {
    /// A fault at the place being read.
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { path: String::new(), code, message: message.into(), of_parent: false }
    }

    /// A fault at the field `key` of the object being read.
    pub(crate) fn at(key: &str, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(code, message).under_key(key)
    }

    /// A required field that is not there.
    pub(crate) fn missing(key: &str) -> Self {
        Self::at(key, code::MISSING, "it is required")
    }

    /// A field that nothing knows.
    pub(crate) fn unknown() -> Self {
        Self::new(
            code::UNKNOWN,
            "there is no such parameter; leave it out (it is refused because ignoring it could change the answer)",
        )
    }

    /// The same fault, blamed on the object or array whose item is being read.
    pub(crate) const fn of_parent(mut self) -> Self {
        self.of_parent = true;
        self
    }

    /// The code.
    #[cfg(test)]
    pub(crate) const fn code(&self) -> &'static str {
        self.code
    }

    /// The same fault, its message led by `context` and its path forgotten: it was inside a string.
    pub(crate) fn inside(self, code: &'static str, context: &str) -> Self {
        let place = if self.path.is_empty() { String::new() } else { format!(" (at `{}`)", self.path) };
        Self::new(code, format!("{context}: {}{place}", self.message))
    }

    /// The same fault, seen from the object that has it under `key`.
    #[must_use]
    pub(crate) fn under_key(mut self, key: &str) -> Self {
        if std::mem::take(&mut self.of_parent) {
            return self;
        }
        let key = head(key, MAX_KEY_BYTES);
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        if self.path.len() + key.len() < MAX_PATH_BYTES {
            self.path = format!("{key}{dot}{}", self.path);
        }
        self
    }

    /// The same fault, seen from the array that has it at `index`.
    #[must_use]
    pub(crate) fn under_index(mut self, index: usize) -> Self {
        if std::mem::take(&mut self.of_parent) {
            return self;
        }
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        if self.path.len() < MAX_PATH_BYTES {
            self.path = format!("[{index}]{dot}{}", self.path);
        }
        self
    }
}

impl From<Fault> for BadRequest {
    fn from(fault: Fault) -> Self {
        // Where the JSON itself is broken, no parameter is to blame; the path still helps to find the place.
        let broken = fault.code == code::INVALID_JSON;
        let message = match (fault.path.is_empty(), broken) {
            (true, _) => fault.message,
            (false, true) => format!("{} (in `{}`)", fault.message, fault.path),
            (false, false) => format!("`{}`: {}", fault.path, fault.message),
        };
        let param = (!fault.path.is_empty() && !broken).then_some(fault.path);
        Self { param, code: fault.code, message }
    }
}

/// At most `max` bytes of `text`, cut between characters.
pub(crate) fn head(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_no_names_that_the_caller_chose() {
        let canary = "sk-CANARY";
        for (param, expected) in [
            (Some("max_tokens"), "`max_tokens`: "),
            (
                Some("messages[3].tool_calls[0].function.arguments"),
                "`messages[3].tool_calls[0].function.arguments`: ",
            ),
            (
                Some("tools[0].function.parameters.properties.sk-CANARY.type"),
                "`tools[0].function.parameters.properties.…`: ",
            ),
            (Some("sk-CANARY"), "`…`: "),
            (Some("sk-CANARY[1].x"), "`…`: "),
            (None, ""),
        ] {
            let bad = BadRequest {
                param: param.map(str::to_owned),
                code: code::UNKNOWN,
                message: canary.to_owned(),
            };
            let kept = bad.for_record();
            assert_eq!(kept, format!("{expected}{}", CODES[4].1));
            assert!(!kept.contains(canary));
        }
    }
}
