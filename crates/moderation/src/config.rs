//! The rules as an operator writes them, and the bounds on what may be written.
//! Plain data; whether it makes sense is found out when it is compiled.

use serde::{Deserialize, Serialize};

/// Bounds on a list of rules, each with its unit in its name.
pub mod limits {
    /// Most rules in a list.
    pub const MAX_RULES: usize = 256;
    /// Longest name of a rule, in bytes.
    pub const MAX_NAME_BYTES: usize = 64;
    /// Longest message to callers, in bytes.
    pub const MAX_MESSAGE_BYTES: usize = 512;
    /// Most words in one rule.
    pub const MAX_WORDS: usize = 10_000;
    /// Longest word, in bytes.
    pub const MAX_WORD_BYTES: usize = 256;
    /// Words of all rules together, in bytes.
    pub const MAX_ALL_WORDS_BYTES: usize = 1024 * 1024;
    /// Longest regular expression, in bytes.
    pub const MAX_REGEX_BYTES: usize = 4 * 1024;
    /// Deepest nesting in a regular expression.
    pub const MAX_REGEX_NESTING: u32 = 50;
    /// Largest compiled regular expression, in bytes of memory.
    pub const MAX_REGEX_PROGRAM_BYTES: usize = 1024 * 1024;
    /// Largest cache that matching one regular expression may use, in bytes of memory.
    pub const MAX_REGEX_CACHE_BYTES: usize = 1024 * 1024;
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// Its name, for traces and refusals: letters, digits, `.`, `_` and `-`; unique in the list.
    pub name: String,
    /// How it matches.
    pub kind: RuleKind,
    /// Words or phrases, any of which matches, upper and lower case alike (`kind = "words"`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// Whether a word must stand alone rather than inside a longer one (`kind = "words"`).
    #[serde(default)]
    pub whole_word: bool,
    /// A regular expression in the syntax of Rust's `regex` crate (`kind = "regex"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// What happens on a match.
    pub action: Action,
    /// Which texts it looks at.
    #[serde(default)]
    pub applies_to: AppliesTo,
    /// What callers are told when it blocks; by default, that it did and its name.
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
    /// The call passes, and its trace says so.
    Flag,
}

/// Which texts a rule looks at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppliesTo {
    /// What callers send.
    #[default]
    Input,
}
