//! [`TokenAuthenticator`]: from a JWT to a principal. The entry point of this crate. Its only I/O is in the futures that
//! it returns. Must not know the headers that carried the token.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwap;
use headrace_domain::{Clock, UnixNanos};
use headrace_identity::{Directory, FirstToken, IdentityError, Principal, UserGrant, UserLogin};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::TokenRefusal;
use crate::cache::{CachedToken, TokenCache, VerifiedUser};
use crate::claims::check_claims;
use crate::config::{IssuerConfig, UnknownUsers};
use crate::documents::DocumentSource;
use crate::issuer::IssuerKeys;
use crate::mapping::{MappedGrant, display_name, map_claims};
use crate::token::UnverifiedToken;

/// How long a verified token is not verified again, in nanoseconds.
const VERIFIED_FOR_NS: u64 = 60_000_000_000;
/// Maximum number of verified tokens that are kept.
const MAX_VERIFIED_TOKENS: usize = 16_384;

/// The certificate that a client has shown beside its token, by its SHA-256.
#[derive(Debug, Clone, Copy)]
pub enum ShownCertificate<'a> {
    /// No certificate.
    None,
    /// A certificate that gives no access by itself.
    Plain(&'a [u8; 32]),
    /// A certificate that gives access by itself.
    Credential(&'a [u8; 32]),
}

impl ShownCertificate<'_> {
    /// Checks that a token that is bound to a certificate comes with it, and that another token comes without a further
    /// credential. The hash of a certificate is no secret.
    fn check(self, bound_to: Option<&[u8; 32]>) -> Result<(), TokenRefusal> {
        match (self, bound_to) {
            (Self::None | Self::Plain(_), None) => Ok(()),
            (Self::Credential(_), None) => Err(TokenRefusal::TwoCredentials),
            (Self::None, Some(_)) => Err(TokenRefusal::NoCertificate),
            (Self::Plain(shown) | Self::Credential(shown), Some(bound_to)) if shown == bound_to => Ok(()),
            (Self::Plain(_) | Self::Credential(_), Some(_)) => Err(TokenRefusal::OtherCertificate),
        }
    }
}

/// A future that ends once the keys for a token were fetched, or could not be.
pub type KeyWait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Verifies tokens of identity providers and maps their claims to principals. The providers can be replaced.
pub struct TokenAuthenticator {
    trusted: ArcSwap<TrustedIssuers>,
    directory: Arc<Directory>,
    clock: Arc<dyn Clock>,
    /// The tasks that keep keys fresh. Replacing them ends the former ones.
    tasks: Mutex<JoinSet<()>>,
}

/// The issuers in force, with the tokens that were verified by their keys and rules.
struct TrustedIssuers {
    issuers: Vec<Arc<IssuerKeys>>,
    cache: TokenCache,
}

impl TokenAuthenticator {
    /// Creates an authenticator for issuers without faults ([`IssuerConfig::faults`]), each with the source of its
    /// documents. No keys are fetched yet.
    pub fn new(
        issuers: Vec<(IssuerConfig, Arc<dyn DocumentSource>)>,
        directory: Arc<Directory>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let issuer = |(config, source)| Arc::new(IssuerKeys::new(config, source, Arc::clone(clock)));
        let trusted = TrustedIssuers::new(issuers.into_iter().map(issuer).collect());
        let (trusted, tasks) = (ArcSwap::from_pointee(trusted), Mutex::default());
        Self { trusted, directory, clock: Arc::clone(clock), tasks }
    }

    /// Replaces the issuers, and keeps their keys fresh on `runtime`. Issuers whose settings are the same keep their
    /// keys. Tokens that were verified before are verified again.
    pub fn replace(&self, issuers: Vec<(IssuerConfig, Arc<dyn DocumentSource>)>, runtime: &Handle) {
        let former = self.trusted.load_full();
        let issuers = issuers.into_iter().map(|(config, source)| {
            let same = former.issuers.iter().find(|issuer| issuer.config == config).cloned();
            same.unwrap_or_else(|| Arc::new(IssuerKeys::new(config, source, Arc::clone(&self.clock))))
        });
        self.trusted.store(Arc::new(TrustedIssuers::new(issuers.collect())));
        self.keep_fresh(runtime);
    }

    /// Keeps the keys of all issuers fresh on `runtime`, until the authenticator is dropped.
    pub fn keep_fresh(&self, runtime: &Handle) {
        let mut tasks = JoinSet::new();
        for issuer in &self.trusted.load().issuers {
            tasks.spawn_on(Arc::clone(issuer).keep_fresh(), runtime);
        }
        *self.tasks.lock() = tasks;
    }

    /// Returns whether there is an issuer.
    pub fn has_issuers(&self) -> bool {
        !self.trusted.load().issuers.is_empty()
    }

    /// Returns the principal of a token. Does no I/O. A token that was verified within the last minute costs two hashes
    /// and a look-up, another one a signature check (17 to 200 µs).
    ///
    /// # Errors
    /// Why the token is refused.
    pub fn authenticate(&self, token: &str, now: UnixNanos) -> Result<Arc<Principal>, TokenRefusal> {
        self.authenticate_with(token, ShownCertificate::None, now)
    }

