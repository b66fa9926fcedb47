//! What an answer is held to while it is generated: the seam between whoever compiles a form and whoever chooses tokens.
//! Knows no grammar's language, no tokenizer, and no engine.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{Form, GrammarSyntax, JsonForm};
use serde::{Deserialize, Serialize};

/// A form compiled for one vocabulary. Shared by all choices of all jobs that are held to it.
pub trait Grammar: fmt::Debug + Send + Sync {
    /// What it was compiled of: for engines elsewhere, which compile for themselves.
    fn form(&self) -> &Arc<Form>;

    /// The thought that may stand before the form; `None`: the form begins at once.
    fn thought(&self) -> Option<&FormThought> {
        None
    }

    /// A state at the beginning of an answer. It shares nothing that another state could use up.
    fn begin(&self) -> Box<dyn GrammarState>;

    /// Bytes that one state takes, near enough.
    fn state_bytes(&self) -> usize;
}

/// A grammar that several rooms share.
pub type SharedGrammar = Arc<dyn Grammar>;

/// A thought before the form: it is free, and its marks are single tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormThought {
    /// The id that opens one.
    pub open: u32,
    /// The id that ends one.
    pub close: u32,
    /// Whether the prompt has opened it. Otherwise an answer may begin with one, or not.
    pub is_open: bool,
    /// Ids that may stand once between a thought and the answer: white space.
    pub between: Vec<u32>,
    /// After so many ids a thought is closed; `None`: as long as it likes.
    pub most_ids: Option<u32>,
}

/// Kinds of forms that an engine elsewhere is told in words, and holds answers to in its own way: nothing compiled here is
/// followed there. A set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FormKinds(u8);

impl FormKinds {
    /// None.
    pub const NONE: Self = Self(0);
    /// JSON objects, and JSON of a schema.
    pub const JSON: Self = Self(1);
    /// JSON of a schema whose white space is said.
    pub const SPACED: Self = Self(1 << 1);
    /// Regular expressions.
    pub const REGEX: Self = Self(1 << 2);
    /// One of several texts.
    pub const CHOICE: Self = Self(1 << 3);
    /// Grammars in Lark, as llguidance reads it; calls of tools that must come are written so.
    pub const LARK: Self = Self(1 << 4);
    /// Grammars in GBNF.
    pub const GBNF: Self = Self(1 << 5);
    /// Free text with held parts.
    pub const TAGS: Self = Self(1 << 6);

    /// The kind that a form is of, and what callers know it as.
    pub fn of(form: &Form) -> (Self, &'static str) {
        let spaced = |form: &JsonForm| form.compact || form.white_space.is_some();
        match form {
            Form::JsonSchema(form) if spaced(form) => (Self::SPACED, "JSON whose white space is prescribed"),
            Form::JsonObject | Form::JsonSchema(_) => (Self::JSON, "JSON"),
            Form::Regex(_) => (Self::REGEX, "a regular expression"),
            Form::Choice(_) => (Self::CHOICE, "a choice of texts"),
            Form::Grammar { text, syntax } => match syntax {
                GrammarSyntax::Gbnf => (Self::GBNF, "a grammar in GBNF"),
                GrammarSyntax::Either if is_gbnf(text) => (Self::GBNF, "a grammar in GBNF"),
                GrammarSyntax::Lark | GrammarSyntax::Either => (Self::LARK, "a grammar in Lark"),
            },
            Form::Tags(_) => (Self::TAGS, "a structural tag"),
        }
    }

    /// Those of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that both have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` are in it.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Whether a grammar is written in GBNF: its rules are defined by `::=`.
pub fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// How far one answer has come. What it says depends on nothing but the ids that were accepted.
pub trait GrammarState: Send {
    /// Which ids may come next: bit `id % 32` of word `id / 32`. Writes every word; an id beyond the grammar's vocabulary is
    /// not allowed. Ids that end an answer are allowed where the form is complete, and nowhere else.
    ///
    /// # Errors
    /// [`GrammarFailed`]; nothing can be asked of it any more.
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), GrammarFailed>;

    /// Takes the id that comes next.
    ///
    /// # Errors
    /// [`GrammarFailed`], also where the id is none that may come.
    fn accept(&mut self, id: u32) -> Result<(), GrammarFailed>;

    /// Ids that must come next, in their order: nothing else may. Each is taken by [`GrammarState::accept`] all the same. Empty
    /// where there is a choice.
    fn forced(&self) -> &[u32];

    /// Whether the form is complete, so that nothing but the end can come.
    fn is_over(&self) -> bool;

    /// Units of work since the beginning of the answer. They depend on nothing but the ids that were accepted and the masks that were
    /// asked for. About 16 units are a microsecond. 0 if the work is too small to count.
    fn work_units(&self) -> u64 {
        0
    }
}

/// Why a grammar cannot go on: it grew beyond its bounds, or was asked for what it forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarFailed {
    /// For the log and the caller; no text of the answer.
    pub why: String,
}

impl GrammarFailed {
    /// What follows the grammar panicked.
    pub fn panicked() -> Self {
        Self { why: "it panicked".to_owned() }
    }
}

impl fmt::Display for GrammarFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the grammar cannot go on: {}", self.why)
    }
}

impl std::error::Error for GrammarFailed {}
