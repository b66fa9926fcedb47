//! All organisations, projects and keys, in memory. Reads take no lock; changes go to the store first. Decides whether
//! a credential is good. Knows neither the headers that carried it nor what it will be used for.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release};

use headrace_domain::{KeyId, OrgId, ProjectId, RecordRules, Residency, UnixNanos};
use parking_lot::{Mutex, RwLock};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::record::{check_details, check_text};
use crate::secret::{self, KeyHasher};
use crate::{
    AuditEntry, AuthRefusal, CredentialKind, FirstToken, HashSecret, IdentityError, KeyDetails, KeyHash,
    KeyRecord, KeyStore, NewKey, NotedRevocation, OrgRecord, Principal, ProjectRecord, RateLimits,
    StoreError, StoredKey,
};

mod account_records;
mod account_words;
mod accounts;
mod audit;
mod details;
mod documents;
mod ends;
mod record_rules;
mod records;
mod refresh;
mod rotation;
mod scim_credentials;
mod tiers;
mod token_users;

pub use ends::KeyEnd;
use records::{Entries, Entry, Records, may_have};
pub use token_users::TokenUse;

/// Characters of a key's public id after `key_`: 20 · log2(62) = 119 bits.
const KEY_ID_CHARS: usize = 20;

/// The organisations, projects and keys of this process.
pub struct Directory {
    store: Arc<dyn KeyStore>,
    hasher: KeyHasher,
    scim_hasher: KeyHasher,
    /// Revocations that wait for the store. Locked for the whole of a change, so that changes have the same order in
    /// memory and in the store.
    waiting: Mutex<Vec<NotedRevocation>>,
    /// Length of `waiting`, for readers that must not wait for a disk.
    waiting_count: AtomicUsize,
    /// Users without a record, whose tokens were accepted.
    first_tokens: Mutex<HashMap<KeyId, FirstToken>>,
    /// Number of changes of the store when `records` was loaded. 0 if only this process changes the store.
    changes_seen: AtomicU64,
    /// Number of revocations in this process so far. Calls in flight check their keys again when it has grown.
    revocations: AtomicU64,
    /// The records in force. Never locked while the store is called.
    records: RwLock<Records>,
    /// The entries that presented keys are compared with. Changed only while `records` is locked for writing.
    entries: Entries,
}

/// How durable a revocation is. In each case it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "durability", rename_all = "snake_case")]
pub enum Revocation {
    /// On disk, with its audit row.
    Written,
    /// On disk in the store's reserve, so it is in force after a restart too. Written to the key, with its audit row,
    /// once the store accepts changes again.
    Noted {
        /// Why the store does not accept changes.
        why: String,
    },
    /// In memory only. A restart before the store accepts changes again would make the key valid again.
    InMemory {
        /// Why the store does not accept changes.
        why: String,
    },
}

/// Read operations.
impl Directory {
    /// Loads all records from `store`.
    ///
    /// # Errors
    /// [`IdentityError::Store`], or [`IdentityError::WrongSecret`] if the stored keys were hashed with another secret.
    pub fn open(store: Arc<dyn KeyStore>, secret: HashSecret) -> Result<Self, IdentityError> {
        let hasher = KeyHasher::new(&secret);
        let kept = store.secret_check(hasher.check())?;
        if !bool::from(kept.ct_eq(&hasher.check())) {
            return Err(IdentityError::WrongSecret);
        }
        // Counted before the records are read: a change in between is then loaded again.
        let changes = store.changes()?.unwrap_or(0);
        let stored = store.load_all()?;
        let waiting = stored.noted.clone();
        let records = Records::of(stored)?;
        let entries = Entries::of(&records)?;
        let has_users = !records.accounts.users.is_empty();
        let directory = Self {
            store,
            hasher,
            scim_hasher: KeyHasher::of_scim(&secret),
            waiting_count: AtomicUsize::new(waiting.len()),
            waiting: Mutex::new(waiting),
            first_tokens: Mutex::default(),
            changes_seen: AtomicU64::new(changes),
            revocations: AtomicU64::new(0),
            records: RwLock::new(records),
            entries,
        };
        if has_users {
            directory.apply_uses(&directory.store.key_uses(UnixNanos::new(0))?);
        }
        Ok(directory)
    }

