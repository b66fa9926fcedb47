//! Response formats as an engine enforces them: the seam between the crate that compiles a format and the engine that
//! chooses tokens. Knows no grammar language, no tokenizer and no engine.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{GrammarSyntax, JsonForm, ResponseFormat};
use serde::{Deserialize, Serialize};

/// A response format compiled for one vocabulary. All choices of all jobs with that format share it.
pub trait CompiledGrammar: fmt::Debug + Send + Sync {
    /// The source of the grammar. Engines on other hosts compile it themselves.
    fn form(&self) -> &Arc<ResponseFormat>;

    /// Reasoning that may precede the format. `None` if the format begins at once.
    fn thought(&self) -> Option<&FormThought> {
        None
    }

    /// Returns a state at the beginning of an answer. It shares no bounds with other states, so none can use up
    /// another's.
    fn begin(&self) -> Box<dyn GrammarState>;

    /// Approximate size of one state in bytes.
    fn state_bytes(&self) -> usize;
}

/// A grammar that several components share.
pub type SharedGrammar = Arc<dyn CompiledGrammar>;

/// Reasoning before the response format. Its content is free, and its markers are single tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormThought {
    /// The id that opens a reasoning block.
    pub open: u32,
    /// The id that closes a reasoning block.
    pub close: u32,
    /// Whether the prompt has already opened a reasoning block. If not, an answer may open one or begin without.
    pub is_open: bool,
    /// White-space ids. One of them may occur between the reasoning and the answer.
    pub between: Vec<u32>,
    /// Number of reasoning ids after which the block is closed. `None` for no limit.
    pub most_ids: Option<u32>,
}

/// A set of response-format kinds that an upstream engine enforces itself, from their source text. Such engines do not
/// follow grammars that are compiled here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FormKinds(u8);

impl FormKinds {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// JSON objects, and JSON that follows a schema.
    pub const JSON: Self = Self(1);
    /// JSON that follows a schema and prescribed white space.
    pub const SPACED: Self = Self(1 << 1);
    /// Regular expressions.
    pub const REGEX: Self = Self(1 << 2);
    /// One of several texts.
    pub const CHOICE: Self = Self(1 << 3);
    /// Grammars in Lark, in llguidance's dialect. Required tool calls are also written in it.
    pub const LARK: Self = Self(1 << 4);
    /// Grammars in GBNF.
    pub const GBNF: Self = Self(1 << 5);
    /// Free text with constrained parts.
    pub const TAGS: Self = Self(1 << 6);

    /// Returns the kind of a response format, and its name for callers.
    pub fn of(form: &ResponseFormat) -> (Self, &'static str) {
        let spaced = |form: &JsonForm| form.compact || form.white_space.is_some();
        match form {
            ResponseFormat::JsonSchema(form) if spaced(form) => {
                (Self::SPACED, "JSON whose white space is prescribed")
            }
            ResponseFormat::JsonObject | ResponseFormat::JsonSchema(_) => (Self::JSON, "JSON"),
            ResponseFormat::Regex(_) => (Self::REGEX, "a regular expression"),
            ResponseFormat::Choice(_) => (Self::CHOICE, "a choice of texts"),
            ResponseFormat::Grammar { text, syntax } => match syntax {
                GrammarSyntax::Gbnf => (Self::GBNF, "a grammar in GBNF"),
                GrammarSyntax::Either if is_gbnf(text) => (Self::GBNF, "a grammar in GBNF"),
                GrammarSyntax::Lark | GrammarSyntax::Either => (Self::LARK, "a grammar in Lark"),
            },
            ResponseFormat::Tags(_) => (Self::TAGS, "a structural tag"),
        }
    }

    /// The union of both sets.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The intersection of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether `other` is a subset of this set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Whether a grammar is written in GBNF, whose rules are defined with `::=`.
pub fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// The grammar state of one answer. Its results depend only on the ids that it has accepted.
pub trait GrammarState: Send {
    /// Writes the mask of ids that may come next: bit `id % 32` of word `id / 32`. Writes every word. Ids beyond the
    /// grammar's vocabulary are not allowed. Ids that end an answer are allowed exactly if the format is complete.
    ///
    /// # Errors
    /// [`GrammarFailed`]. The state must not be used after that.
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed>;

    /// Accepts the next id of the answer.
    ///
    /// # Errors
    /// [`GrammarFailed`], also if the grammar does not allow the id.
    fn accept(&mut self, id: u32) -> Result<(), GrammarFailed>;

    /// Returns the ids that must come next, in order. [`GrammarState::accept`] must still be called for each. Empty if
    /// more than one id is possible.
    fn forced(&self) -> &[u32];

    /// Whether the format is complete and the answer can only end.
    fn is_over(&self) -> bool;

    /// Work since the beginning of the answer, in units of about 1/16 microsecond. Depends only on the accepted ids and
    /// on the masks that were requested. 0 if the work is too small to count.
    fn work_units(&self) -> u64 {
        0
    }
}

/// Why a grammar state failed: it exceeded its bounds, or was given an id that it forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarFailed {
    /// For the log and the caller. Contains no text of the answer.
    pub why: String,
}

impl GrammarFailed {
    /// The failure for a panic in the grammar's code.
    pub fn panicked() -> Self {
        Self { why: "it panicked".to_owned() }
    }
}

impl fmt::Display for GrammarFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the grammar cannot continue: {}", self.why)
    }
}

impl std::error::Error for GrammarFailed {}
