//! Parameters of a call that only the dialect of its endpoint has. They are apart from [`crate::Call`], so that a stage
//! for every dialect names the dialect when it reads one. Must not know how a body writes them.

use std::sync::Arc;

use crate::cache_comparison::CacheComparison;
use crate::{ClearTools, ClearedContext, ResponseAsk};

/// The parameters of one dialect. A call that sets none holds [`DialectExtras::None`], which takes no memory of its own.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum DialectExtras {
    /// The endpoint has no such parameters, or the call sets none of them.
    #[default]
    None,
    /// Of `POST /v1/completions`.
    Completions(Box<CompletionsExtras>),
    /// Of `POST /v1/messages`.
    Messages(Box<MessagesExtras>),
    /// Of `POST /v1/responses`. Shared with the encoder and the store of the answer.
    Responses(Arc<ResponseAsk>),
}

/// Parameters that only completions have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompletionsExtras {
    /// Whether the prompt is repeated before the answer.
    pub echo: bool,
    /// Whether control tokens spelled out in the prompt are parsed as control tokens.
    pub parse_special: bool,
    /// The text after the gap that the answer fills.
    pub suffix: Option<String>,
}

/// Parameters that only Anthropic's messages have.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MessagesExtras {
    /// The cache diagnosis that the caller asks for (`diagnostics`).
    pub comparison: Option<CacheComparison>,
    /// Which tool results are removed if the conversation has grown.
    pub clears: Option<ClearTools>,
    /// What was removed from the conversation.
    pub cleared: Option<ClearedContext>,
}

impl DialectExtras {
    /// The parameters of a completion, if any is set.
    pub fn completions(extras: CompletionsExtras) -> Self {
        if extras == CompletionsExtras::default() { Self::None } else { Self::Completions(Box::new(extras)) }
    }

    /// The parameters of Anthropic's messages, if any is set.
    pub fn messages(extras: MessagesExtras) -> Self {
        if extras == MessagesExtras::default() { Self::None } else { Self::Messages(Box::new(extras)) }
    }

    /// Whether the prompt is repeated before the answer (completions).
    pub fn echo(&self) -> bool {
        matches!(self, Self::Completions(extras) if extras.echo)
    }

    /// Whether control tokens spelled out in a raw prompt are parsed as control tokens (completions).
    pub fn parse_special(&self) -> bool {
        matches!(self, Self::Completions(extras) if extras.parse_special)
    }

    /// The text after the gap that the answer fills (completions).
    pub fn suffix(&self) -> Option<&str> {
        match self {
            Self::Completions(extras) => extras.suffix.as_deref(),
            Self::None | Self::Messages(_) | Self::Responses(_) => None,
        }
    }

    /// Which tool results are removed if the conversation has grown (messages).
    pub fn clears(&self) -> Option<&ClearTools> {
        match self {
            Self::Messages(extras) => extras.clears.as_ref(),
            Self::None | Self::Completions(_) | Self::Responses(_) => None,
        }
    }

    /// The parameters of a Responses call.
    pub fn response(&self) -> Option<&Arc<ResponseAsk>> {
        match self {
            Self::Responses(ask) => Some(ask),
            Self::None | Self::Completions(_) | Self::Messages(_) => None,
        }
    }

    /// The cache diagnosis that the caller asks for (messages and responses).
    pub fn comparison(&self) -> Option<&CacheComparison> {
        match self {
            Self::Messages(extras) => extras.comparison.as_ref(),
            Self::Responses(ask) => ask.comparison.as_ref(),
            Self::None | Self::Completions(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extras_that_set_nothing_take_no_memory() {
        assert_eq!(DialectExtras::completions(CompletionsExtras::default()), DialectExtras::None);
        assert_eq!(DialectExtras::messages(MessagesExtras::default()), DialectExtras::None);
        let echo = DialectExtras::completions(CompletionsExtras { echo: true, ..Default::default() });
        assert!(echo.echo() && !echo.parse_special() && echo.suffix().is_none() && echo.clears().is_none());
        let comparison = Some(CacheComparison { previous_answer: Some("msg_1".to_owned()) });
        for extras in [
            DialectExtras::messages(MessagesExtras { comparison: comparison.clone(), ..Default::default() }),
            DialectExtras::Responses(Arc::new(ResponseAsk {
                comparison: comparison.clone(),
                ..Default::default()
            })),
        ] {
            assert_eq!(extras.comparison(), comparison.as_ref());
            assert!(!extras.echo());
        }
    }
}
