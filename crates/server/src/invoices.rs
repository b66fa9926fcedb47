//! What invoices take from the settings in force: seller, taxes, buyers, and the versions of prices. Must not know how an
//! invoice is made.

use std::sync::Arc;

use headrace_admin::{InvoiceSource, PriceFinder, PriceVersion};
use headrace_config::ServerSettings;
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
        versions: Box::new(move |until| finder(prices.prices().unwrap_or_default(), until.to_owned())),
    }
}

/// Makes the source of a stopped server, from its settings.
pub fn of_stopped_server(config: &ServerSettings) -> InvoiceSource {
    let (settings, prices) = (config.invoices.clone(), config.prices.clone());
    InvoiceSource {
        settings: Box::new(move || settings.clone()),
        versions: Box::new(move |until| finder(prices.clone(), until.to_owned())),
    }
}

/// Finds the version of a price among the tables of the settings: the last table of the model with that price that applied on
/// the day `until`, or earlier.
fn finder(prices: Vec<PriceConfig>, until: String) -> PriceFinder {
    Box::new(move |group: &ChargeGroup| {
        let has_price = |table: &&PriceConfig| {
            table.model == group.model
                && table.from.as_ref().is_none_or(|from| *from <= until)
                && table.price_of(group.class) == Some(group.price.get())
        };
        let table = prices.iter().rev().find(has_price)?;
        Some(PriceVersion {
            from: table.from.clone(),
            tier: table.tier.map(|tier| tier.name().to_owned()),
            holder_tier: table.holder_tier.as_ref().map(ToString::to_string),
        })
    })
}

#[cfg(test)]
mod tests {
    use headrace_domain::{ModelName, NanoDollarsPerMillion, ProjectId, TokenClass};

    use super::*;

    #[test]
    fn a_price_has_the_last_version_that_applied_in_the_period() {
        let table = |from: Option<&str>, input: i64| -> PriceConfig {
            let table = serde_json::json!({ "model": "m", "from": from, "input": input, "output": 9, "per_search": 5 });
            serde_json::from_value(table).unwrap()
        };
        let prices = vec![table(None, 1), table(Some("2026-06-01"), 2), table(Some("2027-01-01"), 2)];
        let version = |class, price, until: &str| {
            let price = NanoDollarsPerMillion::new(price).unwrap();
            let (project, model) = (ProjectId::new("p").unwrap(), ModelName::new("m").unwrap());
            let found =
                finder(prices.clone(), until.to_owned())(&ChargeGroup { project, model, class, price });
            found.map(|version| version.from)
        };
        let from = |day: &str| Some(Some(day.to_owned()));
        for (class, price, until, expected) in [
            (TokenClass::Input, 1, "2026-11-30", Some(None)),
            (TokenClass::Input, 2, "2026-11-30", from("2026-06-01")),
            (TokenClass::Input, 2, "2027-01-31", from("2027-01-01")),
            (TokenClass::CachedInput, 2, "2026-11-30", from("2026-06-01")),
            (TokenClass::Reasoning, 9, "2026-11-30", from("2026-06-01")),
            (TokenClass::WebSearch, 5, "2026-11-30", from("2026-06-01")),
            (TokenClass::Input, 3, "2026-11-30", None),
        ] {
            assert_eq!(version(class, price, until), expected, "{class:?} {price} {until}");
        }
    }
}
