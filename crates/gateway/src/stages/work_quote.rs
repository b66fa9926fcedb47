//! The prices of a call, and the most that it can cost.

use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_domain::{Code, HolderTiers, NanoDollars, ServiceTier, UnixNanos};
use headrace_ledger::LedgerRefusal;
use headrace_ledger::prices::Quote;

use crate::state::RenderedWork;

/// The prices of the work's model for a caller with these tiers, and the most that the work can cost.
pub(crate) fn quoted(
    work: &RenderedWork,
    tiers: Option<&HolderTiers>,
    now: UnixNanos,
) -> Result<(Quote, NanoDollars), Rejection> {
    let name = &work.model.name;
    let quote =
        work.terms.catalog.prices().quote_for(name, tiers, now).ok_or_else(|| unpriced(name.as_str()))?;
    // A relay upstream reports its own service tier. The batch tier is decided here, whichever upstream answers.
    let messages = work.rendered.messages();
    let is_known = messages.is_none() || work.call.tier == ServiceTier::Batch;
    let tier = is_known.then(|| work.call.tier.into());
    let searches = messages.map_or(0, |messages| messages.most_searches);
    let amount = quote.hold_for(tier, work.prompt_tokens(), work.most_output_tokens());
    let amount = amount.and_then(|amount| match searches {
        0 => Ok(amount),
        searches => amount.checked_add(quote.hold_for_searches(searches)?),
    });
    Ok((quote, amount.map_err(|_| LedgerRefusal::Overflow)?))
}

fn unpriced(model: &str) -> Rejection {
    Rejection::new(
        Code::ModelUnpriced,
        format!("The model `{model}` has no price today, and nothing is free by accident. Set one under [[prices]]."),
    )
    .retry_after(Duration::from_secs(60))
}
