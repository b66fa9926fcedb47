//! What an answer is held to while it is generated: the seam between whoever compiles a form and whoever chooses tokens.
//! Knows no grammar's language, no tokenizer, and no engine.

use std::fmt;
use std::sync::Arc;

use headrace_domain::Form;

/// A form compiled for one vocabulary. Shared by all choices of all jobs that are held to it.
pub trait Grammar: fmt::Debug + Send + Sync {
    /// What it was compiled of: for engines elsewhere, which compile for themselves.
    fn form(&self) -> &Arc<Form>;

    /// A state at the beginning of an answer. It shares nothing that another state could use up.
    fn begin(&self) -> Box<dyn GrammarState>;

    /// Bytes that one state takes, near enough.
    fn state_bytes(&self) -> usize;
}

/// A grammar that several rooms share.
pub type SharedGrammar = Arc<dyn Grammar>;

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
}

/// Why a grammar cannot go on: it grew beyond its bounds, or was asked for what it forbids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrammarFailed {
    /// For the log; no text of the answer.
    pub why: String,
}

impl fmt::Display for GrammarFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the grammar cannot go on: {}", self.why)
    }
}

impl std::error::Error for GrammarFailed {}
