//! Kinds of servers, and what is told apart by them alone. Knows no address and no connection.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use headrace_domain::Dialect;
use headrace_engine_api::{PrefixCache, Resumes};
use serde::{Deserialize, Serialize};

/// What a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// OpenAI, or any server that speaks its dialect.
    OpenAi,
    /// Anthropic, or any server that speaks its dialect.
    Anthropic,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// The server of llama.cpp.
    LlamaCpp,
    /// Another Headrace.
    Headrace,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::OpenAi, Self::Anthropic, Self::Vllm, Self::Sglang, Self::LlamaCpp, Self::Headrace];

    /// As it is written in configurations.
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

    /// Whether its servers are asked by token ids, where the model's words are here.
    pub const fn takes_ids(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang | Self::LlamaCpp)
    }

    /// The dialect of its messages.
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Anthropic => Dialect::Anthropic,
            Self::OpenAi | Self::Vllm | Self::Sglang | Self::LlamaCpp | Self::Headrace => Dialect::OpenAi,
        }
    }

    /// Whether it tells how many tokens a message has (`/v1/messages/count_tokens`), whichever dialect its calls are in.
    pub const fn counts_tokens(self) -> bool {
        matches!(self, Self::Anthropic | Self::Headrace)
    }

    /// In which field of a chat it wants to be told how many tokens the answer may have.
    pub const fn max_tokens_field(self) -> &'static str {
        match self {
            Self::OpenAi | Self::Headrace => "max_completion_tokens",
            Self::Anthropic | Self::Vllm | Self::Sglang | Self::LlamaCpp => "max_tokens",
        }
    }

    /// How its cache of prefixes separates tenants.
    pub const fn prefix_cache(self) -> PrefixCache {
        match self {
            Self::Vllm => PrefixCache::Labelled("cache_salt"),
            Self::Sglang => PrefixCache::Labelled("extra_key"),
            // It mixes the label into its own.
            Self::Headrace => PrefixCache::LabelledText("cache_salt"),
            Self::OpenAi | Self::Anthropic | Self::LlamaCpp => PrefixCache::Hidden,
        }
    }

    /// Whether its servers usually run inside the operator's network.
    pub const fn runs_inside(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang | Self::LlamaCpp)
    }

    /// How it goes on with an answer that somebody else began. Newer models of Anthropic's refuse to.
    pub const fn resumes(self) -> Resumes {
        match self {
            Self::Vllm | Self::Sglang => Resumes::LastTurnFlagged,
            Self::Anthropic => Resumes::LastTurn,
            Self::OpenAi | Self::LlamaCpp | Self::Headrace => Resumes::Never,
        }
    }

    /// How long an idle connection is kept. The Python servers and llama.cpp close theirs after 5 s; one that they close while
    /// a call goes out on it costs that call.
    pub const fn pool_idle(self) -> Duration {
        Duration::from_secs(match self {
            Self::Vllm | Self::Sglang | Self::LlamaCpp => 4,
            Self::OpenAi | Self::Anthropic | Self::Headrace => 30,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKind(pub String);

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Kind::ALL.map(Kind::name).join(", ");
        write!(f, "`{}` is no kind of upstream; there are {known}", self.0)
    }
}

impl std::error::Error for UnknownKind {}

impl FromStr for Kind {
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
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
        let error = "gpt".parse::<Kind>().unwrap_err();
        assert!(
            error.to_string().contains("`gpt` is no kind of upstream; there are openai, anthropic"),
            "{error}"
        );
    }
}
