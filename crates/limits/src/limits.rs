//! Admission: takes all of a call's limits in all of its scopes, or nothing. The counters live in memory and belong to
//! this process. Their rates may come from a source that several processes share.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_domain::{Code, RequestId, UnixNanos};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::bucket::{BucketWait, ChargeNumber, MissingAmount, SHARE_MOVE, TokenBucket};
use crate::held::{LeaseCharges, LeaseTable, Shares, SlotCharge};
use crate::quota::{LimitQuota, QuotaSource};
use crate::share_state::ShareState;
use crate::slot::{CallCost, ScopeSlot, SlotCounters, SlotTable};
use crate::table::LimitTable;
use crate::{Lease, LimitRefusal, LimitSpec, Scope};

/// Lifetime of a lease from the moment it takes tokens, unless its owner ends it earlier.
const LEASE_LIFETIME: Duration = Duration::from_secs(3_600);

/// The shortest wait that a refusal reports. Also the wait for a concurrency refusal, which ends when another call
/// ends.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// All counters of the process. Cheap to clone: clones share the counters.
#[derive(Debug, Clone)]
pub struct Limits {
    pub(crate) inner: Arc<LimitTable>,
}

/// Sizes and counts, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitMetrics {
    /// Scopes that have counters now.
    pub scopes: usize,
    /// Leases that are open now.
    pub leases: usize,
    /// Calls refused so far, by the admission check or for their tokens.
    pub refused: u64,
    /// Leases dropped so far while they held tokens.
    pub abandoned: u64,
    /// Leases expired so far.
    pub expired: u64,
}

/// The remaining limits, from the scope with the least left. Source of the `x-ratelimit-*` headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateStanding {
    /// Limit in requests per minute, over all gateways. `None` if no scope limits requests.
    pub limit_requests: Option<u64>,
    /// Requests that would pass now, at this gateway.
    pub remaining_requests: Option<u64>,
    /// Time until `limit_requests` requests would pass.
    pub reset_requests: Duration,
    /// Limit in tokens per minute, over all gateways. `None` if no scope limits tokens.
    pub limit_tokens: Option<u64>,
    /// Tokens that would pass now, at this gateway.
    pub remaining_tokens: Option<u64>,
    /// Time until `limit_tokens` tokens would pass.
    pub reset_tokens: Duration,
}

impl Limits {
    /// Creates empty counters.
    pub fn new() -> Self {
        Self::with_lease_lifetime(LEASE_LIFETIME)
    }

    /// Creates empty counters whose leases expire `lifetime` after they take tokens. Choose a lifetime longer than any
    /// call may take.
    pub fn with_lease_lifetime(lifetime: Duration) -> Self {
        Self::of(LimitQuota::Local, lifetime)
    }

    /// Creates empty counters whose limits per minute come from a source that other processes share. A call must await
    /// [`Limits::fetch_quota`] or [`Lease::fetch_quota`] before it takes anything. Concurrency is still counted in this
    /// process alone.
    pub fn shared(source: Arc<dyn QuotaSource>, lifetime: Duration) -> Self {
        Self::of(LimitQuota::Shared(source), lifetime)
    }

    pub(crate) fn of(quota: LimitQuota, lifetime: Duration) -> Self {
        Self {
            inner: Arc::new(LimitTable {
                slots: SlotTable::new(),
                leases: LeaseTable::new(),
                quota,
                lifetime,
                abandoned: AtomicU64::new(0),
                expired: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                watched: Mutex::default(),
            }),
        }
    }

    /// The admission check: takes one request and one place in flight from every scope, or nothing from any. It also
    /// refuses a caller without even one token left. The call's token count is not known yet ([`Lease::take`]).
    ///
    /// A scope that is listed twice counts once, with the lower of its limits. `now` may come from any clock that does
    /// not run backwards, as long as all calls use the same clock.
    ///
    /// # Errors
    /// The limit that takes longest to pass.
    pub fn enter(
        &self,
        scopes: &[(Scope, LimitSpec)],
        owner: RequestId,
        now: UnixNanos,
    ) -> Result<Lease, LimitRefusal> {
        let shares = self.inner.admit(scopes, ScopeAsk { tokens: 1, place: true }, now)?;
        Ok(Lease::open(&self.inner, owner, shares))
    }

    /// Takes one request from every scope, or none. For calls that are answered at once and need no place and no
    /// tokens.
    ///
    /// # Errors
    /// The limit that takes longest to pass.
    pub fn count(&self, scopes: &[(Scope, LimitSpec)], now: UnixNanos) -> Result<(), LimitRefusal> {
        self.inner.admit(scopes, ScopeAsk { tokens: 0, place: false }, now).map(drop)
    }

