//! All counters of a process: the slots of its scopes, the leases that are open, and how many ended in which way.
//! Must not know how it is decided whether a call may pass.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use headrace_domain::UnixNanos;

use crate::held::{Leases, Shares};
use crate::slot::Slots;

/// What leases and decisions share.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) slots: Slots,
    pub(crate) leases: Leases,
    pub(crate) lifetime: Duration,
    pub(crate) abandoned: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl Table {
    /// Takes `tokens` for a lease that has expired: its slots may have been forgotten since.
    pub(crate) fn charge_tokens(&self, shares: &Shares, tokens: u64, now: UnixNanos) {
        for share in shares {
            let Some(limit) = share.spec.tokens_per_minute else { continue };
            loop {
                let slot = self.slots.get(&share.slot.scope);
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
