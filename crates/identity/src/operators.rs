//! Operators: the people and programs that administer the server, with their roles and keys. Reads use memory; changes
//! go to the store first. Decides whether an operator's key is valid. Knows neither what a role may do nor how the key
//! was presented.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use headrace_domain::{OrgId, UnixNanos};
use parking_lot::{Mutex, RwLock};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::credential_kind::OPERATOR_KEY as PREFIX;
use crate::record::check_text;
use crate::role::Role;
use crate::secret::{self, KeyHasher};
use crate::user_roles::UserRoles;
use crate::{AccountId, AuditEntry, AuthRefusal, HashSecret, IdentityError, KeyHash, StoreError, UserLogin};

/// Characters of a key after the prefix: 43 · log2(62) = 256 bits.
const KEY_CHARS: usize = 43;
/// Prefix of operator ids. [`ID_CHARS`] characters follow it: 119 bits.
const ID_PREFIX: &str = "op_";
const ID_CHARS: usize = 20;
/// Maximum number of operators, including revoked ones. Each sign-in by key compares with all of them.
const MAX_OPERATORS: usize = 1_000;
/// Maximum length of a name in bytes. Name and id together must fit in an audit row's actor.
const MAX_NAME_BYTES: usize = 64;

/// The id of an operator: `op_…`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OperatorId(Arc<str>);

impl OperatorId {
    /// Parses an id: `op_` and 1 to 61 letters and digits.
    ///
    /// # Errors
    /// [`IdentityError::Invalid`] if the text has another form.
    pub fn new(text: &str) -> Result<Self, IdentityError> {
        let rest = text.strip_prefix(ID_PREFIX).filter(|rest| (1..=61).contains(&rest.len()));
        if rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
            return Ok(Self(text.into()));
        }
        Err(IdentityError::Invalid { field: "operator", why: "must be `op_` and letters and digits" })
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for OperatorId {
    type Error = IdentityError;
    fn try_from(text: String) -> Result<Self, IdentityError> {
        Self::new(&text)
    }
}

impl std::str::FromStr for OperatorId {
    type Err = IdentityError;
    fn from_str(text: &str) -> Result<Self, IdentityError> {
        Self::new(text)
    }
}

impl From<OperatorId> for String {
    fn from(id: OperatorId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl fmt::Display for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperatorId({})", self.0)
    }
}

/// An operator, without the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorRecord {
    /// The operator's public id.
    pub id: OperatorId,
    /// The name: 1 to 64 bytes without control characters, unique among operators that are not revoked.
    pub name: String,
    /// The operator's role. For the operator of a user: the user's role when the operator was created.
    pub role: Role,
    /// The organisation in which the operator has its role. `None` for a role in all of them, and for the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
    /// The user that the operator is. Its role is then the user's in its organisation, and ends with the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<AccountId>,
    /// The part of the key that may be shown: its last four characters.
    pub hint: String,
    /// When the operator was created.
    #[serde(with = "headrace_domain::rfc3339")]
    pub created: UnixNanos,
    /// When the operator was revoked. `None` if it was not.
    #[serde(with = "headrace_domain::rfc3339::option")]
    pub revoked: Option<UnixNanos>,
}

impl OperatorRecord {
    /// The operator as the audit log's actor: `NAME (ID)`.
    pub fn actor(&self) -> String {
        format!("{} ({})", self.name, self.id)
    }
}

/// An operator as a store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredOperator {
    /// The keyed hash of the key.
    pub hash: KeyHash,
    /// Everything else.
    pub record: OperatorRecord,
}

/// Stores operators. Every change is durable when it returns, in one transaction with its audit row. Calls may block.
pub trait OperatorStore: Send + Sync {
    /// All operators, in order of creation.
    ///
    /// # Errors
    /// A [`StoreError`] if the store fails.
    fn operators(&self) -> Result<Vec<StoredOperator>, StoreError>;

    /// Adds an operator.
    ///
    /// # Errors
    /// [`StoreError::Duplicate`] if an operator has the same id or hash already.
    fn insert_operator(&self, operator: &StoredOperator, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Marks an operator as revoked. Revoking a revoked operator changes neither the operator nor the log.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if there is no such operator.
    fn set_operator_revoked(
        &self,
        id: &OperatorId,
        at: UnixNanos,
        audit: &AuditEntry,
    ) -> Result<(), StoreError>;
}

/// Where an operator has its role.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorScope {
    /// In all organisations, and for the server.
    #[default]
    Server,
    /// In one organisation.
    Org(OrgId),
    /// The operator is a user, and has the user's role in its organisation.
    User(AccountId),
}

