//! What is known here of a model whose server takes ids. Knows no server and no job.

use std::sync::Arc;

use headrace_domain::Clock;
use headrace_tokenizer::Tokenizer;

/// What is known here of a model that takes ids.
#[derive(Clone)]
pub struct TokenModelSpec {
    /// Its name there.
    pub model: String,
    /// Its tokenizer, out of its directory.
    pub tokenizer: Arc<Tokenizer>,
    /// Whether special tokens have no text.
    pub skip_special: bool,
    /// Ids that end an answer.
    pub eos: Vec<u32>,
    /// Ids that its embedding has rows for, padding included.
    pub vocab: u32,
    /// Prompt and answer together, in tokens.
    pub context_window: u32,
    /// By whose monotonic time jobs have their deadlines.
    pub clock: Arc<dyn Clock>,
}
