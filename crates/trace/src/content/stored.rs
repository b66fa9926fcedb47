//! A recorded request with its answer, as it is stored and shown. Plain data.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{EndUser, Endpoint, KeyId, OrgId, ProjectId, RecordLevel, RequestId, UnixNanos};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The kind of a part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerPartKind {
    /// Text for the reader.
    Text,
    /// Reasoning before the text.
    Reasoning,
    /// The arguments of a tool call.
    ToolCall,
}

/// A part of an answer: a text, a reasoning or a tool call of one choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerPart {
    /// The choice, from 0.
    #[serde(default, skip_serializing_if = "is_first")]
    pub choice: u32,
    /// The kind of the part.
    pub kind: AnswerPartKind,
    /// The name of the tool, for a tool call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The text, or the arguments of the tool call as JSON text.
    pub text: String,
}

fn is_first(choice: &u32) -> bool {
    *choice == 0
}

/// A recorded request and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredContent {
    /// The id of the request.
    pub id: RequestId,
    /// When the request's first byte arrived.
    pub started: UnixNanos,
    /// When the content is removed.
    pub expires: UnixNanos,
    /// The organisation that paid.
    pub org: Option<OrgId>,
    /// The project.
    pub project: ProjectId,
    /// The key.
    pub key: Option<KeyId>,
    /// The end user that the caller named.
    pub user: Option<EndUser>,
    /// The model that handled the request.
    pub model: Option<String>,
    /// The endpoint. It determines the form of the request.
    pub endpoint: Endpoint,
    /// Whether personal data was replaced.
    pub level: RecordLevel,
    /// The request's body. Empty if it was to be redacted and is no whole JSON.
    pub request: String,
    /// The end of the body is missing.
    pub request_cut: bool,
    /// The answer's texts, reasoning and tool calls, in order. Empty if it was to be redacted and its end is missing.
    pub answer: Vec<AnswerPart>,
    /// The end of the answer is missing.
    pub answer_cut: bool,
}

impl StoredContent {
    /// The content as operators see it. A request that is JSON is shown as JSON, any other as text.
    pub fn json(&self) -> Value {
        let request = serde_json::from_str(&self.request);
        json!({
            "id": self.id.to_string(),
            "started": Rfc3339(self.started).to_string(),
            "expires": Rfc3339(self.expires).to_string(),
            "org": self.org,
            "project": self.project,
            "key": self.key,
            "user": self.user,
            "model": self.model,
            "endpoint": self.endpoint.name(),
            "level": self.level,
            "request": request.unwrap_or_else(|_| Value::from(self.request.as_str())),
            "request_cut": self.request_cut,
            "answer": self.answer,
            "answer_cut": self.answer_cut,
        })
    }

    /// Whether the request or the answer contains a text. Letters are compared without regard to case.
    pub fn contains(&self, lower: &str) -> bool {
        holds(&self.request, lower) || self.answer.iter().any(|part| holds(&part.text, lower))
    }

    /// The estimated size of the content in its store, in bytes.
    pub fn stored_bytes(&self) -> usize {
        let answer: usize = self.answer.iter().map(|part| part.text.len().saturating_add(64)).sum();
        self.request.len().saturating_add(answer)
    }
}

/// Whether `whole` contains `lower`, which is in lower case. A JSON text is searched as it is written, and with its
/// escapes replaced if that differs.
fn holds(whole: &str, lower: &str) -> bool {
    if whole.to_lowercase().contains(lower) {
        return true;
    }
    if !whole.contains('\\') {
        return false;
    }
    serde_json::from_str::<Value>(whole).is_ok_and(|value| value_holds(&value, lower))
}

fn value_holds(value: &Value, lower: &str) -> bool {
    match value {
        Value::String(text) => text.to_lowercase().contains(lower),
        Value::Array(items) => items.iter().any(|item| value_holds(item, lower)),
        Value::Object(fields) => fields.values().any(|field| value_holds(field, lower)),
        _ => false,
    }
}
