//! A conversation, independent of the dialect: roles, text, media, tool calls and their results. Must not know a
//! dialect's spelling or a template.

use serde::{Deserialize, Serialize};

use crate::{MediaPart, ResponseFormat};

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions of the operator. OpenAI's `developer` maps to this role.
    System,
    /// The person or program that calls the model.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// Returns the name that chat templates use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The author of the message.
    pub role: Role,
    /// The text. Several text parts are joined in order. `None` if an assistant message holds only tool calls.
    pub content: Option<String>,
    /// The bytes of `content` at which a further text part begins, in rising order. Empty for a text of one part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joints: Vec<usize>,
    /// Parts that are not text, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<MediaPart>,
    /// The participant's name, if the client sent one.
    pub name: Option<String>,
    /// Reasoning of an earlier answer, if the client sent it back.
    pub reasoning: Option<String>,
    /// Tool calls that the assistant made.
    pub tool_calls: Vec<ToolCall>,
    /// Id of the tool call that this message answers (role `tool`).
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message of plain text.
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(content.into()),
            joints: Vec::new(),
            media: Vec::new(),
            name: None,
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }

    /// The text parts of `content`, in order. No part is empty, unless it is the only one.
    pub fn text_parts(&self) -> impl Iterator<Item = &str> {
        let text = self.content.as_deref().unwrap_or_default();
        let begins = std::iter::once(0).chain(self.joints.iter().copied());
        let ends = self.joints.iter().copied().chain(std::iter::once(text.len()));
        begins.zip(ends).filter_map(|(begin, end)| text.get(begin..end))
    }
}

/// Where a text of a call is, for judges of phrases that are split over texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextPlace {
    /// No text beside it continues it: an input of embeddings, or parts that were given before one by one.
    Apart,
    /// Beside the contents of messages: a name, a tool, an unknown field.
    Beside,
    /// In the content of a message, as a whole or as one of its parts.
    Content {
        /// Whether the message is the user's.
        of_user: bool,
    },
}

/// A tool call by the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's id. The result refers to it.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as JSON text, exactly as the model wrote them.
    pub arguments: String,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// The tool's name.
    pub name: String,
    /// What the tool does, for the model.
    pub description: Option<String>,
    /// JSON Schema of the arguments, or `None` if the tool takes none. Keywords are in the conventional order, property
    /// names in the order sent (see `wire::json::canonical`).
    pub parameters: Option<serde_json::Value>,
    /// Whether generation is constrained to the schema.
    pub strict: bool,
    /// Set if the tool takes text instead of JSON (OpenAI's `custom`): the kind of text.
    pub custom: Option<CustomInput>,
}

impl Tool {
    /// A tool with JSON arguments that are not constrained to the schema.
    pub fn function(
        name: impl Into<String>,
        description: Option<String>,
        parameters: Option<serde_json::Value>,
    ) -> Self {
        Self { name: name.into(), description, parameters, strict: false, custom: None }
    }
}

/// The input of a custom tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CustomInput {
    /// Any text.
    Text,
    /// Text that matches this form: a grammar or a regular expression.
    Form(Box<ResponseFormat>),
}

/// Whether the model may, must or must not call tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// The model must not call a tool.
    None,
    /// The model must call at least one tool.
    Required,
    /// The model must call this tool.
    Named(String),
    /// Only some of the tools may be called. The prompt still lists all of them, so that it stays the same.
    Allowed {
        /// Names of the allowed tools.
        names: Vec<String>,
        /// Whether the model must call one of them.
        required: bool,
    },
}

/// Which tool results are removed from a conversation that has grown (Anthropic's `clear_tool_uses`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearTools {
    /// When results are removed.
    pub trigger: ClearTrigger,
    /// Number of most recent results to keep.
    pub keep: u32,
    /// Results are removed only if that saves at least this many tokens.
    pub at_least_tokens: u64,
    /// Tools whose results are kept.
    pub exclude: Vec<String>,
    /// Whether the arguments of the calls are removed too.
    pub inputs: bool,
}

/// When tool results are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearTrigger {
    /// The prompt has more than this many tokens.
    InputTokens(u64),
    /// The conversation has more than this many tool calls.
    ToolUses(u32),
}

/// How much was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClearedContext {
    /// Number of tool calls whose results were removed.
    pub tool_uses: u32,
    /// Number of prompt tokens that were removed.
    pub input_tokens: u64,
}

/// The messages so far and the available tools.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The tools, in the caller's order.
    pub tools: Vec<Tool>,
    /// Whether the tools may be called.
    pub tool_choice: ToolChoice,
    /// Whether the last message is the beginning of the answer, which the model continues.
    pub continues: bool,
    /// Whether an answer may hold at most one tool call (OpenAI's `parallel_tool_calls: false`).
    pub one_call: bool,
    /// Further variables of the chat template (`chat_template_kwargs`). Empty if there are none.
    pub template: serde_json::Map<String, serde_json::Value>,
    /// Whether a parameter of the dialect set the variable `verbosity`. A template without that variable cannot serve
    /// the call.
    #[serde(default)]
    pub asks_verbosity: bool,
}

impl Conversation {
    /// Sets the template variable for the length of the answer (`low`, `high`).
    pub fn ask_verbosity(&mut self, word: String) {
        self.template.insert("verbosity".to_owned(), word.into());
        self.asks_verbosity = true;
    }
}