    /// Returns the principal of a presented key.
    ///
    /// Costs one hash over at most 256 bytes, one look-up and one comparison in constant time, for good and bad keys
    /// alike. Takes no lock, does no I/O, and keeps nothing of the presented key.
    ///
    /// # Errors
    /// The reason for the refusal. Only [`AuthRefusal::public`] may be shown to the caller.
    pub fn authenticate(&self, presented: &str, now: UnixNanos) -> Result<Arc<Principal>, AuthRefusal> {
        self.find_valid(presented, now, |_| Ok(()))
    }

    /// As [`Directory::authenticate`], if `may_use` accepts the valid key.
    fn find_valid(
        &self,
        presented: &str,
        now: UnixNanos,
        may_use: impl FnOnce(&Entry) -> Result<(), AuthRefusal>,
    ) -> Result<Arc<Principal>, AuthRefusal> {
        if presented.is_empty() {
            return Err(AuthRefusal::Missing);
        }
        let well_formed = secret::is_well_formed(presented);
        let hash = self.hasher.hash(presented.as_bytes());
        let part = self.entries.part(&hash);
        let entry = part.as_ref().and_then(|part| part.get(&hash.prefix()));
        const NO_KEY: KeyHash = KeyHash::from_bytes([0; 32]);
        let same = bool::from(entry.map_or(&NO_KEY, |entry| &entry.hash).ct_eq(&hash));
        match entry {
            _ if !well_formed => Err(match CredentialKind::of(presented) {
                CredentialKind::ApiKey => AuthRefusal::Malformed,
                kind => AuthRefusal::OtherKind(kind),
            }),
            Some(entry) if same && entry.revoked => Err(AuthRefusal::Revoked),
            Some(entry) if same && entry.owner_inactive => Err(AuthRefusal::OwnerInactive),
            Some(entry) if same && entry.principal.expires.is_some_and(|end| now >= end) => {
                Err(AuthRefusal::Expired)
            }
            Some(entry) if same => may_use(entry).map(|()| Arc::clone(&entry.principal)),
            _ => Err(AuthRefusal::Unknown),
        }
    }

    /// Returns the principal of the key with this id. For callers inside the process that act for a key after it was
    /// presented.
    ///
    /// # Errors
    /// An [`AuthRefusal`] if the key does not exist, was revoked or has expired.
    pub fn principal(&self, id: &KeyId, now: UnixNanos) -> Result<Arc<Principal>, AuthRefusal> {
        let records = self.records.read();
        let key = records.keys.get(id).ok_or(AuthRefusal::Unknown)?;
        let entry = records.entry(key).map_err(|_| AuthRefusal::Unknown)?;
        if entry.revoked {
            return Err(AuthRefusal::Revoked);
        }
        if entry.owner_inactive {
            return Err(AuthRefusal::OwnerInactive);
        }
        let is_over = entry.principal.expires.is_some_and(|end| now >= end);
        if is_over { Err(AuthRefusal::Expired) } else { Ok(entry.principal) }
    }

    /// All keys, ordered by id, including revoked and expired ones.
    pub fn list(&self) -> Vec<KeyRecord> {
        let records = self.records.read();
        records.keys.values().map(|key| records.listed(key)).collect()
    }

    /// The key with this id.
    pub fn key(&self, id: &KeyId) -> Option<KeyRecord> {
        let records = self.records.read();
        records.keys.get(id).map(|key| records.listed(key))
    }

    /// All organisations, ordered by id.
    pub fn orgs(&self) -> Vec<OrgRecord> {
        self.records.read().orgs.values().cloned().collect()
    }

    /// The organisation with this id.
    pub fn org(&self, id: &OrgId) -> Option<OrgRecord> {
        self.records.read().orgs.get(id).cloned()
    }

    /// All projects, ordered by id.
    pub fn projects(&self) -> Vec<ProjectRecord> {
        self.records.read().projects.values().cloned().collect()
    }

    /// The project with this id.
    pub fn project(&self, id: &ProjectId) -> Option<ProjectRecord> {
        self.records.read().projects.get(id).cloned()
    }
}

