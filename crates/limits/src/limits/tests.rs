//! The promises of limits, as tables in virtual time, as properties over random traffic, and with real
//! threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU32};

use headrace_domain::{KeyId, ModelName, OrgId, ProjectId};
use proptest::prelude::*;

use super::*;

const START: UnixNanos = UnixNanos::new(1_700_000_000_000_000_000);
const MINUTE_NANOS: u128 = 60_000_000_000;

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
    // What is held before, the scopes of the call, its tokens; the refusal.
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
            600,
            1,
            100,
            "tokens_per_minute of key `k2`: 600 of 600 used, 100 asked for; try again in 10 s",
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
            (0..times).map(|_| limits.acquire(&scopes, each, owner(1), START).unwrap()).collect();
        let refusal = limits.acquire(&scopes, tokens, owner(2), START).unwrap_err();
        assert_eq!(refusal.to_string(), expected);
        assert!(refusal.retry_after.is_none_or(|wait| wait >= Duration::from_secs(1)));
        held.into_iter().for_each(|lease| lease.settle(each, START));
    }
}

#[test]
fn all_limits_are_taken_together_or_not_at_all() {
    let limits = Limits::new();
    let wide = spec(100, 1_000, 10);
    for (narrow, tokens) in [(spec(1, 1_000, 10), 10), (spec(100, 15, 10), 10), (spec(100, 1_000, 1), 10)] {
        let scopes = [(key(1), wide), (project(), wide), (org(), narrow), (model(), wide)];
        let first = limits.acquire(&scopes, tokens, owner(1), START).unwrap();
        let before: Vec<_> =
            scopes.iter().map(|one| limits.standing(std::slice::from_ref(one), START)).collect();
        for _ in 0..5 {
            let refusal = limits.acquire(&scopes, tokens, owner(2), START).unwrap_err();
            assert_eq!(refusal.scope, org());
        }
        let after: Vec<_> =
            scopes.iter().map(|one| limits.standing(std::slice::from_ref(one), START)).collect();
        assert_eq!(before, after);
        for (scope, _) in &scopes {
            assert_eq!(in_flight(&limits, scope), 1);
        }
        first.release(START);
        for (scope, spec) in &scopes {
            assert_eq!(in_flight(&limits, scope), 0);
            let standing = limits.standing(&[(scope.clone(), *spec)], START);
            assert_eq!(standing.remaining_requests, spec.requests_per_minute.map(u64::from));
            assert_eq!(standing.remaining_tokens, spec.tokens_per_minute);
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
        ("released", |lease| lease.release(START), 10, 100, 0),
        ("dropped", drop, 9, 60, 1),
    ];
    for (name, end, requests, tokens, abandoned) in rows {
        let limits = Limits::new();
        let lease = limits.acquire(&scopes, 40, owner(1), START).unwrap();
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
fn using_more_than_held_is_debt() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(10, 60, 5))];
    limits.acquire(&scopes, 10, owner(1), START).unwrap().settle(130, START);
    assert_eq!(limits.standing(&scopes, START).remaining_tokens, Some(0));
    let refusal = limits.peek(&scopes, START).unwrap_err();
    assert_eq!((refusal.used, refusal.limit, refusal.requested), (130, 60, 1));
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(71)));
    assert!(limits.peek(&scopes, at(71_000)).is_ok());
}

#[test]
fn peek_takes_nothing_and_agrees_with_acquire() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(2, 100, 1)), (org(), LimitSpec::UNLIMITED)];
    for _ in 0..10 {
        assert!(limits.peek(&scopes, START).is_ok());
    }
    assert_eq!(limits.metrics().scopes, 0);
    let lease = limits.acquire(&scopes, 100, owner(1), START).unwrap();
    let peeked = limits.peek(&scopes, START).unwrap_err();
    assert_eq!(peeked, limits.acquire(&scopes, 1, owner(2), START).unwrap_err());
    assert_eq!(limits.metrics().refused, 2);
    lease.release(START);
    assert!(limits.peek(&scopes, START).is_ok());
}

