//! Parameters that only the Responses API has: what the answer repeats, what is stored, and what it continues. Must not
//! know a store, nor any JSON except what is repeated verbatim.

use crate::cache_comparison::CacheComparison;

/// Parameters of one Responses call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseAsk {
    /// Fields that the answer repeats, as JSON without braces, each followed by a comma: `"instructions":null,`…
    pub echo: String,
    /// The input as sent: a JSON string or a list of items. Kept only if something may be stored.
    pub input: String,
    /// Whether to store the answer.
    pub store: bool,
    /// Whether the call runs in the background, without a waiting client.
    pub background: bool,
    /// Id of the response that this one continues.
    pub previous: Option<String>,
    /// Id of the conversation that this call belongs to.
    pub conversation: Option<String>,
    /// The cache diagnosis that the caller asks for.
    pub comparison: Option<CacheComparison>,
    /// Whether the oldest turns are dropped if a conversation does not fit (`truncation: "auto"`).
    pub cuts: bool,
    /// Whether the answer also carries the reasoning in sealed form. A caller without stored responses sends it back in
    /// the next turn.
    pub sealed_reasoning: bool,
    /// Whether reasoning is shown as a summary (`reasoning.summary`).
    pub reasoning_summary: bool,
    /// Kinds of tools that were left out because this server does not run them.
    pub skipped_tools: Vec<String>,
}
