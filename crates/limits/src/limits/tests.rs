//! The promises of `Limits`, as tables in virtual time and with real threads.

use std::sync::atomic::AtomicU32;

use headrace_domain::{KeyId, ModelName, OrgId, ProjectId};

use super::*;

const START: UnixNanos = UnixNanos::new(1_700_000_000_000_000_000);

fn at(millis: u64) -> UnixNanos {
    START.after(Duration::from_millis(millis))
}

fn key(n: u8) -> Scope {
    Scope::Key(KeyId::new(&format!("k{n}")).unwrap())
}

fn project() -> Scope {
    Scope::Project(ProjectId::new("p").unwrap())
}

fn org() -> Scope {
    Scope::Org(OrgId::new("o").unwrap())
}

fn model() -> Scope {
    Scope::Model(ModelName::new("m").unwrap())
}

fn spec(requests: u32, tokens: u64, concurrency: u32) -> LimitSpec {
    LimitSpec {
        requests_per_minute: Some(requests),
        tokens_per_minute: Some(tokens),
        concurrency: Some(concurrency),
    }
}

fn owner(n: u128) -> RequestId {
    RequestId::from_bits(n)
}

/// Enters and takes tokens, as a call does before it runs.
fn acquire(
    limits: &Limits,
    scopes: &[(Scope, LimitSpec)],
    tokens: u64,
    owner: RequestId,
    now: UnixNanos,
) -> Result<Lease, LimitRefusal> {
    let mut lease = limits.enter(scopes, owner, now)?;
    lease.take(&[], tokens, now)?;
    Ok(lease)
}

/// The remaining limits of each scope by itself.
fn standings(limits: &Limits, scopes: &[(Scope, LimitSpec)], now: UnixNanos) -> Vec<RateStanding> {
    scopes.iter().map(|one| limits.standing(std::slice::from_ref(one), now)).collect()
}

fn in_flight(limits: &Limits, scope: &Scope) -> u32 {
    limits.inner.slots.find(scope).map_or(0, |slot| slot.counters.lock().active)
}

