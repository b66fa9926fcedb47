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
mod tests {
    use super::*;
    use headrace_identity::{HashSecret, MemoryKeyStore, Role};

    const NOW: UnixNanos = UnixNanos::new(1_000_000_000_000);

    fn sessions() -> (OperatorSessions, OperatorRecord, OperatorRecord) {
        let store = Arc::new(MemoryKeyStore::new());
        let operators = Operators::open(store, &HashSecret::new([3; 32])).unwrap();
        let (ann, _) = operators.create("ann", Role::Owner, "test", NOW).unwrap();
        let (bob, _) = operators.create("bob", Role::Viewer, "test", NOW).unwrap();
        (OperatorSessions::new(Arc::new(operators)), ann, bob)
    }

    #[test]
    fn a_link_works_once_and_for_ten_minutes() {
        let (sessions, ann, bob) = sessions();
        let (link, expires) = sessions.link(&ann.id, NOW).unwrap();
        assert_eq!(expires, NOW.after(LINK_LIFETIME));
        assert_eq!(sessions.enter("0", NOW), None);
        assert_eq!(sessions.enter(link.expose(), NOW), Some(ann.clone()));
        assert_eq!(sessions.enter(link.expose(), NOW), None, "used");
        let (late, expires) = sessions.link(&ann.id, NOW).unwrap();
        assert_eq!(sessions.enter(late.expose(), expires), None, "too late");
        let (revoked, _) = sessions.link(&bob.id, NOW).unwrap();
        sessions.operators().revoke(&bob.id, "ann", NOW).unwrap();
        assert_eq!(sessions.enter(revoked.expose(), NOW), None);
        assert!(sessions.link(&bob.id, NOW).is_err());
    }

    #[test]
    fn a_session_ends_by_itself_by_signing_out_and_with_its_operator() {
        let (sessions, ann, bob) = sessions();
        let begin = |who: &OperatorRecord| sessions.begin(who, NOW).unwrap().0;
        let idle = begin(&ann);
        assert!(sessions.find(idle.expose(), NOW.after(SESSION_IDLE)).is_none());
        assert!(sessions.find(idle.expose(), NOW).is_none(), "once over it stays over");
        let busy = begin(&ann);
        let mut now = NOW;
        while now.after(SESSION_IDLE / 2) < NOW.after(SESSION_LIFETIME) {
            now = now.after(SESSION_IDLE / 2);
            assert!(sessions.find(busy.expose(), now).is_some());
        }
        assert!(sessions.find(busy.expose(), NOW.after(SESSION_LIFETIME)).is_none());
        let out = begin(&ann);
        sessions.end(out.expose());
        assert!(sessions.find(out.expose(), NOW).is_none());
        let revoked = begin(&bob);
        assert!(sessions.lasts(revoked.expose(), NOW));
        sessions.operators().revoke(&bob.id, "ann", NOW).unwrap();
        assert!(!sessions.lasts(revoked.expose(), NOW));
        assert!(sessions.find(revoked.expose(), NOW).is_none());
    }

    /// A store in memory. Every write fails while an error is set.
    #[derive(Clone, Default)]
    struct MemoryStore(Arc<Mutex<Vec<StoredSession>>>, Arc<Mutex<Option<String>>>);

    impl SessionStore for MemoryStore {
        fn replace(&self, sessions: &[StoredSession]) -> Result<(), String> {
            if let Some(why) = self.1.lock().clone() {
                return Err(why);
            }
            *self.0.lock() = sessions.to_vec();
            Ok(())
        }
    }

    fn restarted(operators: &Arc<Operators>, kept: &MemoryStore, now: UnixNanos) -> OperatorSessions {
        let stored = kept.0.lock().clone();
        OperatorSessions::continued(
            Arc::clone(operators),
            Arc::default(),
            stored,
            Box::new(kept.clone()),
            now,
        )
    }

