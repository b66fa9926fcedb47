//! A gateway's side of the shares: once a second it reads the table of all gateways, shrinks what others need more, writes
//! its demand, and grows into what is free. It shrinks before the table says so, and grows after. Knows no database.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{Clock, UnixNanos};

use crate::bucket::TokenBucket;
use crate::part::{LimitPart, WHOLE_UNITS, scale};
use crate::quota::LimitQuota;
use crate::share_policy::target_share;
use crate::share_state::ShareState;
use crate::share_table::{LimitShares, ShareHolder, ShareKey, ShareMember, ShareTable, USABLE_TIME};
use crate::slot::{ScopeSlot, SlotCounters};
use crate::table::LimitTable;
use crate::{Limits, RateRule};

/// The shortest time over which demand is measured.
const DEMAND_TIME: Duration = Duration::from_secs(1);

/// Where the gateways keep their shares.
pub trait ShareStore {
    /// Reads the table, changes it and writes it in one transaction. No other exchange happens meanwhile. The second
    /// argument of `change` is the storage's clock, in microseconds, read after the transaction excluded all others.
    /// `change` is called once, or never if the table cannot be read.
    ///
    /// # Errors
    /// After an error, the change may have been written or not.
    fn exchange(&mut self, change: &mut dyn FnMut(&mut ShareTable, u64)) -> Result<(), ShareStoreError>;
}

/// An exchange that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareStoreError {
    /// What happened and where.
    pub why: String,
}

impl fmt::Display for ShareStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the shares of rate limits could not be exchanged: {}", self.why)
    }
}

impl std::error::Error for ShareStoreError {}

/// Keeps the shares of this process in the rate limits of several gateways. One thread uses it.
pub struct GatewayShares {
    limits: Arc<LimitTable>,
    state: Arc<ShareState>,
    holder: ShareHolder,
    /// The limits with rows in the table, as of the last exchange.
    fixed: BTreeMap<ShareKey, Arc<ScopeSlot>>,
    /// What the exchange in progress lets this gateway take, once it is written.
    grants: Vec<ShareGrant>,
    base_grant: Option<BaseGrant>,
    measured: UnixNanos,
    /// The start of the last exchange that succeeded, on the monotonic clock.
    exchanged_ns: u64,
    /// An earlier process in the place of this one. Removed with the first exchange.
    former: Option<ShareHolder>,
}

struct ShareGrant {
    key: ShareKey,
    limit: u64,
    share: u64,
    missing: u64,
}

#[derive(Clone, Copy)]
struct BaseGrant {
    units: u32,
    /// When what is added may last have been empty.
    empty_at: UnixNanos,
}

impl fmt::Debug for GatewayShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayShares").field("holder", &self.holder).finish_non_exhaustive()
    }
}

impl Limits {
    /// Creates empty counters whose limits per minute are divided among gateways. Until the first exchange, no limited call
    /// passes. Concurrency is still counted in this process alone.
    pub fn over_gateways(lifetime: Duration, holder: ShareHolder) -> (Self, GatewayShares) {
        let state = Arc::new(ShareState::new());
        let limits = Self::of(LimitQuota::Gateways(Arc::clone(&state)), lifetime);
        let shares = GatewayShares {
            limits: Arc::clone(&limits.inner),
            state,
            holder,
            fixed: BTreeMap::new(),
            grants: Vec::new(),
            base_grant: None,
            measured: UnixNanos::new(0),
            exchanged_ns: 0,
            former: None,
        };
        (limits, shares)
    }

    /// The part of a limit that this process may use now, in tokens or requests per minute. All of it, unless gateways
    /// share it.
    pub fn usable_share(&self, key: &ShareKey, limit: u64, now: UnixNanos) -> u64 {
        let LimitQuota::Gateways(state) = &self.inner.quota else { return limit };
        if !state.is_usable(now) {
            return 0;
        }
        let base = LimitPart::Base(state.base().units);
        let Some(slot) = self.inner.slots.find(&key.scope) else { return base.of(limit) };
        let mut counters = slot.counters.lock();
        match counters.bucket(key.rule).fixed_share() {
            Some((share, of)) => LimitPart::Fixed { share, of }.of(limit),
            None => base.of(limit),
        }
    }
}

