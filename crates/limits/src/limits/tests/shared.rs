//! Limits of processes that take slices from one source, in virtual time.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::{QuotaDemand, QuotaFuture, QuotaGrant, QuotaReturn, RateRule};

/// Runs a future that never waits.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// One bucket per scope and rule. Grants what is wanted, rounded up to slices, as far as its bucket has it.
struct SlicedSource {
    slice: u64,
    time: AtomicU64,
    buckets: Mutex<HashMap<(Scope, RateRule), TokenBucket>>,
    asked: AtomicU64,
    /// Tokens granted, less those given back.
    granted: AtomicU64,
    /// `Some` while the source cannot be reached: the share that a process may use.
    away: Mutex<Option<u64>>,
}

impl SlicedSource {
    fn new(slice: u64) -> Arc<Self> {
        Arc::new(Self {
            slice,
            time: AtomicU64::new(0),
            buckets: Mutex::default(),
            asked: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            away: Mutex::default(),
        })
    }
}

impl QuotaSource for SlicedSource {
    fn lease<'a>(&'a self, demands: &'a [QuotaDemand], now: UnixNanos) -> QuotaFuture<'a> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.time.store(now.get(), Ordering::Relaxed);
        if let Some(share) = *self.away.lock() {
            let away = QuotaGrant { share: Some(share), ..QuotaGrant::default() };
            return Box::pin(async move { vec![away; demands.len()] });
        }
        let mut buckets = self.buckets.lock();
        let mut left = |demand: &QuotaDemand| {
            let bucket = buckets.entry((demand.scope.clone(), demand.rule)).or_default();
            bucket.advance(demand.limit, now);
            demand.limit.saturating_sub(bucket.used(demand.limit, now))
        };
        let fits = demands.iter().all(|demand| left(demand) >= demand.needed);
        let grants = demands.iter().map(|demand| {
            assert!(demand.wanted > 0 && demand.wanted >= demand.needed);
            let left = left(demand);
            let granted = if fits { demand.wanted.next_multiple_of(self.slice).min(left) } else { 0 };
            if demand.rule == RateRule::Tokens {
                self.granted.fetch_add(granted, Ordering::Relaxed);
            }
            QuotaGrant { granted, left: left - granted, share: None }
        });
        let grants: Vec<QuotaGrant> = grants.collect();
        for (demand, grant) in demands.iter().zip(&grants) {
            let bucket = buckets.get_mut(&(demand.scope.clone(), demand.rule)).unwrap();
            bucket.spend(grant.granted);
        }
        Box::pin(async move { grants })
    }

    fn give_back(&self, returned: QuotaReturn) {
        assert!(returned.amount > 0);
        let mut buckets = self.buckets.lock();
        let bucket = buckets.get_mut(&(returned.scope, returned.rule)).unwrap();
        bucket.credit(returned.amount);
        self.granted.fetch_sub(returned.amount, Ordering::Relaxed);
    }
}

fn two(source: &Arc<SlicedSource>) -> [Limits; 2] {
    [(); 2].map(|()| Limits::shared(Arc::clone(source) as Arc<dyn QuotaSource>, LEASE_LIFETIME))
}

fn count(limits: &Limits, scopes: &[(Scope, LimitSpec)], now: UnixNanos) -> Result<(), LimitRefusal> {
    if let Some(fetch) = limits.fetch_quota(scopes, 0, now) {
        ready(fetch);
    }
    limits.count(scopes, now)
}

/// Enters and takes tokens, as a call does before it runs.
fn acquire(
    limits: &Limits,
    scopes: &[(Scope, LimitSpec)],
    tokens: u64,
    owner: RequestId,
    now: UnixNanos,
) -> Result<Lease, LimitRefusal> {
    if let Some(fetch) = limits.fetch_quota(scopes, 1, now) {
        ready(fetch);
    }
    let mut lease = limits.enter(scopes, owner, now)?;
    if let Some(fetch) = lease.fetch_quota(&[], tokens, now) {
        ready(fetch);
    }
    match lease.take(&[], tokens, now) {
        Ok(()) => Ok(lease),
        Err(refusal) => Err(refusal),
    }
}