    #[test]
    fn a_session_survives_a_restart_and_ends_as_it_would_have() {
        let (memory, ann, bob) = sessions();
        let (operators, kept) = (Arc::clone(&memory.operators), MemoryStore::default());
        let first = restarted(&operators, &kept, NOW);
        let begin = |who: &OperatorRecord| first.begin(who, NOW).unwrap();
        let (stays, found) = begin(&ann);
        let (out, _) = begin(&ann);
        let (idle, _) = begin(&ann);
        let (revoked, _) = begin(&bob);
        let link = first.link(&ann.id, NOW).unwrap().0;
        let later = NOW.after(SESSION_IDLE / 2);
        assert!(first.find(stays.expose(), later).is_some() && first.find(out.expose(), later).is_some());
        first.end(out.expose());
        first.store().unwrap();
        let text = format!("{:?}", kept.0.lock());
        assert!(
            !text.contains(stays.expose()) && !text.contains(found.csrf.expose()),
            "nothing stored signs in"
        );
        operators.revoke(&bob.id, "ann", NOW).unwrap();

        let now = NOW.after(SESSION_IDLE);
        let second = restarted(&operators, &kept, now);
        let again = second.find(stays.expose(), now).unwrap();
        assert_eq!(
            (again.csrf.expose(), again.expires),
            (found.csrf.expose(), found.expires),
            "an open page stays signed in"
        );
        for (token, what) in [(&out, "signed out"), (&idle, "idle"), (&revoked, "revoked")] {
            assert!(second.find(token.expose(), now).is_none(), "{what}");
        }
        assert!(second.enter(link.expose(), later).is_none(), "a link ends with the process");
        second.store().unwrap();
        assert_eq!(kept.0.lock().len(), 1);
        // At the session's end, and with a clock that was set back.
        assert!(restarted(&operators, &kept, found.expires).find(stays.expose(), found.expires).is_none());
        let back = restarted(&operators, &kept, UnixNanos::new(0));
        let most = UnixNanos::new(0).after(SESSION_LIFETIME);
        assert!(back.find(stays.expose(), most).is_none());
    }

    #[test]
    fn the_store_learns_of_uses_now_and_then_and_never_of_an_older_list() {
        let (memory, ann, _) = sessions();
        let (operators, kept) = (Arc::clone(&memory.operators), MemoryStore::default());
        let sessions = restarted(&operators, &kept, NOW);
        let (token, _) = sessions.begin(&ann, NOW).unwrap();
        sessions.find(token.expose(), NOW.after(USE_STORED_EVERY / 2)).unwrap();
        assert!(!sessions.is_store_behind(token.expose()));
        sessions.find(token.expose(), NOW.after(USE_STORED_EVERY)).unwrap();
        assert!(sessions.is_store_behind(token.expose()));
        assert!(!sessions.is_store_behind(token.expose()), "once");
        sessions.end(token.expose());
        sessions.store().unwrap();
        assert!(kept.0.lock().is_empty(), "what is written is what is true when it is written");
        *kept.1.lock() = Some("the disk is full".to_owned());
        assert_eq!(sessions.store(), Err("the disk is full".to_owned()));
        assert!(!memory.is_store_behind(token.expose()) && memory.store().is_ok(), "without a store");
    }

    #[test]
    fn stored_sessions_are_bounded_too() {
        let (memory, ann, _) = sessions();
        let kept = MemoryStore::default();
        let of = |n: u16| StoredSession {
            token: [u8::try_from(n % 256).unwrap(); 32],
            operator: ann.id.clone(),
            expires: NOW.after(SESSION_LIFETIME),
            used: UnixNanos::new(NOW.get() - u64::from(n)),
            user: None,
        };
        *kept.0.lock() = (0..200).map(of).collect();
        let sessions = restarted(&memory.operators, &kept, NOW);
        assert_eq!(sessions.open.lock().sessions.len(), MAX_SESSIONS_PER_OPERATOR);
    }

    #[test]
    fn sessions_and_links_are_bounded_and_the_oldest_give_way() {
        let (sessions, ann, bob) = sessions();
        let at = |n: u64| UnixNanos::new(NOW.get() + n);
        let bobs = sessions.begin(&bob, at(0)).unwrap().0;
        let anns: Vec<_> = (1..40).map(|n| sessions.begin(&ann, at(n)).unwrap().0).collect();
        let live = anns.iter().filter(|token| sessions.find(token.expose(), at(50)).is_some()).count();
        assert_eq!(live, MAX_SESSIONS_PER_OPERATOR);
        assert!(sessions.find(anns[38].expose(), at(50)).is_some());
        assert!(sessions.find(bobs.expose(), at(50)).is_some(), "the sessions of other operators stay");
        let first = sessions.link(&ann.id, at(0)).unwrap().0;
        (1..=MAX_LINKS).for_each(|n| drop(sessions.link(&ann.id, at(n as u64)).unwrap()));
        assert_eq!(sessions.enter(first.expose(), at(99)), None);
        assert_eq!(sessions.open.lock().links.len(), MAX_LINKS);
    }
}