    /// The limits that remain at `now`.
    pub fn standing(&self, scopes: &[(Scope, LimitSpec)], now: UnixNanos) -> RateStanding {
        let mut tightest = TightestScopes::default();
        for (scope, spec) in scopes.iter().filter(|(_, spec)| !spec.is_unlimited()) {
            match self.inner.slots.find(scope) {
                Some(slot) => tightest.see(&slot.counters.lock(), spec, now),
                None => tightest.see(&SlotCounters::for_spec(&self.inner.quota, spec), spec, now),
            }
        }
        tightest.standing(self.inner.has_lapsed(now))
    }

    /// Ends expired leases and drops the counters of idle scopes. Call it every few seconds.
    pub fn sweep(&self, now: UnixNanos) {
        let expired = self.inner.leases.expire(now);
        self.inner.expired.fetch_add(expired, Ordering::Relaxed);
        self.inner.slots.forget_idle(now);
    }

    /// Owner and expiry of each open lease.
    pub fn leases(&self) -> Vec<(RequestId, UnixNanos)> {
        self.inner.leases.list()
    }

    /// Sizes and counts, for metrics.
    pub fn metrics(&self) -> LimitMetrics {
        LimitMetrics {
            scopes: self.inner.slots.len(),
            leases: self.inner.leases.len(),
            refused: self.inner.refused.load(Ordering::Relaxed),
            abandoned: self.inner.abandoned.load(Ordering::Relaxed),
            expired: self.inner.expired.load(Ordering::Relaxed),
        }
    }
}

impl Lease {
    /// The limits that remain at `now` in the lease's scopes. Same result as [`Limits::standing`], without the slot
    /// look-ups.
    pub fn standing(&self, now: UnixNanos) -> RateStanding {
        let mut tightest = TightestScopes::default();
        for share in &self.held.taken.lock().shares {
            tightest.see(&share.slot.counters.lock(), &share.spec, now);
        }
        tightest.standing(self.inner.has_lapsed(now))
    }

    /// Takes `tokens` tokens from every scope of the lease. Also takes a request, a place and `tokens` tokens from each
    /// scope in `more`. Takes all of this or nothing. A scope of `more` that the lease already has is not entered
    /// again.
    ///
    /// # Errors
    /// The limit that takes longest to pass. The lease keeps what it had, and the caller must end it. `retry_after`
    /// allows for the request that stays counted.
    pub fn take(
        &mut self,
        more: &[(Scope, LimitSpec)],
        tokens: u64,
        now: UnixNanos,
    ) -> Result<(), LimitRefusal> {
        self.add(more, Some(tokens), now)
    }

    /// Enters each scope of `more` that the lease does not have. Takes a request, a place and as many tokens as the
    /// lease holds from each, or nothing at all. The scopes that the lease already has are not charged.
    ///
    /// # Errors
    /// See [`Lease::take`].
    pub fn enter(&mut self, more: &[(Scope, LimitSpec)], now: UnixNanos) -> Result<(), LimitRefusal> {
        self.add(more, None, now)
    }