#[test]
fn refusals_name_scope_rule_numbers_and_remedy() {
    let limits = Limits::new();
    let only = |requests: Option<u32>, tokens: Option<u64>, concurrency: Option<u32>| LimitSpec {
        requests_per_minute: requests,
        tokens_per_minute: tokens,
        concurrency,
    };
    // Limits, tokens held before, calls in flight, tokens of the call; the refusal.
    type Row = (LimitSpec, u64, u32, u64, &'static str);
    let rows: [Row; 9] = [
        (
            only(Some(2), None, None),
            0,
            2,
            0,
            "requests_per_minute of key `k0`: 2 of 2 used, 1 asked for; try again in 30 s",
        ),
        (
            only(Some(6000), None, None),
            0,
            6000,
            0,
            "requests_per_minute of key `k1`: 6000 of 6000 used, 1 asked for; try again in 1 s",
        ),
        (
            only(None, Some(600), None),
            550,
            1,
            100,
            "tokens_per_minute of key `k2`: 550 of 600 used, 100 asked for; try again in 5 s",
        ),
        (
            only(None, Some(600), None),
            100,
            1,
            601,
            "tokens_per_minute of key `k3` is 600, and this call asks for 601: it can never fit; ask for less or have the limit raised",
        ),
        (
            only(None, None, Some(3)),
            0,
            3,
            0,
            "concurrency of key `k4`: 3 of 3 used, 1 asked for; try again in 1 s",
        ),
        (
            only(Some(0), None, None),
            0,
            0,
            0,
            "requests_per_minute of key `k5` is 0, and this call asks for 1: it can never fit; ask for less or have the limit raised",
        ),
        (
            only(None, Some(0), None),
            0,
            0,
            1,
            "tokens_per_minute of key `k6` is 0, and this call asks for 1: it can never fit; ask for less or have the limit raised",
        ),
        (
            only(None, None, Some(0)),
            0,
            0,
            0,
            "concurrency of key `k7` is 0, and this call asks for 1: it can never fit; ask for less or have the limit raised",
        ),
        (
            only(Some(1), Some(60), Some(1)),
            60,
            1,
            30,
            "requests_per_minute of key `k8`: 1 of 1 used, 1 asked for; try again in 60 s",
        ),
    ];
    for (n, (spec, each, times, tokens, expected)) in (0_u8..).zip(rows) {
        let scopes = [(key(n), spec)];
        let held: Vec<_> =
            (0..times).map(|_| acquire(&limits, &scopes, each, owner(1), START).unwrap()).collect();
        let refusal = acquire(&limits, &scopes, tokens, owner(2), START).unwrap_err();
        assert_eq!(refusal.to_string(), expected);
        assert!(refusal.retry_after.is_none_or(|wait| wait >= Duration::from_secs(1)));
        held.into_iter().for_each(|lease| lease.settle(each, START));
    }
}

#[test]
fn all_limits_are_taken_together_or_not_at_all() {
    let wide = spec(100, 1_000, 10);
    // The model is entered last, with the tokens.
    for (narrow, at_admission) in
        [(spec(1, 1_000, 10), true), (spec(100, 15, 10), false), (spec(100, 1_000, 1), true)]
    {
        for late in [false, true] {
            let limits = Limits::new();
            let (org_spec, model_spec) = if late { (wide, narrow) } else { (narrow, wide) };
            let scopes = [(key(1), wide), (project(), wide), (org(), org_spec), (model(), model_spec)];
            let (admission, more) = scopes.split_at(3);
            let mut first = limits.enter(admission, owner(1), START).unwrap();
            first.take(more, 10, START).unwrap();
            let mut entered = 1;
            for _ in 0..5 {
                let before = standings(&limits, &scopes, START);
                let refusal = match limits.enter(admission, owner(2), START) {
                    Err(refusal) => {
                        assert!(at_admission && !late);
                        refusal
                    }
                    Ok(mut lease) => {
                        entered += 1;
                        let before = standings(&limits, &scopes, START);
                        let refusal = lease.take(more, 10, START).unwrap_err();
                        assert_eq!(before, standings(&limits, &scopes, START));
                        drop(lease);
                        refusal
                    }
                };
                let after = standings(&limits, &scopes, START);
                let tokens =
                    |all: &[RateStanding]| all.iter().map(|one| one.remaining_tokens).collect::<Vec<_>>();
                assert_eq!(tokens(&before), tokens(&after));
                assert_eq!(refusal.scope, if late { model() } else { org() });
                assert!(scopes.iter().all(|(scope, _)| in_flight(&limits, scope) == 1));
            }
            first.release(START);
            assert_eq!(limits.metrics().abandoned, 0);
            for (at, (scope, spec)) in scopes.iter().enumerate() {
                assert_eq!(in_flight(&limits, scope), 0);
                let standing = limits.standing(&[(scope.clone(), *spec)], START);
                let counted = if at < 3 { entered } else { 1 };
                assert_eq!(
                    standing.remaining_requests,
                    spec.requests_per_minute.map(|limit| u64::from(limit) - counted)
                );
                assert_eq!(standing.remaining_tokens, spec.tokens_per_minute);
            }
        }
    }
}

#[test]
fn how_a_lease_ends() {
    let scopes = [(key(1), spec(10, 100, 5))];
    // (how, remaining requests, remaining tokens, abandoned)
    type Row = (&'static str, fn(Lease), u64, u64, u64);
    let rows: [Row; 6] = [
        ("settled in full", |lease| lease.settle(40, START), 9, 60, 0),
        ("settled in part", |lease| lease.settle(15, START), 9, 85, 0),
        ("settled with nothing used", |lease| lease.settle(0, START), 9, 100, 0),
        ("settled with more", |lease| lease.settle(90, START), 9, 10, 0),
        ("released", |lease| lease.release(START), 9, 100, 0),
        ("dropped", drop, 9, 60, 1),
    ];
    for (name, end, requests, tokens, abandoned) in rows {
        let limits = Limits::new();
        let lease = acquire(&limits, &scopes, 40, owner(1), START).unwrap();
        assert_eq!((lease.owner(), lease.tokens()), (owner(1), 40));
        assert_eq!(limits.metrics().leases, 1);
        end(lease);
        let standing = limits.standing(&scopes, START);
        assert_eq!(standing.remaining_requests, Some(requests), "{name}");
        assert_eq!(standing.remaining_tokens, Some(tokens), "{name}");
        let metrics = limits.metrics();
        assert_eq!((metrics.leases, metrics.abandoned), (0, abandoned), "{name}");
        assert_eq!(in_flight(&limits, &scopes[0].0), 0, "{name}");
    }
}

#[test]
fn who_leaves_before_its_tokens_were_asked_for_keeps_no_place() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(3, 100, 1))];
    for left in [2, 1, 0] {
        let lease = limits.enter(&scopes, owner(1), START).unwrap();
        assert_eq!((lease.tokens(), in_flight(&limits, &key(1))), (0, 1));
        let refusal = limits.enter(&scopes, owner(2), START).unwrap_err();
        assert_eq!(refusal.rule, if left > 0 { Code::Concurrency } else { Code::RequestsPerMinute });
        drop(lease);
        let standing = limits.standing(&scopes, START);
        assert_eq!((standing.remaining_requests, standing.remaining_tokens), (Some(left), Some(100)));
        assert_eq!(in_flight(&limits, &key(1)), 0);
    }
    let metrics = limits.metrics();
    assert_eq!((metrics.leases, metrics.abandoned, metrics.refused), (0, 0, 3));
    assert!(limits.enter(&scopes, owner(1), START).is_err(), "what was refused later stays counted");
}

