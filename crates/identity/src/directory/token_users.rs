//! Users whom a token shows for the first time, and when tokens of users were last accepted. A request notes both in memory;
//! records are made later, off the path of requests, and at most one for each user. Must not know tokens.

use std::sync::Arc;

use headrace_domain::{KeyId, OrgId, UnixNanos};

use super::account_words::user_words;
use super::records::Records;
use super::{Directory, IdentityError, entry};
use crate::key_use::KeyUseClock;
use crate::{
    AccountId, AccountKind, AccountRecord, FirstToken, KeyUse, StoreError, StoredAccount, UserLogin,
    UserProfile, UserRecord,
};

/// Maximum number of users that wait for their record. Further ones are noted again with a later request.
const MAX_WAITING: usize = 1_024;
/// Maximum number of users of an organisation whose record a token made. Further ones call without a record.
const MAX_TOKEN_USERS_PER_ORG: usize = 10_000;
/// Maximum number of records that one call makes.
const MADE_AT_ONCE: usize = 64;
/// The actor of these records in the audit log.
const ACTOR: &str = "first token";
/// Longest name of a user, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Records when tokens of one user are accepted.
#[derive(Debug, Clone)]
pub struct TokenUse(Arc<KeyUseClock>);

impl TokenUse {
    /// Records an accepted token.
    pub fn record(&self, now: UnixNanos) {
        self.0.record(now);
    }
}

impl Directory {
    /// What records the use of a user's tokens. `None` if the user has no record. `key` is the id of its principal.
    pub fn token_use(&self, key: &KeyId) -> Option<TokenUse> {
        let records = self.records.read();
        let user = use_key(&records.accounts.token_user(key)?.id)?;
        if let Some(used) = records.uses.get(&user) {
            return Some(TokenUse(Arc::clone(used)));
        }
        drop(records);
        Some(TokenUse(Arc::clone(self.records.write().uses.entry(user).or_default())))
    }

    /// Whether users wait for their record.
    pub fn has_first_tokens(&self) -> bool {
        !self.first_tokens.lock().is_empty()
    }

    /// Notes a user without a record. [`Directory::make_token_users`] makes the record. Does no I/O.
    pub fn note_first_token(&self, key: &KeyId, first: impl FnOnce() -> FirstToken) {
        let mut waiting = self.first_tokens.lock();
        if waiting.len() < MAX_WAITING && !waiting.contains_key(key) {
            waiting.insert(key.clone(), first());
        }
    }

    /// Makes the records of users that were noted, at most 64 of them. Returns how many it made. A user whose data is not
    /// valid, or whose organisation has 10,000 such users, gets none. Call it regularly. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails. The users are noted again with a later request.
    pub fn make_token_users(&self, now: UnixNanos) -> Result<usize, IdentityError> {
        let due: Vec<(KeyId, FirstToken)> = {
            let mut waiting = self.first_tokens.lock();
            let keys: Vec<KeyId> = waiting.keys().take(MADE_AT_ONCE).cloned().collect();
            keys.iter().filter_map(|key| waiting.remove_entry(key)).collect()
        };
        let mut made = 0;
        for (key, first) in due {
            match self.make_token_user(&key, first, now) {
                Ok(is_made) => made += usize::from(is_made),
                Err(error @ IdentityError::Store(StoreError::Unavailable { .. })) => return Err(error),
                // The user has a record by now, or none that would be valid.
                Err(_) => {}
            }
        }
        Ok(made)
    }

