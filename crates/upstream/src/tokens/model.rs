//! Local facts about a model whose server takes ids. Must not know a server or a job.

use std::sync::Arc;

use headrace_domain::Clock;
use headrace_tokenizer::Tokenizer;

/// Local facts about a model that takes ids.
#[derive(Clone)]
pub struct TokenModelSpec {
    /// The model's name at the server.
    pub model: String,
    /// The tokenizer, loaded from the model's directory.
    pub tokenizer: Arc<Tokenizer>,
    /// Whether special tokens have no text.
    pub skip_special: bool,
    /// Ids that end an answer.
    pub eos: Vec<u32>,
    /// Number of rows of the model's embedding, including padding. Ids must be smaller.
    pub vocab: u32,
    /// Maximum length of prompt and answer together, in tokens.
    pub context_window: u32,
    /// The clock whose monotonic time defines the deadlines of jobs.
    pub clock: Arc<dyn Clock>,
}
