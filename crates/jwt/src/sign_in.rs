//! Sign-in of operators at one provider: authorization code flow with PKCE (OpenID Connect Core 1.0, 3.1; RFC 7636), and
//! the role of the user by rules. Must not know cookies, sessions or the callers of the API.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_domain::{Clock, OrgId, UnixNanos};
use headrace_identity::Role;
use reqwest::Url;
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::claims::check_claims;
use crate::code_exchange::{CodeAnswer, CodeForm, ProviderClient};
use crate::config::{IssuerConfig, UnknownUsers};
use crate::discovery::DiscoveryDocument;
use crate::documents::DocumentSource;
use crate::issuer::IssuerKeys;
use crate::json::parse_object;
use crate::mapping::{conditions_hold, names_of};
use crate::sign_in_config::SignInConfig;
use crate::token::UnverifiedToken;
use crate::{SignInError, TokenRefusal};

/// How long known keys are used while the provider cannot be reached.
const MAX_KEY_AGE: Duration = Duration::from_secs(24 * 3600);
/// How long a discovery document is used.
const DISCOVERED_FOR_NS: u64 = 600_000_000_000;
/// How long a failed discovery is not tried again.
const FAILED_FOR_NS: u64 = 1_000_000_000;
/// Maximum number of exchanges with the provider at once. Further ones are refused.
const MAX_EXCHANGES: usize = 8;
/// When a refused exchange may be tried again.
const BUSY_FOR: Duration = Duration::from_secs(2);
/// Longest name of a user, in bytes.
const MAX_USER_NAME_BYTES: usize = 36;
/// The claims that name a user for people, the best one first.
const NAME_CLAIMS: [&str; 3] = ["email", "preferred_username", "name"];

/// An identity provider at which operators sign in.
pub struct SignInProvider {
    config: SignInConfig,
    fingerprint: [u8; 32],
    keys: Arc<IssuerKeys>,
    client: Arc<dyn ProviderClient>,
    clock: Arc<dyn Clock>,
    discovered: ArcSwapOption<DiscoveredProvider>,
    /// When discovery failed last, in monotonic nanoseconds, and why. Locked while the document is fetched.
    failed_discovery: tokio::sync::Mutex<Option<(u64, String)>>,
    exchanges: Semaphore,
}

/// A discovery document, and when it was fetched in monotonic nanoseconds.
struct DiscoveredProvider {
    document: DiscoveryDocument,
    fetched_ns: u64,
}

/// The values that tie a sign-in to the browser that began it.
pub struct SignInSecrets {
    /// Comes back in the address of the callback.
    pub state: String,
    /// Comes back in the ID token.
    pub nonce: String,
    /// The PKCE verifier: 43 to 128 characters. Only its hash goes through the browser.
    pub verifier: String,
}

/// A user whom a provider has signed in, with the role that the rules give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderUser {
    /// The name of the provider.
    pub provider: String,
    /// The provider's issuer.
    pub issuer: String,
    /// `sub`: the user at the provider.
    pub subject: String,
    /// The user's name for people: 1 to 36 bytes.
    pub name: String,
    /// The role.
    pub role: Role,
    /// A hash of the rules that gave the role.
    pub rules: [u8; 32],
}

impl ProviderUser {
    /// 128 bits of a hash of issuer and subject, in hexadecimal.
    pub fn id(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("headrace 2026 id of an operator of a provider v1");
        let length = u64::try_from(self.issuer.len()).unwrap_or(u64::MAX);
        hasher.update(&length.to_le_bytes()).update(self.issuer.as_bytes()).update(self.subject.as_bytes());
        hasher.finalize().to_hex().chars().take(32).collect()
    }
}

impl SignInProvider {
    /// Creates a provider without faults ([`SignInConfig::faults`]). Asks it for nothing yet.
    pub fn new(config: SignInConfig, client: Arc<dyn ProviderClient>, clock: &Arc<dyn Clock>) -> Self {
        let issuer = IssuerConfig {
            issuer: config.issuer.clone(),
            jwks_url: None,
            audiences: vec![config.client_id.clone()],
            audience_claims: vec!["aud".to_owned()],
            max_key_age: MAX_KEY_AGE,
            unknown_users: UnknownUsers::Accept,
            extra_roots_pem: None,
            rules: Vec::new(),
        };
        let source = Arc::clone(&client) as Arc<dyn DocumentSource>;
        Self {
            fingerprint: config.fingerprint(),
            keys: Arc::new(IssuerKeys::new(issuer, source, Arc::clone(clock))),
            config,
            client,
            clock: Arc::clone(clock),
            discovered: ArcSwapOption::empty(),
            failed_discovery: tokio::sync::Mutex::default(),
            exchanges: Semaphore::new(MAX_EXCHANGES),
        }
    }