/// The operators of this server.
pub struct Operators {
    store: Arc<dyn OperatorStore>,
    hasher: KeyHasher,
    /// The users. `None` if operators of users are refused.
    users: Option<Arc<dyn UserRoles>>,
    /// Locked for the whole of a change.
    changing: Mutex<()>,
    /// The operators, by id. Never locked while the store is called.
    records: RwLock<BTreeMap<OperatorId, StoredOperator>>,
}

impl fmt::Debug for Operators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operators").field("count", &self.records.read().len()).finish_non_exhaustive()
    }
}

impl Operators {
    /// Loads the operators. `secret` is the one that API keys are hashed with. Operator keys are hashed with another
    /// key derived from it.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails.
    pub fn open(store: Arc<dyn OperatorStore>, secret: &HashSecret) -> Result<Self, IdentityError> {
        let records =
            store.operators()?.into_iter().map(|operator| (operator.record.id.clone(), operator)).collect();
        Ok(Self {
            store,
            hasher: KeyHasher::of_operators(secret),
            users: None,
            changing: Mutex::default(),
            records: RwLock::new(records),
        })
    }

    /// Returns the operators with the users that some of them are.
    #[must_use]
    pub fn with_users(mut self, users: Arc<impl UserRoles + 'static>) -> Self {
        self.users = Some(users);
        self
    }

    /// The operator as it is now. `None` if it was revoked, or its user has no role or is not active.
    fn current(&self, record: &OperatorRecord) -> Option<OperatorRecord> {
        if record.revoked.is_some() {
            return None;
        }
        let Some(user) = &record.user else { return Some(record.clone()) };
        let role = self.users.as_ref()?.role_of(user)?;
        Some(OperatorRecord { role, ..record.clone() })
    }

    /// Returns the operator that a presented key belongs to. Compares with every operator's hash in constant time.
    ///
    /// # Errors
    /// An [`AuthRefusal`] if no operator has this key, or if the operator was revoked.
    pub fn authenticate(&self, presented: &str) -> Result<OperatorRecord, AuthRefusal> {
        let hash = self.hasher.hash(presented.as_bytes());
        let records = self.records.read();
        let same = |operator: &&StoredOperator| bool::from(operator.hash.ct_eq(&hash));
        // Look at all operators, so that the time does not reveal which one matched.
        let found = records.values().filter(same).fold(None, |_, operator| Some(operator));
        match found {
            _ if !presented.starts_with(PREFIX) => Err(AuthRefusal::Malformed),
            None => Err(AuthRefusal::Unknown),
            Some(operator) => self.current(&operator.record).ok_or(AuthRefusal::Revoked),
        }
    }

    /// Loads all operators again, because another process may have changed them. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails. The operators stay as they were.
    pub fn refresh(&self) -> Result<(), IdentityError> {
        let _one_change = self.changing.lock();
        let loaded = self.store.operators()?.into_iter();
        *self.records.write() = loaded.map(|operator| (operator.record.id.clone(), operator)).collect();
        Ok(())
    }

    /// All operators, ordered by id, including revoked ones.
    pub fn list(&self) -> Vec<OperatorRecord> {
        self.records.read().values().map(|operator| operator.record.clone()).collect()
    }

    /// The operator with this id, if it is not revoked, and its user has a role.
    pub fn active(&self, id: &OperatorId) -> Option<OperatorRecord> {
        let found = self.records.read().get(id).map(|operator| operator.record.clone());
        found.and_then(|record| self.current(&record))
    }

    /// Returns whether an identity provider's user has user records in `orgs`, and none of them is active. Such a user is
    /// no operator of the server.
    ///
    /// Without `orgs`, the records of all organisations count that have no operators of their own. Otherwise an
    /// organisation's administrator could end the session of a server's operator, by a record with its subject.
    pub fn is_deprovisioned(&self, login: &UserLogin, orgs: Option<&[OrgId]>) -> bool {
        let Some(users) = &self.users else { return false };
        users.is_deprovisioned(login, &|org| match orgs {
            Some(orgs) => orgs.contains(org),
            None => !self.has_had_operators(org),
        })
    }

    /// Returns whether an operator has or had its role in this organisation only. Revoked operators count: their user
    /// records are still there.
    fn has_had_operators(&self, org: &OrgId) -> bool {
        self.records.read().values().any(|operator| operator.record.org.as_ref() == Some(org))
    }

