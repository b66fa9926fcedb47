//! Fetches what a call lacks from the source that several processes share. Does nothing in a process that has its limits, or its part of them, for itself. Must not know how a source counts.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use headrace_domain::UnixNanos;

use crate::limits::SlotPick;
use crate::quota::{QuotaDemand, QuotaGrant, QuotaSource, RateRule};
use crate::table::LimitTable;
use crate::{Lease, LimitSpec, Limits, Scope};

/// A bucket with this number of times what a call uses has enough for all calls that arrive together.
const PLENTY: u64 = 64;

/// A future that ends when a process has what the source granted.
pub type QuotaFetch = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Limits {
    /// Returns whether another server keeps the limits per minute.
    pub fn are_shared(&self) -> bool {
        self.inner.shared_source().is_some()
    }

    /// Returns a future to await before [`Limits::enter`] or [`Limits::count`] with the same scopes, if a source must be
    /// asked for a request and `tokens` tokens. `None` if this process has its limits for itself.
    #[inline]
    pub fn fetch_quota(
        &self,
        scopes: &[(Scope, LimitSpec)],
        tokens: u64,
        now: UnixNanos,
    ) -> Option<QuotaFetch> {
        let source = self.inner.shared_source()?;
        fetch(&self.inner, source, &self.inner.pick(&[], scopes), tokens, now)
    }
}

impl Lease {
    /// Returns a future to await before [`Lease::take`] or [`Lease::enter`] with the same `more` and `tokens`, if a source
    /// must be asked. `None` if this process has its limits for itself.
    #[inline]
    pub fn fetch_quota(
        &self,
        more: &[(Scope, LimitSpec)],
        tokens: u64,
        now: UnixNanos,
    ) -> Option<QuotaFetch> {
        let source = self.inner.shared_source()?;
        let picked = self.inner.pick(&self.held.taken.lock().shares, more);
        fetch(&self.inner, source, &picked, tokens, now)
    }
}

/// Returns a future that fetches what a call uses in the picked scopes. `None` if it lacks nothing.
#[cold]
fn fetch(
    table: &Arc<LimitTable>,
    source: &Arc<dyn QuotaSource>,
    picked: &[SlotPick],
    tokens: u64,
    now: UnixNanos,
) -> Option<QuotaFetch> {
    let mut demands = Vec::new();
    for SlotPick { slot, spec, entered, .. } in picked {
        let counters = slot.counters.lock();
        let requests = spec.requests_per_minute.map(u64::from).filter(|_| !entered);
        let rules = [(RateRule::Requests, requests, 1), (RateRule::Tokens, spec.tokens_per_minute, tokens)];
        for (rule, limit, cost) in rules {
            let bucket = if rule == RateRule::Requests { &counters.requests } else { &counters.tokens };
            // A cost above the limit never fits, so its units would be lost.
            let Some(limit) = limit.filter(|limit| (1..=*limit).contains(&cost)) else { continue };
            // Calls that arrive together each fetch what they use, so none of them uses what another one fetched.
            if bucket.lacks(limit, cost.saturating_mul(PLENTY).min(limit), now) > 0 {
                let needed = bucket.lacks(limit, cost, now);
                let scope = slot.scope.clone();
                demands.push(QuotaDemand { scope, rule, limit, needed, wanted: needed.max(cost) });
            }
        }
    }
    if demands.is_empty() {
        return None;
    }
    let (table, source) = (Arc::clone(table), Arc::clone(source));
    Some(Box::pin(async move {
        let grants = source.lease(&demands, now).await;
        for (demand, grant) in demands.iter().zip(grants) {
            table.add_slice(demand, grant, now);
        }
    }))
}

impl LimitTable {
    fn add_slice(&self, demand: &QuotaDemand, grant: QuotaGrant, now: UnixNanos) {
        loop {
            let slot = self.slots.get(&demand.scope, &self.quota);
            let mut counters = slot.counters.lock();
            if !counters.retired {
                return counters.bucket(demand.rule).add_slice(demand.limit, grant, now);
            }
        }
    }
}
