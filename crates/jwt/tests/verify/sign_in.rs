//! Sign-in of operators: the way to a provider, the code for a token, and the role of the user.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::Clock;
use headrace_identity::Role;
use headrace_jwt::{
    ClaimCondition, CodeRequest, DocumentError, DocumentFuture, DocumentSource, FetchedDocument,
    OperatorRule, ProviderClient, ProviderUser, SignInConfig, SignInError, SignInProvider, SignInProviders,
    SignInSecrets, TokenRefusal,
};
use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use crate::provider::{FakeDocuments, ISSUER, KEYS_URL, START, START_SECONDS, SigningKey};

const TOKEN_URL: &str = "https://login.example.com/token";
const INFO_URL: &str = "https://login.example.com/me";
const REDIRECT: &str = "https://console.example.com/admin/v1/sign-in/acme/callback";

/// A provider in memory that answers each code with the same document.
#[derive(Default)]
struct FakeProvider {
    documents: FakeDocuments,
    answer: Mutex<Value>,
    info: Mutex<Value>,
    forms: Mutex<Vec<String>>,
}

impl DocumentSource for FakeProvider {
    fn fetch<'a>(&'a self, url: &'a str) -> DocumentFuture<'a> {
        self.documents.fetch(url)
    }
}

fn document(value: &Value) -> Result<FetchedDocument, DocumentError> {
    Ok(FetchedDocument { body: value.to_string().into_bytes(), fresh_for: None })
}

impl ProviderClient for FakeProvider {
    fn exchange<'a>(&'a self, request: &'a CodeRequest) -> DocumentFuture<'a> {
        assert_eq!(request.url, TOKEN_URL);
        self.forms.lock().push(request.form.expose_secret().to_owned());
        let answer = document(&self.answer.lock());
        Box::pin(async move { answer })
    }

    fn user_info<'a>(&'a self, url: &'a str, access_token: &'a SecretString) -> DocumentFuture<'a> {
        assert_eq!((url, access_token.expose_secret()), (INFO_URL, "access"));
        let info = document(&self.info.lock());
        Box::pin(async move { info })
    }
}

fn config() -> SignInConfig {
    let rule = |group: &str, role| OperatorRule {
        when: vec![ClaimCondition { claim: "groups".to_owned(), any_of: vec![group.to_owned()] }],
        role,
    };
    let config = SignInConfig {
        name: "acme".to_owned(),
        label: "Acme".to_owned(),
        issuer: ISSUER.to_owned(),
        client_id: "console".to_owned(),
        client_secret: None,
        scopes: vec!["email".to_owned(), "openid".to_owned()],
        session: Duration::from_secs(3600),
        extra_roots_pem: None,
        rules: vec![rule("platform", Role::Admin), rule("staff", Role::Viewer)],
        users_of: None,
    };
    assert_eq!(config.faults(), []);
    config
}

fn secrets() -> SignInSecrets {
    let [state, nonce, verifier] = ["the state", "the nonce", "the verifier"].map(str::to_owned);
    SignInSecrets { state, nonce, verifier }
}

/// The claims of a good ID token.
fn claims() -> Value {
    json!({
        "iss": ISSUER, "sub": "ann", "aud": "console", "exp": START_SECONDS + 300, "iat": START_SECONDS,
        "nonce": "the nonce", "groups": ["staff"], "email": "ann@example.com",
    })
}

struct World {
    fake: Arc<FakeProvider>,
    clock: Arc<headrace_domain::ManualClock>,
    provider: SignInProvider,
    key: SigningKey,
}

impl World {
    fn new() -> Self {
        let (fake, key) = (Arc::new(FakeProvider::default()), SigningKey::new("k", "ES256"));
        let discovery = json!({
            "issuer": ISSUER, "jwks_uri": KEYS_URL, "token_endpoint": TOKEN_URL, "userinfo_endpoint": INFO_URL,
            "authorization_endpoint": "https://login.example.com/authorize?tenant=1",
        });
        fake.documents.put(&format!("{ISSUER}/.well-known/openid-configuration"), &discovery, None);
        fake.documents.put(KEYS_URL, &json!({ "keys": [key.jwk()] }), None);
        let clock = Arc::new(headrace_domain::ManualClock::at(START));
        let shared: Arc<dyn Clock> = clock.clone();
        let provider = SignInProvider::new(config(), Arc::clone(&fake) as _, &shared);
        Self { fake, clock, provider, key }
    }

