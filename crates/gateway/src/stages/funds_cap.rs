//! Cuts a call to what its organisation's money covers, if its project wants that instead of a refusal.

use std::sync::Arc;

use headrace_domain::{HolderTiers, NanoDollars, UnixNanos};
use headrace_ledger::LedgerRefusal;

use super::work_quote::quoted;
use crate::state::{KeyedCall, RenderedInput, RenderedWork};

/// The header of a call that was cut: the number of tokens that each answer may have.
pub(crate) const CAPPED_HEADER: &str = "x-headrace-capped";

/// Returns the money that a refused call may be cut to. `None` if its project wants a refusal.
pub(crate) const fn covered(refusal: &LedgerRefusal) -> Option<NanoDollars> {
    match refusal {
        LedgerRefusal::OutOfMoney { covered, may_cap: true, .. }
        | LedgerRefusal::HeldInFlight { covered, may_cap: true, .. } => Some(*covered),
        _ => None,
    }
}

impl KeyedCall {
    /// Cuts the call to what `covered` pays for at `now`, and returns the tokens that each answer may have. `None` if not
    /// one token is covered, or if the bound cannot be changed any more.
    pub(crate) fn cap(
        &mut self,
        covered: NanoDollars,
        tiers: Option<&HolderTiers>,
        now: UnixNanos,
    ) -> Option<u32> {
        let work = Arc::get_mut(&mut self.work).filter(|work| is_bounded_here(work))?;
        let asked = work.sampling.max_tokens;
        let fits = |work: &mut RenderedWork, tokens: u32| {
            work.sampling.max_tokens = tokens;
            let quoted = quoted(work, tiers, now);
            quoted.is_ok_and(|(_, amount)| amount <= covered)
        };
        // The greatest number of tokens that fits. What is asked for does not.
        let (mut most, mut beyond) = (0, asked);
        while beyond.saturating_sub(most) > 1 {
            let middle = most + (beyond - most) / 2;
            if fits(work, middle) {
                most = middle;
            } else {
                beyond = middle;
            }
        }
        if most == 0 || work.call.sampling.min_tokens > most {
            work.sampling.max_tokens = asked;
            return None;
        }
        work.sampling.max_tokens = most;
        // Another model that answers instead has the same bound.
        work.terms.funded_tokens = Some(most);
        // The length of an answer may be a part of the keys of cached prompts.
        work.hash();
        Some(most)
    }
}

/// Whether this gateway sets the bound of the answer. A body that names a bound goes to other providers as it came.
fn is_bounded_here(work: &RenderedWork) -> bool {
    match &work.rendered {
        RenderedInput::Tokens(_) => true,
        RenderedInput::Vectors(_) => false,
        RenderedInput::Messages(messages) => {
            messages.translated.is_none()
                && messages.chat.is_none()
                && work.call.sampling.max_tokens.is_none()
        }
    }
}
