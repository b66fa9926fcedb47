//! Price sheets: nano-dollars per million tokens, per model and token class, in versions by UTC date, with rates of their own
//! for long prompts and classes of service. Knows no accounts. A model without a price has no quote, and is refused rather
//! than free.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use headrace_domain::{ModelName, PriceTier, TokenClass, UnixNanos};
use serde::{Deserialize, Serialize};

use crate::calendar;

mod quote;

#[cfg(test)]
mod tests;

use quote::{Prices, Rate, Sheet};
pub use quote::{Quote, Rates};

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

/// Every model's prices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriceList {
    /// For each day on which a price of a model changes, all that apply from then on.
    models: BTreeMap<ModelName, BTreeMap<UnixNanos, Arc<Sheet>>>,
}

/// One model's versions, by what they apply to.
type Versions = BTreeMap<(PriceTier, u64), BTreeMap<UnixNanos, Prices>>;

impl PriceList {
    /// Takes the configured prices.
    ///
    /// # Errors
    /// Everything that is wrong with them, at once.
    pub fn from_config(config: &[PriceConfig]) -> Result<Self, Vec<PriceError>> {
        let mut models: BTreeMap<&ModelName, Versions> = BTreeMap::new();
        let mut errors = Vec::new();
        for version in config {
            let model = &version.model;
            let from = match version.from.as_deref().map(calendar::parse_date) {
                None => Some(UnixNanos::new(0)),
                Some(Some(date)) => Some(date),
                Some(None) => {
                    let from = version.from.clone().unwrap_or_default();
                    errors.push(PriceError::NotADate { model: model.clone(), from });
                    None
                }
            };
            let prices = Prices::from_config(version, &mut errors);
            let (Some(from), Some(prices)) = (from, prices) else { continue };
            let (tier, above) = (version.tier.unwrap_or_default(), version.above.unwrap_or(0));
            let versions = models.entry(model).or_default().entry((tier, above)).or_default();
            if versions.insert(from, prices).is_some() {
                let (model, from) = (model.clone(), version.from.clone());
                errors.push(PriceError::Twice { model, from, tier, above });
            }
        }
        let no_ordinary = models.iter().filter(|(_, versions)| !versions.contains_key(&ORDINARY));
        errors.extend(no_ordinary.map(|(model, _)| PriceError::NoOrdinary { model: (*model).clone() }));
        let dated = models.into_iter().map(|(model, versions)| (model.clone(), by_date(&versions)));
        if errors.is_empty() { Ok(Self { models: dated.collect() }) } else { Err(errors) }
    }

    /// The prices of `model` at `now`; `None` if it has none then: the call is refused.
    pub fn quote(&self, model: &ModelName, now: UnixNanos) -> Option<Quote> {
        let (_, sheet) = self.models.get(model)?.range(..=now).next_back()?;
        Some(Quote::new(model.clone(), Arc::clone(sheet)))
    }

    /// The models that have a price at some time.
    pub fn models(&self) -> impl Iterator<Item = &ModelName> {
        self.models.keys()
    }
}

/// What applies to a call that nothing else applies to.
const ORDINARY: (PriceTier, u64) = (PriceTier::Standard, 0);

/// From the first ordinary prices on: each day with a change, and all that applies from then on.
fn by_date(versions: &Versions) -> BTreeMap<UnixNanos, Arc<Sheet>> {
    let on = |day: UnixNanos| {
        let at =
            |dated: &BTreeMap<UnixNanos, Prices>| dated.range(..=day).next_back().map(|(_, prices)| *prices);
        let ordinary = at(versions.get(&ORDINARY)?)?;
        let special = versions.iter().filter(|(what, _)| **what != ORDINARY);
        let special = special.filter_map(|((tier, above), dated)| {
            at(dated).map(|prices| Rate { tier: *tier, above: *above, prices })
        });
        Some((day, Arc::new(Sheet { ordinary, special: special.collect() })))
    };
    versions.values().flat_map(BTreeMap::keys).filter_map(|day| on(*day)).collect()
}
