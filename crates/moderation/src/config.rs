//! The rules as an operator configures them, and the limits on their size. Plain data;
//! [`Rules::compile`](crate::Rules::compile) checks it.

use headrace_domain::ProjectId;
use serde::{Deserialize, Serialize};

use crate::classifier::ContentLabel;
use crate::pii::PiiEntity;

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
    /// Maximum characters of an answer that a regular expression may hold back.
    pub const MAX_WINDOW_CHARS: u32 = 1024;
    /// Maximum bytes of the text that replaces a match.
    pub const MAX_REPLACEMENT_BYTES: usize = 64;
    /// Maximum number of projects that all rules together name.
    pub const MAX_PROJECTS: usize = 64;
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
    /// The longest match in an answer, in characters. Required for patterns that can match a text of any length, if the
    /// rule checks answers (`kind = "regex"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// What the rule recognises (`kind = "pii"`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entities: Vec<PiiEntity>,
    /// What the rule looks for (`kind = "classifier"`). Empty means everything that the classifier knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<ContentLabel>,
    /// The probability from which a passage matches: 0.5 to 0.99, by default 0.8 (`kind = "classifier"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<LabelThreshold>,
    /// The name of the judge that decides (`kind = "judge"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    /// Whether the call waits for the judge (`kind = "judge"`).
    #[serde(default, skip_serializing_if = "JudgeMode::is_default")]
    pub mode: JudgeMode,
    /// What happens on a match.
    pub action: Action,
    /// The text that replaces a match (`action = "redact"`). By default `<EMAIL>` and the like for `kind = "pii"`, and
    /// `<REDACTED>` for other rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<String>,
    /// Whether each match in the input is replaced by a numbered placeholder, such as `<EMAIL_1>`, and put back into the
    /// answer (`action = "redact"`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub restore: bool,
    /// The texts that the rule checks.
    #[serde(default)]
    pub applies_to: AppliesTo,
    /// The projects whose calls the rule checks. Empty means all projects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<ProjectId>,
    /// Whether the rule only names its matches in traces, in place of its action.
    #[serde(default)]
    pub dry_run: bool,
    /// The message to the caller if the rule blocks. By default it says that the rule blocked, and names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl RuleConfig {
    /// What the rule does on a match: its action, or [`Action::Flag`] in a dry run.
    pub(crate) const fn effective_action(&self) -> Action {
        if self.dry_run { Action::Flag } else { self.action }
    }

    /// Returns whether the rule checks calls of `project`.
    pub(crate) fn is_for(&self, project: Option<&ProjectId>) -> bool {
        self.projects.is_empty() || project.is_some_and(|project| self.projects.contains(project))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
const fn is_false(is_set: &bool) -> bool {
    !*is_set
}

/// How a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleKind {
    /// Any of a list of words.
    Words,
    /// One regular expression.
    Regex,
    /// Values that identify a person or give access, such as e-mail addresses and API keys.
    Pii,
    /// Passages that a judge on another server finds unfit.
    Judge,
    /// Passages that the classifier in the program finds insulting, threatening, or written to take over a model.
    Classifier,
}

impl RuleKind {
    /// The kind's name in the configuration and in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Regex => "regex",
            Self::Pii => "pii",
            Self::Judge => "judge",
            Self::Classifier => "classifier",
        }
    }
}

/// Whether a call waits for the verdict of a judge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JudgeMode {
    /// Nothing passes before its verdict.
    #[default]
    Sync,
    /// Text passes at once. A verdict that comes before the end of the answer ends it.
    Async,
}

impl JudgeMode {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
    fn is_default(&self) -> bool {
        *self == Self::Sync
    }
}

/// A probability, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct LabelThreshold(u16);

impl LabelThreshold {
    /// The threshold of a rule that names none.
    pub const DEFAULT: Self = Self(800);

    /// The probability.
    pub(crate) fn probability(self) -> f32 {
        f32::from(self.0) / 1000.0
    }
}

impl TryFrom<f64> for LabelThreshold {
    type Error = String;

    fn try_from(probability: f64) -> Result<Self, String> {
        let thousandths = (probability * 1000.0).round();
        if !(500.0..=990.0).contains(&thousandths) {
            return Err(format!("`threshold` is {probability}; it must be 0.5 to 0.99"));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "500 to 990")]
        let thousandths = thousandths as u16;
        Ok(Self(thousandths))
    }
}

impl From<LabelThreshold> for f64 {
    fn from(threshold: LabelThreshold) -> Self {
        Self::from(threshold.0) / 1000.0
    }
}

/// What happens on a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call is refused, or the answer ends before the match.
    Block,
    /// The text passes, and the trace names the rule.
    Flag,
    /// The match is replaced, and the trace names the rule.
    Redact,
}

impl Action {
    /// The action's name in the configuration and in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Flag => "flag",
            Self::Redact => "redact",
        }
    }
}

/// The texts that a rule checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TextNames", into = "Vec<&'static str>")]
pub struct AppliesTo {
    /// The text that callers send.
    pub input: bool,
    /// The text of answers.
    pub answer: bool,
    /// The reasoning before answers.
    pub reasoning: bool,
    /// Names and arguments of tool calls.
    pub tool_calls: bool,
}

impl AppliesTo {
    /// No text.
    const NOTHING: Self = Self { input: false, answer: false, reasoning: false, tool_calls: false };
    /// The text that callers send.
    pub const INPUT: Self = Self { input: true, ..Self::NOTHING };
    /// Everything that a model writes.
    pub const OUTPUT: Self = Self { input: false, answer: true, reasoning: true, tool_calls: true };

    /// Returns whether the rule checks anything that a model writes.
    pub const fn is_output(&self) -> bool {
        self.answer || self.reasoning || self.tool_calls
    }
}

impl Default for AppliesTo {
    fn default() -> Self {
        Self::INPUT
    }
}

/// One name or a list of names.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextNames {
    One(String),
    Many(Vec<String>),
}

impl TryFrom<TextNames> for AppliesTo {
    type Error = String;

    fn try_from(names: TextNames) -> Result<Self, String> {
        let names = match names {
            TextNames::One(name) => vec![name],
            TextNames::Many(names) => names,
        };
        let mut applies = Self::NOTHING;
        for name in &names {
            match name.as_str() {
                "input" => applies.input = true,
                "output" => applies = Self { input: applies.input, ..Self::OUTPUT },
                "answer" => applies.answer = true,
                "reasoning" => applies.reasoning = true,
                "tool_calls" => applies.tool_calls = true,
                other => {
                    return Err(format!(
                        "`applies_to` names `{other}`; it takes `input`, `output`, `answer`, `reasoning` and `tool_calls`"
                    ));
                }
            }
        }
        match applies == Self::NOTHING {
            true => Err("`applies_to` is empty; leave it out to check the input".to_owned()),
            false => Ok(applies),
        }
    }
}

impl From<AppliesTo> for Vec<&'static str> {
    fn from(applies: AppliesTo) -> Self {
        let AppliesTo { input, answer, reasoning, tool_calls } = applies;
        let names =
            [(input, "input"), (answer, "answer"), (reasoning, "reasoning"), (tool_calls, "tool_calls")];
        names.into_iter().filter_map(|(applies, name)| applies.then_some(name)).collect()
    }
}