#[test]
fn unlimited_scopes_cost_nothing_and_twice_named_ones_count_once() {
    let limits = Limits::new();
    let free = [(key(1), LimitSpec::UNLIMITED), (org(), LimitSpec::UNLIMITED)];
    let lease = limits.acquire(&free, u64::MAX, owner(1), START).unwrap();
    assert_eq!(limits.metrics().scopes, 0);
    assert_eq!(limits.standing(&free, START), RateStanding::default());
    lease.settle(u64::MAX, START);

    let twice = [(org(), spec(10, 100, 2)), (key(1), spec(9, 90, 9)), (org(), spec(5, 200, 3))];
    let lease = limits.acquire(&twice, 10, owner(1), START).unwrap();
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
    limits.acquire(&scopes, 100, owner(1), START).unwrap().settle(100, START);
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
    let lease = limits.acquire(&scopes, 60, owner(7), START).unwrap();
    limits.sweep(at(99_999));
    assert_eq!(limits.leases(), [(owner(7), at(100_000))]);
    lease.renew(Duration::from_secs(100), at(50_000));
    limits.sweep(at(149_999));
    assert!(limits.acquire(&scopes, 1, owner(8), at(149_999)).is_err(), "it is still in flight");
    limits.sweep(at(150_000));
    let metrics = limits.metrics();
    assert_eq!((metrics.leases, metrics.expired, metrics.abandoned, metrics.scopes), (0, 1, 0, 0));

    // A scope that comes back is new; the late settlement of the expired lease gives back nothing but owes
    // what it used.
    let second = limits.acquire(&scopes, 50, owner(9), at(150_000)).unwrap();
    lease.settle(70, at(150_000));
    assert_eq!(limits.standing(&scopes, at(150_000)).remaining_tokens, Some(40));
    assert_eq!(in_flight(&limits, &scopes[0].0), 1, "concurrency is freed once");
    second.release(at(150_000));
    limits.sweep(at(150_000));
    assert_eq!(limits.metrics().scopes, 1, "ten tokens and a request are still used");
    limits.sweep(at(220_000));
    assert_eq!(limits.metrics().scopes, 0);
}