#[test]
fn a_look_up_counts_as_a_request_and_takes_no_place() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(3, 1, 1)), (org(), spec(2, 100, 9))];
    let lease = acquire(&limits, &scopes, 1, owner(1), START).unwrap();
    assert_eq!(limits.count(&scopes, START), Ok(()), "neither its place nor its tokens are in the way");
    assert_eq!(limits.count(&scopes, START).unwrap_err().scope, org());
    assert_eq!(limits.standing(&scopes[..1], START).remaining_requests, Some(1), "a refusal takes nothing");
    lease.release(START);
    assert!(limits.count(&scopes, at(30_000)).is_ok());
}

#[test]
fn a_lease_enters_a_further_scope_with_what_it_holds() {
    let limits = Limits::new();
    let (first, second) = ((key(1), spec(9, 100, 9)), (model(), spec(9, 70, 1)));
    let scopes = [first.clone(), second.clone()];
    let left = |at_ms| {
        standings(&limits, &scopes, at(at_ms)).iter().map(|left| left.remaining_tokens).collect::<Vec<_>>()
    };
    let mut lease = limits.enter(&scopes[..1], owner(1), at(0)).unwrap();
    lease.take(&[], 60, at(0)).unwrap();
    lease.enter(&scopes[1..], at(0)).unwrap();
    // The first scope is not charged again.
    assert_eq!((left(0), lease.tokens()), (vec![Some(40), Some(10)], 60));
    let mut other = limits.enter(&scopes[..1], owner(2), at(0)).unwrap();
    other.take(&[], 20, at(0)).unwrap();
    other.enter(&scopes[1..], at(0)).unwrap_err();
    assert_eq!(left(0), [Some(20), Some(10)]);
    other.release(at(0));
    lease.settle(10, at(0));
    assert_eq!(left(0), [Some(90), Some(60)]);
    assert_eq!(in_flight(&limits, &model()), 0);
}

#[test]
fn a_lease_leaves_a_scope_and_keeps_the_others() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(9, 100, 9)), (model(), spec(9, 100, 1))];
    let mut lease = limits.enter(&scopes[..1], owner(1), START).unwrap();
    lease.take(&scopes[1..], 60, START).unwrap();
    lease.leave(&model(), START);
    // Leaving twice changes nothing, and leaving a scope that was never entered changes nothing.
    lease.leave(&model(), START);
    lease.leave(&org(), START);
    let left = |at: usize| standings(&limits, &scopes, START)[at];
    assert_eq!((left(0).remaining_tokens, left(1).remaining_tokens), (Some(40), Some(100)));
    assert_eq!((in_flight(&limits, &key(1)), in_flight(&limits, &model())), (1, 0));
    assert_eq!(left(1).remaining_requests, Some(8), "what was let in stays counted");
    lease.settle(50, START);
    assert_eq!((left(0).remaining_tokens, left(1).remaining_tokens), (Some(50), Some(100)));
    assert_eq!((in_flight(&limits, &key(1)), in_flight(&limits, &model())), (0, 0));
    let mut late = acquire(&limits, &scopes, 1, owner(2), START).unwrap();
    limits.sweep(late.expires().after(Duration::from_secs(1)));
    late.leave(&model(), START);
    assert_eq!(in_flight(&limits, &model()), 0, "it had ended by itself");
}

