//! The required form of an answer, for any model: as the client asked for it, before it is compiled. Must not know a
//! grammar engine, tokens or a dialect's spelling.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The form that an answer's text must match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFormat {
    /// A JSON object of any content (`response_format: {"type": "json_object"}`).
    JsonObject,
    /// JSON that fits a schema.
    JsonSchema(JsonForm),
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A context-free grammar.
    Grammar {
        /// The grammar's text.
        text: String,
        /// The notation of the text.
        syntax: GrammarSyntax,
    },
    /// Free text in which the parts between certain tags have a form of their own.
    Tags(TaggedForm),
}

/// JSON that must match a schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JsonForm {
    /// The caller's name for the schema. Errors repeat it.
    pub name: Option<String>,
    /// The schema, with every key in the order sent. The answer's keys follow that order.
    pub schema: Value,
    /// Whether the schema must be one of OpenAI's strict schemas. If it is not, OpenAI's rules refuse it.
    pub strict: bool,
    /// Whether white space is allowed only inside strings.
    pub compact: bool,
    /// A regular expression for the text between the parts of the JSON. `None` allows a bounded amount of white space.
    pub white_space: Option<String>,
}

/// The notation of a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrammarSyntax {
    /// Lark's.
    Lark,
    /// EBNF as llama.cpp and XGrammar read it (GBNF).
    Gbnf,
    /// Lark or GBNF, detected from the text.
    Either,
}

/// Free text with constrained parts (vLLM's `structural_tag`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaggedForm {
    /// The constrained parts.
    pub tags: Vec<FormTag>,
    /// Texts after which one of the tags must follow.
    pub triggers: Vec<String>,
}

/// One constrained part of a free text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FormTag {
    /// The text that opens the part.
    pub begin: String,
    /// JSON Schema of the part's content.
    pub schema: Value,
    /// The text that closes the part.
    pub end: String,
}

/// How much a model reasons before it answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReasoningOptions {
    /// Whether the model reasons at all. `None` leaves that to the model's template.
    pub enabled: Option<bool>,
    /// The effort (OpenAI's `reasoning_effort`, Anthropic's `output_config.effort`), as the caller spelled it.
    pub effort: Option<String>,
    /// Maximum number of reasoning tokens (Anthropic's `thinking.budget_tokens`).
    pub budget_tokens: Option<u32>,
    /// Whether the reasoning is left out of the caller's answer.
    pub hidden: bool,
}
