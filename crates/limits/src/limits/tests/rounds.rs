//! A lease over several rounds: each round takes its own tokens, and those of ended rounds stay charged.

use super::*;

fn remaining(limits: &Limits, scopes: &[(Scope, LimitSpec)], now: UnixNanos) -> Vec<Option<u64>> {
    standings(limits, scopes, now).into_iter().map(|standing| standing.remaining_tokens).collect()
}

#[test]
fn each_round_takes_its_own_tokens_and_ended_ones_stay_charged() {
    // Tokens that each round takes and uses; what remains of 1,000 while the last round runs, and at the end.
    type Row = (&'static [(u64, u64)], u64, u64);
    let rows: [Row; 6] = [
        (&[(100, 40)], 900, 960),
        (&[(100, 40), (200, 50)], 760, 910),
        (&[(100, 150), (200, 50)], 650, 800),
        (&[(100, 40), (200, 250)], 760, 710),
        (&[(10, 10), (10, 10), (10, 10), (10, 0)], 960, 970),
        (&[(300, 0), (300, 0), (300, 0), (300, 0)], 700, 1_000),
    ];
    for (rounds, running, end) in rows {
        let limits = Limits::new();
        let scopes = [(key(1), spec(10, 1_000, 2)), (org(), spec(10, 1_000, 2))];
        let mut lease = limits.enter(&scopes, owner(1), START).unwrap();
        let mut used_before = 0;
        for (at, (takes, uses)) in rounds.iter().enumerate() {
            if at > 0 {
                lease.end_round(used_before, START);
                assert_eq!(lease.tokens(), 0, "{rounds:?}");
            }
            lease.take(&[], *takes, START).unwrap();
            assert_eq!(lease.tokens(), *takes, "{rounds:?}");
            used_before = *uses;
        }
        assert_eq!(remaining(&limits, &scopes, START), [Some(running); 2], "{rounds:?}");
        assert_eq!(in_flight(&limits, &key(1)), 1, "{rounds:?}");
        lease.settle(rounds.iter().map(|(_, uses)| uses).sum(), START);
        assert_eq!(remaining(&limits, &scopes, START), [Some(end); 2], "{rounds:?}");
        assert_eq!((in_flight(&limits, &key(1)), limits.metrics().leases), (0, 0), "{rounds:?}");
        assert_eq!(limits.standing(&scopes, START).remaining_requests, Some(9), "one request: {rounds:?}");
    }
}

#[test]
fn a_round_that_a_limit_refuses_takes_nothing_and_names_the_limit() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(10, 1_000, 2)), (project(), spec(10, 500, 2))];
    let mut lease = acquire(&limits, &scopes, 300, owner(1), START).unwrap();
    lease.end_round(300, START);
    let refusal = lease.take(&[], 201, START).unwrap_err();
    assert_eq!((refusal.rule, &refusal.scope), (Code::TokensPerMinute, &project()));
    assert_eq!((refusal.limit, refusal.used, refusal.requested), (500, 300, 201));
    assert_eq!(remaining(&limits, &scopes, START), [Some(700), Some(200)]);
    // A smaller round still fits.
    lease.take(&[], 200, START).unwrap();
    lease.settle(300, START);
    assert_eq!(remaining(&limits, &scopes, START), [Some(700), Some(200)]);
    assert_eq!((in_flight(&limits, &project()), limits.metrics().abandoned), (0, 0));
}

#[test]
fn a_scope_that_is_left_keeps_the_tokens_of_ended_rounds() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(10, 1_000, 2)), (model(), spec(10, 1_000, 2))];
    let mut lease = acquire(&limits, &scopes, 100, owner(1), START).unwrap();
    lease.end_round(60, START);
    lease.take(&[], 100, START).unwrap();
    lease.leave(&model(), START);
    assert_eq!(remaining(&limits, &scopes, START), [Some(840), Some(940)]);
    lease.settle(90, START);
    assert_eq!(remaining(&limits, &scopes, START), [Some(910), Some(940)]);
}

#[test]
fn a_lease_without_tokens_counts_none_over_rounds() {
    let limits = Limits::new();
    let scopes = [(key(1), spec(10, 1_000, 2))];
    let mut lease = limits.enter(&scopes, owner(1), START).unwrap();
    lease.end_round(70, START);
    lease.settle(140, START);
    assert_eq!(remaining(&limits, &scopes, START), [Some(1_000)]);
}
