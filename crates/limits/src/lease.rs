//! A lease: what a call holds of its limits until the call settles, releases or drops the lease, or until the lease
//! expires. Knows the slots that it took from; does not know how admission was decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_domain::{RequestId, UnixNanos};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::Scope;
use crate::held::{LeaseCharges, LeaseEntry, Shares};
use crate::returns::unused_quota;
use crate::table::LimitTable;

/// A call's share of its limits. Holds a place in flight from [`Limits::enter`](crate::Limits::enter) on, and tokens
/// from [`Lease::take`] on. Dropping the lease frees the place. End a lease that holds tokens with [`Lease::settle`] or
/// [`Lease::release`]. If such a lease is dropped, its tokens stay charged and it is counted as abandoned.
#[must_use = "a lease that is dropped frees its place"]
#[derive(Debug)]
pub struct Lease {
    pub(crate) inner: Arc<LimitTable>,
    pub(crate) held: Arc<LeaseEntry>,
}

impl Lease {
    /// Opens a lease without tokens. It does not expire before it takes tokens.
    pub(crate) fn open(inner: &Arc<LimitTable>, owner: RequestId, shares: Shares) -> Self {
        let held = inner.leases.add(|number| LeaseEntry {
            number,
            owner,
            expires: AtomicU64::new(u64::MAX),
            taken: Mutex::new(LeaseCharges { open: true, tokens: None, shares }),
        });
        Self { inner: Arc::clone(inner), held }
    }

    /// The request that holds the lease.
    pub fn owner(&self) -> RequestId {
        self.held.owner
    }

    /// Tokens that the lease holds.
    pub fn tokens(&self) -> u64 {
        self.held.taken.lock().tokens.unwrap_or(0)
    }

    /// Time at which the lease expires.
    pub fn expires(&self) -> UnixNanos {
        UnixNanos::new(self.held.expires.load(Ordering::Relaxed))
    }

    /// Ends the lease after `used_tokens` were used. Gives back the rest, or charges the excess, even into debt. The
    /// request stays counted.
    pub fn settle(self, used_tokens: u64, now: UnixNanos) {
        let held = self.tokens();
        let unused = held.saturating_sub(used_tokens);
        let beyond = used_tokens.saturating_sub(held);
        let mut returned = SmallVec::new();
        let open = self.held.end(|share, counters| {
            if let (Some(limit), Some(mark)) = (share.spec.tokens_per_minute, share.tokens) {
                counters.tokens.advance(limit, now);
                if beyond > 0 {
                    counters.tokens.charge(beyond);
                } else {
                    let amount = counters.tokens.give_back(mark, unused, now);
                    returned.extend(unused_quota(&share.slot, limit, amount));
                }
            }
        });
        self.inner.give_back(returned);
        if !open && beyond > 0 {
            self.inner.charge_tokens(&self.held.taken.lock().shares, beyond, now);
        }
    }

    /// Leaves one scope: frees its place and gives back all its tokens. The request stays counted there.
    pub fn leave(&mut self, scope: &Scope, now: UnixNanos) {
        let mut taken = self.held.taken.lock();
        let at = taken.shares.iter().position(|share| share.slot.scope == *scope);
        let Some(at) = at.filter(|_| taken.open) else { return };
        let (share, unused) = (taken.shares.remove(at), taken.tokens.unwrap_or(0));
        let mut counters = share.slot.counters.lock();
        let mut returned = SmallVec::new();
        if let (Some(limit), Some(mark)) = (share.spec.tokens_per_minute, share.tokens) {
            counters.tokens.advance(limit, now);
            let amount = counters.tokens.give_back(mark, unused, now);
            returned.extend(unused_quota(&share.slot, limit, amount));
        }
        counters.end_one();
        drop(counters);
        self.inner.give_back(returned);
    }

    /// Ends the lease with nothing used and gives back all tokens. The request stays counted.
    pub fn release(self, now: UnixNanos) {
        self.settle(0, now);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held.end(|_, _| {}) && self.held.taken.lock().tokens.is_some() {
            self.inner.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.leases.remove(&self.held);
    }
}
