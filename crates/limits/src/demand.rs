//! Notes what calls ask of a gateway's shares. Slots that are close to their share, or refused a call, are listed for the
//! next exchange. Does nothing in a process that has its limits for itself.

use std::sync::Arc;

use headrace_domain::UnixNanos;

use crate::LimitSpec;
use crate::quota::LimitQuota;
use crate::slot::{CallCost, ScopeSlot, SlotCounters};
use crate::table::LimitTable;

impl LimitTable {
    /// Returns whether this process may not use its shares now, because its last exchange is too old.
    pub(crate) fn has_lapsed(&self, now: UnixNanos) -> bool {
        matches!(&self.quota, LimitQuota::Gateways(state) if !state.is_usable(now))
    }

    /// Counts an admitted call in a slot.
    #[inline]
    pub(crate) fn note_admitted(&self, slot: &Arc<ScopeSlot>, counters: &mut SlotCounters, cost: CallCost) {
        if matches!(self.quota, LimitQuota::Gateways(_)) {
            self.count_admitted(slot, counters, cost);
        }
    }

    #[inline(never)]
    fn count_admitted(&self, slot: &Arc<ScopeSlot>, counters: &mut SlotCounters, cost: CallCost) {
        if !counters.is_watched {
            if !counters.requests.is_pressed() && !counters.tokens.is_pressed() {
                return;
            }
            self.watch(slot, counters);
        }
        counters.requests.count_demand(cost.requests);
        counters.tokens.count_demand(cost.tokens);
    }

    /// Counts a refused call in a slot.
    #[cold]
    pub(crate) fn note_refused(
        &self,
        slot: &Arc<ScopeSlot>,
        counters: &mut SlotCounters,
        spec: &LimitSpec,
        cost: CallCost,
        now: UnixNanos,
    ) {
        if !matches!(self.quota, LimitQuota::Gateways(_)) {
            return;
        }
        let limits = [spec.requests_per_minute.map(u64::from), spec.tokens_per_minute];
        let SlotCounters { requests, tokens, .. } = counters;
        let mut lacks = false;
        for ((bucket, limit), cost) in
            [requests, tokens].into_iter().zip(limits).zip([cost.requests, cost.tokens])
        {
            let Some(limit) = limit.filter(|limit| (1..=*limit).contains(&cost)) else { continue };
            if bucket.is_whole() {
                continue;
            }
            bucket.count_demand(cost);
            if bucket.fits(limit, cost, now).is_err() {
                // A bucket that no call has used yet must know its limit to report it.
                bucket.advance(limit, now);
                bucket.count_need(cost);
                lacks = true;
            }
        }
        if lacks && !counters.is_watched {
            self.watch(slot, counters);
        }
    }

    fn watch(&self, slot: &Arc<ScopeSlot>, counters: &mut SlotCounters) {
        counters.is_watched = true;
        self.watched.lock().push(Arc::clone(slot));
    }
}
