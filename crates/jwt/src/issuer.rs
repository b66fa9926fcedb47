//! One identity provider: its keys, and when they are fetched. Keys are refreshed by their cache headers beside the calls,
//! and once for a token whose key is unknown. Must not know claims or rules.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use headrace_domain::Clock;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tracing::{info, warn};

use crate::TokenRefusal;
use crate::config::IssuerConfig;
use crate::discovery::DiscoveryDocument;
use crate::documents::{DocumentSource, FetchedDocument};
use crate::key_set::{KeyMatch, KeySet};
use crate::token::UnverifiedToken;

/// Pause between two fetches for tokens whose keys are unknown. Without it, every caller could make this server send
/// requests to a provider.
pub(crate) const UNKNOWN_KEY_PAUSE: Duration = Duration::from_secs(30);
/// Bounds on the time after which keys are fetched again.
const FRESH_FOR: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
/// The time after which keys without cache headers are fetched again.
const USUALLY_FRESH_FOR: Duration = Duration::from_secs(600);
/// Pause after a failed fetch. It doubles with each further one, up to the second value.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Longest time for one refresh: discovery and keys.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(8);

/// An identity provider with its current keys.
pub(crate) struct IssuerKeys {
    pub(crate) config: IssuerConfig,
    source: Arc<dyn DocumentSource>,
    clock: Arc<dyn Clock>,
    keys: ArcSwapOption<FetchedKeys>,
    /// Locked while keys are fetched.
    fetching: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<RefreshState>,
}

/// Keys with the moment of their fetch.
struct FetchedKeys {
    set: KeySet,
    /// Monotonic time in nanoseconds.
    fetched_ns: u64,
}

/// The refreshes so far. Times are monotonic, in nanoseconds.
#[derive(Debug, Default)]
struct RefreshState {
    /// Where discovery found the keys.
    jwks_url: Option<String>,
    /// When the keys are due.
    due_ns: u64,
    /// The last fetch for a token with an unknown key.
    for_token_ns: Option<u64>,
    /// Failures since the last success.
    failures: u32,
}

impl IssuerKeys {
    pub(crate) fn new(config: IssuerConfig, source: Arc<dyn DocumentSource>, clock: Arc<dyn Clock>) -> Self {
        let state = Mutex::new(RefreshState { jwks_url: config.jwks_url.clone(), ..RefreshState::default() });
        Self { config, source, clock, keys: ArcSwapOption::empty(), fetching: Arc::default(), state }
    }

    /// Checks the signature of a token with the key that it names.
    ///
    /// # Errors
    /// The key is unknown or for other algorithms, the signature is wrong, or the keys cannot be had.
    pub(crate) fn check_signature(&self, token: &UnverifiedToken<'_>) -> Result<(), TokenRefusal> {
        let keys = self.keys.load();
        let keys = keys.as_ref().filter(|keys| self.is_usable(keys)).ok_or_else(|| self.unavailable())?;
        match keys.set.find(token.key_id.as_deref(), token.algorithm) {
            KeyMatch::Found(key) => {
                key.verify_sig(token.signed, &token.signature).map_err(|_| TokenRefusal::Signature)
            }
            KeyMatch::OtherAlgorithm => Err(TokenRefusal::OtherAlgorithm),
            // The provider may have a new key that could not be fetched.
            KeyMatch::Unknown if self.state.lock().failures > 0 => Err(self.unavailable()),
            KeyMatch::Unknown => Err(TokenRefusal::UnknownKey),
        }
    }

