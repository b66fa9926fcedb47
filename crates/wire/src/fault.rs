//! Faults of a request: a code, a message, and a path that is built from the inside out.
//! Messages never repeat what the caller wrote, because it may be prompt text. Field names and numbers are the
//! exceptions.

use std::fmt;

use headrace_domain::Code;

/// A request that is invalid or not supported. Becomes 400 `invalid_request_error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRequest {
    /// The field, such as `messages[3].tool_calls[0].function.arguments`. `None` if the body as a whole is at fault.
    pub param: Option<String>,
    /// The code of the fault.
    pub code: Code,
    /// The explanation, and the way out.
    pub message: String,
}

/// Names that a path in a record may show: the parameters and fields of the public APIs.
const NAMES: &[&str] = &[
    "allowed_callers",
    "allowed_tools",
    "annotations",
    "arguments",
    "audio",
    "begin",
    "best_of",
    "budget_tokens",
    "cache_control",
    "cache_salt",
    "caller",
    "chat_template",
    "chat_template_kwargs",
    "choice",
    "citations",
    "container",
    "content",
    "context_management",
    "custom",
    "data",
    "defer_loading",
    "definition",
    "description",
    "detail",
    "diagnostics",
    "disable_parallel_tool_use",
    "display",
    "eager_input_streaming",
    "echo",
    "edits",
    "effort",
    "enable_thinking",
    "end",
    "explain",
    "fallbacks",
    "file",
    "file_data",
    "file_id",
    "format",
    "frequency_penalty",
    "function",
    "function_call",
    "functions",
    "grammar",
    "headrace",
    "id",
    "ignore_eos",
    "image_url",
    "include_reasoning",
    "include_usage",
    "inference_geo",
    "input",
    "input_examples",
    "input_schema",
    "json",
    "json_object",
    "json_schema",
    "keep",
    "kv_transfer_params",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_new_tokens",
    "max_tokens",
    "mcp_servers",
    "messages",
    "metadata",
    "min_p",
    "min_tokens",
    "modalities",
    "mode",
    "model",
    "models",
    "moderation",
    "n",
    "n_predict",
    "name",
    "output_config",
    "output_format",
    "parallel_tool_calls",
    "parameters",
    "prediction",
    "presence_penalty",
    "previous_message_id",
    "priority",
    "prompt",
    "prompt_cache_key",
    "prompt_logprobs",
    "properties",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "reasoning_effort",
    "refusal",
    "regex",
    "repetition_penalty",
    "required",
    "response_format",
    "return_token_ids",
    "role",
    "safety_identifier",
    "schema",
    "seed",
    "service_tier",
    "signature",
    "source",
    "speed",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "store",
    "stream",
    "stream_options",
    "strict",
    "structural_tag",
    "structured_outputs",
    "structures",
    "syntax",
    "system",
    "tags",
    "task_budget",
    "temperature",
    "text",
    "thinking",
    "thinking_token_budget",
    "timeout",
    "title",
    "tool_call_id",
    "tool_calls",
    "tool_choice",
    "tool_result",
    "tool_use_id",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "trigger",
    "triggers",
    "ttl",
    "type",
    "url",
    "user",
    "verbosity",
    "web_search_options",
    "whitespace_pattern",
];

impl BadRequest {
    /// Describes the fault for a record. The description contains nothing that the caller wrote, not even object keys
    /// or names of unknown parameters. The caller may have pasted a secret there.
    pub fn for_record(&self) -> String {
        let meaning = self.code.meaning();
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

/// Limit in bytes for a part of a path that repeats a key of the request.
pub const MAX_KEY_BYTES: usize = 64;
/// Limit in bytes for a path. Outer parts beyond it are left out.
pub const MAX_PATH_BYTES: usize = 512;

/// A fault on its way out of the nested values. Each level adds its own part to the front of the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldFault {
    path: String,
    code: Code,
    message: String,
    /// The fault was found at an item, but belongs to the object or array that holds the item.
    of_parent: bool,
}

/// The result of reading a value.
pub type Read<T> = Result<T, FieldFault>;

impl FieldFault {
    /// A fault at the current value.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { path: String::new(), code, message: message.into(), of_parent: false }
    }

    /// A fault at the field `key` of the current object.
    pub fn at(key: &str, code: Code, message: impl Into<String>) -> Self {
        Self::new(code, message).under_key(key)
    }

    /// A required field is missing.
    pub fn missing(key: &str) -> Self {
        Self::at(key, Code::MissingRequiredParameter, "it is required")
    }

