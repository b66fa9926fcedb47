//! What tiers allow a caller, as it travels with a request. Plain data.

use std::sync::Arc;

use headrace_domain::{HolderTiers, TierName};

/// A number of tokens, and the tier that sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierBound {
    /// The most tokens.
    pub tokens: u32,
    /// The tier.
    pub tier: TierName,
}

/// What the tiers of a key, its project and its organisation allow together, besides limits. Each part names the tier that
/// decides it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierEntitlements {
    /// The nearest tier that restricts models. The models of the principal are within it.
    pub models: Option<TierName>,
    /// Most tokens of a prompt and its answer together.
    pub context: Option<TierBound>,
    /// Most tokens of an answer.
    pub output: Option<TierBound>,
    /// The nearest tier that does not allow reasoning.
    pub no_reasoning: Option<TierName>,
    /// The tier of each holder.
    pub holders: Arc<HolderTiers>,
}
