//! Bodies of OpenAI's chat as a client writes and reads them: the request, and the chunks of the stream.
//! Unknown fields are skipped, so that the client can read other servers' streams, too. Opens no connection.

use serde::{Deserialize, Serialize};

/// A chat request. Fields left at their default are not sent.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ChatRequest {
    /// The model's name.
    pub model: String,
    /// The messages, oldest first.
    pub messages: Vec<ChatMessage>,
    /// The most tokens to generate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Above 0, to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// The seed. The same seed gives the same answer again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Stop strings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Functions that the model may call, each as the dialect spells it (`{"type": "function", …}`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<serde_json::Value>,
    /// Whether the answer streams.
    pub stream: bool,
    /// Only with `stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Headrace's own switches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headrace: Option<HeadraceOptions>,
}

/// A message of plain text, with its tool calls or with the id of the call that it answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Only in assistant messages: the calls at the end of the message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallBody>,
    /// Only in tool messages: the id of the call that the message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl ChatMessage {
    /// Creates a message of text alone.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }
}

/// A function call, as later messages repeat it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallBody {
    /// The id that the call's result refers to.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function and its arguments.
    pub function: FunctionBody,
}

/// The function of a call, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionBody {
    /// The name of the function.
    pub name: String,
    /// The arguments as JSON text.
    pub arguments: String,
}

/// `stream_options`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct StreamOptions {
    /// Whether the stream ends with its usage.
    pub include_usage: bool,
}

/// `headrace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct HeadraceOptions {
    /// Whether the answer carries stage timings and cost.
    pub explain: bool,
}

/// One chunk of a chat stream.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct ChatChunk {
    /// The answer's id.
    #[serde(default)]
    pub id: String,
    /// The model that answers.
    #[serde(default)]
    pub model: String,
    /// Pieces of answers. Empty in a chunk that only reports usage.
    #[serde(default)]
    pub choices: Vec<ChatChoice>,
    /// The usage, in the last chunk, if requested.
    #[serde(default)]
    pub usage: Option<UsageBody>,
    /// Stage timings and cost, in the last chunk, if requested.
    #[serde(default)]
    pub headrace: Option<serde_json::Value>,
    /// The error of a failed stream, in place of a chunk.
    #[serde(default)]
    pub error: Option<ErrorDetail>,
}

/// A piece of one answer.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct ChatChoice {
    /// The index of the answer.
    #[serde(default)]
    pub index: u32,
    /// The new part.
    #[serde(default)]
    pub delta: ChatDelta,
    /// The finish reason, in the last piece.
    #[serde(default)]
    pub finish_reason: Option<String>,
}

/// The new part of an answer.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct ChatDelta {
    /// The role, in the first piece.
    #[serde(default)]
    pub role: Option<String>,
    /// Text to join.
    #[serde(default)]
    pub content: Option<String>,
    /// Text of the reasoning section to join.
    #[serde(default)]
    pub reasoning_content: Option<String>,
    /// Pieces of tool calls.
    #[serde(default)]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

/// A piece of a tool call.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct ToolCallDelta {
    /// The index of the call in the answer.
    #[serde(default)]
    pub index: u32,
    /// The id of the call, in the first piece.
    #[serde(default)]
    pub id: Option<String>,
    /// Name and arguments.
    #[serde(default)]
    pub function: FunctionDelta,
}

/// Name and arguments of a tool call, in pieces.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct FunctionDelta {
    /// The name, in the first piece.
    #[serde(default)]
    pub name: Option<String>,
    /// JSON text to join.
    #[serde(default)]
    pub arguments: Option<String>,
}

/// Tokens of a call, as OpenAI counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct UsageBody {
    /// All prompt tokens, cached ones included.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// All generated tokens, reasoning included.
    #[serde(default)]
    pub completion_tokens: u64,
    /// The sum of both.
    #[serde(default)]
    pub total_tokens: u64,
    /// Parts of the prompt's tokens.
    #[serde(default)]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
    /// Parts of the generated tokens.
    #[serde(default)]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