    /// The field is unknown.
    pub fn unknown() -> Self {
        Self::new(
            Code::UnknownParameter,
            "there is no such parameter; leave it out (it is refused because ignoring it could change the answer)",
        )
    }

    /// Moves the fault to the object or array whose item is being read.
    pub const fn of_parent(mut self) -> Self {
        self.of_parent = true;
        self
    }

    /// Whether the fault has this code.
    pub fn is(&self, code: Code) -> bool {
        self.code == code
    }

    /// The code.
    #[cfg(test)]
    pub(crate) const fn code(&self) -> &'static str {
        self.code.name()
    }

    /// The message.
    #[cfg(test)]
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Turns a fault inside a JSON string into a fault of the string. The message begins with `context` and names the
    /// inner path.
    pub fn inside(self, code: Code, context: &str) -> Self {
        let place = if self.path.is_empty() { String::new() } else { format!(" (at `{}`)", self.path) };
        Self::new(code, format!("{context}: {}{place}", self.message))
    }

    /// Adds the key under which an object holds the faulty value.
    #[must_use]
    pub fn under_key(mut self, key: &str) -> Self {
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

    /// Adds the index at which an array holds the faulty value.
    #[must_use]
    pub fn under_index(mut self, index: usize) -> Self {
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

/// The most edits between a misspelt name and the name that is suggested for it.
const MISSPELT: usize = 2;
/// Shorter names are similar by chance.
const LEAST_LETTERS: usize = 4;

/// Returns the known name that a misspelt one most likely means. `None` if no known name is near enough.
fn meant(name: &str) -> Option<&'static str> {
    if name.len() < LEAST_LETTERS || name.len() > MAX_KEY_BYTES || NAMES.contains(&name) {
        return None;
    }
    let near = NAMES.iter().filter(|known| known.len() >= LEAST_LETTERS);
    let near = near.map(|known| (apart(name, known), *known)).filter(|(apart, _)| *apart <= MISSPELT);
    near.min().map(|(_, known)| known)
}

/// The edit distance in bytes: the number of changes, additions and removals that turn one name into the other.
fn apart(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, x) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(row.first_mut().unwrap_or(&mut 0), at + 1);
        let mut left = at + 1;
        for (y, above) in b.bytes().zip(row.iter_mut().skip(1)) {
            left = (left + 1).min(*above + 1).min(corner + usize::from(x != y));
            corner = std::mem::replace(above, left);
        }
    }
    row.last().copied().unwrap_or(0)
}

impl From<FieldFault> for BadRequest {
    fn from(mut fault: FieldFault) -> Self {
        if fault.code == Code::UnknownParameter
            && let Some(name) = fault.path.rsplit('.').next().and_then(meant)
        {
            fault.message = format!(
                "there is no such parameter; did you mean `{name}`? (It is refused because ignoring it could change the answer.)"
            );
        }
        // If the JSON itself is broken, no parameter is at fault. The path still helps to find the place.
        let broken = fault.code == Code::InvalidJson;
        let message = match (fault.path.is_empty(), broken) {
            (true, _) => fault.message,
            (false, true) => format!("{} (in `{}`)", fault.message, fault.path),
            (false, false) => format!("`{}`: {}", fault.path, fault.message),
        };
        let param = (!fault.path.is_empty() && !broken).then_some(fault.path);
        Self { param, code: fault.code, message }
    }
}

/// Returns at most `max` bytes of `text`, cut at a character boundary.
pub fn head(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_led_to_the_one_that_was_meant() {
        for (name, expected) in [
            ("temperatur", Some("temperature")),
            ("max_token", Some("max_tokens")),
            ("tempreature", Some("temperature")),
            ("n_predict", None),
            ("temperature", None),
            ("tol", None),
        ] {
            assert_eq!(meant(name), expected, "{name}");
        }
        let bad = BadRequest::from(FieldFault::unknown().under_key("top_pp"));
        assert!(bad.message.starts_with("`top_pp`: there is no such parameter"), "{}", bad.message);
        let bad =
            BadRequest::from(FieldFault::unknown().under_key("contnt").under_index(0).under_key("messages"));
        assert!(
            bad.message.contains("`messages[0].contnt`: ") && bad.message.contains("did you mean `content`?")
        );
    }

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
                code: Code::UnknownParameter,
                message: canary.to_owned(),
            };
            let kept = bad.for_record();
            assert_eq!(kept, format!("{expected}{}", Code::UnknownParameter.meaning()));
            assert!(!kept.contains(canary));
        }
    }
}
