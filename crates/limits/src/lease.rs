//! What a call holds of its limits until it is settled, released, dropped or expired: exactly one of these.
//! Knows the slots that it took from; not how it was decided that it may.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_domain::{RequestId, UnixNanos};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::LimitSpec;
use crate::bucket::Mark;
use crate::limits::Inner;
use crate::slot::Slot;

const SHARDS: usize = 16;

/// A call's share of its limits: from [`Limits::enter`](crate::Limits::enter) on its place in flight, from [`Lease::take`]
/// on its tokens. Dropping it frees the place. End one that has tokens with [`Lease::settle`] or [`Lease::release`]: dropped,
/// it keeps them and is counted as abandoned.
#[must_use = "a lease that is dropped frees its place"]
#[derive(Debug)]
pub struct Lease {
    pub(crate) inner: Arc<Inner>,
    pub(crate) held: Arc<Held>,
}

/// The part of a lease that the table of leases shares.
#[derive(Debug)]
pub(crate) struct Held {
    number: u64,
    owner: RequestId,
    pub(crate) expires: AtomicU64,
    pub(crate) taken: Mutex<Taken>,
}

/// What a lease has taken so far. Locked before any slot's counters.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Whoever clears this ends the lease.
    open: bool,
    /// `None` until they were asked for.
    pub(crate) tokens: Option<u64>,
    pub(crate) shares: Shares,
}

pub(crate) type Shares = SmallVec<[Share; 4]>;

/// What was taken from one slot, beside a place in flight and a request.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) slot: Arc<Slot>,
    pub(crate) spec: LimitSpec,
    pub(crate) tokens: Option<Mark>,
}

impl Lease {
    /// One without tokens yet. It lives as long as its owner keeps it.
    pub(crate) fn open(inner: &Arc<Inner>, owner: RequestId, shares: Shares) -> Self {
        let held = inner.leases.add(|number| Held {
            number,
            owner,
            expires: AtomicU64::new(u64::MAX),
            taken: Mutex::new(Taken { open: true, tokens: None, shares }),
        });
        Self { inner: Arc::clone(inner), held }
    }

    /// The request that holds it.
    pub fn owner(&self) -> RequestId {
        self.held.owner
    }

    /// Tokens held.
    pub fn tokens(&self) -> u64 {
        self.held.taken.lock().tokens.unwrap_or(0)
    }

    /// When it ends by itself.
    pub fn expires(&self) -> UnixNanos {
        UnixNanos::new(self.held.expires.load(Ordering::Relaxed))
    }

    /// Ends it after `used_tokens` were used: the rest is given back, or what was used beyond is taken, below
    /// zero if it must be. The request stays counted.
    pub fn settle(self, used_tokens: u64, now: UnixNanos) {
        let held = self.tokens();
        let unused = held.saturating_sub(used_tokens);
        let beyond = used_tokens.saturating_sub(held);
        let open = self.held.end(|share, counters| {
            if let (Some(limit), Some(mark)) = (share.spec.tokens_per_minute, share.tokens) {
                counters.tokens.advance(limit, now);
                if beyond > 0 {
                    counters.tokens.charge(beyond);
                } else {
                    counters.tokens.give_back(mark, unused);
                }
            }
        });
        if !open && beyond > 0 {
            self.inner.charge_tokens(&self.held.taken.lock().shares, beyond, now);
        }
    }

    /// Ends it with nothing used: all tokens are given back. The request stays counted.
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

impl Held {
    /// Ends the lease if it is open, doing `with` to each share before its concurrency is freed; says whether
    /// it was.
    fn end(&self, mut with: impl FnMut(&Share, &mut crate::slot::Counters)) -> bool {
        let mut taken = self.taken.lock();
        if !std::mem::replace(&mut taken.open, false) {
            return false;
        }
        for share in &taken.shares {
            // An open lease keeps its slots in the table, so none of them is retired.
            let mut counters = share.slot.counters.lock();
            with(share, &mut counters);
            counters.end_one();
        }
        true
    }
}

/// All open leases, so that those whose owner never ends them expire.
#[derive(Debug)]
pub(crate) struct Leases {
    shards: [Mutex<HashMap<u64, Arc<Held>>>; SHARDS],
    next: AtomicU64,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { shards: Default::default(), next: AtomicU64::new(0) }
    }

    fn add(&self, make: impl FnOnce(u64) -> Held) -> Arc<Held> {
        let held = Arc::new(make(self.next.fetch_add(1, Ordering::Relaxed)));
        self.shard(held.number).lock().insert(held.number, Arc::clone(&held));
        held
    }

    fn remove(&self, held: &Held) {
        self.shard(held.number).lock().remove(&held.number);
    }

    /// Ends the leases that expired, as if dropped; returns how many.
    pub(crate) fn expire(&self, now: UnixNanos) -> u64 {
        let mut ended = 0;
        for shard in &self.shards {
            let mut expired = Vec::new();
            shard.lock().retain(|_, held| {
                let keep = held.expires.load(Ordering::Relaxed) > now.get();
                if !keep {
                    expired.push(Arc::clone(held));
                }
                keep
            });
            ended += expired.iter().map(|held| u64::from(held.end(|_, _| {}))).sum::<u64>();
        }
        ended
    }

    /// Owner and expiry of each open lease.
    pub(crate) fn list(&self) -> Vec<(RequestId, UnixNanos)> {
        let row = |held: &Arc<Held>| (held.owner, UnixNanos::new(held.expires.load(Ordering::Relaxed)));
        self.shards.iter().flat_map(|shard| shard.lock().values().map(row).collect::<Vec<_>>()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Arc<Held>>> {
        let [first, ..] = &self.shards;
        self.shards.get(usize::try_from(number % SHARDS as u64).unwrap_or(0)).unwrap_or(first)
    }
}