    /// The name in addresses and in the audit log.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The name for people.
    pub fn label(&self) -> &str {
        &self.config.label
    }

    /// The issuer of its tokens.
    pub fn issuer(&self) -> &str {
        &self.config.issuer
    }

    /// The longest time of a session.
    pub fn session(&self) -> Duration {
        self.config.session
    }

    /// The organisations whose user records may end a session. `None` for those without operators of their own.
    pub fn users_of(&self) -> Option<&[OrgId]> {
        self.config.users_of.as_deref()
    }

    /// A hash of all that decides who may sign in, as in [`ProviderUser::rules`].
    pub const fn rules(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns the address to which a browser is sent to sign in.
    ///
    /// # Errors
    /// The provider's discovery document cannot be had, or names no addresses for sign-in.
    pub async fn authorization_url(
        &self,
        redirect_url: &str,
        secrets: &SignInSecrets,
    ) -> Result<String, SignInError> {
        let document = self.discover().await?;
        let endpoint = document.document.authorization_endpoint.as_deref();
        let url = endpoint.and_then(|endpoint| Url::parse(endpoint).ok());
        let mut url = url.ok_or_else(|| without("authorization_endpoint"))?;
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, secrets.verifier.as_bytes()));
        let mut scopes = vec!["openid"];
        scopes.extend(self.config.scopes.iter().map(String::as_str).filter(|scope| *scope != "openid"));
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.config.client_id)
            .append_pair("redirect_uri", redirect_url)
            .append_pair("scope", &scopes.join(" "))
            .append_pair("state", &secrets.state)
            .append_pair("nonce", &secrets.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        Ok(url.into())
    }

    /// Exchanges the code of a callback, and returns the user with the role that the rules give. Fetches the user's
    /// further claims if those of the ID token match no rule.
    ///
    /// # Errors
    /// The provider cannot be reached or refuses the code, the ID token is refused, or no rule matches.
    pub async fn sign_in(
        &self,
        code: &str,
        redirect_url: &str,
        secrets: &SignInSecrets,
        now: UnixNanos,
    ) -> Result<ProviderUser, SignInError> {
        let _exchange =
            self.exchanges.try_acquire().map_err(|_| SignInError::Busy { retry_after: BUSY_FOR })?;
        let discovered = self.discover().await?;
        let document = &discovered.document;
        let endpoint = document.token_endpoint.as_deref().ok_or_else(|| without("token_endpoint"))?;
        let form = CodeForm {
            code,
            redirect_url,
            verifier: &secrets.verifier,
            client_id: &self.config.client_id,
            client_secret: self.config.client_secret.as_ref(),
            methods: document.token_endpoint_auth_methods_supported.as_deref(),
        };
        let request = form.request(endpoint);
        let answer = self.client.exchange(&request).await;
        let answer = answer.map_err(|error| unavailable(endpoint, &error.why))?;
        let answer = CodeAnswer::parse(&answer.body).map_err(|error| SignInError::Code { why: error.why })?;
        let token = answer.id_token.as_deref();
        let token = token.ok_or_else(|| unavailable(endpoint, "the answer has no `id_token`"))?;
        let claims = self.verify(token, &secrets.nonce, now).await?;
        if let Some(role) = self.role(&claims) {
            return self.user(&claims, role);
        }
        // Many providers put few claims into ID tokens, and all into this answer (OpenID Connect Core 1.0, 5.3).
        let mut claims = claims;
        if let (Some(url), Some(access_token)) = (&document.userinfo_endpoint, &answer.access_token) {
            let info = self.client.user_info(url, access_token).await;
            let info = info.map_err(|error| unavailable(url, &error.why))?;
            let info = parse_object(&info.body);
            let info = info.ok_or_else(|| unavailable(url, "the answer is no JSON object"))?;
            // Otherwise the claims of one user could be given to another one (5.3.2).
            if info.get("sub") != claims.get("sub") {
                return Err(unavailable(url, "the answer is about another user"));
            }
            info.into_iter().for_each(|(name, value)| {
                claims.entry(name).or_insert(value);
            });
        }
        let role = self.role(&claims).ok_or_else(|| SignInError::NotMapped { claims: names_of(&claims) })?;
        self.user(&claims, role)
    }

    /// Returns whether the provider was created with these settings.
    pub(crate) fn has_config(&self, config: &SignInConfig) -> bool {
        self.config.is_same(config)
    }

    /// Returns whether a user has the role still: the rules are the same as at the sign-in.
    pub(crate) fn still_allows(&self, user: &ProviderUser) -> bool {
        self.config.name == user.provider && self.fingerprint == user.rules
    }

    /// Keeps the provider's keys fresh, until the future is dropped.
    pub(crate) async fn keep_fresh(self: Arc<Self>) {
        Arc::clone(&self.keys).keep_fresh().await;
    }

    /// Verifies an ID token and returns its claims (OpenID Connect Core 1.0, 3.1.3.7).
    async fn verify(
        &self,
        token: &str,
        nonce: &str,
        now: UnixNanos,
    ) -> Result<Map<String, Value>, SignInError> {
        let parsed = UnverifiedToken::parse(token)?;
        if parsed.issuer() != Some(self.config.issuer.as_str()) {
            return Err(SignInError::Token(TokenRefusal::UnknownIssuer));
        }
        if parsed.is_access_token {
            return Err(SignInError::Token(TokenRefusal::Type));
        }
        if let Some(wait) = self.keys.fetch_for(&parsed) {
            wait.await;
        }
        self.keys.check_signature(&parsed)?;
        check_claims(&parsed.claims, &self.keys.config, now)?;
        let shown = parsed.claims.get("nonce").and_then(Value::as_str).unwrap_or_default();
        if !bool::from(shown.as_bytes().ct_eq(nonce.as_bytes())) {
            return Err(SignInError::Nonce);
        }
        let has_more = matches!(parsed.claims.get("aud"), Some(Value::Array(list)) if list.len() > 1);
        match parsed.claims.get("azp") {
            Some(client) if client.as_str() == Some(&self.config.client_id) => {}
            None if !has_more => {}
            _ => return Err(SignInError::OtherClient),
        }
        Ok(parsed.claims)
    }

    fn role(&self, claims: &Map<String, Value>) -> Option<Role> {
        let rule = self.config.rules.iter().find(|rule| conditions_hold(&rule.when, claims));
        rule.map(|rule| rule.role)
    }

    fn user(&self, claims: &Map<String, Value>, role: Role) -> Result<ProviderUser, SignInError> {
        let must_be = "a text";
        let subject = claims.get("sub").and_then(Value::as_str);
        let subject = subject.ok_or(SignInError::Token(TokenRefusal::Claim { claim: "sub", must_be }))?;
        let named = NAME_CLAIMS.iter().find_map(|claim| claims.get(*claim)?.as_str());
        let name = bounded(named.unwrap_or(subject));
        Ok(ProviderUser {
            provider: self.config.name.clone(),
            issuer: self.config.issuer.clone(),
            subject: subject.to_owned(),
            name: if name.is_empty() { bounded(subject) } else { name },
            role,
            rules: self.fingerprint,
        })
    }

    /// The discovery document. Anyone can begin a sign-in, so it is fetched once at a time, and after a failure not for
    /// a moment.
    async fn discover(&self) -> Result<Arc<DiscoveredProvider>, SignInError> {
        if let Some(known) = self.discovered.load_full().filter(|known| self.is_recent(known)) {
            return Ok(known);
        }
        let mut failed = self.failed_discovery.lock().await;
        // Another sign-in may have fetched it meanwhile.
        if let Some(known) = self.discovered.load_full().filter(|known| self.is_recent(known)) {
            return Ok(known);
        }
        let now = self.clock.monotonic_nanos();
        if let Some((_, why)) = failed.as_ref().filter(|(at, _)| now.saturating_sub(*at) < FAILED_FOR_NS) {
            return Err(SignInError::Unavailable { why: why.clone() });
        }
        match DiscoveryDocument::fetch(self.client.as_ref(), &self.config.issuer).await {
            Ok(document) => {
                let found = Arc::new(DiscoveredProvider { document, fetched_ns: now });
                self.discovered.store(Some(Arc::clone(&found)));
                *failed = None;
                Ok(found)
            }
            Err(why) => {
                *failed = Some((self.clock.monotonic_nanos(), why.clone()));
                Err(SignInError::Unavailable { why })
            }
        }
    }

    fn is_recent(&self, known: &DiscoveredProvider) -> bool {
        self.clock.monotonic_nanos().saturating_sub(known.fetched_ns) < DISCOVERED_FOR_NS
    }
}

impl fmt::Debug for SignInProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignInProvider").field("name", &self.config.name).finish_non_exhaustive()
    }
}

fn unavailable(url: &str, why: &str) -> SignInError {
    SignInError::Unavailable { why: format!("{url}: {why}") }
}

fn without(name: &str) -> SignInError {
    SignInError::Unavailable { why: format!("its discovery document has no `{name}`") }
}

/// The text without control characters, cut to [`MAX_USER_NAME_BYTES`].
fn bounded(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        if name.len().saturating_add(c.len_utf8()) > MAX_USER_NAME_BYTES {
            break;
        }
        name.push(c);
    }
    name.trim().to_owned()
}