    /// The earliest-created owner that is not revoked.
    pub fn first_owner(&self) -> Option<OperatorRecord> {
        let records = self.records.read();
        let owners = records.values().map(|operator| &operator.record);
        let owners = owners.filter(|record| is_owner(record));
        owners.min_by_key(|record| record.created).cloned()
    }

    /// Creates an operator of the whole server. See [`Operators::create_within`].
    ///
    /// # Errors
    /// As for [`Operators::create_within`].
    pub fn create(
        &self,
        name: &str,
        role: Role,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(OperatorRecord, SecretString), IdentityError> {
        self.create_within(name, role, OperatorScope::Server, actor, now)
    }

    /// Creates an operator. The key is returned and stored nowhere else. Blocks.
    ///
    /// # Errors
    /// Fails if the name is invalid or taken, if the organisation or user is unknown, if the user has no role, if there
    /// are too many operators, or if the store fails.
    pub fn create_within(
        &self,
        name: &str,
        role: Role,
        scope: OperatorScope,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(OperatorRecord, SecretString), IdentityError> {
        check_text("actor", actor)?;
        check_text("name", name)?;
        if name.len() > MAX_NAME_BYTES {
            return Err(IdentityError::Invalid { field: "name", why: "must have 1 to 64 bytes" });
        }
        let _one_change = self.changing.lock();
        let records = self.list();
        if records.iter().any(|other| other.name == name && other.revoked.is_none()) {
            return Err(IdentityError::Exists { what: format!("operator `{name}`") });
        }
        if records.len() >= MAX_OPERATORS {
            return Err(IdentityError::Invalid { field: "operators", why: "are 1000 already" });
        }
        let (role, org, user) = self.resolve(role, scope)?;
        let secret = SecretString::from(secret::random_base62(PREFIX, KEY_CHARS)?);
        let record = OperatorRecord {
            id: OperatorId::new(&secret::random_base62(ID_PREFIX, ID_CHARS)?)?,
            name: name.to_owned(),
            role,
            org,
            user,
            hint: secret::tail(&secret),
            created: now,
            revoked: None,
        };
        let hash = self.hasher.hash(secret.expose_secret().as_bytes());
        let stored = StoredOperator { hash, record: record.clone() };
        let mut detail = format!("name {name:?}, role {role}");
        if let Some(org) = &record.org {
            detail.push_str(&format!(" in org {org}"));
        }
        if let Some(user) = &record.user {
            detail.push_str(&format!(", user {user}"));
        }
        let audit = entry(now, actor, "operator.create", &record.id, detail);
        self.store.insert_operator(&stored, &audit)?;
        self.records.write().insert(record.id.clone(), stored);
        Ok((record, secret))
    }

    /// The role, organisation and user of a new operator.
    fn resolve(
        &self,
        role: Role,
        scope: OperatorScope,
    ) -> Result<(Role, Option<OrgId>, Option<AccountId>), IdentityError> {
        let users = |field| {
            let why = "cannot be set here: no users are kept";
            self.users.as_ref().ok_or(IdentityError::Invalid { field, why })
        };
        match scope {
            OperatorScope::Server => Ok((role, None, None)),
            OperatorScope::Org(org) => match users("org")?.has_org(&org) {
                true => Ok((role, Some(org), None)),
                false => Err(IdentityError::UnknownOrg(org)),
            },
            OperatorScope::User(id) => {
                let users = users("user")?;
                let org = users.org_of(&id).ok_or_else(|| IdentityError::UnknownAccount(id.to_string()))?;
                let why = "must be active and have a role in its organisation";
                let role = users.role_of(&id).ok_or(IdentityError::Invalid { field: "user", why })?;
                Ok((role, Some(org), Some(id)))
            }
        }
    }

    /// Revokes an operator. From here on, the operator's key and sessions are invalid. Revoking a revoked operator
    /// changes nothing. Blocks.
    ///
    /// # Errors
    /// Fails if there is no such operator, if it is the last owner, or if the store fails. Nothing has changed in that
    /// case.
    pub fn revoke(&self, id: &OperatorId, actor: &str, now: UnixNanos) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.changing.lock();
        let records = self.list();
        let record = records.iter().find(|record| record.id == *id);
        let record = record.ok_or_else(|| IdentityError::UnknownOperator(id.to_string()))?;
        if is_owner(record) && records.iter().filter(|record| is_owner(record)).count() == 1 {
            return Err(IdentityError::LastOwner);
        }
        let audit = entry(now, actor, "operator.revoke", id, format!("name {:?}", record.name));
        self.store.set_operator_revoked(id, now, &audit)?;
        if let Some(operator) = self.records.write().get_mut(id) {
            operator.record.revoked.get_or_insert(now);
        }
        Ok(())
    }
}

/// Whether an operator is an owner of the server who is not revoked.
fn is_owner(record: &OperatorRecord) -> bool {
    record.role == Role::Owner && record.org.is_none() && record.revoked.is_none()
}

fn entry(at: UnixNanos, actor: &str, act: &str, subject: &OperatorId, detail: String) -> AuditEntry {
    AuditEntry { at, actor: actor.to_owned(), act: act.to_owned(), subject: subject.to_string(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyStore, MemoryKeyStore};

    const NOW: UnixNanos = UnixNanos::new(1_000);

    fn open(store: &Arc<MemoryKeyStore>) -> Operators {
        let store: Arc<dyn OperatorStore> = Arc::clone(store) as _;
        Operators::open(store, &HashSecret::new([7; 32])).unwrap()
    }

    #[test]
    fn a_key_is_good_until_its_operator_is_revoked_also_after_a_restart() {
        let store = Arc::new(MemoryKeyStore::new());
        let operators = open(&store);
        let (owner, owners_key) = operators.create("ann", Role::Owner, "test", NOW).unwrap();
        let (viewer, key) = operators.create("bob", Role::Viewer, "test", NOW).unwrap();
        assert!(key.expose_secret().starts_with(PREFIX) && key.expose_secret().ends_with(&viewer.hint));
        let operators = open(&store);
        assert_eq!(operators.authenticate(key.expose_secret()), Ok(viewer.clone()));
        assert_eq!(operators.authenticate(owners_key.expose_secret()), Ok(owner.clone()));
        operators.revoke(&viewer.id, "ann", NOW).unwrap();
        for operators in [operators, open(&store)] {
            assert_eq!(operators.authenticate(key.expose_secret()), Err(AuthRefusal::Revoked));
            assert!(operators.active(&viewer.id).is_none() && operators.active(&owner.id).is_some());
        }
        let acts: Vec<_> = store.audit(0, 9).unwrap().into_iter().map(|row| row.entry.act).collect();
        assert_eq!(acts, ["operator.create", "operator.create", "operator.revoke"]);
    }

    #[test]
    fn what_is_no_key_of_an_operator_is_refused() {
        let operators = open(&Arc::new(MemoryKeyStore::new()));
        let (_, key) = operators.create("ann", Role::Owner, "test", NOW).unwrap();
        let altered = key.expose_secret().replace(PREFIX, "hrop-A");
        for (presented, refusal) in [
            ("", AuthRefusal::Malformed),
            ("sk-aaaaaaaaaaaaaaaaaaaaaaaa", AuthRefusal::Malformed),
            ("hrop-", AuthRefusal::Unknown),
            (altered.as_str(), AuthRefusal::Unknown),
        ] {
            assert_eq!(operators.authenticate(presented), Err(refusal), "{presented}");
        }
    }

    #[test]
    fn there_is_always_an_owner_and_names_are_told_apart() {
        let operators = open(&Arc::new(MemoryKeyStore::new()));
        assert_eq!(operators.first_owner(), None);
        let (ann, _) = operators.create("ann", Role::Owner, "test", NOW).unwrap();
        assert_eq!(operators.revoke(&ann.id, "ann", NOW), Err(IdentityError::LastOwner));
        assert!(matches!(
            operators.create("ann", Role::Viewer, "test", NOW),
            Err(IdentityError::Exists { .. })
        ));
        let (bob, _) = operators.create("bob", Role::Owner, "test", UnixNanos::new(2_000)).unwrap();
        assert_eq!(operators.first_owner(), Some(ann.clone()));
        operators.revoke(&ann.id, "bob", NOW).unwrap();
        assert_eq!(operators.first_owner(), Some(bob));
        assert!(operators.create("ann", Role::Viewer, "test", NOW).is_ok(), "a name that is free again");
        for name in ["", "a\nb", &"a".repeat(65)] {
            assert!(operators.create(name, Role::Viewer, "test", NOW).is_err(), "{name}");
        }
    }

    #[test]
    fn ids_and_roles_are_read_as_they_are_written() {
        for role in Role::ALL {
            assert_eq!(Role::named(role.name()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
        for bad in ["", "op_", "key_a", "op_a b", "op_a/../b", &format!("op_{}", "a".repeat(62))] {
            assert!(OperatorId::new(bad).is_err(), "{bad}");
        }
    }
}