    /// With `Some(tokens)`, charges all scopes. With `None`, charges the tokens that the lease holds, in new scopes
    /// only.
    fn add(
        &mut self,
        more: &[(Scope, LimitSpec)],
        tokens: Option<u64>,
        now: UnixNanos,
    ) -> Result<(), LimitRefusal> {
        let mut taken = self.held.taken.lock();
        if let Some(tokens) = tokens
            && more.iter().all(|(_, spec)| spec.is_unlimited())
            && self.inner.take_here(&mut taken, tokens, now)
        {
            self.held.expires.store(now.after(self.inner.lifetime).get(), Ordering::Relaxed);
            return Ok(());
        }
        let only_new = tokens.is_none();
        let tokens = tokens.or(taken.tokens).unwrap_or(0);
        // A retried call must pass the admission check, which needs one token. So ask for at least one token here, too.
        let asked = tokens.max(1);
        loop {
            let picked = self.inner.pick(&taken.shares, more);
            let Some(mut counters) = lock_all(&picked) else { continue };
            if let LimitQuota::Gateways(state) = &self.inner.quota {
                begin_shares(&picked, &mut counters, state);
            }
            let mut worst = WorstRefusal::default();
            for (pick, counters) in picked.iter().zip(&counters) {
                match pick.entered {
                    true if only_new => {}
                    true => worst.see_tokens(pick, counters, asked, now),
                    false => worst.see(pick, counters, ScopeAsk { tokens: asked, place: true }, now),
                }
            }
            if self.inner.has_lapsed(now) {
                worst.see_lapse(&picked);
            }
            if let Some(mut refusal) = worst.0.map(|(_, refusal)| refusal) {
                for (pick, counters) in
                    picked.iter().zip(&mut counters).filter(|(pick, _)| !(pick.entered && only_new))
                {
                    let cost = CallCost { requests: u64::from(!pick.entered), tokens: asked };
                    self.inner.note_refused(&pick.slot, counters, &pick.spec, cost, now);
                }
                let next = picked.iter().zip(&counters).filter_map(|(pick, counters)| {
                    match counters.requests.fits(u64::from(pick.spec.requests_per_minute?), 1, now) {
                        Err(BucketWait::For(wait)) => Some(wait),
                        _ => None,
                    }
                });
                let next = next.max().unwrap_or_default();
                refusal.retry_after = refusal.retry_after.map(|wait| wait.max(next));
                return Err(self.inner.refuse(refusal));
            }
            let LeaseCharges { tokens: held, shares, .. } = &mut *taken;
            for (pick, counters) in picked.iter().zip(&mut counters) {
                if pick.entered && only_new {
                    continue;
                }
                if !pick.entered {
                    enter(pick, counters, true, now);
                    shares.push(SlotCharge { slot: Arc::clone(&pick.slot), spec: pick.spec, tokens: None });
                }
                let share = shares.iter_mut().find(|share| share.slot.number == pick.slot.number);
                if let (Some(share), Some(limit)) = (share, pick.spec.tokens_per_minute) {
                    counters.tokens.advance(limit, now);
                    share.tokens = Some(counters.tokens.charge(tokens));
                }
                let cost = CallCost { requests: u64::from(!pick.entered), tokens };
                self.inner.note_admitted(&pick.slot, counters, cost);
            }
            *held = Some(tokens);
            self.held.expires.store(now.after(self.inner.lifetime).get(), Ordering::Relaxed);
            return Ok(());
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

impl LimitTable {
    /// Takes a request from every scope, and a place if `ask.place` is set, or nothing.
    fn admit(
        &self,
        scopes: &[(Scope, LimitSpec)],
        ask: ScopeAsk,
        now: UnixNanos,
    ) -> Result<Shares, LimitRefusal> {
        loop {
            let picked = self.pick(&[], scopes);
            let Some(mut counters) = lock_all(&picked) else { continue };
            if let LimitQuota::Gateways(state) = &self.quota {
                begin_shares(&picked, &mut counters, state);
            }
            let mut worst = WorstRefusal::default();
            for (pick, counters) in picked.iter().zip(&counters) {
                worst.see(pick, counters, ask, now);
            }
            if self.has_lapsed(now) {
                worst.see_lapse(&picked);
            }
            if let Some((_, refusal)) = worst.0 {
                let cost = CallCost { requests: 1, tokens: ask.tokens };
                for (pick, counters) in picked.iter().zip(&mut counters) {
                    self.note_refused(&pick.slot, counters, &pick.spec, cost, now);
                }
                return Err(self.refuse(refusal));
            }
            for (pick, counters) in picked.iter().zip(&mut counters) {
                enter(pick, counters, ask.place, now);
                self.note_admitted(&pick.slot, counters, CallCost { requests: 1, tokens: 0 });
            }
            drop(counters);
            return Ok(picked
                .into_iter()
                .map(|SlotPick { slot, spec, .. }| SlotCharge { slot, spec, tokens: None })
                .collect());
        }
    }

    /// The entered slots and the slots of the limited scopes, without duplicates, in locking order.
    pub(crate) fn pick(
        &self,
        entered: &[SlotCharge],
        scopes: &[(Scope, LimitSpec)],
    ) -> SmallVec<[SlotPick; 4]> {
        let entered = entered.iter().map(|share| (Arc::clone(&share.slot), share.spec, true));
        let limited = scopes.iter().filter(|(_, spec)| !spec.is_unlimited());
        let limited = limited.map(|(scope, spec)| (self.slots.get(scope, &self.quota), *spec, false));
        let mut picked: SmallVec<[SlotPick; 4]> = entered
            .chain(limited)
            .enumerate()
            .map(|(order, (slot, spec, entered))| SlotPick { slot, spec, order, entered })
            .collect();
        picked.sort_unstable_by_key(|pick| (pick.slot.number, pick.order));
        picked.dedup_by(|later, earlier| {
            let same = later.slot.number == earlier.slot.number;
            if same && !earlier.entered {
                earlier.spec = earlier.spec.tighter(later.spec);
            }
            same
        });
        picked
    }

    /// Takes tokens from the lease's own scopes if they fit in all of them. Otherwise takes nothing and returns `false`;
    /// the caller then checks each scope. A fast path, since most calls enter no further scope.
    fn take_here(&self, taken: &mut LeaseCharges, tokens: u64, now: UnixNanos) -> bool {
        let LeaseCharges { tokens: held, shares, .. } = taken;
        if !shares.is_sorted_by_key(|share| share.slot.number) || self.has_lapsed(now) {
            return false;
        }
        let mut counters: SmallVec<[MutexGuard<'_, SlotCounters>; 4]> =
            shares.iter().map(|share| share.slot.counters.lock()).collect();
        let asked = tokens.max(1);
        let fits = shares.iter().zip(&counters).all(|(share, counters)| {
            let limit = share.spec.tokens_per_minute;
            !counters.retired && limit.is_none_or(|limit| counters.tokens.fits(limit, asked, now).is_ok())
        });
        if !fits {
            return false;
        }
        let marks = shares.iter().zip(&mut counters).map(|(share, counters)| {
            counters.tokens.advance(share.spec.tokens_per_minute?, now);
            let mark = counters.tokens.charge(tokens);
            self.note_admitted(&share.slot, counters, CallCost { requests: 0, tokens });
            Some(mark)
        });
        let marks: SmallVec<[Option<ChargeNumber>; 4]> = marks.collect();
        drop(counters);
        for (share, mark) in shares.iter_mut().zip(marks) {
            share.tokens = mark.or(share.tokens);
        }
        *held = Some(tokens);
        true
    }

    fn refuse(&self, refusal: LimitRefusal) -> LimitRefusal {
        self.refused.fetch_add(1, Ordering::Relaxed);
        refusal
    }
}

/// What a call needs from a scope beside one request.
#[derive(Debug, Clone, Copy)]
struct ScopeAsk {
    tokens: u64,
    place: bool,
}

/// A slot to charge.
pub(crate) struct SlotPick {
    pub(crate) slot: Arc<ScopeSlot>,
    pub(crate) spec: LimitSpec,
    /// Index in the list of entered and requested scopes.
    order: usize,
    /// The lease already has its request and place in this slot.
    pub(crate) entered: bool,
}

/// Locks all slots in order. Returns `None` if one of them was retired meanwhile.
fn lock_all(picked: &[SlotPick]) -> Option<SmallVec<[MutexGuard<'_, SlotCounters>; 4]>> {
    picked.iter().map(|pick| Some(pick.slot.counters.lock()).filter(|counters| !counters.retired)).collect()
}

/// Gives slots that were not used yet their part of each limit.
fn begin_shares(picked: &[SlotPick], counters: &mut [MutexGuard<'_, SlotCounters>], state: &ShareState) {
    picked.iter().zip(counters).for_each(|(pick, counters)| counters.begin(state, &pick.spec));
}

fn enter(pick: &SlotPick, counters: &mut SlotCounters, place: bool, now: UnixNanos) {
    if let Some(limit) = pick.spec.requests_per_minute {
        counters.requests.advance(u64::from(limit), now);
        counters.requests.spend(1);
    }
    counters.active = counters.active.saturating_add(u32::from(place));
}

/// Sort key for refusals: waits that never end rank highest, then the longer wait, then the earlier scope.
type Rank = (bool, Duration, Reverse<usize>);

/// The refusal seen so far that takes longest to pass.
#[derive(Default)]
struct WorstRefusal(Option<(Rank, LimitRefusal)>);

impl WorstRefusal {
    /// Checks one scope against everything in `ask`.
    fn see(&mut self, pick: &SlotPick, counters: &SlotCounters, ask: ScopeAsk, now: UnixNanos) {
        if let Some(limit) = pick.spec.requests_per_minute.map(u64::from)
            && let Err(wait) = counters.requests.fits(limit, 1, now)
        {
            let share = counters.requests.part_of(limit);
            let numbers = [limit, counters.requests.used(limit, now), 1];
            self.refuse(pick, Code::RequestsPerMinute, numbers, share, wait);
        }
        if ask.tokens > 0 {
            self.see_tokens(pick, counters, ask.tokens, now);
        }
        if ask.place
            && let Some(limit) = pick.spec.concurrency
            && counters.active >= limit
        {
            let wait = if limit == 0 { BucketWait::Forever } else { BucketWait::For(SHORTEST_WAIT) };
            let numbers = [u64::from(limit), u64::from(counters.active), 1];
            self.refuse(pick, Code::Concurrency, numbers, None, wait);
        }
    }

    /// Checks one scope against the tokens.
    fn see_tokens(&mut self, pick: &SlotPick, counters: &SlotCounters, tokens: u64, now: UnixNanos) {
        if let Some(limit) = pick.spec.tokens_per_minute
            && let Err(wait) = counters.tokens.fits(limit, tokens, now)
        {
            let share = counters.tokens.part_of(limit);
            let numbers = [limit, counters.tokens.used(limit, now), tokens];
            self.refuse(pick, Code::TokensPerMinute, numbers, share, wait);
        }
    }

    /// Refuses every limit per minute while this process may not use its shares.
    #[cold]
    fn see_lapse(&mut self, picked: &[SlotPick]) {
        for pick in picked {
            let LimitSpec { requests_per_minute, tokens_per_minute, .. } = pick.spec;
            let rules = [
                (Code::RequestsPerMinute, requests_per_minute.map(u64::from)),
                (Code::TokensPerMinute, tokens_per_minute),
            ];
            for (rule, limit) in rules {
                if let Some(limit) = limit {
                    self.refuse(pick, rule, [limit, 0, 1], Some(0), BucketWait::For(SHARE_MOVE));
                }
            }
        }
    }

    fn refuse(
        &mut self,
        pick: &SlotPick,
        rule: Code,
        [limit, used, requested]: [u64; 3],
        share: Option<u64>,
        wait: BucketWait,
    ) {
        let retry_after = match wait {
            BucketWait::For(wait) => Some(wait.max(SHORTEST_WAIT)),
            BucketWait::Forever => None,
        };
        let rank = (retry_after.is_none(), retry_after.unwrap_or(Duration::MAX), Reverse(pick.order));
        if self.0.as_ref().is_none_or(|(known, _)| rank > *known) {
            let scope = pick.slot.scope.clone();
            self.0 = Some((rank, LimitRefusal { scope, rule, limit, share, used, requested, retry_after }));
        }
    }
}

/// The scopes with the least left.
#[derive(Default)]
struct TightestScopes {
    requests: Option<RuleRemainder>,
    tokens: Option<RuleRemainder>,
}

impl TightestScopes {
    fn see(&mut self, counters: &SlotCounters, spec: &LimitSpec, now: UnixNanos) {
        let limit = spec.requests_per_minute.map(u64::from);
        self.requests =
            RuleRemainder::tightest(self.requests, RuleRemainder::of(&counters.requests, limit, now));
        self.tokens = RuleRemainder::tightest(
            self.tokens,
            RuleRemainder::of(&counters.tokens, spec.tokens_per_minute, now),
        );
    }

    /// The standing. Nothing remains of lapsed shares.
    fn standing(self, has_lapsed: bool) -> RateStanding {
        let Self { requests, tokens } = self;
        let remaining =
            |left: Option<RuleRemainder>| left.map(|left| if has_lapsed { 0 } else { left.remaining });
        let reset =
            |left: Option<RuleRemainder>| left.map_or(Duration::ZERO, |left| left.missing.until_full());
        RateStanding {
            limit_requests: requests.map(|left| left.limit),
            remaining_requests: remaining(requests),
            reset_requests: reset(requests),
            limit_tokens: tokens.map(|left| left.limit),
            remaining_tokens: remaining(tokens),
            reset_tokens: reset(tokens),
        }
    }
}

/// What one scope has left of one rule.
#[derive(Clone, Copy)]
struct RuleRemainder {
    limit: u64,
    remaining: u64,
    missing: MissingAmount,
}

impl RuleRemainder {
    fn of(bucket: &TokenBucket, limit: Option<u64>, now: UnixNanos) -> Option<Self> {
        let limit = limit?;
        let missing = bucket.missing(limit, now);
        Some(Self { limit, remaining: missing.left(), missing })
    }

    /// The one with less left. The first of two equals.
    fn tightest(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => {
                let is_less = (other.remaining, other.limit) < (one.remaining, one.limit);
                Some(if is_less { other } else { one })
            }
            (one, other) => one.or(other),
        }
    }
}

#[cfg(test)]
mod tests;