#[test]
fn using_more_than_held_is_debt() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(10, 60, 5))];
    acquire(&limits, &scopes, 10, owner(1), START).unwrap().settle(130, START);
    assert_eq!(limits.standing(&scopes, START).remaining_tokens, Some(0));
    let refusal = limits.enter(&scopes, owner(2), START).unwrap_err();
    assert_eq!((refusal.used, refusal.limit, refusal.requested), (130, 60, 1));
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(71)));
    assert!(limits.enter(&scopes, owner(2), at(71_000)).is_ok());
}

#[test]
fn a_refusal_of_tokens_allows_for_the_request_that_stays_counted() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(2, 600, 5))];
    acquire(&limits, &scopes, 600, owner(1), START).unwrap().settle(595, START);
    let refusal = acquire(&limits, &scopes, 15, owner(2), START).unwrap_err();
    assert_eq!((refusal.rule, refusal.retry_after), (Code::TokensPerMinute, Some(Duration::from_secs(30))));
    assert!(acquire(&limits, &scopes, 15, owner(2), at(30_000)).is_ok());
}

#[test]
fn unlimited_scopes_cost_nothing_and_twice_named_ones_count_once() {
    let limits = Limits::new();
    let free = [(key(1), LimitSpec::UNLIMITED), (org(), LimitSpec::UNLIMITED)];
    let lease = acquire(&limits, &free, u64::MAX, owner(1), START).unwrap();
    assert_eq!(limits.metrics().scopes, 0);
    assert_eq!(limits.standing(&free, START), RateStanding::default());
    lease.settle(u64::MAX, START);

    let twice = [(org(), spec(10, 100, 2)), (key(1), spec(9, 90, 9)), (org(), spec(5, 200, 3))];
    let lease = acquire(&limits, &twice, 10, owner(1), START).unwrap();
    assert_eq!(in_flight(&limits, &org()), 1);
    let standing = limits.standing(&twice, START);
    assert_eq!((standing.limit_requests, standing.remaining_requests), (Some(5), Some(4)));
    assert_eq!((standing.limit_tokens, standing.remaining_tokens), (Some(90), Some(80)));
    lease.release(START);
}

#[test]
fn standing_tells_the_tightest_scope() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(60, 1_000, 9)), (org(), spec(100, 600, 9)), (model(), LimitSpec::UNLIMITED)];
    acquire(&limits, &scopes, 100, owner(1), START).unwrap().settle(100, START);
    let standing = limits.standing(&scopes, START);
    let expected = RateStanding {
        limit_requests: Some(60),
        remaining_requests: Some(59),
        reset_requests: Duration::from_secs(1),
        limit_tokens: Some(600),
        remaining_tokens: Some(500),
        reset_tokens: Duration::from_secs(10),
    };
    assert_eq!(standing, expected);
    let full = limits.standing(&scopes, at(10_000));
    assert_eq!((full.remaining_tokens, full.reset_tokens), (Some(600), Duration::ZERO));
}

