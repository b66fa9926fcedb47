//! All counters of a process: the slots of its scopes, the open leases, and how many leases ended in which way. Must
//! not know how admission is decided.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use headrace_domain::UnixNanos;
use parking_lot::Mutex;

use crate::held::{LeaseTable, Shares};
use crate::quota::{LimitQuota, QuotaSource};
use crate::slot::{ScopeSlot, SlotTable};

/// State that leases and admission share.
#[derive(Debug)]
pub(crate) struct LimitTable {
    pub(crate) slots: SlotTable,
    pub(crate) leases: LeaseTable,
    pub(crate) quota: LimitQuota,
    pub(crate) lifetime: Duration,
    pub(crate) abandoned: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Slots that lack a larger share, for the next exchange. Each is listed once.
    pub(crate) watched: Mutex<Vec<Arc<ScopeSlot>>>,
}

impl LimitTable {
    /// The source that several processes share. `None` if this process has its limits, or its part of them, for itself.
    #[inline]
    pub(crate) fn shared_source(&self) -> Option<&Arc<dyn QuotaSource>> {
        match &self.quota {
            LimitQuota::Local | LimitQuota::Gateways(_) => None,
            LimitQuota::Shared(source) => Some(source),
        }
    }

    /// Charges `tokens` for a lease that has expired. Its slots may have been retired since.
    pub(crate) fn charge_tokens(&self, shares: &Shares, tokens: u64, now: UnixNanos) {
        for share in shares {
            let Some(limit) = share.spec.tokens_per_minute else { continue };
            loop {
                let slot = self.slots.get(&share.slot.scope, &self.quota);
                let mut counters = slot.counters.lock();
                if !counters.retired {
                    counters.tokens.advance(limit, now);
                    counters.tokens.charge(tokens);
                    break;
                }
            }
        }
    }
}