/// Write operations. Every change is durable, with its audit row, before readers see it and before it returns. The
/// exception is [`Directory::revoke`], which takes effect in memory first. These functions block on the store, so call
/// them only where blocking is allowed.
impl Directory {
    /// Creates a key. Its secret is returned and stored nowhere else.
    ///
    /// # Errors
    /// Fails if the organisation or project is unknown, if the name, secret or expiry is invalid, or if the secret is
    /// in use. Also fails if the store fails.
    pub fn create_key(
        &self,
        new: NewKey,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(KeyRecord, SecretString), IdentityError> {
        check_text("actor", actor)?;
        check_text("name", &new.name)?;
        check_details(&new.details)?;
        if new.expires.is_some_and(|end| end <= now) {
            return Err(IdentityError::Invalid { field: "expires", why: "must be later than now" });
        }
        let secret = match new.secret {
            Some(chosen) if !secret::is_well_formed(chosen.expose_secret()) => {
                let why = "must be `sk-` and 4 to 253 letters, digits, `-` or `_`";
                return Err(IdentityError::Invalid { field: "secret", why });
            }
            Some(chosen) => chosen,
            None => secret::fresh_secret()?,
        };
        let id = secret::random_base62("key_", KEY_ID_CHARS)?;
        let record = KeyRecord {
            id: KeyId::new(&id).map_err(|_| IdentityError::Randomness)?,
            org: new.org,
            project: new.project,
            name: new.name,
            hint: secret::hint(&secret),
            models: new.models,
            endpoints: new.endpoints,
            limits: new.limits,
            regions: new.regions,
            secret_number: 1,
            former_until: None,
            created: now,
            expires: new.expires,
            revoked: None,
            details: new.details,
            last_used: None,
            tier: new.tier,
        };
        let hash = self.hasher.hash(secret.expose_secret().as_bytes());
        self.insert(StoredKey { hash, former: None, record: record.clone() }, actor, now)?;
        Ok((record, secret))
    }

    /// Revokes a key. From here on, no request authenticates with it, even if the store cannot write the change.
    /// Revoking a revoked key changes nothing.
    ///
    /// # Errors
    /// [`IdentityError::UnknownKey`], or a store error other than [`StoreError::Unavailable`].
    pub fn revoke(&self, id: &KeyId, actor: &str, now: UnixNanos) -> Result<Revocation, IdentityError> {
        check_text("actor", actor)?;
        let name = self.revoke_in_memory(id, now)?;
        // From here on the key is dead. The rest makes the revocation outlive this process.
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|noted| &noted.id == id) {
            let audit = entry(now, actor, "key.revoke", id.as_str(), format!("name {name:?}"));
            match self.store.set_revoked(id, now, &audit) {
                Ok(()) => return Ok(Revocation::Written),
                Err(StoreError::Unavailable { .. }) => {
                    waiting.push(NotedRevocation { id: id.clone(), audit });
                    self.waiting_count.store(waiting.len(), Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let why = self.store.failing().unwrap_or_default();
        Ok(match self.store.note_revocations(&waiting) {
            Ok(()) => Revocation::Noted { why },
            Err(_) => Revocation::InMemory { why },
        })
    }

    /// Marks a key as revoked in memory. Returns the key's name.
    fn revoke_in_memory(&self, id: &KeyId, now: UnixNanos) -> Result<String, IdentityError> {
        let mut records = self.records.write();
        let key = records.keys.get_mut(id).ok_or_else(|| IdentityError::UnknownKey(id.clone()))?;
        key.record.revoked.get_or_insert(now);
        let key = key.clone();
        self.entries.put(records.entries_of_key(&key)?);
        // A reader that sees the new count also sees the revocation.
        self.revocations.fetch_add(1, Release);
        Ok(key.record.name)
    }

    /// Writes waiting revocations. If none waits, probes a store whose last write failed. Call it regularly.
    ///
    /// # Errors
    /// [`IdentityError::Store`] while the store cannot be written.
    pub fn tend(&self) -> Result<(), IdentityError> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            if self.store.failing().is_some() {
                self.store.probe()?;
            }
            return Ok(());
        }
        while let Some(NotedRevocation { id, audit }) = waiting.first() {
            match self.store.set_revoked(id, audit.at, audit) {
                // A key that no longer exists needs no revocation.
                Ok(()) | Err(StoreError::NotFound { .. }) => drop(waiting.remove(0)),
                Err(error) => return Err(error.into()),
            }
            self.waiting_count.store(waiting.len(), Relaxed);
        }
        Ok(self.store.note_revocations(&[])?)
    }

    /// Why the store cannot be written now. `None` if it can.
    pub fn failing(&self) -> Option<String> {
        self.store.failing()
    }

    /// Creates an organisation without a residency pin: its calls may be processed anywhere.
    ///
    /// # Errors
    /// [`IdentityError::Exists`], or [`IdentityError::Store`] if the store fails.
    pub fn create_org(
        &self,
        id: OrgId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<OrgRecord, IdentityError> {
        self.create_org_within(id, limits, Residency::Anywhere, actor, now)
    }

    /// Creates an organisation whose calls may be processed within `regions` only.
    ///
    /// # Errors
    /// [`IdentityError::Exists`], or [`IdentityError::Store`] if the store fails.
    pub fn create_org_within(
        &self,
        id: OrgId,
        limits: RateLimits,
        regions: Residency,
        actor: &str,
        now: UnixNanos,
    ) -> Result<OrgRecord, IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        if self.records.read().orgs.contains_key(&id) {
            return Err(IdentityError::Exists { what: format!("organisation `{id}`") });
        }
        let detail = match &regions {
            Residency::Anywhere => limits.to_string(),
            pinned => format!("{limits}, pinned to {pinned}"),
        };
        let org = OrgRecord { id, limits, regions, created: now, tier: None };
        self.store.upsert_org(&org, &entry(now, actor, "org.create", org.id.as_str(), detail))?;
        self.records.write().put_org(org.clone());
        Ok(org)
    }

    /// Changes an organisation's limits.
    ///
    /// # Errors
    /// [`IdentityError::UnknownOrg`], or [`IdentityError::Store`] if the store fails.
    pub fn set_org_limits(
        &self,
        id: &OrgId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        let org = self.org(id).ok_or_else(|| IdentityError::UnknownOrg(id.clone()))?;
        self.change_org(
            OrgRecord { limits, ..org },
            &entry(now, actor, "org.limits", id.as_str(), limits.to_string()),
        )
    }

    /// Changes the regions where an organisation's calls may be processed. From here on, no new request is admitted
    /// under the old pin. The organisation's keys keep their own regions; the intersection of both is in force.
    ///
    /// # Errors
    /// [`IdentityError::UnknownOrg`], or [`IdentityError::Store`] if the store fails.
    pub fn set_org_regions(
        &self,
        id: &OrgId,
        regions: Residency,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        let org = self.org(id).ok_or_else(|| IdentityError::UnknownOrg(id.clone()))?;
        let audit = entry(now, actor, "org.regions", id.as_str(), regions.to_string());
        self.change_org(OrgRecord { regions, ..org }, &audit)
    }

    fn change_org(&self, changed: OrgRecord, audit: &AuditEntry) -> Result<(), IdentityError> {
        self.store.upsert_org(&changed, audit)?;
        let (id, mut records) = (changed.id.clone(), self.records.write());
        records.put_org(changed);
        self.entries.put(records.entries_of_org(&id)?);
        Ok(())
    }

    /// Creates a project within an organisation.
    ///
    /// # Errors
    /// [`IdentityError::UnknownOrg`], [`IdentityError::Exists`], or [`IdentityError::Store`] if the store fails.
    pub fn create_project(
        &self,
        id: ProjectId,
        org: OrgId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<ProjectRecord, IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        if self.org(&org).is_none() {
            return Err(IdentityError::UnknownOrg(org));
        }
        if self.project(&id).is_some() {
            return Err(IdentityError::Exists { what: format!("project `{id}`") });
        }
        let project =
            ProjectRecord { id, org, limits, created: now, tier: None, records: RecordRules::default() };
        let detail = format!("org {}, {limits}", project.org);
        let audit = entry(now, actor, "project.create", project.id.as_str(), detail);
        self.store.upsert_project(&project, &audit)?;
        self.records.write().put_project(project.clone());
        Ok(project)
    }

    /// Changes a project's limits.
    ///
    /// # Errors
    /// [`IdentityError::UnknownProject`], or [`IdentityError::Store`] if the store fails.
    pub fn set_project_limits(
        &self,
        id: &ProjectId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        let project = self.project(id).ok_or_else(|| IdentityError::UnknownProject(id.clone()))?;
        let changed = ProjectRecord { limits, ..project };
        let audit = entry(now, actor, "project.limits", id.as_str(), limits.to_string());
        self.store.upsert_project(&changed, &audit)?;
        let mut records = self.records.write();
        records.put_project(changed);
        self.entries.put(records.entries_of_project(id)?);
        Ok(())
    }

    /// Changes a key's own limits.
    ///
    /// # Errors
    /// [`IdentityError::UnknownKey`], or [`IdentityError::Store`] if the store fails.
    pub fn set_key_limits(
        &self,
        id: &KeyId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<KeyRecord, IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        self.key(id).ok_or_else(|| IdentityError::UnknownKey(id.clone()))?;
        let audit = entry(now, actor, "key.limits", id.as_str(), limits.to_string());
        self.store.set_key_limits(id, limits, &audit)?;
        self.change_key(id, |key| key.limits = limits)
    }

    /// Changes the regions where a key's calls may be processed.
    ///
    /// # Errors
    /// [`IdentityError::UnknownKey`], [`IdentityError::Widens`] if the organisation forbids that, or a store error.
    pub fn set_key_regions(
        &self,
        id: &KeyId,
        regions: Residency,
        actor: &str,
        now: UnixNanos,
    ) -> Result<KeyRecord, IdentityError> {
        check_text("actor", actor)?;
        let _one_change = self.waiting.lock();
        let key = self.key(id).ok_or_else(|| IdentityError::UnknownKey(id.clone()))?;
        let org = self.org(&key.org).ok_or_else(|| IdentityError::UnknownOrg(key.org.clone()))?;
        may_have(&regions, &org.regions)?;
        let audit = entry(now, actor, "key.regions", id.as_str(), regions.to_string());
        self.store.set_key_regions(id, &regions, &audit)?;
        self.change_key(id, |key| key.regions = regions)
    }

    /// Applies in memory a change that the store has already written.
    fn change_key(
        &self,
        id: &KeyId,
        change: impl FnOnce(&mut KeyRecord),
    ) -> Result<KeyRecord, IdentityError> {
        let mut records = self.records.write();
        let key = records.keys.get_mut(id).ok_or_else(|| IdentityError::UnknownKey(id.clone()))?;
        change(&mut key.record);
        let key = key.clone();
        self.entries.put(records.entries_of_key(&key)?);
        Ok(records.listed(&key))
    }

    fn insert(&self, key: StoredKey, actor: &str, now: UnixNanos) -> Result<(), IdentityError> {
        let _one_change = self.waiting.lock();
        self.records.read().check_home(&key.record)?;
        if self.entries.has(&key.hash) {
            return Err(IdentityError::Exists { what: "a key with this secret".to_owned() });
        }
        let KeyRecord { id, org, project, name, hint, models, endpoints, limits, regions, .. } = &key.record;
        let pinned = match regions {
            Residency::Anywhere => String::new(),
            pinned => format!(", pinned to {pinned}"),
        };
        let details = match &key.record.details {
            none if *none == KeyDetails::default() => String::new(),
            details => format!(", {}", details.words()),
        };
        let detail = format!(
            "org {org}, project {project}, name {name:?}, ends in {hint:?}, {models}, {endpoints}, {limits}{pinned}\
             {details}"
        );
        self.store.insert_key(&key, &entry(now, actor, "key.create", id.as_str(), detail))?;
        let mut records = self.records.write();
        records.put_key(key.clone());
        self.entries.put(records.entries_of_key(&key)?);
        Ok(())
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = self.records.read();
        f.debug_struct("Directory")
            .field("orgs", &records.orgs.len())
            .field("projects", &records.projects.len())
            .field("keys", &records.keys.len())
            .finish_non_exhaustive()
    }
}

fn entry(at: UnixNanos, actor: &str, act: &str, subject: &str, detail: String) -> AuditEntry {
    AuditEntry { at, actor: actor.to_owned(), act: act.to_owned(), subject: subject.to_owned(), detail }
}

#[cfg(test)]
mod tests;
