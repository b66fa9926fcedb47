//! Limits of two processes that take slices from one source, in virtual time.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::{QuotaRequest, RateRule};

/// One bucket per scope and rule. Grants what is wanted, rounded up to slices, as far as its bucket has it.
struct SlicedSource {
    slice: u64,
    buckets: Mutex<HashMap<(Scope, RateRule), TokenBucket>>,
    asked: AtomicU64,
    granted: AtomicU64,
}

impl SlicedSource {
    fn new(slice: u64) -> Arc<Self> {
        let (buckets, asked, granted) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { slice, buckets, asked, granted })
    }
}

impl QuotaSource for SlicedSource {
    fn lease(&self, request: QuotaRequest<'_>) -> u64 {
        let QuotaRequest { scope, rule, limit, wanted, now } = request;
        assert!(wanted > 0);
        let mut buckets = self.buckets.lock();
        let bucket = buckets.entry((scope.clone(), rule)).or_default();
        bucket.advance(limit, now);
        let left = limit.saturating_sub(bucket.used(limit, now));
        let granted = wanted.next_multiple_of(self.slice).min(left);
        bucket.spend(granted);
        self.asked.fetch_add(1, Ordering::Relaxed);
        if rule == RateRule::Tokens {
            self.granted.fetch_add(granted, Ordering::Relaxed);
        }
        granted
    }
}

fn two(source: &Arc<SlicedSource>) -> [Limits; 2] {
    [(); 2].map(|()| Limits::shared(Arc::clone(source) as Arc<dyn QuotaSource>, LEASE_LIFETIME))
}

#[test]
fn two_processes_share_a_limit_on_requests() {
    for slice in [1, 7, 1_000] {
        let processes = two(&SlicedSource::new(slice));
        let scopes = [(key(1), LimitSpec { requests_per_minute: Some(100), ..LimitSpec::UNLIMITED })];
        let passed = |from: u64, to: u64| {
            let ask = |n: u64| processes[usize::from(n.is_multiple_of(2))].count(&scopes, at(n)).is_ok();
            (from..to).filter(|n| ask(*n)).count()
        };
        assert!(passed(0, 400) <= 100, "slices of {slice}");
        if slice < 100 {
            assert!(passed(400, 1_000) <= 2 && passed(1_000, 61_000) >= 90, "slices of {slice}");
        }
    }
}

#[test]
fn a_source_is_asked_only_for_what_is_missing() {
    let source = SlicedSource::new(50);
    let [one, other] = two(&source);
    let scopes = [(key(1), LimitSpec { requests_per_minute: Some(100), ..LimitSpec::UNLIMITED })];
    for _ in 0..50 {
        one.count(&scopes, START).unwrap();
    }
    assert_eq!(source.asked.load(Ordering::Relaxed), 1, "one slice for fifty requests");
    other.count(&scopes, START).unwrap();
    let refusal = one.count(&scopes, START).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "requests_per_minute of key `k1`: 100 of 100 used, 1 asked for; try again in 1 s"
    );
    // Local limits have no source.
    let local = Limits::new();
    assert!((0..100).all(|_| local.count(&scopes, START).is_ok()));
    assert!(local.count(&scopes, START).is_err());
}

#[test]
fn the_unused_part_of_a_slice_is_used_or_lapses() {
    let source = SlicedSource::new(1);
    let [one, other] = two(&source);
    let scopes = [(key(1), LimitSpec { tokens_per_minute: Some(600), ..LimitSpec::UNLIMITED })];
    let granted = || source.granted.load(Ordering::Relaxed);
    acquire(&one, &scopes, 500, owner(1), START).unwrap().settle(100, at(1_000));
    assert_eq!(granted(), 500);
    assert!(acquire(&other, &scopes, 200, owner(2), at(1_000)).is_err(), "the first process has them");
    acquire(&one, &scopes, 400, owner(3), at(2_000)).unwrap().release(at(2_000));
    let before = granted();
    acquire(&one, &scopes, 400, owner(4), at(3_000)).unwrap().release(at(3_000));
    assert_eq!(granted(), before, "given back to the slice, and used again");
    one.sweep(at(20_000));
    assert_eq!(one.metrics().scopes, 0, "the slice has lapsed, and the scope is idle");
    acquire(&one, &scopes, 100, owner(5), at(20_000)).unwrap().settle(100, at(20_000));
    assert_eq!(granted(), before + 100);
    // A call that used more than it held is paid by the next slice.
    acquire(&one, &scopes, 1, owner(6), at(80_000)).unwrap().settle(51, at(80_000));
    one.sweep(at(110_000));
    assert_eq!(one.metrics().scopes, 1, "a debt is not forgotten");
    let before = granted();
    acquire(&one, &scopes, 10, owner(7), at(110_000)).unwrap().settle(10, at(110_000));
    assert_eq!(granted(), before + 60);
}

proptest! {
    /// Together, the processes never use more than the source has granted, and the source grants no more than the limit.
    #[test]
    fn a_shared_limit_is_never_exceeded(
        slice in 1_u64..90,
        steps in proptest::collection::vec((0_usize..2, 0_u64..4_000, 1_u64..300, 0_u64..300, 0_u8..3), 1..80),
    ) {
        const LIMIT: u64 = 300;
        let source = SlicedSource::new(slice);
        let processes = two(&source);
        let scopes = [(key(1), LimitSpec { tokens_per_minute: Some(LIMIT), ..LimitSpec::UNLIMITED })];
        let (mut now, mut used) = (0, 0);
        let mut open = Vec::new();
        for (process, pause, held, uses, action) in steps {
            now += pause;
            if let Ok(lease) = acquire(&processes[process], &scopes, held, owner(1), at(now)) {
                open.push((lease, uses.min(held)));
            }
            if action > 0 && !open.is_empty() {
                let (lease, uses) = open.swap_remove(usize::from(action) % open.len());
                lease.settle(uses, at(now));
                used += uses;
            }
            let held: u64 = open.iter().map(|(lease, _)| lease.tokens()).sum();
            let granted = source.granted.load(Ordering::Relaxed);
            prop_assert!(used + held <= granted, "{used} used and {held} held of {granted}");
            prop_assert!(granted <= LIMIT + LIMIT * now / 60_000);
        }
        open.into_iter().for_each(|(lease, _)| lease.release(at(now)));
    }
}
