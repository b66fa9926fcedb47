//! The promises of `Limits` under random traffic.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MINUTE_NANOS: u128 = 60_000_000_000;

/// One step of random traffic.
#[derive(Debug, Clone)]
enum TrafficStep {
    Wait(u64),
    Enter { scopes: Vec<u8> },
    Take { which: usize, more: Vec<u8>, tokens: u64 },
    Count { scopes: Vec<u8> },
    Settle { which: usize, used: u64 },
    Release { which: usize },
    Drop { which: usize },
    Sweep,
}

fn step() -> impl Strategy<Value = TrafficStep> {
    let scopes = || proptest::collection::vec(0_u8..4, 1..4);
    prop_oneof![
        3 => (0_u64..20_000).prop_map(TrafficStep::Wait),
        6 => scopes().prop_map(|scopes| TrafficStep::Enter { scopes }),
        6 => (any::<usize>(), proptest::collection::vec(0_u8..4, 0..3), 0_u64..70)
            .prop_map(|(which, more, tokens)| TrafficStep::Take { which, more, tokens }),
        1 => scopes().prop_map(|scopes| TrafficStep::Count { scopes }),
        3 => (any::<usize>(), 0_u64..70).prop_map(|(which, used)| TrafficStep::Settle { which, used }),
        1 => any::<usize>().prop_map(|which| TrafficStep::Release { which }),
        1 => any::<usize>().prop_map(|which| TrafficStep::Drop { which }),
        1 => Just(TrafficStep::Sweep),
    ]
}

/// A call in flight.
struct OpenCall {
    lease: Lease,
    scopes: Vec<u8>,
    /// Index in `RandomTraffic::taken` of the call's tokens, once they are taken.
    row: Option<usize>,
}

/// Random traffic and a record of what it took.
struct RandomTraffic {
    limits: Limits,
    now: UnixNanos,
    taken: Vec<TakenCall>,
    open: Vec<OpenCall>,
}

impl RandomTraffic {
    fn look(&self) -> Vec<RateStanding> {
        standings(&self.limits, &(0..4).map(four).collect::<Vec<_>>(), self.now)
    }

    fn named(scopes: &[u8]) -> Vec<(Scope, LimitSpec)> {
        scopes.iter().map(|&n| four(n)).collect()
    }

    fn note(&mut self, scopes: &[u8], requests: u64, tokens: u64) -> usize {
        self.taken.push(TakenCall { at: self.now, scopes: scopes.to_vec(), requests, tokens });
        self.taken.len() - 1
    }

    /// Enters. After a refusal, tries again at the time that the refusal names.
    fn enter(&mut self, scopes: &[u8]) -> Result<(), TestCaseError> {
        for again in [false, true] {
            let before = self.look();
            match self.limits.enter(&Self::named(scopes), owner(1), self.now) {
                Ok(lease) => {
                    self.note(scopes, 1, 0);
                    self.open.push(OpenCall { lease, scopes: scopes.to_vec(), row: None });
                    break;
                }
                Err(refusal) => {
                    prop_assert_eq!(before, self.look(), "a refusal takes nothing");
                    prop_assert!(!again || refusal.rule == Code::Concurrency, "Retry-After was a lie");
                    let Some(wait) = refusal.retry_after.filter(|_| refusal.rule != Code::Concurrency) else {
                        break;
                    };
                    prop_assert!(wait >= Duration::from_secs(1));
                    self.now = self.now.after(wait);
                }
            }
        }
        Ok(())
    }

