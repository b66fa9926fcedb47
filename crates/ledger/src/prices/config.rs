//! Prices as they are configured, and the errors in them. Plain data; must not know how a call is priced.

use std::fmt;

use headrace_domain::{ModelName, PriceTier, TierName, TokenClass};
use serde::{Deserialize, Serialize};

/// One version of one model's prices, as configured. Every price is in nano-dollars per million tokens: $1 per million
/// tokens is 1 000 000 000.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceConfig {
    /// The name of the dated model.
    pub model: ModelName,
    /// The first UTC day on which these prices apply, such as `2026-11-05`. If absent, they apply from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The class of service that these prices apply to. If absent, the standard class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<PriceTier>,
    /// The tier whose holders these prices apply to. If absent, callers without prices of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_tier: Option<TierName>,
    /// The prices apply to all tokens of calls with more prompt tokens than this. If absent, they apply to every call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<u64>,
    /// The price of computed prompt tokens. Required.
    #[serde(default)]
    pub input: Option<i64>,
    /// The price of prompt tokens from the prefix cache. If absent, the price of `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<i64>,
    /// The price of prompt tokens whose storage in the cache is priced. If absent, the price of `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<i64>,
    /// The price of prompt tokens that the cache keeps for an hour. If absent, the price of `cache_write`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<i64>,
    /// The price of generated tokens. Required.
    #[serde(default)]
    pub output: Option<i64>,
    /// The price of generated reasoning tokens, if the upstream reports them separately. If absent, the price of
    /// `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<i64>,
    /// The price of a million searches of the provider's own web search. If absent, calls that ask for it are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_search: Option<i64>,
}

impl PriceConfig {
    /// Returns the price of a class, in nano-dollars for a million tokens. A class without a price of its own has that of
    /// another class. `None` if there is no such price.
    pub fn price_of(&self, class: TokenClass) -> Option<i64> {
        match class {
            TokenClass::Input => self.input,
            TokenClass::CachedInput => self.cached_input.or(self.input),
            TokenClass::CacheWrite => self.cache_write.or(self.input),
            TokenClass::CacheWrite1h => self.cache_write_1h.or(self.cache_write).or(self.input),
            TokenClass::Output => self.output,
            TokenClass::Reasoning => self.reasoning.or(self.output),
            TokenClass::WebSearch => self.per_search,
        }
    }
}

/// An error in the configured prices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PriceError {
    /// A required class has no price.
    Missing {
        /// The model.
        model: ModelName,
        /// The class.
        class: TokenClass,
    },
    /// A price is below zero.
    Negative {
        /// The model.
        model: ModelName,
        /// The class.
        class: TokenClass,
        /// The configured price.
        price: i64,
    },
    /// `from` is not a date.
    NotADate {
        /// The model.
        model: ModelName,
        /// The configured value.
        from: String,
    },
    /// Two versions of one model's prices begin on the same day.
    Twice {
        /// The model.
        model: ModelName,
        /// The day. `None` for the beginning.
        from: Option<String>,
        /// The class of service.
        tier: PriceTier,
        /// The number of prompt tokens above which the prices apply.
        above: u64,
    },
    /// A model has prices for holders of a tier, but none for all other callers.
    OnlyHolders {
        /// The model.
        model: ModelName,
        /// The tier.
        holder_tier: TierName,
    },
    /// A model has prices for a class of service or for long prompts, but none for all other calls.
    NoOrdinary {
        /// The model.
        model: ModelName,
    },
}

impl fmt::Display for PriceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { model, class } => {
                write!(f, "the price of {model} lacks `{class}`: write 0 if it is meant to be free")
            }
            Self::Negative { model, class, price } => {
                write!(f, "the price of {model} for `{class}` is {price}: it must not be below zero")
            }
            Self::NotADate { model, from } => {
                write!(
                    f,
                    "the price of {model} has `from = \"{from}\"`: it must be a date such as 2026-11-05"
                )
            }
            Self::Twice { model, from, tier, above } => {
                let from = from.as_deref().unwrap_or("the beginning");
                write!(f, "{model} has two prices from {from}")?;
                if *tier != PriceTier::Standard {
                    write!(f, " for `tier = \"{tier}\"`")?;
                }
                if *above > 0 { write!(f, " for `above = {above}`") } else { Ok(()) }
            }
            Self::OnlyHolders { model, holder_tier } => {
                write!(
                    f,
                    "{model} has prices for `holder_tier = \"{holder_tier}\"` only: add a table without it, for all other callers"
                )
            }
            Self::NoOrdinary { model } => {
                write!(
                    f,
                    "{model} has prices with `tier` or `above` only: add a table without them, for all other calls"
                )
            }
        }
    }
}

impl std::error::Error for PriceError {}
