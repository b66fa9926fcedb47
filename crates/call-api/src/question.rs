//! Questions: requests with a body that are not calls, about tokenization. They are free. Plain data.

use headrace_domain::{Dialect, Endpoint};

/// The kind of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// `POST /v1/messages/count_tokens`: the number of prompt tokens that a message would have.
    CountTokens,
    /// `POST /tokenize`: the tokens of a text, or of a conversation after the template.
    Tokenize,
    /// `POST /detokenize`: the text of tokens.
    Detokenize,
}

impl Question {
    /// Returns the dialect of the question.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::CountTokens => Dialect::Anthropic,
            Self::Tokenize | Self::Detokenize => Dialect::OpenAi,
        }
    }

    /// Returns the endpoint that a key must be allowed to use for this question.
    pub const fn endpoint(self) -> Endpoint {
        match self {
            Self::CountTokens => Endpoint::Messages,
            Self::Tokenize => Endpoint::ChatCompletions,
            Self::Detokenize => Endpoint::Completions,
        }
    }
}