#[test]
fn two_processes_share_a_limit_on_requests() {
    for slice in [1, 7, 1_000] {
        let processes = two(&SlicedSource::new(slice));
        let scopes = [(key(1), LimitSpec { requests_per_minute: Some(100), ..LimitSpec::UNLIMITED })];
        let passed = |from: u64, to: u64| {
            let ask = |n: u64| count(&processes[usize::from(n.is_multiple_of(2))], &scopes, at(n)).is_ok();
            (from..to).filter(|n| ask(*n)).count()
        };
        let first = passed(0, 400);
        assert!(first <= 100 && (slice > 7 || first == 100), "slices of {slice}: {first}");
        if slice == 1 {
            assert!(passed(400, 1_000) <= 2 && passed(1_000, 61_000) >= 98);
        }
    }
}

#[test]
fn a_refusal_tells_what_all_processes_have_used() {
    let source = SlicedSource::new(1);
    let [one, other] = two(&source);
    let scopes = [(key(1), LimitSpec { requests_per_minute: Some(100), ..LimitSpec::UNLIMITED })];
    for _ in 0..50 {
        count(&one, &scopes, START).unwrap();
        count(&other, &scopes, START).unwrap();
    }
    let refusal = count(&one, &scopes, START).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "requests_per_minute of key `k1`: 100 of 100 used, 1 asked for; try again in 1 s"
    );
    let standing = one.standing(&scopes, at(3_000));
    assert_eq!(standing.remaining_requests, Some(5), "five requests refill in three seconds");
    // Local limits have no source.
    let local = Limits::new();
    assert!(local.fetch_quota(&scopes, 1, START).is_none());
}

#[test]
fn what_a_call_did_not_use_is_there_for_the_other_process() {
    let source = SlicedSource::new(1);
    let [one, other] = two(&source);
    let scopes = [(key(1), LimitSpec { tokens_per_minute: Some(600), ..LimitSpec::UNLIMITED })];
    let granted = || source.granted.load(Ordering::Relaxed);
    let lease = acquire(&one, &scopes, 500, owner(1), START).unwrap();
    assert!(acquire(&other, &scopes, 200, owner(2), at(1_000)).is_err(), "the first process has them");
    // Ten tokens have refilled in the second in which the call held them.
    lease.settle(100, at(1_000));
    assert_eq!(granted(), 100 + 10 + 2, "each call fetches one token to enter");
    acquire(&other, &scopes, 400, owner(3), at(1_000)).unwrap().release(at(1_000));
    assert_eq!(granted(), 113);
    // A call that used more than it held is paid by the next slice.
    acquire(&one, &scopes, 1, owner(6), at(80_000)).unwrap().settle(51, at(80_000));
    one.sweep(at(110_000));
    assert_eq!(one.metrics().scopes, 1, "a debt is not forgotten");
    let before = granted();
    acquire(&one, &scopes, 10, owner(7), at(110_000)).unwrap().settle(10, at(110_000));
    assert_eq!(granted(), before + 60);
}

#[test]
fn a_new_slice_does_not_lapse_with_an_old_one() {
    let source = SlicedSource::new(1);
    let [one, _] = two(&source);
    let scopes = [(key(1), LimitSpec { requests_per_minute: Some(100), ..LimitSpec::UNLIMITED })];
    ready(one.fetch_quota(&scopes, 0, START).unwrap());
    ready(one.fetch_quota(&scopes, 0, at(4_900)).unwrap());
    one.count(&scopes, at(5_100)).unwrap();
    assert!(one.count(&scopes, at(5_100)).is_err(), "the old one is forgotten");
}

#[test]
fn what_a_call_did_not_use_first_pays_a_debt() {
    let source = SlicedSource::new(1);
    let [one, _] = two(&source);
    let scopes = [(key(1), LimitSpec { tokens_per_minute: Some(600), ..LimitSpec::UNLIMITED })];
    let held = acquire(&one, &scopes, 100, owner(1), START).unwrap();
    acquire(&one, &scopes, 10, owner(2), START).unwrap().settle(70, START);
    let before = source.granted.load(Ordering::Relaxed);
    held.settle(0, START);
    let returned = before - source.granted.load(Ordering::Relaxed);
    assert!((40..=42).contains(&returned), "sixty of a hundred pay the debt: {returned}");
    let before = source.granted.load(Ordering::Relaxed);
    acquire(&one, &scopes, 10, owner(3), START).unwrap().settle(10, START);
    assert!(source.granted.load(Ordering::Relaxed) - before <= 11, "nothing is owed any more");
}

