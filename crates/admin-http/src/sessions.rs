//! Sign-in links, which work once, and sessions, which end. Sessions survive a restart if a [`SessionStore`] keeps
//! them. Links do not survive it. Stores only hashes of tokens. Must not know cookies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use headrace_admin::{AdminError, SecretText};
use headrace_domain::UnixNanos;
use headrace_identity::{OperatorId, OperatorRecord, Operators, UserLogin};
use headrace_jwt::{ProviderUser, SignInProviders};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;

use crate::provider_operator;
use crate::throttle::CredentialMark;

/// Lifetime of an unused link.
pub const LINK_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Maximum lifetime of a session, with or without use.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Lifetime of a session without use.
pub const SESSION_IDLE: Duration = Duration::from_secs(2 * 60 * 60);
/// Maximum number of unused links. The oldest one is dropped for a new one.
const MAX_LINKS: usize = 64;
/// Maximum number of sessions, in total and for one operator. The one that has been unused for longest is dropped for a
/// new one.
const MAX_SESSIONS: usize = 1_024;
const MAX_SESSIONS_PER_OPERATOR: usize = 16;
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Maximum age of the stored time of a session's last use.
const USE_STORED_EVERY: Duration = Duration::from_secs(5 * 60);

/// The hash of a token, which is stored instead of the token.
type TokenHash = [u8; 32];

/// A session in the store. It contains nothing that signs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// The hash of the session's token.
    pub token: [u8; 32],
    /// The operator.
    pub operator: OperatorId,
    /// When the session ends at the latest.
    pub expires: UnixNanos,
    /// When the session was last used.
    pub used: UnixNanos,
    /// The user whom an identity provider signed in. `None` for an operator of this server.
    pub user: Option<Arc<ProviderUser>>,
}

impl StoredSession {
    /// Whether an identity provider signed in a user of this name or `sub`.
    pub fn is_of(&self, user: &str) -> bool {
        self.user.as_deref().is_some_and(|signed_in| is_named(signed_in, user))
    }
}

fn is_named(signed_in: &ProviderUser, user: &str) -> bool {
    signed_in.subject == user || signed_in.name == user
}

/// Stores sessions beside the data. Methods block.
pub trait SessionStore: Send + Sync {
    /// Replaces all stored sessions, atomically.
    ///
    /// # Errors
    /// Why they could not be written. The sessions stored before are unchanged then.
    fn replace(&self, sessions: &[StoredSession]) -> Result<(), String>;
}

/// Sessions and sign-in links of all operators. Clones share everything.
#[derive(Clone)]
pub struct OperatorSessions {
    operators: Arc<Operators>,
    providers: Arc<SignInProviders>,
    open: Arc<Mutex<OpenSessions>>,
    store: Option<Arc<LockedStore>>,
}

/// The store, and the lock that keeps an older list of sessions from being written over a newer one.
struct LockedStore {
    store: Box<dyn SessionStore>,
    writing: Mutex<()>,
}

impl std::fmt::Debug for OperatorSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("open", &self.open).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct OpenSessions {
    links: HashMap<TokenHash, PendingLink>,
    sessions: HashMap<TokenHash, SessionRecord>,
}

#[derive(Debug)]
struct PendingLink {
    operator: OperatorId,
    mark: Option<CredentialMark>,
    expires: UnixNanos,
}

#[derive(Debug, Clone)]
struct SessionRecord {
    operator: OperatorId,
    expires: UnixNanos,
    used: UnixNanos,
    /// The time of the last use that was stored.
    stored_use: UnixNanos,
    /// The user, if an identity provider signed it in.
    user: Option<Arc<ProviderUser>>,
}

impl SessionRecord {
    fn is_over(&self, now: UnixNanos) -> bool {
        now >= self.expires || now >= self.used.after(SESSION_IDLE)
    }
}

/// The CSRF token that a page sends with each act, so that no other page can act for it. Never shown by `Debug`.
#[derive(Clone)]
pub(crate) struct CsrfToken(String);

impl std::fmt::Debug for CsrfToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Csrf(..)")
    }
}

impl CsrfToken {
    /// The CSRF token of a session. It is derived from the session's token, so it is not stored.
    fn of(token: &str) -> Self {
        let sign = blake3::derive_key("headrace 2026 admin session csrf v1", token.as_bytes());
        Self(blake3::Hash::from(sign).to_hex().to_string())
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        bool::from(self.0.as_bytes().ct_eq(shown))
    }
}

/// The result of a look-up by token.
#[derive(Debug, Clone)]
pub(crate) struct FoundSession {
    pub(crate) operator: OperatorRecord,
    pub(crate) csrf: CsrfToken,
    pub(crate) expires: UnixNanos,
    /// The user, if an identity provider signed it in.
    pub(crate) user: Option<Arc<ProviderUser>>,
}

impl OperatorSessions {
    /// Starts without sessions. A restart ends the sessions of this table.
    pub fn new(operators: Arc<Operators>) -> Self {
        Self { operators, providers: Arc::default(), open: Arc::default(), store: None }
    }

