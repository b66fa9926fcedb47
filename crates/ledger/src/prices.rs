//! Price sheets: nano-dollars per million tokens, per model and token class, in versions by UTC date. Long prompts and
//! classes of service can have their own rates. Knows no accounts. A model without a price has no quote, and calls to
//! it are refused and never free.

use std::collections::BTreeMap;
use std::sync::Arc;

use headrace_domain::{HolderTiers, ModelName, PriceTier, TierName, UnixNanos};

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
    /// The prices of callers without prices of their own.
    models: DatedSheets,
    /// The prices of the holders of tiers.
    by_tier: BTreeMap<TierName, DatedSheets>,
}

/// For each model, the days on which a price changes, with all prices that apply from that day on.
type DatedSheets = BTreeMap<ModelName, BTreeMap<UnixNanos, Arc<PriceSheet>>>;

/// The price versions of one model, by class of service and minimum prompt length.
type Versions = BTreeMap<(PriceTier, u64), BTreeMap<UnixNanos, ClassPrices>>;

impl PriceList {
    /// Builds the list from the configured prices.
    ///
    /// # Errors
    /// Returns all errors in the configuration at once.
    pub fn from_config(config: &[PriceConfig]) -> Result<Self, Vec<PriceError>> {
        let mut errors = Vec::new();
        let models = Self::sheets(config.iter().filter(|price| price.holder_tier.is_none()), &mut errors);
        let mut by_tier = BTreeMap::new();
        for tier in config.iter().filter_map(|price| price.holder_tier.as_ref()) {
            if by_tier.contains_key(tier) {
                continue;
            }
            let own = config.iter().filter(|price| price.holder_tier.as_ref() == Some(tier));
            by_tier.insert(tier.clone(), Self::sheets(own.clone(), &mut errors));
            let alone = own.filter(|price| !models.contains_key(&price.model));
            errors.extend(alone.map(|price| PriceError::OnlyHolders {
                model: price.model.clone(),
                holder_tier: tier.clone(),
            }));
        }
        if errors.is_empty() { Ok(Self { models, by_tier }) } else { Err(errors) }
    }

    /// Returns the prices of one kind of callers, and adds errors.
    fn sheets<'c>(
        config: impl Iterator<Item = &'c PriceConfig>,
        errors: &mut Vec<PriceError>,
    ) -> DatedSheets {
        let mut models: BTreeMap<&ModelName, Versions> = BTreeMap::new();
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
            let prices = ClassPrices::from_config(version, errors);
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
        models.into_iter().map(|(model, versions)| (model.clone(), by_date(&versions))).collect()
    }

    /// Returns the prices of `model` at `now`. `None` if it has no price at that time; the call is then refused.
    pub fn quote(&self, model: &ModelName, now: UnixNanos) -> Option<Quote> {
        self.named(model.as_str(), now)
    }

    /// Returns the prices of `model` at `now` for the holder of `tiers`: those of the nearest tier that has prices for the
    /// model, or else those of all callers.
    pub fn quote_for(&self, model: &ModelName, tiers: Option<&HolderTiers>, now: UnixNanos) -> Option<Quote> {
        let holder = tiers.filter(|_| !self.by_tier.is_empty());
        let own = holder.and_then(|HolderTiers { key, project, org }| {
            [key, project, org].into_iter().flatten().find_map(|tier| {
                let quote = sheet_at(self.by_tier.get(tier)?, model.as_str(), now)?;
                Some(quote.for_holders_of(tier.clone()))
            })
        });
        own.or_else(|| self.quote(model, now))
    }

    /// Whether holders of some tier pay nothing for a model.
    pub fn is_free_for_some(&self, model: &ModelName, now: UnixNanos) -> bool {
        let quotes = self.by_tier.values().filter_map(|sheets| sheet_at(sheets, model.as_str(), now));
        quotes.into_iter().any(|quote| quote.hold_for(None, 1000, 1000).is_ok_and(|most| most.get() == 0))
    }

    fn named(&self, model: &str, now: UnixNanos) -> Option<Quote> {
        sheet_at(&self.models, model, now)
    }

    /// Returns the models that have a price at any time.
    pub fn models(&self) -> impl Iterator<Item = &ModelName> {
        self.models.keys()
    }
}

fn sheet_at(models: &DatedSheets, model: &str, now: UnixNanos) -> Option<Quote> {
    let (model, days) = models.get_key_value(model)?;
    let (_, sheet) = days.range(..=now).next_back()?;
    Some(Quote::new(model.clone(), Arc::clone(sheet)))
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