impl UsageBody {
    /// Prompt tokens that came from the cache.
    pub fn cached_tokens(&self) -> u64 {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0)
    }

    /// Generated tokens of reasoning.
    pub fn reasoning_tokens(&self) -> u64 {
        self.completion_tokens_details.and_then(|details| details.reasoning_tokens).unwrap_or(0)
    }
}

/// Parts of the prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct PromptTokensDetails {
    /// Tokens from the cache.
    #[serde(default)]
    pub cached_tokens: Option<u64>,
}

/// Parts of the generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct CompletionTokensDetails {
    /// Tokens of reasoning.
    #[serde(default)]
    pub reasoning_tokens: Option<u64>,
}

/// The body of an error response.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// An error as a client reads it. Other servers may leave out any field.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ErrorDetail {
    /// The explanation, and the way out.
    #[serde(default)]
    pub message: String,
    /// The kind, such as `rate_limit_error`.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// The exact rule. Some servers put a number here.
    #[serde(default)]
    pub code: Option<serde_json::Value>,
    /// The parameter at fault.
    #[serde(default)]
    pub param: Option<String>,
    /// The stage at which the request failed.
    #[serde(default)]
    pub stage: Option<String>,
    /// The id of the request.
    #[serde(default)]
    pub request_id: Option<String>,
    /// Seconds to wait before a retry.
    #[serde(default)]
    pub retry_after_s: Option<u64>,
    /// The page that explains the error.
    #[serde(default)]
    pub doc_url: Option<String>,
}

impl ErrorDetail {
    /// The exact rule as text. Empty if there is none.
    pub fn code_text(&self) -> String {
        match &self.code {
            None | Some(serde_json::Value::Null) => String::new(),
            Some(serde_json::Value::String(code)) => code.clone(),
            Some(other) => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrace_wire::{WireLimits, parse_chat};

    #[test]
    fn a_request_is_understood_by_the_server() {
        let request = ChatRequest {
            model: "demo".into(),
            messages: vec![ChatMessage::new("user", "hé\n")],
            max_tokens: Some(9),
            temperature: Some(0.5),
            top_p: Some(0.9),
            seed: Some(u64::MAX),
            stop: vec!["x".into()],
            tools: vec![serde_json::json!({"type": "function", "function": {"name": "f"}})],
            stream: true,
            stream_options: Some(StreamOptions { include_usage: true }),
            headrace: Some(HeadraceOptions { explain: true }),
        };
        let call = parse_chat(&serde_json::to_vec(&request).unwrap(), &WireLimits::default()).unwrap();
        assert!(call.stream && call.include_usage && call.explain);
        assert_eq!(call.sampling.seed, Some(u64::MAX));
        assert_eq!(call.sampling.temperature, Some(0.5));
        let bare = ChatRequest { model: "demo".into(), messages: request.messages, ..ChatRequest::default() };
        let text = serde_json::to_string(&bare).unwrap();
        assert_eq!(text, r#"{"model":"demo","messages":[{"role":"user","content":"hé\n"}],"stream":false}"#);
    }

    #[test]
    fn calls_and_their_results_are_understood_by_the_server() {
        let function = FunctionBody { name: "f".into(), arguments: "{\"a\":1}".into() };
        let call = ToolCallBody { id: "c1".into(), kind: "function".into(), function };
        let asked = ChatMessage { tool_calls: vec![call], ..ChatMessage::new("assistant", "") };
        let told = ChatMessage { tool_call_id: Some("c1".into()), ..ChatMessage::new("tool", "7") };
        let request = ChatRequest {
            model: "demo".into(),
            messages: vec![ChatMessage::new("user", "q"), asked, told],
            tools: vec![serde_json::json!({"type": "function", "function": {"name": "f"}})],
            ..ChatRequest::default()
        };
        let call = parse_chat(&serde_json::to_vec(&request).unwrap(), &WireLimits::default()).unwrap();
        let shown = format!("{:?}", call);
        assert!(shown.contains("c1") && shown.contains("\"7\""), "{shown}");
    }

    #[test]
    fn foreign_errors_are_read() {
        let body: ErrorBody = serde_json::from_str(r#"{"error":{"message":"m","code":404,"x":1}}"#).unwrap();
        assert_eq!((body.error.code_text().as_str(), body.error.kind), ("404", None));
    }
}
