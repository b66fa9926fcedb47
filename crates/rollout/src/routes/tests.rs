//! The choice among a route's models: weights, stickiness, and what moves when a weight changes.

use std::collections::BTreeMap;

use headrace_domain::{KeyId, OrgId, ProjectId, RequestId, Residency, UnixNanos};
use headrace_identity::{AddressList, EndpointAccess, ModelAccess, RateLimits};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn route(weights: &[u32], sticky: StickyBy) -> ModelRoute {
    let arm = |(at, weight): (usize, &u32)| RouteArm {
        model: name(&format!("m-{at}")),
        weight: *weight,
        canary: None,
    };
    ModelRoute {
        arms: weights.iter().enumerate().map(arm).collect(),
        sticky,
        seed: 7,
        ..ModelRoute::default()
    }
}

fn asker(project: &str, key: &str) -> RouteAsker {
    let principal = Principal {
        org: OrgId::new("acme").unwrap(),
        project: ProjectId::new(project).unwrap(),
        key: KeyId::new(key).unwrap(),
        name: String::new(),
        user: None,
        models: ModelAccess::All,
        endpoints: EndpointAccess::All,
        regions: Residency::Anywhere,
        org_regions: Residency::Anywhere,
        secret_number: 1,
        limits: RateLimits::default(),
        project_limits: RateLimits::default(),
        org_limits: RateLimits::default(),
        expires: None,
        allowed_ips: AddressList::default(),
        tier: None,
        records: headrace_domain::RecordRules::default(),
    };
    let request = RequestId::fresh(UnixNanos::new(1));
    RouteAsker { secret: [3; 32], principal: Arc::new(principal), request, now: UnixNanos::new(1), to: None }
}

/// The draw number `at` of a seed.
fn draw(seed: u64, at: u32) -> RouteDraw {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..12].copy_from_slice(&at.to_le_bytes());
    RouteDraw(*blake3::hash(&key).as_bytes())
}

fn chosen<'a>(route: &'a ModelRoute, draw: &RouteDraw) -> &'a str {
    route.choose(draw, |_| true).unwrap().model.as_str()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn weights_are_honoured_within_one_percent(weights in prop::collection::vec(0_u32..100, 1..6), seed: u64) {
        const DRAWS: u32 = 100_000;
        let sum: u32 = weights.iter().sum();
        prop_assume!(sum > 0);
        let route = route(&weights, StickyBy::None);
        let mut counts = BTreeMap::new();
        for at in 0..DRAWS {
            *counts.entry(chosen(&route, &draw(seed, at))).or_insert(0_u32) += 1;
        }
        for arm in &route.arms {
            let share = f64::from(*counts.get(arm.model.as_str()).unwrap_or(&0)) / f64::from(DRAWS);
            let due = f64::from(arm.weight) / f64::from(sum);
            prop_assert!((share - due).abs() < 0.01, "{}: {share} instead of {due}", arm.model);
        }
    }

    #[test]
    fn another_weight_moves_only_as_many_as_it_must(
        weights in prop::collection::vec(1_u32..100, 2..6), new in 0_u32..200, which: prop::sample::Index, seed: u64,
    ) {
        const DRAWS: u32 = 20_000;
        let before = route(&weights, StickyBy::None);
        let changed = which.index(weights.len());
        let mut weights = weights;
        let old = std::mem::replace(&mut weights[changed], new);
        let after = route(&weights, StickyBy::None);
        let mut moved = 0_u32;
        for at in 0..DRAWS {
            let draw = draw(seed, at);
            let (from, to) = (chosen(&before, &draw), chosen(&after, &draw));
            if from != to {
                moved += 1;
                let it = before.arms[changed].model.as_str();
                prop_assert!(if new > old { to == it } else { from == it }, "{from} to {to} as {it} changed");
            }
        }
        let share = |weights: &[u32], of: u32| f64::from(of) / f64::from(weights.iter().sum::<u32>());
        let mut former = weights.clone();
        former[changed] = old;
        let must = (share(&former, old) - share(&weights, new)).abs();
        prop_assert!((f64::from(moved) / f64::from(DRAWS) - must).abs() < 0.02, "{moved} of {DRAWS}, not {must}");
    }
}

#[test]
fn an_arm_that_comes_takes_its_share_and_moves_nothing_else() {
    let (two, three) = (route(&[50, 50], StickyBy::None), route(&[50, 50, 10], StickyBy::None));
    for at in 0..2_000 {
        let draw = draw(1, at);
        let (before, after) = (chosen(&two, &draw), chosen(&three, &draw));
        assert!(before == after || after == "m-2", "{before} to {after}");
    }
}

#[test]
fn what_stays_stays_and_nothing_else_counts() {
    let talk = |user: &str, first: &str, more: usize| {
        let mut messages =
            vec![json!({"role": "system", "content": "s"}), json!({"role": "user", "content": first})];
        messages.extend((0..more).map(|at| json!({"role": "assistant", "content": at.to_string()})));
        json!({"model": "n", "messages": messages, "user": user}).to_string()
    };
    let hash = |sticky, project: &str, key: &str, body: &str| {
        RouteDraw::new(&name("n"), &route(&[1, 1], sticky), &asker(project, key), body.as_bytes()).0
    };
    let base = talk("u", "a", 0);
    let rows = [
        // The body, the project and the key, and whether the choice stays the same for key, user and conversation.
        (talk("u", "a", 0), "p", "k", [true, true, true]),
        (talk("u", "a", 9), "p", "k", [true, true, true]),
        (talk("u", "b", 0), "p", "k", [true, true, false]),
        (talk("v", "a", 0), "p", "k", [true, false, true]),
        (talk("u", "a", 0), "p", "j", [false, true, true]),
        (talk("u", "a", 0), "q", "k", [true, false, false]),
    ];
    for (body, project, key, stays) in rows {
        for (sticky, stays) in [StickyBy::Key, StickyBy::User, StickyBy::Conversation].into_iter().zip(stays)
        {
            let same = hash(sticky, "p", "k", &base) == hash(sticky, project, key, &body);
            assert_eq!(same, stays, "{sticky:?}: {project} {key} {body}");
        }
    }
    // With `None`, each call has its own draw. Without a user or a conversation, the key decides.
    assert_ne!(hash(StickyBy::None, "p", "k", &base), hash(StickyBy::None, "p", "k", &base));
    for sticky in [StickyBy::User, StickyBy::Conversation] {
        let of = |key| hash(sticky, "p", key, r#"{"model":"n","prompt":"x"}"#);
        assert_eq!(of("k"), hash(StickyBy::Key, "p", "k", ""));
        assert_ne!(of("k"), of("j"));
    }
    // Another name or another seed gives another draw.
    let (one, key) = (route(&[1, 1], StickyBy::Key), asker("p", "k"));
    let draws = [
        RouteDraw::new(&name("n"), &one, &key, b"").0,
        RouteDraw::new(&name("o"), &one, &key, b"").0,
        RouteDraw::new(&name("n"), &ModelRoute { seed: 8, ..one.clone() }, &key, b"").0,
        RouteDraw::new(&name("n"), &one, &RouteAsker { secret: [4; 32], ..asker("p", "k") }, b"").0,
    ];
    for (at, draw) in draws.iter().enumerate() {
        assert!(draws.iter().skip(at + 1).all(|other| other != draw), "{at}");
    }
}

#[test]
fn a_name_stands_for_its_greatest_weight() {
    assert_eq!(route(&[1, 5, 5], StickyBy::Key).main(), Some(&name("m-1")));
    assert_eq!(ModelRoute::to(name("m")).main(), Some(&name("m")));
}
