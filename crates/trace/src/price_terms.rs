//! Which prices applied to a call, in words. Must not know amounts.

use headrace_domain::{PriceTier, TraceRecord};

/// Returns whose prices applied, each with a separator before it. Empty for the usual prices.
pub(crate) fn price_terms(record: &TraceRecord) -> String {
    let holders = record.billed.as_ref().and_then(|billed| billed.holder_tier.as_ref());
    let mut terms = holders.map_or_else(String::new, |tier| format!(" · prices of tier {tier}"));
    if record.price_tier != PriceTier::Standard {
        terms.push_str(&format!(" · {} prices", record.price_tier));
    }
    terms
}