    /// Starts without sessions, with identity providers at which operators may sign in.
    #[must_use]
    pub fn with_providers(self, providers: Arc<SignInProviders>) -> Self {
        Self { providers, ..self }
    }

    /// Continues the stored sessions that have not ended and whose operators are active. Keeps all sessions in the
    /// store from now on.
    pub fn continued(
        operators: Arc<Operators>,
        providers: Arc<SignInProviders>,
        stored: Vec<StoredSession>,
        store: Box<dyn SessionStore>,
        now: UnixNanos,
    ) -> Self {
        let store = LockedStore { store, writing: Mutex::new(()) };
        let sessions = Self { operators, providers, open: Arc::default(), store: Some(Arc::new(store)) };
        for StoredSession { token, operator, expires, used, user } in stored {
            // A clock that was set back makes no session longer.
            let expires = expires.min(now.after(SESSION_LIFETIME));
            let used = used.min(now);
            let session = SessionRecord { operator, expires, used, stored_use: used, user };
            if !session.is_over(now) && sessions.operator_of(&session).is_some() {
                sessions.open.lock().take(token, session);
            }
        }
        sessions
    }

    /// The identity providers at which operators may sign in.
    pub(crate) fn providers(&self) -> &SignInProviders {
        &self.providers
    }

    /// The operator of a session. `None` if it was revoked, if the rules that made a user an operator have changed, or if
    /// the user was deactivated.
    fn operator_of(&self, session: &SessionRecord) -> Option<OperatorRecord> {
        match &session.user {
            Some(user) if self.still_allows(user) => provider_operator::record(user),
            Some(_) => None,
            None => self.operators.active(&session.operator),
        }
    }

    /// Whether a provider's user may still be an operator: the rules that gave the role are in force, and the user was not
    /// deactivated here.
    pub(crate) fn still_allows(&self, user: &ProviderUser) -> bool {
        self.providers.still_allow(user) && !self.is_deprovisioned(user)
    }

    /// Returns whether a provider's user has user records in the organisations that count, and none of them is active.
    pub(crate) fn is_deprovisioned(&self, user: &ProviderUser) -> bool {
        let login = UserLogin { issuer: user.issuer.clone(), subject: user.subject.clone() };
        let provider = self.providers.named(&user.provider);
        self.operators.is_deprovisioned(&login, provider.as_ref().and_then(|provider| provider.users_of()))
    }

    /// All operators.
    pub(crate) fn operators(&self) -> &Operators {
        &self.operators
    }

    /// Creates a token that signs an operator in once. Returns it with the time when it expires.
    ///
    /// # Errors
    /// If there is no such operator, or the operating system gave no randomness.
    pub fn link(&self, id: &OperatorId, now: UnixNanos) -> Result<(SecretText, UnixNanos), AdminError> {
        if self.operators.active(id).is_none() {
            return Err(headrace_identity::IdentityError::UnknownOperator(id.to_string()).into());
        }
        let token = token()?;
        let expires = now.after(LINK_LIFETIME);
        let mut open = self.open.lock();
        open.links.retain(|_, link| now < link.expires);
        make_room(&mut open.links, MAX_LINKS, |link| link.expires, |_| true);
        let mark = CredentialMark::of(token.expose());
        open.links.insert(hash(token.expose()), PendingLink { operator: id.clone(), mark, expires });
        Ok((token, expires))
    }

    /// Returns whether an unused link has this mark.
    pub(crate) fn has_link_like(&self, mark: CredentialMark) -> bool {
        self.open.lock().links.values().any(|link| link.mark == Some(mark))
    }

    /// Uses a link up and returns its operator. `None` if the link is unknown, used or expired, or its operator was
    /// revoked.
    pub(crate) fn enter(&self, link: &str, now: UnixNanos) -> Option<OperatorRecord> {
        let link = self.open.lock().links.remove(&hash(link))?;
        if now < link.expires { self.operators.active(&link.operator) } else { None }
    }

    /// Opens a session for an operator who has shown a key or a link.
    ///
    /// # Errors
    /// If the operating system gave no randomness.
    pub(crate) fn begin(
        &self,
        operator: &OperatorRecord,
        now: UnixNanos,
    ) -> Result<(SecretText, FoundSession), AdminError> {
        self.open(operator, None, SESSION_LIFETIME, now)
    }

    /// Opens a session for a user whom an identity provider has signed in, for at most `lifetime`.
    ///
    /// # Errors
    /// If the operating system gave no randomness.
    pub(crate) fn begin_for_user(
        &self,
        (operator, user): (&OperatorRecord, ProviderUser),
        lifetime: Duration,
        now: UnixNanos,
    ) -> Result<(SecretText, FoundSession), AdminError> {
        self.open(operator, Some(Arc::new(user)), lifetime.min(SESSION_LIFETIME), now)
    }

