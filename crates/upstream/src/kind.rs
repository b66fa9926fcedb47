//! Kinds of servers, and the behaviour that depends only on the kind. Must not know an address or a connection.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use headrace_domain::Dialect;
use headrace_engine_api::{MessageResume, PrefixCache};
use serde::{Deserialize, Serialize};

/// The kind of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamKind {
    /// OpenAI, or any server that speaks its dialect.
    OpenAi,
    /// Anthropic, or any server that speaks its dialect.
    Anthropic,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// The llama.cpp server.
    LlamaCpp,
    /// Another Headrace.
    Headrace,
}

impl UpstreamKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::OpenAi, Self::Anthropic, Self::Vllm, Self::Sglang, Self::LlamaCpp, Self::Headrace];

    /// Returns the name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaCpp => "llamacpp",
            Self::Headrace => "headrace",
        }
    }

    /// Returns whether servers of this kind are sent token ids, provided that the model's tokenizer assets are
    /// available.
    pub const fn takes_ids(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang | Self::LlamaCpp)
    }

    /// Returns the dialect of the kind's messages.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Anthropic => Dialect::Anthropic,
            Self::OpenAi | Self::Vllm | Self::Sglang | Self::LlamaCpp | Self::Headrace => Dialect::OpenAi,
        }
    }

    /// Returns whether servers of this kind count the tokens of a message (`/v1/messages/count_tokens`), for calls in
    /// either dialect.
    pub const fn counts_tokens(self) -> bool {
        matches!(self, Self::Anthropic | Self::Headrace)
    }

    /// Returns the field of a chat request that limits the answer's tokens.
    pub const fn max_tokens_field(self) -> &'static str {
        match self {
            Self::OpenAi | Self::Headrace => "max_completion_tokens",
            Self::Anthropic | Self::Vllm | Self::Sglang | Self::LlamaCpp => "max_tokens",
        }
    }

    /// Returns how the kind's prefix cache separates tenants.
    pub const fn prefix_cache(self) -> PrefixCache {
        match self {
            Self::Vllm => PrefixCache::Labelled("cache_salt"),
            Self::Sglang => PrefixCache::Labelled("extra_key"),
            // The other Headrace mixes the label into its own salt.
            Self::Headrace => PrefixCache::LabelledText("cache_salt"),
            Self::OpenAi | Self::Anthropic | Self::LlamaCpp => PrefixCache::Hidden,
        }
    }

    /// Returns whether servers of this kind usually run inside the operator's network.
    pub const fn runs_inside(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang | Self::LlamaCpp)
    }

    /// Returns how the kind continues an answer that another server began. Newer models of Anthropic refuse to.
    pub const fn resumes(self) -> MessageResume {
        match self {
            Self::Vllm | Self::Sglang => MessageResume::LastTurnFlagged,
            Self::Anthropic => MessageResume::LastTurn,
            Self::OpenAi | Self::LlamaCpp | Self::Headrace => MessageResume::Never,
        }
    }

    /// Returns how long an idle connection is kept. The Python servers and llama.cpp close idle connections after 5 s.
    /// A call that is sent just as they close is lost.
    pub const fn pool_idle(self) -> Duration {
        Duration::from_secs(match self {
            Self::Vllm | Self::Sglang | Self::LlamaCpp => 4,
            Self::OpenAi | Self::Anthropic | Self::Headrace => 30,
        })
    }
}

impl fmt::Display for UpstreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is not the name of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKind(pub String);

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = UpstreamKind::ALL.map(UpstreamKind::name).join(", ");
        write!(f, "`{}` is no kind of upstream; there are {known}", self.0)
    }
}

impl std::error::Error for UnknownKind {}

impl FromStr for UpstreamKind {
    type Err = UnknownKind;

    fn from_str(word: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == word).ok_or_else(|| UnknownKind(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_as_they_are_read() {
        for kind in UpstreamKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
        let error = "gpt".parse::<UpstreamKind>().unwrap_err();
        assert!(
            error.to_string().contains("`gpt` is no kind of upstream; there are openai, anthropic"),
            "{error}"
        );
    }
}
