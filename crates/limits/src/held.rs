//! The table of open leases and what each lease has taken. Leases that their owner never ends expire here. Knows the
//! slots that a lease took from; does not know how admission was decided.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use headrace_domain::{RequestId, UnixNanos};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::LimitSpec;
use crate::bucket::ChargeNumber;
use crate::slot::{ScopeSlot, SlotCounters};

const SHARDS: usize = 16;

/// The part of a lease that is shared with the table of leases.
#[derive(Debug)]
pub(crate) struct LeaseEntry {
    pub(crate) number: u64,
    pub(crate) owner: RequestId,
    pub(crate) expires: AtomicU64,
    pub(crate) taken: Mutex<LeaseCharges>,
}

/// What a lease has taken so far. Must be locked before any slot's counters.
#[derive(Debug)]
pub(crate) struct LeaseCharges {
    /// `true` while the lease is open. Clearing the flag ends the lease.
    pub(crate) open: bool,
    /// Tokens taken from each scope for the current round. `None` before the first request for tokens.
    pub(crate) tokens: Option<u64>,
    /// Tokens that ended rounds used. They stay charged in each scope.
    pub(crate) spent: u64,
    pub(crate) shares: Shares,
}

pub(crate) type Shares = SmallVec<[SlotCharge; 4]>;

/// What was taken from one slot, beside one request and one place in flight.
#[derive(Debug)]
pub(crate) struct SlotCharge {
    pub(crate) slot: Arc<ScopeSlot>,
    pub(crate) spec: LimitSpec,
    pub(crate) tokens: Option<ChargeNumber>,
}

impl LeaseEntry {
    /// Ends the lease if it is open. Calls `with` for each share before the share's concurrency is freed. Returns
    /// whether the lease was open.
    pub(crate) fn end(&self, mut with: impl FnMut(&SlotCharge, &mut SlotCounters)) -> bool {
        let mut taken = self.taken.lock();
        if !std::mem::replace(&mut taken.open, false) {
            return false;
        }
        for share in &taken.shares {
            // Slots with open leases are never idle, so none of these slots is retired.
            let mut counters = share.slot.counters.lock();
            with(share, &mut counters);
            counters.end_one();
        }
        true
    }
}

/// Leases by number. [`LeaseTable`] assigns the numbers.
type Shard = HashMap<u64, Arc<LeaseEntry>, RandomState>;

/// All open leases. The sweep ends those whose owner never does.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    shards: [Mutex<Shard>; SHARDS],
    next: AtomicU64,
}

impl LeaseTable {
    pub(crate) fn new() -> Self {
        Self { shards: Default::default(), next: AtomicU64::new(0) }
    }

    pub(crate) fn add(&self, make: impl FnOnce(u64) -> LeaseEntry) -> Arc<LeaseEntry> {
        let held = Arc::new(make(self.next.fetch_add(1, Ordering::Relaxed)));
        self.shard(held.number).lock().insert(held.number, Arc::clone(&held));
        held
    }

    pub(crate) fn remove(&self, held: &LeaseEntry) {
        self.shard(held.number).lock().remove(&held.number);
    }

    /// Ends expired leases as if they were dropped, and returns their number.
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
        let row = |held: &Arc<LeaseEntry>| (held.owner, UnixNanos::new(held.expires.load(Ordering::Relaxed)));
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
