//! Questions with a body, beside calls: about words and tokens. They are free. Plain data.

use headrace_domain::{Dialect, Endpoint};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// `POST /v1/messages/count_tokens`: how many tokens the prompt of a message would have.
    CountTokens,
    /// `POST /tokenize`: the tokens of a text, or of a conversation as a model is shown it.
    Tokenize,
    /// `POST /detokenize`: the text of tokens.
    Detokenize,
}

impl Question {
    /// The dialect spoken there.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::CountTokens => Dialect::Anthropic,
            Self::Tokenize | Self::Detokenize => Dialect::OpenAi,
        }
    }

    /// The endpoint that a key must be allowed to use in order to ask.
    pub const fn endpoint(self) -> Endpoint {
        match self {
            Self::CountTokens => Endpoint::Messages,
            Self::Tokenize => Endpoint::ChatCompletions,
            Self::Detokenize => Endpoint::Completions,
        }
    }
}
