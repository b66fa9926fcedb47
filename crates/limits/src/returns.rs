//! Gives what a call did not use back to the source that several processes share. Must not know how a source counts.

use smallvec::SmallVec;

use crate::quota::{QuotaReturn, RateRule};
use crate::slot::ScopeSlot;
use crate::table::LimitTable;

impl LimitTable {
    /// Gives the tokens that calls did not use back to the source.
    pub(crate) fn give_back(&self, returned: SmallVec<[QuotaReturn; 4]>) {
        if let Some(source) = self.shared_source() {
            returned.into_iter().for_each(|returned| source.give_back(returned));
        }
    }
}

/// The tokens of a slot that go back to the source. `None` if `amount` is zero.
#[inline]
pub(crate) fn unused_quota(slot: &ScopeSlot, limit: u64, amount: u64) -> Option<QuotaReturn> {
    (amount > 0).then(|| QuotaReturn { scope: slot.scope.clone(), rule: RateRule::Tokens, limit, amount })
}
