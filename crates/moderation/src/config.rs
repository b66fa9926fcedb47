//! The rules as an operator configures them, and the limits on their size. Plain data;
//! [`Rules::compile`](crate::Rules::compile) checks it.

use serde::{Deserialize, Serialize};

/// Limits on a list of rules. The unit is in each name.
pub mod limits {
    /// Maximum number of rules in a list.
    pub const MAX_RULES: usize = 256;
    /// Maximum bytes of a rule's name.
    pub const MAX_NAME_BYTES: usize = 64;
    /// Maximum bytes of a message to callers.
    pub const MAX_MESSAGE_BYTES: usize = 512;
    /// Maximum number of words in one rule.
    pub const MAX_WORDS: usize = 10_000;
    /// Maximum bytes of a word.
    pub const MAX_WORD_BYTES: usize = 256;
    /// Maximum bytes of the words of all rules together.
    pub const MAX_ALL_WORDS_BYTES: usize = 1024 * 1024;
    /// Maximum bytes of a regular expression.
    pub const MAX_REGEX_BYTES: usize = 4 * 1024;
    /// Maximum nesting depth of a regular expression.
    pub const MAX_REGEX_NESTING: u32 = 50;
    /// Maximum memory of a compiled regular expression, in bytes.
    pub const MAX_REGEX_PROGRAM_BYTES: usize = 1024 * 1024;
    /// Maximum cache for matching one regular expression, in bytes.
    pub const MAX_REGEX_CACHE_BYTES: usize = 1024 * 1024;
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// The rule's name in traces and refusals: letters, digits, `.`, `_` and `-`, unique in the list.
    pub name: String,
    /// How the rule matches.
    pub kind: RuleKind,
    /// Words or phrases. The rule matches if the text contains any of them, in upper or lower case (`kind = "words"`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// Whether a word must stand alone and not inside a longer word (`kind = "words"`).
    #[serde(default)]
    pub whole_word: bool,
    /// A regular expression in the syntax of Rust's `regex` crate (`kind = "regex"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// What happens on a match.
    pub action: Action,
    /// The texts that the rule checks.
    #[serde(default)]
    pub applies_to: AppliesTo,
    /// The message to the caller if the rule blocks. By default it says that the rule blocked, and names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleKind {
    /// Any of a list of words.
    Words,
    /// One regular expression.
    Regex,
}

/// What happens on a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call is refused.
    Block,
    /// The call passes, and its trace names the rule.
    Flag,
}

/// The texts that a rule checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppliesTo {
    /// The text that callers send.
    #[default]
    Input,
}
