//! Rules from claims to principals, and what a verified token is worth later.

use std::time::Duration;

use headrace_domain::{Clock as _, ModelName, OrgId, ProjectId};
use headrace_identity::{ModelAccess, RateLimits};
use headrace_jwt::{AccessRule, ClaimCondition, GrantValue, TokenRefusal};
use serde_json::{Value, json};

use crate::provider::{START, SigningKey, World, claims, claims_with, issuer, rule};

fn when(claim: &str, any_of: &[&str], rule: AccessRule) -> AccessRule {
    let any_of = any_of.iter().map(|value| (*value).to_owned()).collect();
    AccessRule { when: vec![ClaimCondition { claim: claim.to_owned(), any_of }], ..rule }
}

fn models(names: &[&str]) -> ModelAccess {
    ModelAccess::Only(names.iter().map(|name| ModelName::new(name).unwrap()).collect())
}

fn claim<T>(name: &str) -> GrantValue<T> {
    GrantValue::Claim(name.to_owned())
}

#[tokio::test]
async fn the_first_rule_that_matches_decides() {
    let org = |name| Some(GrantValue::Fixed(OrgId::new(name).unwrap()));
    let rules = vec![
        when("groups", &["sellers", "shop"], rule("shop")),
        when("realm_access.roles", &["scientist"], rule("lab")),
        when("https://example.com/team", &["7"], rule("shop")),
        when("scope", &["llm"], rule("lab")),
        when("staff", &["true"], rule("lab")),
        AccessRule { project: claim("project"), org: org("acme"), ..rule("lab") },
        when("groups", &["broken"], rule("missing")),
        AccessRule { org: org("other"), ..when("groups", &["crossed"], rule("lab")) },
    ];
    let key = SigningKey::new("k", "EdDSA");
    let world = World::of(issuer(rules), &[&key]);
    let not_mapped = None;
    let rows: [(&str, Value, Option<&str>); 17] = [
        ("groups", json!(["shop"]), Some("shop")),
        ("groups", json!("shop"), Some("shop")),
        ("groups", json!(["a", "sellers"]), Some("shop")),
        ("groups", json!("a shop"), not_mapped),
        ("groups", json!({"shop": true}), not_mapped),
        ("realm_access", json!({"roles": ["scientist"]}), Some("lab")),
        ("realm_access.roles", json!("scientist"), Some("lab")),
        ("realm_access", json!({"roles": ["cook"]}), not_mapped),
        ("https://example.com/team", json!(7), Some("shop")),
        ("scope", json!("openid llm"), Some("lab")),
        ("scope", json!("llm2 all"), not_mapped),
        ("staff", json!(true), Some("lab")),
        ("staff", json!(false), not_mapped),
        ("project", json!("shop"), Some("shop")),
        ("project", json!(["lab"]), Some("lab")),
        ("project", json!(["lab", "shop"]), not_mapped),
        ("project", json!("../lab"), not_mapped),
    ];
    for (name, value, expected) in rows {
        let token = key.token("EdDSA", &claims_with(name, value.clone()));
        match (world.sign_in(&token).await, expected) {
            (Ok(principal), Some(project)) => {
                assert_eq!(
                    (principal.project.as_str(), principal.org.as_str()),
                    (project, "acme"),
                    "{name} {value}"
                );
            }
            (Err(TokenRefusal::NotMapped { claims }), None) => assert!(claims.contains(&name.to_owned())),
            (answer, _) => panic!("{name} {value}: {answer:?}"),
        }
    }
    // A project of another organisation, a project that does not exist, and a rule that names one.
    for (name, value, named) in [
        ("project", "theirs", Some("project")),
        ("project", "unknown", Some("project")),
        ("groups", "broken", None),
        ("groups", "crossed", None),
    ] {
        let refusal = world.sign_in(&key.token("EdDSA", &claims_with(name, json!(value)))).await.unwrap_err();
        assert_eq!(refusal, TokenRefusal::NoProject { claim: named.map(str::to_owned) }, "{name} {value}");
        assert!(!refusal.to_string().contains(value), "{refusal}");
    }
}

