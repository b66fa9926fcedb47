//! The counters of one scope, and the table that finds them. Knows how slots are created and dropped; callers decide
//! what is charged and when.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use headrace_domain::UnixNanos;
use parking_lot::{Mutex, RwLock};

use crate::bucket::TokenBucket;
use crate::part::LimitPart;
use crate::quota::{LimitQuota, RateRule};
use crate::share_state::ShareState;
use crate::{LimitSpec, Scope};

const SHARDS: usize = 16;

/// The counters of one scope. To lock several slots, lock them in the order of their numbers.
#[derive(Debug)]
pub(crate) struct ScopeSlot {
    pub(crate) number: u64,
    pub(crate) scope: Scope,
    pub(crate) counters: Mutex<SlotCounters>,
}

#[derive(Debug, Default)]
pub(crate) struct SlotCounters {
    pub(crate) requests: TokenBucket,
    pub(crate) tokens: TokenBucket,
    /// Number of open leases.
    pub(crate) active: u32,
    /// The slot is no longer in the table. A caller that still holds this slot must look it up again.
    pub(crate) retired: bool,
    /// Calls are counted for the next exchange of shares.
    pub(crate) is_watched: bool,
    /// The number of rules whose share follows demand. The slot stays while there is one.
    pub(crate) fixed_rules: u8,
}

/// What a call takes from one scope.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallCost {
    pub(crate) requests: u64,
    pub(crate) tokens: u64,
}

impl SlotCounters {
    /// Returns the counters of a new scope.
    fn of(quota: &LimitQuota) -> Self {
        match quota {
            LimitQuota::Local => Self::default(),
            LimitQuota::Gateways(state) => {
                let part = LimitPart::Base(state.base().units);
                let bucket = TokenBucket::for_part(part);
                Self { requests: bucket.clone(), tokens: bucket, ..Self::default() }
            }
            LimitQuota::Shared(_) => {
                Self { requests: TokenBucket::leased(), tokens: TokenBucket::leased(), ..Self::default() }
            }
        }
    }

    /// The bucket of a rule.
    pub(crate) const fn bucket(&mut self, rule: RateRule) -> &mut TokenBucket {
        match rule {
            RateRule::Requests => &mut self.requests,
            RateRule::Tokens => &mut self.tokens,
        }
    }

    /// Returns the counters of a new scope with these limits.
    pub(crate) fn for_spec(quota: &LimitQuota, spec: &LimitSpec) -> Self {
        match quota {
            LimitQuota::Gateways(state) => {
                let mut counters = Self::of(quota);
                counters.begin(state, spec);
                counters
            }
            LimitQuota::Local | LimitQuota::Shared(_) => Self::default(),
        }
    }

    /// Names its limits to a bucket of a gateway that no call has used yet.
    pub(crate) fn begin(&mut self, state: &ShareState, spec: &LimitSpec) {
        let limits = [spec.requests_per_minute.map(u64::from), spec.tokens_per_minute];
        for (bucket, limit) in [&mut self.requests, &mut self.tokens].into_iter().zip(limits) {
            if let Some(limit) = limit.filter(|_| bucket.whole() == 0) {
                let base = state.base();
                bucket.begin(limit, LimitPart::Base(base.full_units), base.grown);
            }
        }
    }

    /// Records that a lease ended.
    pub(crate) fn end_one(&mut self) {
        self.active = self.active.saturating_sub(1);
        if self.active == 0 {
            self.tokens.none_open();
        }
    }

    /// Refills up to `now` and returns `true` if a new slot would have the same state.
    fn is_idle(&mut self, now: UnixNanos) -> bool {
        self.requests.refill(now);
        self.tokens.refill(now);
        self.active == 0
            && self.fixed_rules == 0
            && !self.is_watched
            && self.requests.is_as_new()
            && self.tokens.is_as_new()
    }
}

/// Operators choose the names of scopes, so the hash need not withstand hostile callers.
type Shard = HashMap<Scope, Arc<ScopeSlot>, RandomState>;

/// All slots, by scope.
#[derive(Debug)]
pub(crate) struct SlotTable {
    shards: [RwLock<Shard>; SHARDS],
    next: AtomicU64,
}

impl SlotTable {
    pub(crate) fn new() -> Self {
        Self { shards: Default::default(), next: AtomicU64::new(0) }
    }

    /// Returns the slot of `scope`. If there is none, creates it with the counters of `quota`.
    pub(crate) fn get(&self, scope: &Scope, quota: &LimitQuota) -> Arc<ScopeSlot> {
        let shard = self.shard(scope);
        if let Some(slot) = shard.read().get(scope) {
            return Arc::clone(slot);
        }
        let mut shard = shard.write();
        let slot = shard.entry(scope.clone()).or_insert_with(|| {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            Arc::new(ScopeSlot {
                number,
                scope: scope.clone(),
                counters: Mutex::new(SlotCounters::of(quota)),
            })
        });
        Arc::clone(slot)
    }

    /// Returns the slot of `scope`, if there is one.
    pub(crate) fn find(&self, scope: &Scope) -> Option<Arc<ScopeSlot>> {
        self.shard(scope).read().get(scope).map(Arc::clone)
    }

    /// Drops slots that are in the same state as new ones.
    pub(crate) fn forget_idle(&self, now: UnixNanos) {
        for shard in &self.shards {
            // A locked slot is in use. No thread waits for a shard's lock while it holds a slot's lock, so a plain lock
            // could not deadlock either. But it could make every caller of the shard wait.
            shard.write().retain(|_, slot| match slot.counters.try_lock() {
                Some(mut counters) => {
                    counters.retired = counters.is_idle(now);
                    !counters.retired
                }
                None => true,
            });
        }
    }

    /// Calls `act` for each slot.
    pub(crate) fn for_each(&self, mut act: impl FnMut(&Arc<ScopeSlot>)) {
        for shard in &self.shards {
            shard.read().values().for_each(&mut act);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Picks a shard by the last bytes of the id, since ids of one kind differ there, if anywhere. The choice only
    /// affects which callers wait for each other.
    fn shard(&self, scope: &Scope) -> &RwLock<Shard> {
        let [first, ..] = &self.shards;
        let id = scope.id().as_bytes();
        let tail = id.last_chunk::<8>().map_or(0, |tail| u64::from_le_bytes(*tail));
        let short = id.iter().rev().take(2).fold(0, |sum, byte| sum * 31 + u64::from(*byte));
        let mixed = (tail ^ short).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let shard = usize::try_from(mixed >> 60).unwrap_or(0);
        self.shards.get(shard).unwrap_or(first)
    }
}