    fn open(
        &self,
        operator: &OperatorRecord,
        user: Option<Arc<ProviderUser>>,
        lifetime: Duration,
        now: UnixNanos,
    ) -> Result<(SecretText, FoundSession), AdminError> {
        let token = token()?;
        let csrf = CsrfToken::of(token.expose());
        let (expires, id) = (now.after(lifetime), operator.id.clone());
        let session = SessionRecord { operator: id, expires, used: now, stored_use: now, user: user.clone() };
        let mut open = self.open.lock();
        open.sessions.retain(|_, session| !session.is_over(now));
        open.take(hash(token.expose()), session);
        drop(open);
        Ok((token, FoundSession { operator: operator.clone(), csrf, expires, user }))
    }

    /// Returns the session of a token, and counts as use. `None` if the session has ended or its operator was revoked.
    pub(crate) fn find(&self, token: &str, now: UnixNanos) -> Option<FoundSession> {
        let key = hash(token);
        let mut open = self.open.lock();
        let session = open.sessions.get_mut(&key)?;
        let operator = self.operator_of(session).filter(|_| !session.is_over(now));
        let Some(operator) = operator else {
            open.sessions.remove(&key);
            return None;
        };
        session.used = now;
        let (expires, user) = (session.expires, session.user.clone());
        Some(FoundSession { operator, csrf: CsrfToken::of(token), expires, user })
    }

    /// Returns whether the stored time of the session's last use is too old. True at most once per
    /// [`USE_STORED_EVERY`].
    pub(crate) fn is_store_behind(&self, token: &str) -> bool {
        if self.store.is_none() {
            return false;
        }
        let mut open = self.open.lock();
        let session = open.sessions.get_mut(&hash(token));
        session.is_some_and(|session| {
            let is_behind = session.used >= session.stored_use.after(USE_STORED_EVERY);
            if is_behind {
                session.stored_use = session.used;
            }
            is_behind
        })
    }

    /// Stores all sessions as they are. Blocks.
    ///
    /// # Errors
    /// Why they could not be written. A session that ended in the meantime would be open again after a restart.
    pub(crate) fn store(&self) -> Result<(), String> {
        let Some(store) = &self.store else { return Ok(()) };
        let _writing = store.writing.lock();
        let of = |(token, session): (&TokenHash, &SessionRecord)| StoredSession {
            token: *token,
            operator: session.operator.clone(),
            expires: session.expires,
            used: session.used,
            user: session.user.clone(),
        };
        let all: Vec<StoredSession> = self.open.lock().sessions.iter().map(of).collect();
        store.store.replace(&all)
    }

    /// Returns whether a session is still valid, for work that outlasts a request. Does not count as use.
    pub(crate) fn lasts(&self, token: &str, now: UnixNanos) -> bool {
        let open = self.open.lock();
        let session = open.sessions.get(&hash(token));
        session.is_some_and(|session| !session.is_over(now) && self.operator_of(session).is_some())
    }

    /// Ends a session.
    pub(crate) fn end(&self, token: &str) {
        self.open.lock().sessions.remove(&hash(token));
    }

    /// Ends the sessions of a provider's user, and returns their number. Blocks.
    ///
    /// # Errors
    /// Why the remaining sessions could not be stored. The stored ones may contain the user then.
    pub fn forget(&self, user: &str) -> Result<u64, String> {
        let mut open = self.open.lock();
        let before = open.sessions.len();
        open.sessions.retain(|_, session| !session.user.as_deref().is_some_and(|of| is_named(of, user)));
        let ended = before.saturating_sub(open.sessions.len());
        drop(open);
        if ended > 0 {
            self.store()?;
        }
        Ok(ended as u64)
    }

    /// Ends every session of an operator, and drops the operator's unused links.
    pub(crate) fn end_all(&self, operator: &OperatorId) {
        let mut open = self.open.lock();
        open.sessions.retain(|_, session| session.operator != *operator);
        open.links.retain(|_, link| link.operator != *operator);
    }
}

impl OpenSessions {
    /// Adds a session. If there are too many, drops those that have been unused for longest.
    fn take(&mut self, token: TokenHash, session: SessionRecord) {
        let own = |other: &SessionRecord| other.operator == session.operator;
        make_room(&mut self.sessions, MAX_SESSIONS_PER_OPERATOR, |session| session.used, own);
        make_room(&mut self.sessions, MAX_SESSIONS, |session| session.used, |_| true);
        self.sessions.insert(token, session);
    }
}

/// Removes the oldest entries that `counts` accepts until fewer than `most` of them are left.
fn make_room<T>(
    kept: &mut HashMap<TokenHash, T>,
    most: usize,
    age: impl Fn(&T) -> UnixNanos,
    counts: impl Fn(&T) -> bool,
) {
    while kept.values().filter(|value| counts(value)).count() >= most {
        let oldest = kept.iter().filter(|(_, value)| counts(value)).min_by_key(|(_, value)| age(value));
        let Some(oldest) = oldest.map(|(key, _)| *key) else { return };
        kept.remove(&oldest);
    }
}

fn hash(token: &str) -> TokenHash {
    blake3::derive_key("headrace 2026 admin session token v1", token.as_bytes())
}

/// 256 random bits in hexadecimal.
fn token() -> Result<SecretText, AdminError> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|_| AdminError::from(headrace_identity::IdentityError::Randomness))?;
    Ok(SecretText::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
}

#[cfg(test)]
mod tests;
