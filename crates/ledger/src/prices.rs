//! Price sheets: nano-dollars per million tokens, per model and token class, in versions by UTC date. Long prompts and
//! classes of service can have their own rates. Knows no accounts. A model without a price has no quote, and calls to
//! it are refused and never free.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_domain::{ModelName, PriceTier, UnixNanos};

use crate::calendar;

mod config;
mod quote;

#[cfg(test)]
mod tests;

pub use config::{PriceConfig, PriceError};
pub use quote::{CallPrices, Quote};
use quote::{ClassPrices, ConditionalPrices, PriceSheet};

/// The prices of all models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PriceList {
    /// For each model, the days on which a price changes, with all prices that apply from that day on.
    models: BTreeMap<ModelName, BTreeMap<UnixNanos, Arc<PriceSheet>>>,
}

/// The price versions of one model, by class of service and minimum prompt length.
type Versions = BTreeMap<(PriceTier, u64), BTreeMap<UnixNanos, ClassPrices>>;

impl PriceList {
    /// Builds the list from the configured prices.
    ///
    /// # Errors
    /// Returns all errors in the configuration at once.
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
            let prices = ClassPrices::from_config(version, &mut errors);
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

    /// Returns the prices of `model` at `now`. `None` if it has no price at that time; the call is then refused.
    pub fn quote(&self, model: &ModelName, now: UnixNanos) -> Option<Quote> {
        self.named(model.as_str(), now)
    }

    fn named(&self, model: &str, now: UnixNanos) -> Option<Quote> {
        let (model, days) = self.models.get_key_value(model)?;
        let (_, sheet) = days.range(..=now).next_back()?;
        Some(Quote::new(model.clone(), Arc::clone(sheet)))
    }

    /// Returns the models that have a price at any time.
    pub fn models(&self) -> impl Iterator<Item = &ModelName> {
        self.models.keys()
    }
}

/// One version of the prices that an upstream charges us for one of its models, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostConfig {
    /// The name of the upstream.
    pub upstream: String,
    /// The prices. The model has the name that the upstream uses.
    pub price: PriceConfig,
}

/// The prices that upstreams charge us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CostList {
    upstreams: BTreeMap<String, PriceList>,
}

impl CostList {
    /// Builds the list from the configured costs.
    ///
    /// # Errors
    /// Returns all errors in the configuration at once.
    pub fn from_config(config: &[CostConfig]) -> Result<Self, Vec<PriceError>> {
        let mut by_upstream: BTreeMap<&String, Vec<PriceConfig>> = BTreeMap::new();
        for cost in config {
            by_upstream.entry(&cost.upstream).or_default().push(cost.price.clone());
        }
        let (mut upstreams, mut errors) = (BTreeMap::new(), Vec::new());
        for (upstream, prices) in by_upstream {
            match PriceList::from_config(&prices) {
                Ok(list) => drop(upstreams.insert(upstream.clone(), list)),
                Err(more) => errors.extend(more),
            }
        }
        if errors.is_empty() { Ok(Self { upstreams }) } else { Err(errors) }
    }

    /// Returns the prices of an upstream for one of its models. `None` if they are not configured.
    pub fn quote(&self, upstream: &str, model: &str, now: UnixNanos) -> Option<Quote> {
        self.upstreams.get(upstream)?.named(model, now)
    }
}

/// The key of the ordinary prices, which apply to calls without special prices.
const ORDINARY: (PriceTier, u64) = (PriceTier::Standard, 0);

/// Returns each day with a price change and all prices that apply from that day on. Begins with the first day of
/// ordinary prices.
fn by_date(versions: &Versions) -> BTreeMap<UnixNanos, Arc<PriceSheet>> {
    let on = |day: UnixNanos| {
        let at = |dated: &BTreeMap<UnixNanos, ClassPrices>| {
            dated.range(..=day).next_back().map(|(_, prices)| *prices)
        };
        let ordinary = at(versions.get(&ORDINARY)?)?;
        let special = versions.iter().filter(|(what, _)| **what != ORDINARY);
        let special = special.filter_map(|((tier, above), dated)| {
            at(dated).map(|prices| ConditionalPrices { tier: *tier, above: *above, prices })
        });
        Some((day, Arc::new(PriceSheet { ordinary, special: special.collect() })))
    };
    versions.values().flat_map(BTreeMap::keys).filter_map(|day| on(*day)).collect()
}