    /// Signs in with an ID token of these claims.
    async fn sign_in(&self, claims: &Value) -> Result<ProviderUser, SignInError> {
        self.sign_in_with(&self.key.token("ES256", claims)).await
    }

    async fn sign_in_with(&self, token: &str) -> Result<ProviderUser, SignInError> {
        *self.fake.answer.lock() = json!({ "id_token": token, "access_token": "access" });
        self.provider.sign_in("code", REDIRECT, &secrets(), self.clock.now()).await
    }
}

#[tokio::test]
async fn the_way_to_a_provider_carries_pkce_state_and_nonce() {
    let world = World::new();
    let url = world.provider.authorization_url(REDIRECT, &secrets()).await.unwrap();
    assert_eq!(
        url,
        "https://login.example.com/authorize?tenant=1&response_type=code&client_id=console\
         &redirect_uri=https%3A%2F%2Fconsole.example.com%2Fadmin%2Fv1%2Fsign-in%2Facme%2Fcallback\
         &scope=openid+email&state=the+state&nonce=the+nonce\
         &code_challenge=1feKYP2squaeWAiJic4eC-LS4zxucSgWGrt51hG2aRA&code_challenge_method=S256"
    );
    assert!(!url.contains("verifier"), "only its hash leaves the server");
}

#[tokio::test]
async fn a_code_becomes_a_user_with_the_role_of_the_first_rule() {
    let world = World::new();
    let user = world.sign_in(&claims()).await.unwrap();
    assert_eq!(
        (user.role, user.subject.as_str(), user.name.as_str()),
        (Role::Viewer, "ann", "ann@example.com")
    );
    assert_eq!((user.issuer.as_str(), user.provider.as_str(), user.id().len()), (ISSUER, "acme", 32));
    let form = world.fake.forms.lock().pop().unwrap();
    assert!(form.contains("code=code&") && form.contains("code_verifier=the+verifier"), "{form}");
    let mut both = claims();
    both["groups"] = json!(["staff", "platform"]);
    assert_eq!(world.sign_in(&both).await.unwrap().role, Role::Admin);
}

#[tokio::test]
async fn an_id_token_that_does_not_hold_is_refused_with_its_own_reason() {
    let world = World::new();
    let token = |refusal| SignInError::Token(refusal);
    for (name, value, expected) in [
        ("nonce", json!("another"), SignInError::Nonce),
        ("nonce", json!(null), SignInError::Nonce),
        ("nonce", json!(""), SignInError::Nonce),
        ("aud", json!("another"), token(TokenRefusal::Audience)),
        ("aud", json!(["console", "another"]), SignInError::OtherClient),
        ("azp", json!("another"), SignInError::OtherClient),
        ("iss", json!("https://evil.example.com"), token(TokenRefusal::UnknownIssuer)),
        ("exp", json!(START_SECONDS - 60), token(TokenRefusal::Expired)),
        (
            "exp",
            json!(null),
            token(TokenRefusal::Claim { claim: "exp", must_be: "a number of seconds since 1970" }),
        ),
        ("iat", json!(START_SECONDS + 61), token(TokenRefusal::NotYetValid { claim: "iat" })),
    ] {
        let mut claims = claims();
        claims[name] = value.clone();
        assert_eq!(world.sign_in(&claims).await.unwrap_err(), expected, "{name} = {value}");
    }
    let mut two = claims();
    (two["aud"], two["azp"]) = (json!(["console", "another"]), json!("console"));
    assert!(world.sign_in(&two).await.is_ok(), "it was issued to this client");
    let stranger = SigningKey::new("k", "ES256").token("ES256", &claims());
    assert_eq!(world.sign_in_with(&stranger).await.unwrap_err(), token(TokenRefusal::Signature));
    let access = json!({"alg": "ES256", "typ": "at+jwt", "kid": "k"}).to_string();
    let access = world.key.token_with("ES256", &access, &claims().to_string());
    assert_eq!(world.sign_in_with(&access).await.unwrap_err(), token(TokenRefusal::Type));
    let unsigned = format!("{}..", world.key.token("ES256", &claims()).split('.').next().unwrap());
    assert!(matches!(world.sign_in_with(&unsigned).await, Err(SignInError::Token(_))));
}

