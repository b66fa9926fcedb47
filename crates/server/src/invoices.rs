//! What invoices take from the settings in force: seller, taxes, buyers, and the versions of prices. Must not know how an
//! invoice is made.

use std::sync::Arc;

use headrace_admin::{InvoiceSource, PriceFinder, PriceVersion};
use headrace_config::ServerSettings;
use headrace_domain::TokenClass;
use headrace_ledger::ChargeGroup;
use headrace_ledger::prices::PriceConfig;

use crate::reload::ConfigReloader;

/// Makes the source of a running server.
pub(crate) fn source(reloader: &Arc<ConfigReloader>) -> InvoiceSource {
    let (settings, prices) = (Arc::clone(reloader), Arc::clone(reloader));
    InvoiceSource {
        settings: Box::new(move || {
            settings.config().map(|config| config.invoices.clone()).unwrap_or_default()
        }),
        versions: Box::new(move || finder(prices.prices().unwrap_or_default())),
    }
}

/// Makes the source of a stopped server, from its settings.
pub fn of_stopped_server(config: &ServerSettings) -> InvoiceSource {
    let (settings, prices) = (config.invoices.clone(), config.prices.clone());
    InvoiceSource {
        settings: Box::new(move || settings.clone()),
        versions: Box::new(move || finder(prices.clone())),
    }
}

/// Finds the version of a price among the tables of the settings: the last table of the model with that price.
fn finder(prices: Vec<PriceConfig>) -> PriceFinder {
    Box::new(move |group: &ChargeGroup| {
        let has_price = |table: &&PriceConfig| {
            table.model == group.model && price_of(table, group.class()) == Some(group.price.get())
        };
        let table = prices.iter().rev().find(has_price)?;
        Some(PriceVersion {
            from: table.from.clone(),
            tier: table.tier.map(|tier| tier.name().to_owned()),
            holder_tier: table.holder_tier.as_ref().map(ToString::to_string),
        })
    })
}

/// The price of a class in a table. A class without a price of its own has that of another class.
fn price_of(table: &PriceConfig, class: TokenClass) -> Option<i64> {
    let input = table.input;
    match class {
        TokenClass::Input => input,
        TokenClass::CachedInput => table.cached_input.or(input),
        TokenClass::CacheWrite => table.cache_write.or(input),
        TokenClass::CacheWrite1h => table.cache_write_1h.or(table.cache_write).or(input),
        TokenClass::Output => table.output,
        TokenClass::Reasoning => table.reasoning.or(table.output),
        TokenClass::WebSearch => None,
    }
}