impl GatewayShares {
    /// Names an earlier process that has certainly ended. Its shares are free with the first exchange, before its lease
    /// ends.
    pub const fn replace(&mut self, former: ShareHolder) {
        self.former = Some(former);
    }

    /// Makes one exchange. Call it once a second, from a thread that may block.
    ///
    /// # Errors
    /// Returns the storage's error. The shares stay usable for twelve seconds after the last exchange.
    pub fn exchange(&mut self, store: &mut dyn ShareStore, clock: &dyn Clock) -> Result<(), ShareStoreError> {
        // Others may take the shares a lease after the storage saw this exchange, which is later than now.
        let (started, started_ns) = (clock.now(), clock.monotonic_nanos());
        self.grants.clear();
        self.base_grant = None;
        let mut is_read = false;
        let exchanged = store.exchange(&mut |table, time| {
            is_read = true;
            self.decide(table, time, clock.now());
        });
        if let Err(error) = exchanged {
            self.end_lapsed(clock);
            return Err(error);
        }
        if is_read {
            self.former = None;
            self.take_grants(clock.now());
            self.state.set_usable_until(started.after(USABLE_TIME));
            self.exchanged_ns = started_ns;
        }
        Ok(())
    }

    /// Ends the use of shares when their time is over, even if this machine's clock was set back meanwhile.
    fn end_lapsed(&self, clock: &dyn Clock) {
        let elapsed = clock.monotonic_nanos().saturating_sub(self.exchanged_ns);
        if Duration::from_nanos(elapsed) >= USABLE_TIME {
            self.state.set_usable_until(UnixNanos::new(0));
        }
    }

    /// Gives all shares back. The gateway may serve no further calls.
    ///
    /// # Errors
    /// Returns the storage's error. Others then take the shares after a lease.
    pub fn leave(&mut self, store: &mut dyn ShareStore, clock: &dyn Clock) -> Result<(), ShareStoreError> {
        self.state.set_usable_until(UnixNanos::new(0));
        self.reset(clock.now());
        store.exchange(&mut |table, time| table.remove(self.holder, time))
    }

    /// Decides this gateway's rows. Shrinks at once; what it may take is noted.
    fn decide(&mut self, table: &mut ShareTable, time: u64, now: UnixNanos) {
        let mut used = table.remove_lapsed(self.holder, time);
        if let Some(former) = self.former.filter(|former| table.members.contains_key(former)) {
            table.remove_used(former, time, time);
            used = time;
        }
        if !table.members.contains_key(&self.holder) {
            // Others took the shares after a lease, which has ended here, too.
            self.reset(now);
            if table.members.is_empty() {
                table.limits.clear();
            }
            let used_micros = table.used_micros().max(used);
            let member = ShareMember { seen_micros: time, base_units: 0, used_micros };
            table.members.insert(self.holder, member);
        }
        self.follow_rows(table, now);
        self.balance_base(table, time, now);
        self.report_pressure(table, time, now);
        let elapsed = now.since(self.measured).max(DEMAND_TIME);
        self.measured = now;
        let ShareTable { members, limits } = &mut *table;
        for (key, shares) in limits.iter_mut() {
            if let Some(slot) = self.fixed.get(key) {
                let mut counters = slot.counters.lock();
                let moment = ShareMoment { time, now, elapsed };
                let grant =
                    balance_limit(key, shares, members, self.holder, counters.bucket(key.rule), moment);
                self.grants.extend(grant);
            }
        }
        table.remove_idle(time);
    }

    /// Gives up all shares.
    fn reset(&mut self, now: UnixNanos) {
        self.set_base(BaseGrant { units: 0, empty_at: now }, now);
        for (key, slot) in std::mem::take(&mut self.fixed) {
            free_slot(&slot, key.rule, 0, now);
        }
    }

    /// Fixes the share of each limit with rows, and returns the others to the base share.
    fn follow_rows(&mut self, table: &mut ShareTable, now: UnixNanos) {
        let units = self.state.base().units;
        self.fixed.retain(|key, slot| {
            let keep = table.limits.contains_key(key);
            if !keep {
                free_slot(slot, key.rule, units, now);
            }
            keep
        });
        for (key, shares) in &mut table.limits {
            shares.rows.entry(self.holder).or_default();
            if !self.fixed.contains_key(key) {
                let slot = self.fix_slot(key, shares.limit, now);
                self.fixed.insert(key.clone(), slot);
            }
        }
    }

