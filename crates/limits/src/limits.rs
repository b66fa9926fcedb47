//! Deciding: all limits of a call over all its scopes, or nothing.
//! Counters live in memory and are this process's own; a shared store would stand behind the same calls.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_domain::{RequestId, UnixNanos};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::bucket::{Bucket, Wait};
use crate::lease::{Leases, Share, Shares};
use crate::slot::{Counters, Slot, Slots};
use crate::{Lease, LimitRefusal, LimitSpec, Scope};

/// How long a lease lasts that its owner neither ends nor renews: longer than any call is allowed to take.
const LEASE_LIFETIME: Duration = Duration::from_secs(3_600);

/// When to try again after a refusal for concurrency, which ends when another call does; and the least that
/// any refusal says.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// All counters. Cheap to clone: clones share them.
#[derive(Debug, Clone)]
pub struct Limits {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    slots: Slots,
    pub(crate) leases: Leases,
    lifetime: Duration,
    pub(crate) abandoned: AtomicU64,
    expired: AtomicU64,
    refused: AtomicU64,
}

/// Sizes and counts, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitMetrics {
    /// Scopes with counters now.
    pub scopes: usize,
    /// Leases open now.
    pub leases: usize,
    /// Calls refused so far by [`Limits::peek`] and [`Limits::acquire`].
    pub refused: u64,
    /// Leases dropped so far without being settled or released.
    pub abandoned: u64,
    /// Leases expired so far.
    pub expired: u64,
}

/// What is left, in the scope where least is: for the `x-ratelimit-*` headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateStanding {
    /// Requests a minute; `None` if no scope limits them.
    pub limit_requests: Option<u64>,
    /// Requests that would pass now.
    pub remaining_requests: Option<u64>,
    /// Until all of them would.
    pub reset_requests: Duration,
    /// Tokens a minute; `None` if no scope limits them.
    pub limit_tokens: Option<u64>,
    /// Tokens that would pass now.
    pub remaining_tokens: Option<u64>,
    /// Until all of them would.
    pub reset_tokens: Duration,
}

impl Limits {
    /// No call counted yet.
    pub fn new() -> Self {
        Self::with_lease_lifetime(LEASE_LIFETIME)
    }

    /// With leases that expire after `lifetime` unless renewed: longer than any call is allowed to take.
    pub fn with_lease_lifetime(lifetime: Duration) -> Self {
        Self {
            inner: Arc::new(Inner {
                slots: Slots::new(),
                leases: Leases::new(),
                lifetime,
                abandoned: AtomicU64::new(0),
                expired: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            }),
        }
    }

    /// Whether even the smallest call (one request of one token) would be refused. Takes nothing.
    ///
    /// # Errors
    /// The refusal that [`Limits::acquire`] would give.
    pub fn peek(&self, scopes: &[(Scope, LimitSpec)], now: UnixNanos) -> Result<(), LimitRefusal> {
        let mut worst = None;
        for (order, (scope, spec)) in scopes.iter().enumerate() {
            match self.inner.slots.find(scope) {
                _ if spec.is_unlimited() => {}
                Some(slot) => check(scope, spec, &slot.counters.lock(), 1, now, order, &mut worst),
                None => check(scope, spec, &Counters::default(), 1, now, order, &mut worst),
            }
        }
        self.answer(worst)
    }