    /// Takes tokens for a call that has none yet. After a refusal, leaves and comes back at the time that the refusal
    /// names.
    fn take(&mut self, which: usize, more: &[u8], tokens: u64) -> Result<(), TestCaseError> {
        let Some(mut at) = which.checked_rem(self.open.len()) else { return Ok(()) };
        if self.open[at].row.is_some() {
            return Ok(());
        }
        for again in [false, true] {
            let before = self.look();
            let (scopes, now) = (self.open[at].scopes.clone(), self.now);
            let new: Vec<u8> = more.iter().copied().filter(|n| !scopes.contains(n)).collect();
            match self.open[at].lease.take(&Self::named(more), tokens, now) {
                Ok(()) => {
                    if !new.is_empty() {
                        self.note(&new, 1, 0);
                    }
                    let all = [scopes, new].concat();
                    self.open[at].row = Some(self.note(&all, 0, tokens));
                    self.open[at].scopes = all;
                    return Ok(());
                }
                Err(refusal) => {
                    prop_assert_eq!(before, self.look(), "a refusal takes nothing");
                    prop_assert!(!again || refusal.rule == Code::Concurrency, "Retry-After was a lie");
                    drop(self.open.swap_remove(at));
                    let Some(wait) = refusal.retry_after.filter(|_| refusal.rule != Code::Concurrency) else {
                        break;
                    };
                    prop_assert!(wait >= Duration::from_secs(1));
                    self.now = now.after(wait);
                    match self.limits.enter(&Self::named(&scopes), owner(1), self.now) {
                        Ok(lease) => {
                            self.note(&scopes, 1, 0);
                            self.open.push(OpenCall { lease, scopes, row: None });
                            at = self.open.len() - 1;
                        }
                        Err(refusal) => {
                            prop_assert_eq!(refusal.rule, Code::Concurrency, "Retry-After was a lie");
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends a call. `end` returns the number of tokens used.
    fn end(&mut self, which: usize, end: impl FnOnce(Lease, UnixNanos) -> u64) {
        let Some(at) = which.checked_rem(self.open.len()) else { return };
        let OpenCall { lease, row, .. } = self.open.swap_remove(at);
        let used = end(lease, self.now);
        if let Some(row) = row {
            self.taken[row].tokens = used;
        }
    }

    /// The number of places taken equals the number of calls in flight, and never exceeds the limit.
    fn check_places(&self) -> Result<(), TestCaseError> {
        let mut flying: BTreeMap<u8, u32> = BTreeMap::new();
        for open in &self.open {
            let mut scopes = open.scopes.clone();
            scopes.sort_unstable();
            scopes.dedup();
            scopes.into_iter().for_each(|scope| *flying.entry(scope).or_default() += 1);
        }
        for n in 0..4 {
            let (scope, spec) = four(n);
            let count = flying.get(&n).copied().unwrap_or(0);
            prop_assert_eq!(in_flight(&self.limits, &scope), count);
            prop_assert!(spec.concurrency.is_none_or(|limit| count <= limit));
        }
        Ok(())
    }
}

/// What a call took, as the property counts it.
struct TakenCall {
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

/// No time window, at any offset, has more use than the limit plus the refill during the window.
fn check_windows(taken: &[TakenCall]) -> Result<(), TestCaseError> {
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
        let mut traffic = RandomTraffic { limits: Limits::new(), now: START, taken: Vec::new(), open: Vec::new() };
        for step in steps {
            match step {
                TrafficStep::Wait(millis) => traffic.now = traffic.now.after(Duration::from_millis(millis)),
                TrafficStep::Sweep => traffic.limits.sweep(traffic.now),
                TrafficStep::Settle { which, used } => traffic.end(which, |lease, now| {
                    // Use beyond the hold is debt, which no check admitted.
                    let held = lease.tokens();
                    lease.settle(used, now);
                    used.min(held)
                }),
                TrafficStep::Release { which } => traffic.end(which, |lease, now| {
                    lease.release(now);
                    0
                }),
                TrafficStep::Drop { which } => traffic.end(which, |lease, _| lease.tokens()),
                TrafficStep::Enter { scopes } => traffic.enter(&scopes)?,
                TrafficStep::Take { which, more, tokens } => traffic.take(which, &more, tokens)?,
                TrafficStep::Count { scopes } => {
                    let before = traffic.look();
                    if traffic.limits.count(&RandomTraffic::named(&scopes), traffic.now).is_ok() {
                        traffic.note(&scopes, 1, 0);
                    } else {
                        prop_assert_eq!(before, traffic.look(), "a refusal takes nothing");
                    }
                }
            }
            traffic.check_places()?;
        }
        check_windows(&traffic.taken)?;
        // Every charge is given back or refilled, so the final state equals the initial one.
        let RandomTraffic { limits, now, open, .. } = traffic;
        open.into_iter().for_each(|open| open.lease.settle(0, now));
        limits.sweep(now.after(Duration::from_secs(3_000)));
        prop_assert_eq!(limits.metrics().scopes, 0);
        prop_assert_eq!(limits.metrics().leases, 0);
    }

    /// Taking and giving back at the same moment changes nothing. Settling leaves exactly the use.
    #[test]
    fn what_is_given_back_is_what_was_not_used(
        before in 0_u64..60, waited in 0_u64..30_000, hold in 0_u64..=40, used in 0_u64..=40, release in any::<bool>(),
    ) {
        let (one, other) = (Limits::new(), Limits::new());
        let scopes = [(key(0), spec(7, 100, 3)), (org(), spec(13, 150, 4))];
        for limits in [&one, &other] {
            acquire(limits, &scopes, before, owner(1), START).unwrap().settle(before, START);
        }
        let now = at(waited);
        let used = used.min(hold);
        let lease = acquire(&one, &scopes, hold, owner(2), now).unwrap();
        let used = if release { 0 } else { used };
        if release {
            lease.release(now);
        } else {
            lease.settle(used, now);
        }
        acquire(&other, &scopes, used, owner(2), now).unwrap().settle(used, now);
        for later in [0, 1, 777, 59_999] {
            let later = now.after(Duration::from_millis(later));
            for scope in &scopes {
                let scope = std::slice::from_ref(scope);
                prop_assert_eq!(one.standing(scope, later), other.standing(scope, later));
            }
        }
    }
}