    /// Fixes the current share of a limit, and keeps its slot from being removed.
    fn fix_slot(&self, key: &ShareKey, limit: u64, now: UnixNanos) -> Arc<ScopeSlot> {
        loop {
            let slot = self.limits.slots.get(&key.scope, &self.limits.quota);
            let mut counters = slot.counters.lock();
            if counters.retired {
                continue;
            }
            let base = self.state.base();
            let bucket = counters.bucket(key.rule);
            if bucket.whole() == 0 {
                bucket.begin(limit, LimitPart::Base(base.full_units), base.grown);
            }
            bucket.fix_share(limit, now);
            counters.fixed_rules += 1;
            counters.is_watched = true;
            drop(counters);
            return slot;
        }
    }

    /// Gives each gateway an equal part of limits without rows.
    fn balance_base(&mut self, table: &mut ShareTable, time: u64, now: UnixNanos) {
        let count = u32::try_from(table.members.len()).unwrap_or(u32::MAX).max(1);
        let free = table.units_left_by_others(self.holder);
        let Some(&member) = table.members.get(&self.holder) else { return };
        let (held, target) = (self.state.base().units, WHOLE_UNITS / count);
        // The table knows less only if the database lost what it had acknowledged. It knows more if the last exchange was
        // written, and its outcome was not known here.
        let allowed = held.min(member.base_units).min(target);
        let mut is_used = member.base_units > held;
        if allowed < held {
            is_used |= !self.shrink_base(table, allowed, time, now);
        }
        let base_units = allowed.max(target.min(free));
        let used_micros = if is_used { time } else { member.used_micros };
        let member = ShareMember { seen_micros: time, base_units, used_micros };
        table.members.insert(self.holder, member);
        if base_units > allowed {
            let ago = Duration::from_micros(time.saturating_sub(table.used_micros())).as_nanos();
            let empty_at = now.get().saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX));
            self.base_grant = Some(BaseGrant { units: base_units, empty_at: UnixNanos::new(empty_at) });
        }
    }

    /// Shrinks the part of limits without rows. A limit whose part was used too much for that gets rows, so that what
    /// others take of the rest is full. Returns `false` if there are too many of them.
    fn shrink_base(&mut self, table: &mut ShareTable, units: u32, time: u64, now: UnixNanos) -> bool {
        let mut used = Vec::new();
        self.state.set_base(units, now);
        self.limits.slots.for_each(|slot| {
            let mut counters = slot.counters.lock();
            for rule in [RateRule::Requests, RateRule::Tokens] {
                let bucket = counters.bucket(rule);
                if bucket.fixed_share().is_some() {
                    continue;
                }
                if bucket.fits_base(units, now) {
                    bucket.set_base(units, now, now);
                } else {
                    let limit = bucket.whole();
                    bucket.fix_share(limit, now);
                    counters.fixed_rules += 1;
                    counters.is_watched = true;
                    used.push((ShareKey { scope: slot.scope.clone(), rule }, limit, Arc::clone(slot)));
                }
            }
        });
        let mut is_full = true;
        for (key, limit, slot) in used {
            table.add_limit(key.clone(), limit, time);
            if table.limits.contains_key(&key) {
                self.fixed.insert(key, slot);
            } else {
                free_slot(&slot, key.rule, units, now);
                is_full = false;
            }
        }
        is_full
    }

    /// Changes the part of all limits without rows.
    fn set_base(&self, BaseGrant { units, empty_at }: BaseGrant, now: UnixNanos) {
        // New slots first: a slot that is created meanwhile has one part or the other, and then gets this one.
        self.state.set_base(units, empty_at);
        self.limits.slots.for_each(|slot| {
            let mut counters = slot.counters.lock();
            for rule in [RateRule::Requests, RateRule::Tokens] {
                let bucket = counters.bucket(rule);
                if bucket.fixed_share().is_none() && !bucket.has_base(units) {
                    bucket.set_base(units, empty_at, now);
                }
            }
        });
    }

    /// Adds rows for limits whose base share does not suffice.
    fn report_pressure(&mut self, table: &mut ShareTable, time: u64, now: UnixNanos) {
        let listed = std::mem::take(&mut *self.limits.watched.lock());
        let fixed: Vec<Arc<ScopeSlot>> = self.fixed.values().map(Arc::clone).collect();
        for slot in listed.into_iter().chain(fixed) {
            let mut pressed = Vec::new();
            {
                let mut counters = slot.counters.lock();
                counters.is_watched = counters.fixed_rules > 0;
                for rule in [RateRule::Requests, RateRule::Tokens] {
                    let bucket = counters.bucket(rule);
                    if bucket.fixed_share().is_some() || bucket.is_whole() {
                        continue;
                    }
                    if bucket.is_pressed() || bucket.has_need() {
                        pressed.push((rule, bucket.whole()));
                    } else {
                        bucket.take_demand();
                    }
                }
            }
            for (rule, limit) in pressed {
                let key = ShareKey { scope: slot.scope.clone(), rule };
                table.add_limit(key.clone(), limit, time);
                if let Some(shares) = table.limits.get(&key) {
                    let slot = self.fix_slot(&key, shares.limit, now);
                    self.fixed.insert(key, slot);
                }
            }
        }
    }

    /// Takes what the exchange that was just written lets this gateway take.
    fn take_grants(&mut self, now: UnixNanos) {
        for grant in std::mem::take(&mut self.grants) {
            let ShareGrant { key, limit, share, missing } = grant;
            if let Some(slot) = self.fixed.get(&key) {
                slot.counters.lock().bucket(key.rule).gain_share(limit, share, missing, now);
            }
        }
        if let Some(grant) = self.base_grant.take() {
            self.set_base(grant, now);
        }
    }
}