#[test]
fn memory_is_bounded_by_what_is_in_use() {
    let limits = Limits::new();
    for n in 0..10_000_u64 {
        let scope = Scope::Model(ModelName::new(&format!("m{n}")).unwrap());
        let now = at(n * 100);
        limits.acquire(&[(scope, spec(60, 600, 1))], 10, owner(1), now).unwrap().settle(10, now);
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
    let admitted = AtomicI64::new(0);
    let scopes = |n: u8| {
        [
            (org(), spec(5_000, 100_000, 3)),
            (key(n), spec(5_000, 100_000, 2)),
            (model(), spec(9_000, 90_000, 3)),
        ]
    };
    std::thread::scope(|scope| {
        for n in 0..4_u8 {
            let (limits, flying, admitted) = (&limits, &flying, &admitted);
            scope.spawn(move || {
                // Each thread names the scopes in another order.
                let mut scopes = scopes(n);
                scopes.rotate_left(usize::from(n) % 3);
                for round in 0..2_000_u64 {
                    match limits.acquire(&scopes, 50, owner(1), START) {
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
    let settled = u64::try_from(admitted.into_inner()).unwrap();
    let left = limits.standing(&[(org(), spec(5_000, 100_000, 3))], START);
    assert_eq!(left.remaining_tokens, Some(100_000 - 20 * settled));
    assert_eq!(left.remaining_requests, Some(5_000 - settled));
    assert_eq!((in_flight(&limits, &org()), in_flight(&limits, &model())), (0, 0));
    let metrics = limits.metrics();
    assert_eq!((metrics.leases, metrics.abandoned, metrics.expired), (0, 0, 0));
}

/// One step of random traffic.
#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Acquire { scopes: Vec<u8>, tokens: u64 },
    Settle { which: usize, used: u64 },
    Release { which: usize },
    Drop { which: usize },
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u64..20_000).prop_map(Step::Wait),
        6 => (proptest::collection::vec(0_u8..4, 1..4), 0_u64..70)
            .prop_map(|(scopes, tokens)| Step::Acquire { scopes, tokens }),
        3 => (any::<usize>(), 0_u64..70).prop_map(|(which, used)| Step::Settle { which, used }),
        1 => any::<usize>().prop_map(|which| Step::Release { which }),
        1 => any::<usize>().prop_map(|which| Step::Drop { which }),
        1 => Just(Step::Sweep),
    ]
}

/// What a call took, as the property counts it.
struct Taken {
    at: UnixNanos,
    scopes: Vec<u8>,
    requests: u64,
    tokens: u64,
}

/// The four scopes of random traffic, with limits that bind now and then.
fn four(n: u8) -> (Scope, LimitSpec) {
    match n {
        0 => (key(0), spec(7, 100, 3)),
        1 => (project(), spec(11, 131, 4)),
        2 => (org(), spec(13, 150, 4)),
        _ => (model(), LimitSpec { tokens_per_minute: Some(170), ..LimitSpec::default() }),
    }
}

/// In no window, however placed, was more used than the limit and what the window's time refills.
fn check_windows(taken: &[Taken]) -> Result<(), TestCaseError> {
    for scope in 0..4 {
        let (_, spec) = four(scope);
        let rows: Vec<_> = taken.iter().filter(|row| row.scopes.contains(&scope)).collect();
        for (first, row) in rows.iter().enumerate() {
            let (mut requests, mut tokens) = (0, 0);
            for last in &rows[first..] {
                requests += last.requests;
                tokens += last.tokens;
                let window = last.at.since(row.at).as_nanos();
                let within = |used: u64, limit: Option<u64>| {
                    limit.is_none_or(|limit| {
                        u128::from(used) * MINUTE_NANOS <= u128::from(limit) * (MINUTE_NANOS + window)
                    })
                };
                prop_assert!(within(tokens, spec.tokens_per_minute), "{tokens} tokens in {window} ns");
                prop_assert!(
                    within(requests, spec.requests_per_minute.map(u64::from)),
                    "{requests} in {window} ns"
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn no_window_lets_more_through_than_limit_and_refill(steps in proptest::collection::vec(step(), 1..120)) {
        let limits = Limits::new();
        let mut now = START;
        let mut taken: Vec<Taken> = Vec::new();
        let mut open: Vec<(Lease, usize)> = Vec::new();
        for step in steps {
            let mut pick = |which: usize| {
                let at = which.checked_rem(open.len())?;
                Some(open.swap_remove(at))
            };
            match step {
                Step::Wait(millis) => now = now.after(Duration::from_millis(millis)),
                Step::Sweep => limits.sweep(now),
                Step::Settle { which, used } => if let Some((lease, row)) = pick(which) {
                    // More than was held is debt, which was admitted by nobody.
                    taken[row].tokens = used.min(lease.tokens());
                    lease.settle(used, now);
                },
                Step::Release { which } => if let Some((lease, row)) = pick(which) {
                    (taken[row].tokens, taken[row].requests) = (0, 0);
                    lease.release(now);
                },
                Step::Drop { which } => drop(pick(which)),
                Step::Acquire { scopes, tokens } => {
                    let named: Vec<_> = scopes.iter().map(|&n| four(n)).collect();
                    let before: Vec<_> = (0..4).map(|n| limits.standing(&[four(n)], now)).collect();
                    match limits.acquire(&named, tokens, owner(1), now) {
                        Ok(lease) => {
                            open.push((lease, taken.len()));
                            taken.push(Taken { at: now, scopes, requests: 1, tokens });
                        }
                        Err(refusal) => {
                            let after: Vec<_> = (0..4).map(|n| limits.standing(&[four(n)], now)).collect();
                            prop_assert_eq!(before, after, "a refusal takes nothing");
                            if let Some(wait) = refusal.retry_after.filter(|_| refusal.rule != "concurrency") {
                                prop_assert!(wait >= Duration::from_secs(1));
                                now = now.after(wait);
                                match limits.acquire(&named, tokens, owner(2), now) {
                                    Ok(lease) => {
                                        open.push((lease, taken.len()));
                                        taken.push(Taken { at: now, scopes, requests: 1, tokens });
                                    }
                                    Err(again) => prop_assert_eq!(again.rule, "concurrency", "Retry-After was a lie"),
                                }
                            }
                        }
                    }
                }
            }
            let mut flying: BTreeMap<u8, u32> = BTreeMap::new();
            for (_, row) in &open {
                let mut scopes = taken[*row].scopes.clone();
                scopes.sort_unstable();
                scopes.dedup();
                scopes.into_iter().for_each(|scope| *flying.entry(scope).or_default() += 1);
            }
            for n in 0..4 {
                let (scope, spec) = four(n);
                let count = flying.get(&n).copied().unwrap_or(0);
                prop_assert_eq!(in_flight(&limits, &scope), count);
                prop_assert!(spec.concurrency.is_none_or(|limit| count <= limit));
            }
        }
        check_windows(&taken)?;
        // What was taken is given back, or refilled, or neither: in the end everything is as it was.
        open.into_iter().for_each(|(lease, _)| lease.settle(0, now));
        limits.sweep(now.after(Duration::from_secs(3_000)));
        prop_assert_eq!(limits.metrics().scopes, 0);
        prop_assert_eq!(limits.metrics().leases, 0);
    }

    /// Taking and giving back at the same moment leaves no difference; settling leaves exactly the use.
    #[test]
    fn what_is_given_back_is_what_was_not_used(
        before in 0_u64..60, waited in 0_u64..30_000, hold in 0_u64..=40, used in 0_u64..=40, release in any::<bool>(),
    ) {
        let (one, other) = (Limits::new(), Limits::new());
        let scopes = [(key(0), spec(7, 100, 3)), (org(), spec(13, 150, 4))];
        for limits in [&one, &other] {
            limits.acquire(&scopes, before, owner(1), START).unwrap().settle(before, START);
        }
        let now = at(waited);
        let used = used.min(hold);
        let lease = one.acquire(&scopes, hold, owner(2), now).unwrap();
        if release {
            lease.release(now);
        } else {
            lease.settle(used, now);
            other.acquire(&scopes, used, owner(2), now).unwrap().settle(used, now);
        }
        for later in [0, 1, 777, 59_999] {
            let later = now.after(Duration::from_millis(later));
            for scope in &scopes {
                let scope = std::slice::from_ref(scope);
                prop_assert_eq!(one.standing(scope, later), other.standing(scope, later));
            }
        }
    }
}