    /// Takes one request, `tokens` tokens and one place in flight from every scope, or nothing from any.
    ///
    /// A scope named twice counts once, with the lower of its limits. `now` may be any clock that does not
    /// run backwards, as long as all calls use the same.
    ///
    /// # Errors
    /// The limit that takes longest to pass.
    pub fn acquire(
        &self,
        scopes: &[(Scope, LimitSpec)],
        tokens: u64,
        owner: RequestId,
        now: UnixNanos,
    ) -> Result<Lease, LimitRefusal> {
        loop {
            let picked = self.inner.pick(scopes);
            let Some(mut counters) = lock_all(&picked) else { continue };
            let mut worst = None;
            for (pick, counters) in picked.iter().zip(&counters) {
                check(&pick.slot.scope, &pick.spec, counters, tokens, now, pick.order, &mut worst);
            }
            self.answer(worst)?;
            let take =
                |(pick, counters): (&Pick, &mut MutexGuard<'_, Counters>)| take(pick, counters, tokens, now);
            let shares: Shares = picked.iter().zip(&mut counters).map(take).collect();
            drop(counters);
            return Ok(Lease::open(&self.inner, owner, tokens, shares, now.after(self.inner.lifetime)));
        }
    }

    /// What is left at `now`.
    pub fn standing(&self, scopes: &[(Scope, LimitSpec)], now: UnixNanos) -> RateStanding {
        let mut requests = None;
        let mut tokens = None;
        for (scope, spec) in scopes.iter().filter(|(_, spec)| !spec.is_unlimited()) {
            let slot = self.inner.slots.find(scope);
            let counters = slot.as_ref().map(|slot| slot.counters.lock());
            let fresh = Counters::default();
            let counters = counters.as_deref().unwrap_or(&fresh);
            let limit = spec.requests_per_minute.map(u64::from);
            requests = Left::tightest(requests, Left::of(&counters.requests, limit, now));
            tokens = Left::tightest(tokens, Left::of(&counters.tokens, spec.tokens_per_minute, now));
        }
        RateStanding {
            limit_requests: requests.map(|left| left.limit),
            remaining_requests: requests.map(|left| left.remaining),
            reset_requests: requests.map_or(Duration::ZERO, |left| left.reset),
            limit_tokens: tokens.map(|left| left.limit),
            remaining_tokens: tokens.map(|left| left.remaining),
            reset_tokens: tokens.map_or(Duration::ZERO, |left| left.reset),
        }
    }

    /// Ends expired leases and forgets scopes that are back at rest. Call it every few seconds.
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

    fn answer(&self, worst: Option<Worst>) -> Result<(), LimitRefusal> {
        match worst {
            None => Ok(()),
            Some(worst) => {
                self.inner.refused.fetch_add(1, Ordering::Relaxed);
                Err(worst.refusal)
            }
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    /// The slots of the limited scopes, each once, in locking order.
    fn pick(&self, scopes: &[(Scope, LimitSpec)]) -> SmallVec<[Pick; 4]> {
        let limited = scopes.iter().enumerate().filter(|(_, (_, spec))| !spec.is_unlimited());
        let mut picked: SmallVec<[Pick; 4]> = limited
            .map(|(order, (scope, spec))| Pick { slot: self.slots.get(scope), spec: *spec, order })
            .collect();
        picked.sort_unstable_by_key(|pick| (pick.slot.number, pick.order));
        picked.dedup_by(|later, earlier| {
            let same = later.slot.number == earlier.slot.number;
            if same {
                earlier.spec = earlier.spec.tighter(later.spec);
            }
            same
        });
        picked
    }

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

/// A slot to be charged.
struct Pick {
    slot: Arc<Slot>,
    spec: LimitSpec,
    /// Its place in the caller's list.
    order: usize,
}

/// All slots locked, in their order; none if one was forgotten meanwhile.
fn lock_all(picked: &[Pick]) -> Option<SmallVec<[MutexGuard<'_, Counters>; 4]>> {
    picked.iter().map(|pick| Some(pick.slot.counters.lock()).filter(|counters| !counters.retired)).collect()
}

fn take(pick: &Pick, counters: &mut Counters, tokens: u64, now: UnixNanos) -> Share {
    let request = pick.spec.requests_per_minute.map(|limit| {
        counters.requests.advance(u64::from(limit), now);
        counters.requests.charge(1)
    });
    let tokens = pick.spec.tokens_per_minute.map(|limit| {
        counters.tokens.advance(limit, now);
        counters.tokens.charge(tokens)
    });
    counters.active = counters.active.saturating_add(1);
    Share { slot: Arc::clone(&pick.slot), spec: pick.spec, request, tokens }
}

/// The refusal that takes longest to pass so far.
struct Worst {
    /// No end before any end, then the later end, then the caller's order.
    rank: (bool, Duration, Reverse<usize>),
    refusal: LimitRefusal,
}

/// Puts into `worst` the worst refusal of one scope, if it is worse.
fn check(
    scope: &Scope,
    spec: &LimitSpec,
    counters: &Counters,
    tokens: u64,
    now: UnixNanos,
    order: usize,
    worst: &mut Option<Worst>,
) {
    let mut refuse = |rule, limit: u64, used, requested, wait| {
        let retry_after = match wait {
            Wait::For(wait) => Some(wait.max(SHORTEST_WAIT)),
            Wait::Forever => None,
        };
        let rank = (retry_after.is_none(), retry_after.unwrap_or(Duration::MAX), Reverse(order));
        if worst.as_ref().is_none_or(|known| rank > known.rank) {
            let refusal = LimitRefusal { scope: scope.clone(), rule, limit, used, requested, retry_after };
            *worst = Some(Worst { rank, refusal });
        }
    };
    if let Some(limit) = spec.requests_per_minute.map(u64::from)
        && let Err(wait) = counters.requests.fits(limit, 1, now)
    {
        refuse("requests_per_minute", limit, counters.requests.used(limit, now), 1, wait);
    }
    if let Some(limit) = spec.tokens_per_minute
        && let Err(wait) = counters.tokens.fits(limit, tokens, now)
    {
        refuse("tokens_per_minute", limit, counters.tokens.used(limit, now), tokens, wait);
    }
    if let Some(limit) = spec.concurrency
        && counters.active >= limit
    {
        let wait = if limit == 0 { Wait::Forever } else { Wait::For(SHORTEST_WAIT) };
        refuse("concurrency", u64::from(limit), u64::from(counters.active), 1, wait);
    }
}

/// What is left of one rule in one scope.
#[derive(Clone, Copy)]
struct Left {
    limit: u64,
    remaining: u64,
    reset: Duration,
}

impl Left {
    fn of(bucket: &Bucket, limit: Option<u64>, now: UnixNanos) -> Option<Self> {
        let limit = limit?;
        let remaining = limit.saturating_sub(bucket.used(limit, now));
        Some(Self { limit, remaining, reset: bucket.until_full(limit, now) })
    }

    fn tightest(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        [one, other].into_iter().flatten().min_by_key(|left| (left.remaining, left.limit))
    }
}

#[cfg(test)]
mod tests;