/// The moment of an exchange, by the storage's clock and by this machine's, and the time since the last one.
#[derive(Clone, Copy)]
struct ShareMoment {
    time: u64,
    now: UnixNanos,
    elapsed: Duration,
}

/// Decides this gateway's share of one limit. Shrinks at once, and returns what it may take.
fn balance_limit(
    key: &ShareKey,
    shares: &mut LimitShares,
    members: &BTreeMap<ShareHolder, ShareMember>,
    me: ShareHolder,
    bucket: &mut TokenBucket,
    ShareMoment { time, now, elapsed }: ShareMoment,
) -> Option<ShareGrant> {
    shares.refill(time);
    let demand = bucket.take_demand();
    if demand.asked > 0 && bucket.whole() > 0 && bucket.whole() != shares.limit {
        shares.set_limit(bucket.whole());
    }
    let limit = shares.limit;
    let (held, of) = bucket.fixed_share()?;
    let held = if of == limit { held } else { scale(held, limit, of).min(limit) };
    let want = scale(demand.asked, 75_000, u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
    let row = shares.rows.entry(me).or_default();
    // A gateway that refuses a call asks for more, even if its calls came to an empty bucket and asked for little.
    let short = if demand.needed > 0 { held.saturating_mul(2).saturating_add(demand.needed) } else { 0 };
    row.want = want.max(short).max(u64::from(demand.asked > 0));
    row.need = demand.needed;
    // More than what is held here: the last exchange was written, and its outcome was not known here. Less: the database
    // lost what it had acknowledged.
    let unknown = row.share.saturating_sub(held);
    let held = held.min(row.share);
    row.share = held;
    shares.add_missing(unknown);
    shares.note_demand(time);
    let target = target_share(shares, members, me, time);
    let kept = target.min(held);
    let moved = bucket.shed_share(limit, kept, now);
    shares.free_missing = shares.free_missing.saturating_add(moved);
    if let Some(row) = shares.rows.get_mut(&me) {
        row.share = kept;
    }
    let added = target.saturating_sub(kept).min(shares.free());
    if added == 0 {
        return None;
    }
    let missing = shares.take_free(added);
    if let Some(row) = shares.rows.get_mut(&me) {
        row.share = kept.saturating_add(added);
    }
    Some(ShareGrant { key: key.clone(), limit, share: kept.saturating_add(added), missing })
}

/// Returns a slot to the base share.
fn free_slot(slot: &ScopeSlot, rule: RateRule, units: u32, now: UnixNanos) {
    let mut counters: parking_lot::MutexGuard<'_, SlotCounters> = slot.counters.lock();
    counters.fixed_rules = counters.fixed_rules.saturating_sub(1);
    counters.is_watched = counters.fixed_rules > 0;
    let bucket = counters.bucket(rule);
    bucket.set_base(units, now, now);
    bucket.take_demand();
}
