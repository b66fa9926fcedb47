//! The usage that an upstream reports, in disjoint classes of tokens.

use headrace_domain::Usage;

/// The usage that an upstream reports, in every class that upstreams distinguish. The token counts up to `reasoning`
/// are disjoint. The audio counts are parts of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReportedUsage {
    /// Prompt tokens that were neither read from a cache nor written to one at a price.
    pub input: u64,
    /// Prompt tokens read from the cache.
    pub cached_input: u64,
    /// Prompt tokens written to a cache that keeps them for 5 minutes (Anthropic).
    pub cache_write_5m: u64,
    /// Prompt tokens written to a cache that keeps them for an hour (Anthropic).
    pub cache_write_1h: u64,
    /// Prompt tokens written to the cache (OpenAI).
    pub cache_write: u64,
    /// Generated tokens outside of reasoning.
    pub output: u64,
    /// Generated tokens of reasoning.
    pub reasoning: u64,
    /// Audio tokens in the prompt.
    pub audio_input: u64,
    /// Audio tokens in the answer.
    pub audio_output: u64,
    /// Searches that the upstream's own tool made.
    pub web_searches: u64,
    /// Pages that the upstream's own tool fetched.
    pub web_fetches: u64,
    /// The service tier that the upstream says it billed.
    pub service_tier: Option<String>,
}

impl ReportedUsage {
    /// The classes that have prices.
    pub const fn usage(&self) -> Usage {
        Usage {
            input: self.input,
            cached_input: self.cached_input,
            cache_write: self.cache_write.saturating_add(self.cache_write_5m),
            cache_write_1h: self.cache_write_1h,
            output: self.output,
            reasoning: self.reasoning,
            web_searches: self.web_searches,
        }
    }
}

/// The part of a report that is usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownUsage {
    /// The classes that have prices. Those of an unknown part are 0.
    pub usage: Usage,
    /// Whether the prompt's tokens are known.
    pub has_prompt: bool,
    /// Whether the answer's tokens are known.
    pub has_answer: bool,
    /// Tokens of prompt and answer together, if the upstream reports them.
    pub total: Option<u64>,
}
