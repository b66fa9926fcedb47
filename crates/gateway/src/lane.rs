//! A model's lane: in what terms its calls are put to those who answer, and what the house needs for that. Knows no call,
//! and nobody who answers.

use std::sync::Arc;

use headrace_domain::SamplingDefaults;
use headrace_engine_api::Capabilities;
use headrace_prompt::{ChatTemplate, ReplyFamily};
use headrace_tokenizer::Tokenizer;

/// In what terms a model is spoken to.
///
/// Who asks for what only one lane has takes it out of the enum by a pattern without an alternative. Another lane (messages in
/// a dialect, sent to others as they are) breaks each of these patterns, and so shows every place that has to decide.
#[derive(Clone)]
pub enum Lane {
    /// In tokens: ids go to an engine and ids come back. Templates, counts, stop strings and the parsing of replies are the
    /// house's.
    Tokens(TokenLane),
}

/// Words to ids and back, and what the model's engines can do.
#[derive(Clone)]
pub struct TokenLane {
    /// Text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text; `None`: only completions.
    pub template: Option<Arc<ChatTemplate>>,
    /// How its replies are parsed.
    pub family: ReplyFamily,
    /// What its makers recommend.
    pub defaults: SamplingDefaults,
    /// What its engines can do.
    pub capabilities: Capabilities,
}

impl Lane {
    /// The most tokens, prompt and answer together, of one sequence.
    pub fn context_window(&self) -> u32 {
        let Self::Tokens(lane) = self;
        lane.capabilities.context_window
    }

    /// What decides the bits of an answer, as far as it is known before anybody answers.
    pub(crate) fn numerics(&self) -> &str {
        let Self::Tokens(lane) = self;
        &lane.capabilities.numerics
    }
}
