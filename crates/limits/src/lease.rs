//! What a call holds of its limits until it is settled, released, dropped or expired: exactly one of these.
//! Knows the slots that it took from; not how it was decided that it may.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use headrace_domain::{RequestId, UnixNanos};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::LimitSpec;
use crate::bucket::Mark;
use crate::limits::Inner;
use crate::slot::Slot;

const SHARDS: usize = 16;

/// A call's share of its limits. End it with [`Lease::settle`] or [`Lease::release`]; a lease that is dropped
/// instead frees its concurrency, keeps its tokens and is counted as abandoned.
#[must_use = "a lease that is dropped keeps its tokens"]
#[derive(Debug)]
pub struct Lease {
    inner: Arc<Inner>,
    held: Arc<Held>,
}

/// The part of a lease that the table of leases shares.
#[derive(Debug)]
pub(crate) struct Held {
    number: u64,
    owner: RequestId,
    tokens: u64,
    expires: AtomicU64,
    /// Whoever clears this ends the lease.
    open: AtomicBool,
    shares: Shares,
}

pub(crate) type Shares = SmallVec<[Share; 4]>;

/// What was taken from one slot.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) slot: Arc<Slot>,
    pub(crate) spec: LimitSpec,
    pub(crate) request: Option<Mark>,
    pub(crate) tokens: Option<Mark>,
}

impl Lease {
    pub(crate) fn open(
        inner: &Arc<Inner>,
        owner: RequestId,
        tokens: u64,
        shares: Shares,
        expires: UnixNanos,
    ) -> Self {
        let held = inner.leases.add(|number| Held {
            number,
            owner,
            tokens,
            expires: AtomicU64::new(expires.get()),
            open: AtomicBool::new(true),
            shares,
        });
        Self { inner: Arc::clone(inner), held }
    }

    /// The request that holds it.
    pub fn owner(&self) -> RequestId {
        self.held.owner
    }

    /// Tokens held.
    pub fn tokens(&self) -> u64 {
        self.held.tokens
    }

    /// When it ends by itself, unless renewed.
    pub fn expires(&self) -> UnixNanos {
        UnixNanos::new(self.held.expires.load(Ordering::Relaxed))
    }

    /// Keeps it for `lifetime` from `now`, for a call that takes long.
    pub fn renew(&self, lifetime: Duration, now: UnixNanos) {
        self.held.expires.fetch_max(now.after(lifetime).get(), Ordering::Relaxed);
    }

    /// Ends it after `used_tokens` were used: the rest is given back, or what was used beyond is taken, below
    /// zero if it must be. The request stays counted.
    pub fn settle(self, used_tokens: u64, now: UnixNanos) {
        let unused = self.held.tokens.saturating_sub(used_tokens);
        let beyond = used_tokens.saturating_sub(self.held.tokens);
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
            self.inner.charge_tokens(&self.held.shares, beyond, now);
        }
    }

    /// Ends it with nothing used: tokens and the request are given back.
    pub fn release(self, now: UnixNanos) {
        let tokens = self.held.tokens;
        self.held.end(|share, counters| {
            if let (Some(limit), Some(mark)) = (share.spec.tokens_per_minute, share.tokens) {
                counters.tokens.advance(limit, now);
                counters.tokens.give_back(mark, tokens);
            }
            if let (Some(limit), Some(mark)) = (share.spec.requests_per_minute, share.request) {
                counters.requests.advance(u64::from(limit), now);
                counters.requests.give_back(mark, 1);
            }
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held.end(|_, _| {}) {
            self.inner.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.leases.remove(&self.held);
    }
}

impl Held {
    /// Ends the lease if it is open, doing `with` to each share before its concurrency is freed; says whether
    /// it was.
    fn end(&self, mut with: impl FnMut(&Share, &mut crate::slot::Counters)) -> bool {
        if !self.open.swap(false, Ordering::AcqRel) {
            return false;
        }
        for share in &self.shares {
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
