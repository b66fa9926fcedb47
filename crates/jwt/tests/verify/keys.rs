//! Keys of a provider: fetched once, refreshed for new ones, kept while the provider is away.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{Clock, UnixNanos};
use headrace_jwt::{DocumentSource, IssuerConfig, TokenAuthenticator, TokenRefusal};
use serde_json::json;

use crate::provider::{
    FakeDocuments, ISSUER, KEYS_URL, START, SigningKey, World, claims, claims_with, directory, issuer, rule,
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn a_new_key_is_fetched_once_and_then_not_for_30_seconds() {
    let [old, new, newest] = ["old", "new", "newest"].map(|id| SigningKey::new(id, "ES256"));
    let world = World::of(issuer(vec![rule("lab")]), &[&old]);
    assert!(world.sign_in(&old.token("ES256", &claims())).await.is_ok());
    assert_eq!(world.documents.fetches_of(KEYS_URL), 1);
    // The first fetch was for a token, too.
    world.clock.advance(seconds(30));
    world.publish(&[&old, &new]);
    assert!(world.sign_in(&new.token("ES256", &claims())).await.is_ok(), "a rotation is followed at once");
    assert_eq!(world.documents.fetches_of(KEYS_URL), 2);
    world.publish(&[&new, &newest]);
    for user in 0..50 {
        let token = newest.token("ES256", &claims_with("sub", json!(format!("user {user}"))));
        assert_eq!(world.sign_in(&token).await.unwrap_err(), TokenRefusal::UnknownKey);
    }
    assert_eq!(world.documents.fetches_of(KEYS_URL), 2, "callers cannot make the server ask again and again");
    world.clock.advance(seconds(30));
    assert!(world.sign_in(&newest.token("ES256", &claims())).await.is_ok());
    assert_eq!(world.documents.fetches_of(KEYS_URL), 3);
    let other = old.token("ES256", &claims_with("sub", json!("bob")));
    assert_eq!(world.sign_in(&other).await.unwrap_err(), TokenRefusal::UnknownKey, "its key was taken back");
    assert_eq!(world.documents.fetches_of(&format!("{ISSUER}/.well-known/openid-configuration")), 1);
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_the_same_key_share_one_fetch() {
    let key = SigningKey::new("k", "ES256");
    let world = Arc::new(World::of(issuer(vec![rule("lab")]), &[&key]));
    *world.documents.delay.lock() = Duration::from_millis(200);
    let mut callers = tokio::task::JoinSet::new();
    for user in 0..64 {
        let token = key.token("ES256", &claims_with("sub", json!(format!("user {user}"))));
        let world = Arc::clone(&world);
        callers.spawn(async move { world.sign_in(&token).await.is_ok() });
    }
    assert!(callers.join_all().await.into_iter().all(|is_ok| is_ok));
    assert_eq!(world.documents.fetches_of(KEYS_URL), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_does_not_end_the_fetch() {
    let key = SigningKey::new("k", "ES256");
    let world = World::of(issuer(vec![rule("lab")]), &[&key]);
    *world.documents.delay.lock() = Duration::from_millis(200);
    let token = key.token("ES256", &claims());
    let wait = world.tokens.wait_for_keys(&token, START).unwrap();
    drop(wait);
    assert!(world.sign_in(&token).await.is_ok());
    assert_eq!(world.documents.fetches_of(KEYS_URL), 1);
}

#[tokio::test]
async fn a_provider_that_is_away_is_never_the_callers_fault() {
    let [known, new] = ["known", "new"].map(|id| SigningKey::new(id, "ES256"));
    let world = World::of(issuer(vec![rule("lab")]), &[&known]);
    let is_away = |away| *world.documents.is_away.lock() = away;
    let unavailable = |answer: Result<_, TokenRefusal>| {
        let refusal = answer.map(|_: Arc<_>| ()).unwrap_err();
        let TokenRefusal::KeysUnavailable { retry_after } = refusal else { panic!("{refusal:?}") };
        assert!((seconds(1)..=seconds(30)).contains(&retry_after), "{retry_after:?}");
    };
    let of = |key: &SigningKey, user: &str| key.token("ES256", &claims_with("sub", json!(user)));
    is_away(true);
    unavailable(world.sign_in(&of(&known, "a")).await);
    is_away(false);
    unavailable(world.sign_in(&of(&known, "a")).await);
    world.clock.advance(seconds(30));
    assert!(world.sign_in(&of(&known, "a")).await.is_ok());
    // Away again: known keys stay in use, and unknown ones could be new.
    is_away(true);
    world.clock.advance(seconds(600));
    assert!(world.sign_in(&of(&known, "b")).await.is_ok());
    unavailable(world.sign_in(&of(&new, "c")).await);
    world.clock.advance(seconds(2999));
    assert!(world.sign_in(&known.token("ES256", &claims_with("exp", json!(1_800_000_000)))).await.is_ok());
    world.clock.advance(seconds(61));
    let late = known.token("ES256", &claims_with("exp", json!(1_800_000_001)));
    unavailable(world.sign_in(&late).await);
    is_away(false);
    world.clock.advance(seconds(30));
    assert!(world.sign_in(&late).await.is_ok());
}

#[tokio::test]
async fn discovery_must_be_of_the_issuer_and_lead_to_https() {
    let key = SigningKey::new("k", "ES256");
    for (document, is_good) in [
        (json!({"issuer": ISSUER, "jwks_uri": KEYS_URL, "more": [1]}), true),
        (json!({"issuer": "https://evil.example", "jwks_uri": KEYS_URL}), false),
        (json!({"issuer": format!("{ISSUER}/"), "jwks_uri": KEYS_URL}), false),
        (json!({"issuer": ISSUER, "jwks_uri": "http://keys.example.com/jwks"}), false),
        (json!({"issuer": ISSUER}), false),
        (json!([]), false),
    ] {
        let world = World::of(issuer(vec![rule("lab")]), &[&key]);
        world.documents.put(&format!("{ISSUER}/.well-known/openid-configuration"), &document, None);
        assert_eq!(world.sign_in(&key.token("ES256", &claims())).await.is_ok(), is_good, "{document}");
    }
}

#[tokio::test]
async fn a_configured_address_of_keys_needs_no_discovery() {
    let key = SigningKey::new("k", "ES256");
    let config = IssuerConfig { jwks_url: Some(KEYS_URL.to_owned()), ..issuer(vec![rule("lab")]) };
    let world = World::of(config, &[&key]);
    assert!(world.sign_in(&key.token("ES256", &claims())).await.is_ok());
    assert_eq!(*world.documents.fetched.lock(), [KEYS_URL]);
}

#[tokio::test]
async fn unusable_keys_of_a_set_are_left_out() {
    let [rsa, ec] = [("rsa", "RS256"), ("ec", "ES256")].map(|(id, of)| SigningKey::new(id, of));
    let with = |key: &SigningKey, field: &str, value: serde_json::Value| {
        let mut jwk = key.jwk();
        jwk[field] = value;
        jwk
    };
    let weak = "w".repeat(171);
    let rows = [
        (with(&rsa, "alg", json!("RS256")), "RS256", &rsa, true),
        (with(&rsa, "alg", json!("RS256")), "RS512", &rsa, false),
        (with(&rsa, "alg", json!("RSA-OAEP")), "RS256", &rsa, false),
        (with(&rsa, "use", json!("enc")), "RS256", &rsa, false),
        (with(&rsa, "key_ops", json!(["verify"])), "RS256", &rsa, true),
        (with(&rsa, "key_ops", json!(["encrypt"])), "RS256", &rsa, false),
        (with(&rsa, "n", json!(weak)), "RS256", &rsa, false),
        (with(&rsa, "kty", json!("oct")), "RS256", &rsa, false),
        (with(&ec, "crv", json!("P-384")), "ES256", &ec, false),
        (with(&ec, "crv", json!("secp256k1")), "ES256", &ec, false),
        (with(&ec, "x", json!("AAAA")), "ES256", &ec, false),
        (with(&ec, "y", ec.jwk()["x"].clone()), "ES256", &ec, false),
    ];
    for (jwk, algorithm, key, is_usable) in rows {
        let world = World::of(issuer(vec![rule("lab")]), &[]);
        let spare = SigningKey::new("spare", "EdDSA");
        let keys = json!({"keys": [{"kty": "new"}, "text", jwk.clone(), spare.jwk()]});
        world.documents.put(KEYS_URL, &keys, None);
        let answer = world.sign_in(&key.token(algorithm, &claims())).await;
        assert_eq!(answer.is_ok(), is_usable, "{algorithm} {jwk}: {answer:?}");
        assert!(world.sign_in(&spare.token("EdDSA", &claims())).await.is_ok(), "others stay usable");
    }
}

/// Wall and monotonic time of tokio's clock, which tests pause.
struct TokioClock(tokio::time::Instant);

impl Clock for TokioClock {
    fn now(&self) -> UnixNanos {
        START.after(self.0.elapsed())
    }

    fn monotonic_nanos(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_refreshed_by_their_cache_headers_beside_the_calls() {
    let [old, new] = ["old", "new"].map(|id| SigningKey::new(id, "ES256"));
    let documents = Arc::new(FakeDocuments::default());
    documents.put(KEYS_URL, &json!({"keys": [old.jwk()]}), Some(seconds(300)));
    let clock: Arc<dyn Clock> = Arc::new(TokioClock(tokio::time::Instant::now()));
    let config = IssuerConfig { jwks_url: Some(KEYS_URL.to_owned()), ..issuer(vec![rule("lab")]) };
    let source = Arc::clone(&documents) as Arc<dyn DocumentSource>;
    let tokens = Arc::new(TokenAuthenticator::new(vec![(config, source)], directory(), &clock));
    tokens.keep_fresh(&tokio::runtime::Handle::current());
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(documents.fetches_of(KEYS_URL), 1, "the first keys are there before the first token");
    tokio::time::sleep(seconds(298)).await;
    assert_eq!(documents.fetches_of(KEYS_URL), 1);
    documents.put(KEYS_URL, &json!({"keys": [old.jwk(), new.jwk()]}), Some(seconds(300)));
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(documents.fetches_of(KEYS_URL), 2);
    let token = new.token("ES256", &claims());
    assert!(tokens.wait_for_keys(&token, clock.now()).is_none(), "no caller waits for it");
    assert!(tokens.authenticate(&token, clock.now()).is_ok());
    // Away: asked again after 1, 2, 4 … 30 s.
    *documents.is_away.lock() = true;
    tokio::time::sleep(seconds(300)).await;
    let before = documents.fetches_of(KEYS_URL);
    tokio::time::sleep(seconds(300)).await;
    let tries = documents.fetches_of(KEYS_URL) - before;
    assert!((8..=16).contains(&tries), "{tries}");
    *documents.is_away.lock() = false;
    tokio::time::sleep(seconds(31)).await;
    let before = documents.fetches_of(KEYS_URL);
    tokio::time::sleep(seconds(200)).await;
    assert_eq!(documents.fetches_of(KEYS_URL), before);
}

#[tokio::test]
async fn replaced_issuers_decide_at_once_and_the_same_ones_keep_their_keys() {
    let key = SigningKey::new("k", "ES256");
    let world = World::of(issuer(vec![rule("lab")]), &[&key]);
    let token = key.token("ES256", &claims());
    assert_eq!(world.sign_in(&token).await.unwrap().project.as_str(), "lab");
    let replace = |issuers: Vec<IssuerConfig>| {
        let source = || Arc::clone(&world.documents) as Arc<dyn DocumentSource>;
        let issuers = issuers.into_iter().map(|config| (config, source())).collect();
        world.tokens.replace(issuers, &tokio::runtime::Handle::current());
    };
    replace(vec![issuer(vec![rule("lab")])]);
    assert!(world.tokens.authenticate(&token, START).is_ok(), "no fetch is needed");
    replace(vec![issuer(vec![rule("shop")])]);
    let user = world.sign_in(&token).await.unwrap();
    assert_eq!(user.project.as_str(), "shop", "a token that was verified before is mapped by the new rules");
    replace(Vec::new());
    assert!(!world.tokens.has_issuers());
    assert_eq!(world.sign_in(&token).await.unwrap_err(), TokenRefusal::UnknownIssuer);
}