    /// Like [`TokenAuthenticator::authenticate`], for a client that may have shown a certificate.
    ///
    /// # Errors
    /// Why the token is refused.
    pub fn authenticate_with(
        &self,
        token: &str,
        shown: ShownCertificate<'_>,
        now: UnixNanos,
    ) -> Result<Arc<Principal>, TokenRefusal> {
        // Read before a principal is built, so that a change meanwhile is noticed at the next look-up.
        let version = self.directory.principals_version();
        let trusted = self.trusted.load();
        if let Some(found) = trusted.cache.get(token, now) {
            shown.check(found.bound_to.as_ref())?;
            if found.version == version {
                return Ok(found.principal);
            }
            let VerifiedUser { grant, display_name, unknown_users, .. } = found.user.as_ref();
            let verified = (grant.clone(), display_name.clone(), *unknown_users);
            let (user, principal) = self.principal_of(verified, None, now)?;
            let renewed = CachedToken { principal: Arc::clone(&principal), version, user, ..found };
            trusted.cache.put(token, renewed, now);
            return Ok(principal);
        }
        let parsed = UnverifiedToken::parse(token)?;
        let issuer = trusted.issuer_of(&parsed)?;
        issuer.check_signature(&parsed)?;
        // From here on the claims are the issuer's.
        let checked = check_claims(&parsed.claims, &issuer.config, now)?;
        shown.check(checked.bound_to.as_ref())?;
        let MappedGrant { grant, project_claim } = map_claims(&issuer.config, &parsed.claims, &checked)?;
        let verified = (grant, display_name(&parsed.claims), issuer.config.unknown_users);
        let (user, principal) = self.principal_of(verified, project_claim, now)?;
        let until = checked.expires.min(UnixNanos::new(now.get().saturating_add(VERIFIED_FOR_NS)));
        if now < until {
            let (bound_to, principal) = (checked.bound_to, Arc::clone(&principal));
            trusted.cache.put(token, CachedToken { until, bound_to, user, principal, version }, now);
        }
        Ok(principal)
    }

    /// Returns the principal of a verified token's user, and records the use. A user without a record is noted, accepted or
    /// refused, as the issuer's settings say. `claim` is the claim that named the project.
    fn principal_of(
        &self,
        (grant, display_name, unknown_users): (UserGrant, Option<String>, UnknownUsers),
        claim: Option<String>,
        now: UnixNanos,
    ) -> Result<(Arc<VerifiedUser>, Arc<Principal>), TokenRefusal> {
        let principal = self.directory.user_principal(&grant).map_err(|error| no_principal(&error, claim))?;
        let used = self.directory.token_use(&principal.key);
        match (&used, unknown_users) {
            (Some(used), _) => used.record(now),
            (None, UnknownUsers::Refuse) => return Err(TokenRefusal::UnknownUser),
            (None, UnknownUsers::Accept) => {}
            (None, UnknownUsers::Create) => self.directory.note_first_token(&principal.key, || FirstToken {
                org: principal.org.clone(),
                login: UserLogin {
                    issuer: grant.user.issuer.to_string(),
                    subject: grant.user.subject.to_string(),
                },
                display_name: display_name.clone(),
            }),
        }
        Ok((Arc::new(VerifiedUser { grant, display_name, unknown_users, used }), Arc::new(principal)))
    }

    /// Returns a future to await before [`TokenAuthenticator::authenticate`] if the token's key must be fetched. Returns
    /// `None` for almost every token. Call it within a tokio runtime.
    pub fn wait_for_keys(&self, token: &str, now: UnixNanos) -> Option<KeyWait> {
        let trusted = self.trusted.load();
        if trusted.cache.may_have(token, now) {
            return None;
        }
        let parsed = UnverifiedToken::parse(token).ok()?;
        let wait = trusted.issuer_of(&parsed).ok()?.fetch_for(&parsed)?;
        Some(Box::pin(wait))
    }
}

impl TrustedIssuers {
    fn new(issuers: Vec<Arc<IssuerKeys>>) -> Self {
        Self { issuers, cache: TokenCache::new(MAX_VERIFIED_TOKENS) }
    }

    fn issuer_of(&self, token: &UnverifiedToken<'_>) -> Result<&Arc<IssuerKeys>, TokenRefusal> {
        let named = token.issuer();
        let found = self.issuers.iter().find(|issuer| named == Some(issuer.config.issuer.as_str()));
        found.ok_or(TokenRefusal::UnknownIssuer)
    }
}

/// The refusal of a valid token without a principal.
fn no_principal(error: &IdentityError, claim: Option<String>) -> TokenRefusal {
    match error {
        IdentityError::InactiveUser(_) => TokenRefusal::InactiveUser,
        _ => TokenRefusal::NoProject { claim },
    }
}

impl fmt::Debug for TokenAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenAuthenticator")
            .field("issuers", &self.trusted.load().issuers)
            .finish_non_exhaustive()
    }
}
