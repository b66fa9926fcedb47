//! A conversation as every dialect means it: roles, text, parts that are no text, tool calls and their results.
//! Knows no dialect's spelling and no template.

use serde::{Deserialize, Serialize};

use crate::{Form, Media};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions of the operator (OpenAI's `developer` is taken as this).
    System,
    /// The person or program that asks.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name that chat templates know.
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
    /// Who speaks.
    pub role: Role,
    /// The text; several text parts were joined in order. `None` where an assistant only called tools.
    pub content: Option<String>,
    /// The bytes of `content` at which a further text part begins, in rising order. Empty for a text of one part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joints: Vec<usize>,
    /// Parts that are no text, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Media>,
    /// The participant's name, where given.
    pub name: Option<String>,
    /// Reasoning that an assistant's earlier answer carried, where given back.
    pub reasoning: Option<String>,
    /// Calls that the assistant made.
    pub tool_calls: Vec<ToolCall>,
    /// Which call this is the result of (role `tool`).
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

/// A call of a tool by the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's id, which its result names.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as JSON text, just as the model wrote them.
    pub arguments: String,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: Option<String>,
    /// JSON Schema of its arguments, keywords in the conventional order and names as they were sent (see
    /// `wire::canonical`), or `None` where it takes none.
    pub parameters: Option<serde_json::Value>,
    /// Whether the arguments are held to the schema while they are generated.
    pub strict: bool,
    /// A tool that takes a text instead of JSON (OpenAI's `custom`), and what text.
    pub custom: Option<CustomInput>,
}

impl Tool {
    /// A tool whose arguments are JSON that nobody holds to its schema.
    pub fn function(
        name: impl Into<String>,
        description: Option<String>,
        parameters: Option<serde_json::Value>,
    ) -> Self {
        Self { name: name.into(), description, parameters, strict: false, custom: None }
    }
}

/// What a custom tool takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CustomInput {
    /// Any text.
    Text,
    /// Text of this form: a grammar or a regular expression.
    Form(Box<Form>),
}

/// Whether the model may, must or must not call tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// It must not.
    None,
    /// It must call at least one.
    Required,
    /// It must call this one.
    Named(String),
    /// Only some of the tools may be called. All of them stand in the prompt, so that it stays as it was.
    Allowed {
        /// Which, by name.
        names: Vec<String>,
        /// Whether one of them must be called.
        required: bool,
    },
}

/// Which results of tools are left out of a conversation that has grown (Anthropic's `clear_tool_uses`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearTools {
    /// When.
    pub trigger: ClearTrigger,
    /// How many of the last stay.
    pub keep: u32,
    /// Nothing goes unless so many tokens do.
    pub at_least_tokens: u64,
    /// Tools whose results stay.
    pub exclude: Vec<String>,
    /// What the tools were called with goes, too.
    pub inputs: bool,
}

/// When results of tools are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearTrigger {
    /// The prompt has more tokens.
    InputTokens(u64),
    /// More tools were called.
    ToolUses(u32),
}

/// What was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleared {
    /// Results of so many calls of tools.
    pub tool_uses: u32,
    /// So many tokens of the prompt.
    pub input_tokens: u64,
}

/// The messages so far and the tools at hand.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// The tools, in the caller's order.
    pub tools: Vec<Tool>,
    /// Whether they may be called.
    pub tool_choice: ToolChoice,
    /// The last message is the beginning of the answer, which goes on where it ends.
    pub continues: bool,
    /// At most one call in an answer (OpenAI's `parallel_tool_calls: false`).
    pub one_call: bool,
    /// Further variables of the chat template (`chat_template_kwargs`), an object or nothing.
    pub template: serde_json::Map<String, serde_json::Value>,
    /// Its variable `verbosity` was asked for by a parameter of the dialect, so that a template without it cannot take the call.
    #[serde(default)]
    pub asks_verbosity: bool,
}

impl Conversation {
    /// Asks for an answer that says little or much (`low`, `high`): a variable of the template.
    pub fn ask_verbosity(&mut self, word: String) {
        self.template.insert("verbosity".to_owned(), word.into());
        self.asks_verbosity = true;
    }
}
