//! An identity provider in memory: keys that sign, documents, and a directory with two projects. For tests and benches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_domain::{Clock, ManualClock, OrgId, ProjectId, UnixNanos};
use headrace_identity::{Directory, HashSecret, MemoryKeyStore, ModelAccess, RateLimits};
use headrace_jwt::{
    AccessRule, DocumentError, DocumentFuture, DocumentSource, FetchedDocument, GrantValue, IssuerConfig,
    TokenAuthenticator, UnknownUsers,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

pub(crate) const ISSUER: &str = "https://login.example.com";
pub(crate) const KEYS_URL: &str = "https://keys.example.com/jwks";
pub(crate) const START: UnixNanos = UnixNanos::new(1_700_000_000_000_000_000);
pub(crate) const START_SECONDS: u64 = 1_700_000_000;

enum Pair {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair, &'static str, usize),
    Ed(Ed25519KeyPair),
}

/// A key of the provider.
pub(crate) struct SigningKey {
    pub(crate) id: String,
    pair: Pair,
}

impl SigningKey {
    /// Creates a key for the algorithms that begin with `RS` and `PS`, or for one of the others.
    pub(crate) fn new(id: &str, algorithm: &str) -> Self {
        let ec = |of, crv, bytes| Pair::Ec(EcdsaKeyPair::generate(of).unwrap(), crv, bytes);
        let pair = match algorithm {
            "ES256" => ec(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256", 32),
            "ES384" => ec(&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384", 48),
            "ES512" => ec(&ECDSA_P521_SHA512_FIXED_SIGNING, "P-521", 66),
            "EdDSA" => Pair::Ed(Ed25519KeyPair::generate().unwrap()),
            _ => Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()),
        };
        Self { id: id.to_owned(), pair }
    }

    /// The public key as a JWK without `alg`.
    pub(crate) fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match &self.pair {
            Pair::Rsa(pair) => {
                let (n, e) = rsa_numbers(pair.public_key().as_ref());
                json!({"kty": "RSA", "use": "sig", "kid": self.id, "n": text(&n), "e": text(&e)})
            }
            Pair::Ec(pair, crv, bytes) => {
                let point = pair.public_key().as_ref();
                let (x, y) = point[1..].split_at(*bytes);
                json!({"kty": "EC", "kid": self.id, "crv": crv, "x": text(x), "y": text(y)})
            }
            Pair::Ed(pair) => {
                json!({"kty": "OKP", "kid": self.id, "crv": "Ed25519", "x": text(pair.public_key().as_ref())})
            }
        }
    }

    pub(crate) fn sign_bytes(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let padding: &'static dyn aws_lc_rs::signature::RsaEncoding = match algorithm {
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    "PS384" => &RSA_PSS_SHA384,
                    "PS512" => &RSA_PSS_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                pair.sign(padding, &random, message, &mut signature).unwrap();
                signature
            }
            Pair::Ec(pair, ..) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// Signs a token whose header names this key.
    pub(crate) fn token(&self, algorithm: &str, claims: &Value) -> String {
        let header = json!({"alg": algorithm, "typ": "JWT", "kid": self.id});
        self.token_with(algorithm, &header.to_string(), &claims.to_string())
    }

    /// Signs a token with this header and payload, as they are written.
    pub(crate) fn token_with(&self, algorithm: &str, header: &str, payload: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let signature = URL_SAFE_NO_PAD.encode(self.sign_bytes(algorithm, signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

/// The modulus and exponent of an RSAPublicKey in DER (RFC 8017, A.1.1).
fn rsa_numbers(der: &[u8]) -> (Vec<u8>, Vec<u8>) {
    fn take(der: &[u8]) -> (&[u8], &[u8]) {
        let (length, start) = match der[1] {
            0x82 => (usize::from(der[2]) << 8 | usize::from(der[3]), 4),
            0x81 => (usize::from(der[2]), 3),
            short => (usize::from(short), 2),
        };
        (&der[start..start + length], &der[start + length..])
    }
    let (sequence, _) = take(der);
    let (n, rest) = take(sequence);
    let (e, _) = take(rest);
    let trimmed = |number: &[u8]| number.iter().copied().skip_while(|&byte| byte == 0).collect();
    (trimmed(n), trimmed(e))
}

/// The claims of a good token that is valid for an hour.
pub(crate) fn claims() -> Value {
    json!({
        "iss": ISSUER, "sub": "alice", "aud": "headrace", "exp": START_SECONDS + 3600, "iat": START_SECONDS,
        "groups": ["staff", "research"], "email": "alice@example.com",
    })
}

/// The good claims with one changed, or left out if it is null.
pub(crate) fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    let object = claims.as_object_mut().unwrap();
    match value {
        Value::Null => drop(object.remove(name)),
        value => drop(object.insert(name.to_owned(), value)),
    }
    claims
}

/// The documents of the provider, and the addresses that were fetched.
#[derive(Default)]
pub(crate) struct FakeDocuments {
    documents: Mutex<HashMap<String, FetchedDocument>>,
    pub(crate) fetched: Mutex<Vec<String>>,
    pub(crate) is_away: Mutex<bool>,
    /// How long an answer takes, in tokio's time.
    pub(crate) delay: Mutex<Duration>,
}

impl FakeDocuments {
    pub(crate) fn put(&self, url: &str, document: &Value, fresh_for: Option<Duration>) {
        let body = document.to_string().into_bytes();
        self.documents.lock().insert(url.to_owned(), FetchedDocument { body, fresh_for });
    }

    pub(crate) fn fetches_of(&self, url: &str) -> usize {
        self.fetched.lock().iter().filter(|fetched| *fetched == url).count()
    }
}

impl DocumentSource for FakeDocuments {
    fn fetch<'a>(&'a self, url: &'a str) -> DocumentFuture<'a> {
        self.fetched.lock().push(url.to_owned());
        let delay = *self.delay.lock();
        Box::pin(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            if *self.is_away.lock() {
                return Err(DocumentError { why: "connection refused".to_owned() });
            }
            let found = self.documents.lock().get(url).cloned();
            found.ok_or_else(|| DocumentError { why: "the provider answered 404 Not Found".to_owned() })
        })
    }
}

/// An issuer, the authenticator that trusts it, and the directory.
pub(crate) struct World {
    pub(crate) documents: Arc<FakeDocuments>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) tokens: Arc<TokenAuthenticator>,
}

pub(crate) fn rule(project: &str) -> AccessRule {
    AccessRule {
        when: Vec::new(),
        org: None,
        project: GrantValue::Fixed(ProjectId::new(project).unwrap()),
        projects: Vec::new(),
        models: ModelAccess::All,
        models_claim: None,
        role: None,
        limits: RateLimits::default(),
    }
}

pub(crate) fn issuer(rules: Vec<AccessRule>) -> IssuerConfig {
    let issuer = IssuerConfig {
        issuer: ISSUER.to_owned(),
        jwks_url: None,
        audiences: vec!["headrace".to_owned()],
        audience_claims: vec!["aud".to_owned()],
        max_key_age: Duration::from_secs(3600),
        unknown_users: UnknownUsers::Create,
        extra_roots_pem: None,
        rules,
    };
    assert_eq!(issuer.faults(), []);
    issuer
}

pub(crate) fn directory() -> Arc<Directory> {
    let directory = Directory::open(Arc::new(MemoryKeyStore::new()), HashSecret::new([7; 32])).unwrap();
    for (org, projects) in [("acme", &["lab", "shop"][..]), ("other", &["theirs"])] {
        let org = OrgId::new(org).unwrap();
        directory.create_org(org.clone(), RateLimits::default(), "test", START).unwrap();
        for project in projects {
            let project = ProjectId::new(project).unwrap();
            directory.create_project(project, org.clone(), RateLimits::default(), "test", START).unwrap();
        }
    }
    Arc::new(directory)
}

impl World {
    /// A provider with these keys. Its keys are not fetched yet.
    pub(crate) fn of(config: IssuerConfig, keys: &[&SigningKey]) -> Self {
        let documents = Arc::new(FakeDocuments::default());
        let discovery = json!({"issuer": ISSUER, "jwks_uri": KEYS_URL});
        documents.put(&format!("{ISSUER}/.well-known/openid-configuration"), &discovery, None);
        let (clock, directory) = (Arc::new(ManualClock::at(START)), directory());
        let shared: Arc<dyn Clock> = clock.clone();
        let source = Arc::clone(&documents) as Arc<dyn DocumentSource>;
        let tokens = TokenAuthenticator::new(vec![(config, source)], Arc::clone(&directory), &shared);
        let world = Self { documents, clock, directory, tokens: Arc::new(tokens) };
        world.publish(keys);
        world
    }

    /// Replaces the provider's keys.
    pub(crate) fn publish(&self, keys: &[&SigningKey]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
        self.documents.put(KEYS_URL, &json!({ "keys": keys }), None);
    }
}
