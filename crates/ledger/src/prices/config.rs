//! Prices as they are configured, and what can be wrong with them. Plain data; must not know how a call is priced.

use std::fmt;

use headrace_domain::{ModelName, PriceTier, TokenClass};
use serde::{Deserialize, Serialize};

/// One version of one model's prices, as configured. Every price is in nano-dollars per million tokens: $1 per million
/// tokens is 1 000 000 000.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceConfig {
    /// The dated model's name.
    pub model: ModelName,
    /// The first UTC day on which these prices apply, `2026-11-05`; from the beginning if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The class of service that these prices are for; the usual if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<PriceTier>,
    /// They are for calls of more prompt tokens than this, all of whose tokens they apply to; for every call if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<u64>,
    /// Prompt tokens that are computed. Required.
    #[serde(default)]
    pub input: Option<i64>,
    /// Prompt tokens from the prefix cache; the price of `input` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<i64>,
    /// Prompt tokens whose storing in the cache is priced; the price of `input` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<i64>,
    /// Prompt tokens that the cache keeps for an hour; the price of `cache_write` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write_1h: Option<i64>,
    /// Generated tokens. Required.
    #[serde(default)]
    pub output: Option<i64>,
    /// Generated tokens of reasoning, where whoever answers tells them from others; the price of `output` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<i64>,
    /// A million searches of the provider's own web search. Calls that ask for it are refused if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_search: Option<i64>,
}

/// A price that cannot be taken.
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
        /// The price found.
        price: i64,
    },
    /// `from` is not a date.
    NotADate {
        /// The model.
        model: ModelName,
        /// What was found.
        from: String,
    },
    /// Two versions of one model's prices begin on the same day.
    Twice {
        /// The model.
        model: ModelName,
        /// The day; `None` for the beginning.
        from: Option<String>,
        /// The class of service.
        tier: PriceTier,
        /// The prompt tokens above which they apply.
        above: u64,
    },
    /// A model has prices for a class of service or for long prompts, and none for the others.
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