#[test]
fn a_slice_lapses_and_its_scope_is_idle() {
    let source = SlicedSource::new(50);
    let [one, _] = two(&source);
    let scopes = [(key(1), LimitSpec { requests_per_minute: Some(100), ..LimitSpec::UNLIMITED })];
    count(&one, &scopes, START).unwrap();
    one.sweep(at(1_000));
    assert_eq!(one.metrics().scopes, 1);
    one.sweep(at(6_000));
    assert_eq!(one.metrics().scopes, 0);
    assert_eq!(source.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_source_that_is_away_lets_a_share_pass() {
    let source = SlicedSource::new(1);
    let [one, _] = two(&source);
    let scopes = [(key(1), LimitSpec { requests_per_minute: Some(60), ..LimitSpec::UNLIMITED })];
    *source.away.lock() = Some(20);
    let refusal = count(&one, &scopes, START).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "requests_per_minute of key `k1`: 20 used of 20, this gateway's share of 60, 1 asked for; try again in 3 s"
    );
    *source.away.lock() = Some(0);
    let refusal = count(&one, &scopes, START).unwrap_err();
    assert_eq!(refusal.share, Some(0));
    *source.away.lock() = None;
    count(&one, &scopes, START).unwrap();
}

#[test]
fn calls_that_arrive_together_do_not_use_what_others_fetched() {
    let source = SlicedSource::new(1);
    let [one, _] = two(&source);
    let scopes = [(key(1), LimitSpec { requests_per_minute: Some(1_000), ..LimitSpec::UNLIMITED })];
    for _ in 0..100 {
        // The first call fetches, the second one fetches and enters, then the first one enters.
        ready(one.fetch_quota(&scopes, 0, START).unwrap());
        count(&one, &scopes, START).unwrap();
        one.count(&scopes, START).unwrap();
    }
}

proptest! {
    /// Together, the processes never use more than the source has granted, and the source grants no more than the limit
    /// in any stretch of time.
    #[test]
    fn a_shared_limit_is_never_exceeded(
        slice in 1_u64..90,
        steps in proptest::collection::vec((0_usize..2, 0_u64..4_000, 1_u64..300, 0_u64..300, 0_u8..3), 1..80),
    ) {
        const LIMIT: u64 = 300;
        let source = SlicedSource::new(slice);
        let processes = two(&source);
        let scopes = [(key(1), LimitSpec { tokens_per_minute: Some(LIMIT), ..LimitSpec::UNLIMITED })];
        let mut now = 0;
        let mut open = Vec::new();
        // The tokens that ended calls used, by the time when the call took them.
        let mut uses: Vec<(u64, u64)> = Vec::new();
        for (process, pause, held, used, action) in steps {
            now += pause;
            if let Ok(lease) = acquire(&processes[process], &scopes, held, owner(1), at(now)) {
                open.push((now, lease, used.min(held)));
            }
            if action > 0 && !open.is_empty() {
                let (taken, lease, used) = open.swap_remove(usize::from(action) % open.len());
                lease.settle(used, at(now));
                uses.push((taken, used));
            }
            // Slices may be used five seconds after their grant.
            for (from, _) in &uses {
                for (to, _) in &uses {
                    let sum: u64 = uses.iter().filter(|(at, _)| (*from..=*to).contains(at)).map(|(_, n)| n).sum();
                    let bound = LIMIT + (LIMIT * (to.saturating_sub(*from) + 5_000)).div_ceil(60_000);
                    prop_assert!(sum <= bound, "{sum} of {bound} from {from} to {to}");
                }
            }
        }
        open.into_iter().for_each(|(_, lease, _)| lease.release(at(now)));
    }
}
