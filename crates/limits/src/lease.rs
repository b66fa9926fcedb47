//! A lease: what a call holds of its limits until the call settles, releases or drops the lease, or until the lease
//! expires. Knows the slots that it took from; does not know how admission was decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_domain::{RequestId, UnixNanos};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::Scope;
use crate::held::{LeaseCharges, LeaseEntry, Shares, SlotCharge};
use crate::quota::QuotaReturn;
use crate::returns::unused_quota;
use crate::slot::SlotCounters;
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
            taken: Mutex::new(LeaseCharges { open: true, tokens: None, spent: 0, shares }),
        });
        Self { inner: Arc::clone(inner), held }
    }

    /// The request that holds the lease.
    pub fn owner(&self) -> RequestId {
        self.held.owner
    }

    /// Tokens that the lease holds for the current round.
    pub fn tokens(&self) -> u64 {
        self.held.taken.lock().tokens.unwrap_or(0)
    }

    /// Whether the lease has taken tokens. Calls that limits do not count take none.
    pub fn counts_tokens(&self) -> bool {
        self.held.taken.lock().tokens.is_some()
    }

    /// Time at which the lease expires.
    pub fn expires(&self) -> UnixNanos {
        UnixNanos::new(self.held.expires.load(Ordering::Relaxed))
    }

    /// Ends the lease after `used_tokens` were used over all rounds. Gives back the rest, or charges the excess, even
    /// into debt. The request stays counted.
    pub fn settle(self, used_tokens: u64, now: UnixNanos) {
        let (held, spent) = {
            let taken = self.held.taken.lock();
            (taken.tokens, taken.spent)
        };
        // A lease that never took tokens counts none.
        let difference = held.map_or_else(TokenDifference::default, |held| {
            TokenDifference::of(held, used_tokens.saturating_sub(spent))
        });
        let mut returned = SmallVec::new();
        let open = self.held.end(|share, counters| returned.extend(difference.apply(share, counters, now)));
        self.inner.give_back(returned);
        if !open && difference.beyond > 0 {
            self.inner.charge_tokens(&self.held.taken.lock().shares, difference.beyond, now);
        }
    }

    /// Ends a round that used `used_tokens`. Gives back the rest of what the round took, or charges the excess, even into
    /// debt. The lease stays open with no tokens, and [`Lease::take`] takes those of a further round. The tokens of ended
    /// rounds stay charged in every scope of the lease.
    pub fn end_round(&mut self, used_tokens: u64, now: UnixNanos) {
        let mut taken = self.held.taken.lock();
        let Some(held) = taken.tokens.filter(|_| taken.open) else { return };
        let difference = TokenDifference::of(held, used_tokens);
        let mut returned = SmallVec::new();
        for share in &mut taken.shares {
            let mut counters = share.slot.counters.lock();
            returned.extend(difference.apply(share, &mut counters, now));
            share.tokens = None;
        }
        taken.spent = taken.spent.saturating_add(used_tokens);
        taken.tokens = Some(0);
        drop(taken);
        self.inner.give_back(returned);
    }

    /// Leaves one scope: frees its place and gives back the tokens of the current round. The request and the tokens of
    /// ended rounds stay counted there.
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

/// What a round used less or more than its lease holds. One of the two is zero.
#[derive(Debug, Clone, Copy, Default)]
struct TokenDifference {
    unused: u64,
    beyond: u64,
}

impl TokenDifference {
    const fn of(held: u64, used: u64) -> Self {
        Self { unused: held.saturating_sub(used), beyond: used.saturating_sub(held) }
    }

    /// Gives the unused tokens back to a slot, or charges those beyond. Returns what goes back to a shared source.
    fn apply(self, share: &SlotCharge, counters: &mut SlotCounters, now: UnixNanos) -> Option<QuotaReturn> {
        let limit = share.spec.tokens_per_minute?;
        // Without a mark the round holds nothing here, and all that it used is beyond.
        if share.tokens.is_none() && self.beyond == 0 {
            return None;
        }
        counters.tokens.advance(limit, now);
        match share.tokens {
            Some(mark) if self.beyond == 0 => {
                let amount = counters.tokens.give_back(mark, self.unused, now);
                unused_quota(&share.slot, limit, amount)
            }
            _ => {
                counters.tokens.charge(self.beyond);
                None
            }
        }
    }
}