    /// Returns a future that ends once the keys were fetched for this token. Returns `None` if the token's key is known,
    /// or if keys were fetched for another token a short time ago.
    pub(crate) fn fetch_for(
        self: &Arc<Self>,
        token: &UnverifiedToken<'_>,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let is_known = self.keys.load().as_ref().is_some_and(|keys| {
            let found = keys.set.find(token.key_id.as_deref(), token.algorithm);
            self.is_usable(keys) && !matches!(found, KeyMatch::Unknown)
        });
        if is_known {
            return None;
        }
        let fetching = Arc::clone(&self.fetching);
        let started = match Arc::clone(&fetching).try_lock_owned() {
            // Another fetch runs. Its keys are awaited.
            Err(_) => None,
            Ok(guard) => {
                self.may_fetch_for_token().then_some(())?;
                // A task of its own: it goes to its end if the client goes away.
                Some(tokio::spawn(Arc::clone(self).refresh(guard)))
            }
        };
        Some(async move {
            match started {
                Some(task) => drop(task.await),
                None => drop(fetching.lock().await),
            }
        })
    }

    /// Takes the one fetch that tokens with unknown keys may cause within [`UNKNOWN_KEY_PAUSE`].
    fn may_fetch_for_token(&self) -> bool {
        let now = self.clock.monotonic_nanos();
        let mut state = self.state.lock();
        let pause = nanos(UNKNOWN_KEY_PAUSE);
        let may = state.for_token_ns.is_none_or(|last| now.saturating_sub(last) >= pause);
        if may {
            state.for_token_ns = Some(now);
        }
        may
    }

    /// Fetches the keys whenever they are due, until the future is dropped.
    pub(crate) async fn keep_fresh(self: Arc<Self>) {
        loop {
            let pause = self.due_in();
            if pause.is_zero() {
                let guard = Arc::clone(&self.fetching).lock_owned().await;
                // Another fetch may have ended just now.
                if self.due_in().is_zero() {
                    Arc::clone(&self).refresh(guard).await;
                }
            } else {
                tokio::time::sleep(pause).await;
            }
        }
    }

    fn due_in(&self) -> Duration {
        let due = self.state.lock().due_ns;
        Duration::from_nanos(due.saturating_sub(self.clock.monotonic_nanos()))
    }

    /// Fetches the keys once. The guard keeps others from fetching them at the same time.
    pub(crate) async fn refresh(self: Arc<Self>, guard: OwnedMutexGuard<()>) {
        let fetched = tokio::time::timeout(REFRESH_TIMEOUT, self.fetch_keys()).await;
        let fetched =
            fetched.unwrap_or_else(|_| Err(format!("no keys within {} s", REFRESH_TIMEOUT.as_secs())));
        let now = self.clock.monotonic_nanos();
        match fetched {
            Ok((set, fresh_for)) => self.take(set, fresh_for, now),
            Err(why) => self.failed(&why, now),
        }
        drop(guard);
    }

    fn take(&self, set: KeySet, fresh_for: Option<Duration>, now: u64) {
        let fresh_for = fresh_for.unwrap_or(USUALLY_FRESH_FOR).clamp(FRESH_FOR.0, FRESH_FOR.1);
        let former = self.keys.load();
        let is_same = former.as_ref().is_some_and(|former| former.set.has_ids_of(&set));
        if !is_same {
            info!(issuer = %self.config.issuer, keys = set.len(), "fetched the keys of an identity provider");
        }
        self.keys.store(Some(Arc::new(FetchedKeys { set, fetched_ns: now })));
        let mut state = self.state.lock();
        state.failures = 0;
        state.due_ns = now.saturating_add(nanos(fresh_for));
    }

    fn failed(&self, why: &str, now: u64) {
        warn!(
            issuer = %self.config.issuer,
            why,
            "cannot fetch the keys of an identity provider; known keys stay in use for `max_key_age`"
        );
        let mut state = self.state.lock();
        let pause = RETRY_AFTER.0.saturating_mul(1 << state.failures.min(16)).min(RETRY_AFTER.1);
        state.failures = state.failures.saturating_add(1);
        state.due_ns = now.saturating_add(nanos(pause));
        // The provider may have moved its keys.
        state.jwks_url.clone_from(&self.config.jwks_url);
    }

    /// Fetches the keys, after discovery if their address is not known.
    async fn fetch_keys(&self) -> Result<(KeySet, Option<Duration>), String> {
        let known = self.state.lock().jwks_url.clone();
        let jwks_url = match known {
            Some(url) => url,
            None => self.discover().await?,
        };
        let FetchedDocument { body, fresh_for } =
            self.source.fetch(&jwks_url).await.map_err(|error| format!("{jwks_url}: {error}"))?;
        let set = KeySet::parse(&body).map_err(|why| format!("{jwks_url}: the document {why}"))?;
        self.state.lock().jwks_url = Some(jwks_url);
        Ok((set, fresh_for))
    }

    async fn discover(&self) -> Result<String, String> {
        Ok(DiscoveryDocument::fetch(self.source.as_ref(), &self.config.issuer).await?.jwks_uri)
    }

    /// Returns `true` if keys are recent enough to be used.
    fn is_usable(&self, keys: &FetchedKeys) -> bool {
        self.clock.monotonic_nanos().saturating_sub(keys.fetched_ns) < nanos(self.config.max_key_age)
    }

    fn unavailable(&self) -> TokenRefusal {
        TokenRefusal::KeysUnavailable { retry_after: self.due_in().max(Duration::from_secs(1)) }
    }
}

impl fmt::Debug for IssuerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerKeys").field("issuer", &self.config.issuer).finish_non_exhaustive()
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
