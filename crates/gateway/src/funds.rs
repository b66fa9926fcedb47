//! Whether a caller could pay for any call, as far as it is known without asking.

use headrace_call_state::Rejection;
use headrace_domain::NanoDollars;
use headrace_identity::Principal;
use headrace_ledger::{LedgerRefusal, StandingHint};

use crate::Gateway;

/// Rejects a caller whose organisation could not pay for any call. Passes if any model is free.
pub(crate) fn could_pay(gateway: &Gateway, principal: &Principal) -> Result<(), Rejection> {
    let parts = gateway.parts();
    if gateway.catalog().has_free_model() {
        return Ok(());
    }
    let standing = match parts.ledger.standing_hint(&principal.org, &principal.project) {
        StandingHint::Known(standing) => standing,
        StandingHint::Unknown => return Ok(()),
        StandingHint::NoProject => {
            let unknown = LedgerRefusal::UnknownProject { project: principal.project.clone() };
            return Err(unknown.into());
        }
    };
    let has_credit = standing.credit.get() > 0 || standing.may_be_free;
    if standing.available.get() > 0 || has_credit {
        return Ok(());
    }
    // Money and credit of calls in flight may come back.
    let held = NanoDollars::new(standing.held.get().saturating_add(standing.held_credit.get()));
    Err(Rejection::nothing_to_spend(standing.balance, held))
}