#[test]
fn leases_expire_and_idle_scopes_are_forgotten() {
    let limits = Limits::with_lease_lifetime(Duration::from_secs(100));
    let scopes = [(key(1), spec(10, 100, 1))];
    let mut lease = limits.enter(&scopes, owner(7), START).unwrap();
    limits.sweep(at(10_000_000));
    assert!(
        limits.enter(&scopes, owner(8), at(10_000_000)).is_err(),
        "its owner has it, however slow its body is"
    );
    let start = at(10_000_000);
    let at = |millis| start.after(Duration::from_millis(millis));
    lease.take(&[], 60, start).unwrap();
    limits.sweep(at(99_999));
    assert_eq!(limits.leases(), [(owner(7), at(100_000))]);
    assert!(limits.enter(&scopes, owner(8), at(99_999)).is_err(), "it is still in flight");
    limits.sweep(at(100_000));
    let metrics = limits.metrics();
    assert_eq!((metrics.leases, metrics.expired, metrics.abandoned, metrics.scopes), (0, 1, 0, 0));

    // A scope that comes back is new. The late settlement of the expired lease gives nothing back, but charges what was
    // used beyond the hold.
    let second = acquire(&limits, &scopes, 50, owner(9), at(100_000)).unwrap();
    lease.settle(70, at(100_000));
    assert_eq!(limits.standing(&scopes, at(100_000)).remaining_tokens, Some(40));
    assert_eq!(in_flight(&limits, &scopes[0].0), 1, "concurrency is freed once");
    second.release(at(100_000));
    limits.sweep(at(100_000));
    assert_eq!(limits.metrics().scopes, 1, "ten tokens and a request are still used");
    limits.sweep(at(170_000));
    assert_eq!(limits.metrics().scopes, 0);
}

#[test]
fn memory_is_bounded_by_what_is_in_use() {
    let limits = Limits::new();
    for n in 0..10_000_u64 {
        let scope = Scope::Model(ModelName::new(&format!("m{n}")).unwrap());
        let now = at(n * 100);
        acquire(&limits, &[(scope, spec(60, 600, 1))], 10, owner(1), now).unwrap().settle(10, now);
        if n % 100 == 0 {
            limits.sweep(now);
        }
    }
    assert!(limits.metrics().scopes <= 120, "{:?}", limits.metrics());
}

#[test]
fn many_threads_never_exceed_a_limit_and_leave_nothing_behind() {
    let limits = Limits::new();
    let flying = AtomicU32::new(0);
    let (entered, admitted) = (AtomicU64::new(0), AtomicU64::new(0));
    let scopes = |n: u8| {
        [
            (org(), spec(5_000, 100_000, 3)),
            (key(n), spec(5_000, 100_000, 2)),
            (model(), spec(9_000, 90_000, 3)),
        ]
    };
    std::thread::scope(|scope| {
        for n in 0..4_u8 {
            let (limits, flying, entered, admitted) = (&limits, &flying, &entered, &admitted);
            scope.spawn(move || {
                // Threads list the scopes in different orders. The last scope is entered with the tokens.
                let mut scopes = scopes(n);
                scopes.swap(0, usize::from(n) % 2);
                for round in 0..2_000_u64 {
                    let (admission, more) = scopes.split_at(2);
                    let taken = limits.enter(admission, owner(1), START).and_then(|mut lease| {
                        entered.fetch_add(1, Ordering::SeqCst);
                        lease.take(more, 50, START).map(|()| lease)
                    });
                    match taken {
                        Ok(lease) => {
                            assert!(flying.fetch_add(1, Ordering::SeqCst) < 3);
                            std::thread::yield_now();
                            flying.fetch_sub(1, Ordering::SeqCst);
                            if round % 3 == 0 {
                                lease.release(START);
                            } else {
                                lease.settle(20, START);
                                admitted.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                        Err(refusal) => assert!(refusal.limit <= 100_000),
                    }
                    if round % 64 == 0 {
                        limits.sweep(START);
                    }
                }
            });
        }
    });
    let (entered, settled) = (entered.into_inner(), admitted.into_inner());
    let left = limits.standing(&[(org(), spec(5_000, 100_000, 3))], START);
    assert_eq!(left.remaining_tokens, Some(100_000 - 20 * settled));
    assert_eq!(left.remaining_requests, Some(5_000 - entered));
    assert_eq!((in_flight(&limits, &org()), in_flight(&limits, &model())), (0, 0));
    let metrics = limits.metrics();
    assert_eq!((metrics.leases, metrics.abandoned, metrics.expired), (0, 0, 0));
}

mod properties;
mod rounds;
mod shared;