#[tokio::test]
async fn claims_of_the_user_endpoint_count_if_they_are_of_the_same_user() {
    let world = World::new();
    let mut bare = claims();
    bare.as_object_mut().unwrap().remove("groups");
    *world.fake.info.lock() = json!({ "sub": "ann", "groups": ["platform"], "email": "forged@example.com" });
    let user = world.sign_in(&bare).await.unwrap();
    assert_eq!((user.role, user.name.as_str()), (Role::Admin, "ann@example.com"), "the ID token wins");
    *world.fake.info.lock() = json!({ "sub": "bob", "groups": ["platform"] });
    let refused = world.sign_in(&bare).await.unwrap_err();
    assert!(
        matches!(&refused, SignInError::Unavailable { why } if why.contains("another user")),
        "{refused}"
    );
    *world.fake.info.lock() = json!({ "sub": "ann", "team": "guests" });
    let refused = world.sign_in(&bare).await.unwrap_err();
    assert!(matches!(refused, SignInError::NotMapped { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("`team`") && text.contains("`email`") && !text.contains("guests"), "{text}");
}

#[tokio::test]
async fn a_provider_that_refuses_the_code_or_is_away_is_named() {
    let world = World::new();
    *world.fake.answer.lock() = json!({ "error": "invalid_grant" });
    let secrets = secrets();
    let sign_in = || world.provider.sign_in("used", REDIRECT, &secrets, START);
    let refused = sign_in().await.unwrap_err();
    assert!(matches!(&refused, SignInError::Code { why } if why.contains("invalid_grant")), "{refused}");
    *world.fake.answer.lock() = json!({ "access_token": "access" });
    let refused = sign_in().await.unwrap_err();
    assert!(
        matches!(&refused, SignInError::Unavailable { why } if why.contains("no `id_token`")),
        "{refused}"
    );
    *world.fake.documents.is_away.lock() = true;
    let known = world.provider.authorization_url(REDIRECT, &secrets).await;
    assert!(known.is_ok(), "the discovery document is kept");
    world.clock.advance(Duration::from_secs(600));
    let refused = world.provider.authorization_url(REDIRECT, &secrets).await.unwrap_err();
    assert!(
        matches!(&refused, SignInError::Unavailable { why } if why.contains("connection refused")),
        "{refused}"
    );
}

#[tokio::test]
async fn a_rotated_key_is_followed() {
    let world = World::new();
    assert!(world.sign_in(&claims()).await.is_ok());
    let newer = SigningKey::new("newer", "RS256");
    world.fake.documents.put(KEYS_URL, &json!({ "keys": [newer.jwk()] }), None);
    world.clock.advance(Duration::from_secs(30));
    assert!(world.sign_in_with(&newer.token("RS256", &claims())).await.is_ok());
    let refused = world.sign_in(&claims()).await.unwrap_err();
    assert_eq!(refused, SignInError::Token(TokenRefusal::UnknownKey));
}

#[tokio::test]
async fn a_user_stays_an_operator_while_the_rules_are_the_same() {
    let world = World::new();
    let user = world.sign_in(&claims()).await.unwrap();
    let (providers, clock) = (SignInProviders::default(), Arc::clone(&world.clock) as Arc<dyn Clock>);
    let put = |config: Vec<SignInConfig>| {
        let client = || Arc::clone(&world.fake) as Arc<dyn ProviderClient>;
        let configs = config.into_iter().map(|config| (config, client())).collect();
        providers.replace(configs, &clock, &tokio::runtime::Handle::current());
    };
    assert!(!providers.still_allow(&user));
    put(vec![config()]);
    let first = providers.named("acme").unwrap();
    assert!(providers.still_allow(&user));
    put(vec![SignInConfig { label: "Acme Inc".to_owned(), ..config() }]);
    assert!(providers.still_allow(&user), "a label decides nothing");
    assert!(!Arc::ptr_eq(&first, &providers.named("acme").unwrap()));
    let mut other = config();
    other.rules.reverse();
    put(vec![other]);
    assert!(!providers.still_allow(&user), "the order of rules decides");
    for changed in [
        SignInConfig { name: "b".to_owned(), ..config() },
        SignInConfig { issuer: "https://b.example.com".to_owned(), ..config() },
        SignInConfig { client_id: "b".to_owned(), ..config() },
    ] {
        put(vec![changed]);
        assert!(!providers.still_allow(&user));
    }
    put(vec![config()]);
    assert!(providers.still_allow(&user));
    let again = providers.named("acme").unwrap();
    put(vec![config()]);
    assert!(Arc::ptr_eq(&again, &providers.named("acme").unwrap()), "a reload keeps its keys");
}
