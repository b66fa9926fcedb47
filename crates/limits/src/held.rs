//! What leases hold, in the table of all that are open, so that those whose owner never ends them expire.
//! Knows the slots that were taken from; not how it was decided that they may be.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use headrace_domain::{RequestId, UnixNanos};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::LimitSpec;
use crate::bucket::Mark;
use crate::slot::{Counters, Slot};

const SHARDS: usize = 16;

/// The part of a lease that the table of leases shares.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) number: u64,
    pub(crate) owner: RequestId,
    pub(crate) expires: AtomicU64,
    pub(crate) taken: Mutex<Taken>,
}

/// What a lease has taken so far. Locked before any slot's counters.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Whoever clears this ends the lease.
    pub(crate) open: bool,
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

impl Held {
    /// Ends the lease if it is open, doing `with` to each share before its concurrency is freed; says whether
    /// it was.
    pub(crate) fn end(&self, mut with: impl FnMut(&Share, &mut Counters)) -> bool {
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

/// By their numbers, which are given out here.
type Shard = HashMap<u64, Arc<Held>, RandomState>;

/// All open leases, so that those whose owner never ends them expire.
#[derive(Debug)]
pub(crate) struct Leases {
    shards: [Mutex<Shard>; SHARDS],
    next: AtomicU64,
}

impl Leases {
    pub(crate) fn new() -> Self {
        Self { shards: Default::default(), next: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, make: impl FnOnce(u64) -> Held) -> Arc<Held> {
        let held = Arc::new(make(self.next.fetch_add(1, Ordering::Relaxed)));
        self.shard(held.number).lock().insert(held.number, Arc::clone(&held));
        held
    }

    pub(crate) fn remove(&self, held: &Held) {
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

    fn shard(&self, number: u64) -> &Mutex<Shard> {
        let [first, ..] = &self.shards;
        self.shards.get(usize::try_from(number % SHARDS as u64).unwrap_or(0)).unwrap_or(first)
    }
}
