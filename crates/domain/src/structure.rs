//! What an answer must look like, whatever the model: as asked for, before anything is compiled of it.
//! Knows no grammar's engine, no tokens and no dialect's spelling.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The form that the text of an answer is held to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
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
        /// Its text.
        text: String,
        /// How it is written.
        syntax: GrammarSyntax,
    },
    /// Free text, in which what stands between certain tags has a form of its own.
    Tags(TaggedForm),
}

/// JSON of a schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JsonForm {
    /// What the caller calls it; errors name it.
    pub name: Option<String>,
    /// The schema, every key in the order in which it was sent: the answer's keys come in that order.
    pub schema: Value,
    /// Whether it must be one of OpenAI's strict schemas, and is refused by OpenAI's rules where it is none.
    pub strict: bool,
    /// No white space but what strings hold.
    pub compact: bool,
    /// What may stand between the parts of the JSON, as a regular expression; `None`: a bounded amount of white space.
    pub white_space: Option<String>,
}

/// How a grammar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrammarSyntax {
    /// Lark's.
    Lark,
    /// EBNF as llama.cpp and XGrammar read it (GBNF).
    Gbnf,
    /// Whichever of the two it looks like.
    Either,
}

/// Free text with held parts (vLLM's `structural_tag`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaggedForm {
    /// The held parts.
    pub tags: Vec<FormTag>,
    /// After which texts one of the tags must follow.
    pub triggers: Vec<String>,
}

/// One held part of a free text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FormTag {
    /// The text that opens it.
    pub begin: String,
    /// JSON Schema of what stands in it.
    pub schema: Value,
    /// The text that ends it.
    pub end: String,
}

/// How much a model is to think before it answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReasoningWish {
    /// Whether at all; `None`: as the model's template has it.
    pub enabled: Option<bool>,
    /// How hard (OpenAI's `reasoning_effort`, Anthropic's `output_config.effort`), in the caller's word.
    pub effort: Option<String>,
    /// The most tokens that the thought may take (Anthropic's `thinking.budget_tokens`).
    pub budget_tokens: Option<u32>,
    /// Whether the thought is left out of what the caller is told.
    pub hidden: bool,
}