    fn make_token_user(&self, key: &KeyId, first: FirstToken, now: UnixNanos) -> Result<bool, IdentityError> {
        let FirstToken { org, login, display_name } = first;
        let records = self.records.read();
        let of_org = records.accounts.users.values().filter(|user| user.by_token && user.org == org);
        if records.accounts.token_user(key).is_some() || of_org.count() >= MAX_TOKEN_USERS_PER_ORG {
            return Ok(false);
        }
        drop(records);
        let profile = |name: String| {
            let mut profile = UserProfile::new(&name);
            profile.login = Some(login.clone());
            profile.display_name.clone_from(&display_name);
            if profile.check().is_err() {
                profile.display_name = None;
            }
            profile
        };
        // Two issuers of one host may have the same subject. An id of the token is unique.
        let names =
            [token_user_name(&login).filter(|name| name.len() <= MAX_NAME_BYTES), Some(key.to_string())];
        let mut last = Ok(false);
        for name in names.into_iter().flatten() {
            let profile = profile(name);
            profile.check()?;
            let id = self.next_id(AccountKind::User, &org, ACTOR)?;
            let user = UserRecord { by_token: true, ..UserRecord::new(id, org.clone(), profile, now) };
            let audit = entry(now, ACTOR, "user.create", user.id.as_str(), user_words(&user));
            let record = AccountRecord::User(user);
            last = self.put_account(StoredAccount { hash: None, record }, &audit).map(|()| true);
            if !matches!(last, Err(IdentityError::Exists { .. })) {
                break;
            }
        }
        last
    }

    /// Gives the record that a token made to an identity provider or an operator that creates the same user. What an
    /// operator decided about the user stays: its role, and that it is not active. Returns `None` if there is no such
    /// record.
    pub(super) fn take_over_token_user(
        &self,
        org: &OrgId,
        profile: &UserProfile,
        actor: &str,
        now: UnixNanos,
    ) -> Result<Option<UserRecord>, IdentityError> {
        let Some(login) = &profile.login else { return Ok(None) };
        let records = self.records.read();
        let found = records.accounts.user_with_login(org, login).filter(|user| is_free(user));
        let Some(id) = found.map(|user| user.id.clone()) else { return Ok(None) };
        drop(records);
        self.change(&id, |records| {
            let before = records.accounts.users.get(&id).filter(|user| is_free(user));
            let Some(before) = before else { return Ok((None, None)) };
            let mut user = UserRecord { by_token: false, ..before.clone() };
            user.profile = profile.clone();
            user.profile.role = profile.role.or(before.profile.role);
            user.profile.active &= before.profile.active;
            (user.version, user.changed) = (before.version.saturating_add(1), now);
            let audit = entry(now, actor, "user.create", id.as_str(), user_words(&user));
            let record = AccountRecord::User(user.clone());
            Ok((Some(user), Some((StoredAccount { hash: None, record }, audit))))
        })
    }

    /// Applies uses that the store has.
    pub(super) fn apply_uses(&self, uses: &[KeyUse]) {
        let records = self.records.read();
        let mut unseen = Vec::new();
        for used in uses {
            match records.uses.get(&used.key) {
                Some(clock) => clock.record_written(used.at),
                None if records.accounts.users.contains_key(used.key.as_str()) => unseen.push(used),
                None => {}
            }
        }
        drop(records);
        if !unseen.is_empty() {
            let mut records = self.records.write();
            for used in unseen {
                records.uses.entry(used.key.clone()).or_default().record_written(used.at);
            }
        }
    }
}

impl Records {
    /// The user as administrators see it: with the last use of its tokens.
    pub(super) fn seen(&self, user: &UserRecord) -> UserRecord {
        let used = use_key(&user.id).and_then(|key| self.uses.get(&key)?.last());
        UserRecord { last_seen: used, ..user.clone() }
    }
}

/// Whether a token made the record, and it was neither taken over nor removed.
fn is_free(user: &UserRecord) -> bool {
    user.by_token && user.removed.is_none()
}

/// The id under which the uses of a user's tokens are stored, beside those of keys.
fn use_key(user: &AccountId) -> Option<KeyId> {
    KeyId::new(user.as_str()).ok()
}

/// The name of a user whose record a token made. It has the issuer's host in it, because it must differ from the names that
/// an identity provider gives: `ann at login.example.com`.
fn token_user_name(login: &UserLogin) -> Option<String> {
    let rest = login.issuer.split_once("://").map_or(login.issuer.as_str(), |(_, rest)| rest);
    let host = rest.split('/').next().filter(|host| !host.is_empty())?;
    Some(format!("{} at {host}", login.subject))
}