#[tokio::test]
async fn a_claim_narrows_and_never_widens() {
    let key = SigningKey::new("k", "EdDSA");
    let (all, some) = (ModelAccess::All, models(&["a", "b"]));
    let rows: [(&ModelAccess, Option<Value>, ModelAccess); 9] = [
        (&all, None, ModelAccess::All),
        (&all, Some(json!(["a", "z"])), models(&["a", "z"])),
        (&all, Some(json!([])), models(&[])),
        (&some, None, models(&["a", "b"])),
        (&some, Some(json!(["a", "z"])), models(&["a"])),
        (&some, Some(json!("b")), models(&["b"])),
        (&some, Some(json!(["z"])), models(&[])),
        (&some, Some(json!("*")), models(&[])),
        (&some, Some(json!({"all": true})), models(&[])),
    ];
    for (allowed, value, expected) in rows {
        let rule =
            AccessRule { models: allowed.clone(), models_claim: Some("models".to_owned()), ..rule("lab") };
        let world = World::of(issuer(vec![rule]), &[&key]);
        let claims = value.clone().map_or_else(claims, |value| claims_with("models", value));
        let principal = world.sign_in(&key.token("EdDSA", &claims)).await.unwrap();
        assert_eq!(principal.models, expected, "{allowed} {value:?}");
    }
    let projects = vec![ProjectId::new("shop").unwrap()];
    let rule = AccessRule { project: claim("project"), projects, ..rule("lab") };
    let world = World::of(issuer(vec![rule]), &[&key]);
    for (project, is_good) in [("shop", true), ("lab", false), ("theirs", false)] {
        let answer = world.sign_in(&key.token("EdDSA", &claims_with("project", json!(project)))).await;
        assert_eq!(answer.is_ok(), is_good, "{project}");
    }
}

#[tokio::test]
async fn a_user_is_an_issuer_and_a_subject() {
    let key = SigningKey::new("k", "EdDSA");
    let limits = RateLimits { concurrency: Some(3), ..RateLimits::default() };
    let rule = AccessRule { role: Some(claim("role")), limits, ..rule("lab") };
    let world = World::of(issuer(vec![rule]), &[&key]);
    let sign_in = async |name: &str, value| {
        world.sign_in(&key.token("EdDSA", &claims_with(name, value))).await.unwrap()
    };
    let alice = sign_in("role", json!("reader")).await;
    let again = sign_in("exp", json!(1_700_000_900)).await;
    let bob = sign_in("sub", json!("bob")).await;
    assert_eq!(alice.key, again.key, "two tokens of one user share its limits");
    assert_ne!(alice.key, bob.key);
    assert!(alice.key.as_str().starts_with("user_") && alice.key.as_str().len() == 37);
    let user = alice.user.as_ref().unwrap();
    assert_eq!(
        (&*user.issuer, &*user.subject, user.role.as_deref()),
        ("https://login.example.com", "alice", Some("reader"))
    );
    assert_eq!((alice.limits, bob.user.as_ref().unwrap().role.as_deref()), (limits, None));
    let ends = START.after(Duration::from_secs(3660));
    assert_eq!(alice.expires, Some(ends), "the end of the token, with the tolerance for clocks");
}

#[tokio::test]
async fn a_verified_token_follows_changes_of_its_project_and_ends_with_its_time() {
    let key = SigningKey::new("k", "EdDSA");
    let world = World::of(issuer(vec![rule("lab")]), &[&key]);
    let exp = 1_700_000_000 + 90;
    let token = key.token("EdDSA", &claims_with("exp", json!(exp)));
    let first = world.sign_in(&token).await.unwrap();
    let second = world.tokens.authenticate(&token, world.clock.now()).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &second), "the second answer is the kept one");
    let limits = RateLimits { requests_per_minute: Some(1), ..RateLimits::default() };
    world.directory.set_project_limits(&ProjectId::new("lab").unwrap(), limits, "test", START).unwrap();
    assert_eq!(world.tokens.authenticate(&token, world.clock.now()).unwrap().project_limits, limits);
    // The provider takes its key back: the token is checked again within a minute.
    let other = SigningKey::new("other", "EdDSA");
    world.publish(&[&other]);
    world.clock.advance(Duration::from_secs(59));
    assert!(world.sign_in(&other.token("EdDSA", &claims())).await.is_ok());
    assert!(world.sign_in(&token).await.is_ok());
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(world.sign_in(&token).await.unwrap_err(), TokenRefusal::UnknownKey);
    // Verified again within the tolerance after its end, and then no more.
    world.publish(&[&key]);
    world.clock.advance(Duration::from_secs(89));
    assert!(world.sign_in(&token).await.is_ok());
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(world.sign_in(&token).await.unwrap_err(), TokenRefusal::Expired);
}
