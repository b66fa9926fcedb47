//! Tokens by class: what a call used, in the one form that the engine reports and the ledger prices. Must not know
//! prices or how a dialect counts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ServiceTier;

/// A class of tokens with a price of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenClass {
    /// Prompt tokens that were computed.
    Input,
    /// Prompt tokens that came from the prefix cache.
    CachedInput,
    /// Prompt tokens with a price for storing them in the cache: OpenAI's cache writes, and Anthropic's for five
    /// minutes.
    CacheWrite,
    /// Prompt tokens that the cache keeps for an hour, at their own price (Anthropic).
    #[serde(rename = "cache_write_1h")]
    CacheWrite1h,
    /// Generated tokens.
    Output,
    /// Generated tokens of a reasoning section.
    Reasoning,
    /// Searches of the provider's own web search. The unit is one search, not a token.
    WebSearch,
}

impl TokenClass {
    /// Every class of tokens, in display order.
    pub const ALL: [Self; 6] =
        [Self::Input, Self::CachedInput, Self::CacheWrite, Self::CacheWrite1h, Self::Output, Self::Reasoning];
    /// Every class that a bill may list.
    pub const BILLED: [Self; 7] = [
        Self::Input,
        Self::CachedInput,
        Self::CacheWrite,
        Self::CacheWrite1h,
        Self::Output,
        Self::Reasoning,
        Self::WebSearch,
    ];
    /// The classes of prompt tokens.
    pub const PROMPT: [Self; 4] = [Self::Input, Self::CachedInput, Self::CacheWrite, Self::CacheWrite1h];
    /// The classes of generated tokens.
    pub const GENERATED: [Self; 2] = [Self::Output, Self::Reasoning];

    /// Returns the name in configuration, metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::CachedInput => "cached_input",
            Self::CacheWrite => "cache_write",
            Self::CacheWrite1h => "cache_write_1h",
            Self::Output => "output",
            Self::Reasoning => "reasoning",
            Self::WebSearch => "web_search",
        }
    }
}

impl fmt::Display for TokenClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Tokens of a call by class. The classes are disjoint: `input` excludes cached tokens and `output` excludes reasoning
/// tokens, so that no token is priced twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens computed.
    pub input: u64,
    /// Prompt tokens read from the prefix cache.
    pub cached_input: u64,
    /// Prompt tokens with a price for storing them in the cache, without those in `cache_write_1h`.
    pub cache_write: u64,
    /// Prompt tokens that the cache keeps for an hour.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_1h: u64,
    /// Tokens generated outside reasoning.
    pub output: u64,
    /// Tokens generated inside reasoning.
    pub reasoning: u64,
    /// Searches of the provider's own web search.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub web_searches: u64,
}

/// A service tier with prices of its own, as the answering server names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceTier {
    /// The default tier.
    #[default]
    Standard,
    /// Work that can wait.
    Flex,
    /// Work of a batch.
    Batch,
    /// Work with priority.
    Priority,
}

impl PriceTier {
    /// The tiers that a price can be configured for.
    pub const NAMED: [Self; 3] = [Self::Flex, Self::Batch, Self::Priority];

    /// Returns the name in configuration and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Flex => "flex",
            Self::Batch => "batch",
            Self::Priority => "priority",
        }
    }

    /// Parses the tier that a server reports. `default`, `standard` and unknown names are [`PriceTier::Standard`].
    pub fn reported(name: &str) -> Self {
        Self::NAMED.into_iter().find(|tier| tier.name() == name).unwrap_or_default()
    }
}

impl From<ServiceTier> for PriceTier {
    fn from(tier: ServiceTier) -> Self {
        match tier {
            ServiceTier::Standard => Self::Standard,
            ServiceTier::Flex => Self::Flex,
            ServiceTier::Batch => Self::Batch,
        }
    }
}

impl fmt::Display for PriceTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How the token counts of a call were obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageSource {
    /// This server saw the token ids and counted them.
    #[default]
    Counted,
    /// The answering server reported the counts.
    Reported,
    /// Estimated from the bytes sent and received, because the answering server reported no counts.
    Estimated,
}

impl UsageSource {
    /// Returns the name in traces and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Reported => "reported",
            Self::Estimated => "estimated",
        }
    }
}

impl Usage {
    /// Returns the count of one class.
    pub const fn of(&self, class: TokenClass) -> u64 {
        match class {
            TokenClass::Input => self.input,
            TokenClass::CachedInput => self.cached_input,
            TokenClass::CacheWrite => self.cache_write,
            TokenClass::CacheWrite1h => self.cache_write_1h,
            TokenClass::Output => self.output,
            TokenClass::Reasoning => self.reasoning,
            TokenClass::WebSearch => self.web_searches,
        }
    }

    /// Returns all prompt tokens, computed, cached or written: OpenAI's `prompt_tokens`.
    pub const fn prompt_tokens(&self) -> u64 {
        self.input.saturating_add(self.cached_input).saturating_add(self.cache_writes())
    }

    /// Returns the prompt tokens written to the cache, for either lifetime.
    pub const fn cache_writes(&self) -> u64 {
        self.cache_write.saturating_add(self.cache_write_1h)
    }

    /// Returns all generated tokens, including reasoning: OpenAI's `completion_tokens`.
    pub const fn completion_tokens(&self) -> u64 {
        self.output.saturating_add(self.reasoning)
    }

    /// Returns prompt and generated tokens together.
    pub const fn total(&self) -> u64 {
        self.prompt_tokens().saturating_add(self.completion_tokens())
    }

    /// Returns the sum, class by class.
    #[must_use]
    pub const fn plus(&self, other: &Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cached_input: self.cached_input.saturating_add(other.cached_input),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            cache_write_1h: self.cache_write_1h.saturating_add(other.cache_write_1h),
            output: self.output.saturating_add(other.output),
            reasoning: self.reasoning.saturating_add(other.reasoning),
            web_searches: self.web_searches.saturating_add(other.web_searches),
        }
    }
}
