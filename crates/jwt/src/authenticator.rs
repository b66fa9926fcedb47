//! [`TokenAuthenticator`]: from a JWT to a principal. The entry point of this crate. Its only I/O is in the futures that
//! it returns. Must not know the headers that carried the token.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use headrace_domain::{Clock, UnixNanos};
use headrace_identity::{Directory, IdentityError, Principal};
use tokio::task::JoinSet;

use crate::TokenRefusal;
use crate::cache::{CachedToken, TokenCache};
use crate::claims::check_claims;
use crate::config::IssuerConfig;
use crate::documents::DocumentSource;
use crate::issuer::IssuerKeys;
use crate::mapping::{MappedGrant, map_claims};
use crate::token::UnverifiedToken;

/// How long a verified token is not verified again, in nanoseconds.
const VERIFIED_FOR_NS: u64 = 60_000_000_000;
/// Maximum number of verified tokens that are kept.
const MAX_VERIFIED_TOKENS: usize = 16_384;

/// A future that ends once the keys for a token were fetched, or could not be.
pub type KeyWait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Verifies tokens of identity providers and maps their claims to principals.
pub struct TokenAuthenticator {
    issuers: Vec<Arc<IssuerKeys>>,
    cache: TokenCache,
    directory: Arc<Directory>,
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
        Self {
            issuers: issuers.into_iter().map(issuer).collect(),
            cache: TokenCache::new(MAX_VERIFIED_TOKENS),
            directory,
        }
    }

    /// Returns the principal of a token. Does no I/O. A token that was verified within the last minute costs two hashes
    /// and a look-up, another one a signature check (17 to 200 µs).
    ///
    /// # Errors
    /// Why the token is refused.
    pub fn authenticate(&self, token: &str, now: UnixNanos) -> Result<Arc<Principal>, TokenRefusal> {
        // Read before a principal is built, so that a change meanwhile is noticed at the next look-up.
        let version = self.directory.principals_version();
        if let Some(found) = self.cache.get(token, now) {
            if found.version == version {
                return Ok(found.principal);
            }
            let principal = self.directory.user_principal(&found.grant);
            let principal = Arc::new(principal.map_err(|error| no_principal(&error, None))?);
            let renewed = CachedToken { principal: Arc::clone(&principal), version, ..found };
            self.cache.put(token, renewed, now);
            return Ok(principal);
        }
        let parsed = UnverifiedToken::parse(token)?;
        let issuer = self.issuer_of(&parsed)?;
        issuer.check_signature(&parsed)?;
        // From here on the claims are the issuer's.
        let checked = check_claims(&parsed.claims, &issuer.config, now)?;
        let MappedGrant { grant, project_claim } = map_claims(&issuer.config, &parsed.claims, &checked)?;
        let principal = self.directory.user_principal(&grant);
        let principal = Arc::new(principal.map_err(|error| no_principal(&error, project_claim))?);
        let until = checked.expires.min(UnixNanos::new(now.get().saturating_add(VERIFIED_FOR_NS)));
        if now < until {
            let verified =
                CachedToken { until, grant: Arc::new(grant), principal: Arc::clone(&principal), version };
            self.cache.put(token, verified, now);
        }
        Ok(principal)
    }

    /// Returns a future to await before [`TokenAuthenticator::authenticate`] if the token's key must be fetched. Returns
    /// `None` for almost every token. Call it within a tokio runtime.
    pub fn wait_for_keys(&self, token: &str, now: UnixNanos) -> Option<KeyWait> {
        if self.cache.may_have(token, now) {
            return None;
        }
        let parsed = UnverifiedToken::parse(token).ok()?;
        let wait = self.issuer_of(&parsed).ok()?.fetch_for(&parsed)?;
        Some(Box::pin(wait))
    }

    /// Keeps the keys of all issuers fresh, until the future is dropped.
    pub async fn keep_fresh(self: Arc<Self>) {
        let mut issuers: JoinSet<()> = JoinSet::new();
        for issuer in &self.issuers {
            issuers.spawn(Arc::clone(issuer).keep_fresh());
        }
        while issuers.join_next().await.is_some() {}
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
        f.debug_struct("TokenAuthenticator").field("issuers", &self.issuers).finish_non_exhaustive()
    }
}
