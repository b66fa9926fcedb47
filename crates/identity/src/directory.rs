//! All organisations, projects and keys, in memory: read without a lock, changed through the store first.
//! Decides whether a credential is good; knows neither the headers it came in nor what it will be used for.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use headrace_domain::{KeyId, OrgId, ProjectId, UnixNanos};
use parking_lot::{Mutex, MutexGuard};
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use crate::record::check_text;
use crate::secret::{self, KeyHasher};
use crate::{
    AuditEntry, AuditRow, AuditSummary, AuthRefusal, HashSecret, IdentityError, KeyHash, KeyRecord, KeyStore,
    NewKey, OrgRecord, Principal, ProjectRecord, RateLimits, StoreError, StoredDirectory, StoredKey,
};

/// Characters of a key's public id after `key_`: 20 · log2(62) = 119 bits.
const KEY_ID_CHARS: usize = 20;

/// Who there is.
pub struct Directory {
    store: Arc<dyn KeyStore>,
    hasher: KeyHasher,
    /// What the store holds; locked for the whole of a change, so that changes are in one order everywhere.
    written: Mutex<StoredDirectory>,
    /// What readers see.
    current: ArcSwap<Snapshot>,
}

#[derive(Default)]
struct Snapshot {
    by_hash: HashMap<u128, Entry>,
    keys: BTreeMap<KeyId, KeyRecord>,
    orgs: BTreeMap<OrgId, OrgRecord>,
    projects: BTreeMap<ProjectId, ProjectRecord>,
}

struct Entry {
    hash: KeyHash,
    revoked: bool,
    principal: Arc<Principal>,
}

/// Reading.
impl Directory {
    /// Loads everything from `store`.
    ///
    /// # Errors
    /// The store's, and [`IdentityError::WrongSecret`] if its keys were hashed with another secret.
    pub fn open(store: Arc<dyn KeyStore>, secret: HashSecret) -> Result<Self, IdentityError> {
        let hasher = KeyHasher::new(&secret);
        let kept = store.secret_check(hasher.check())?;
        if !bool::from(kept.ct_eq(&hasher.check())) {
            return Err(IdentityError::WrongSecret);
        }
        let written = store.load_all()?;
        let current = ArcSwap::from_pointee(Snapshot::of(&written)?);
        Ok(Self { store, hasher, written: Mutex::new(written), current })
    }

    /// The principal of a presented key.
    ///
    /// One hash over at most 256 bytes, one look-up and one comparison in constant time, for good and bad
    /// keys alike; no lock, no I/O, nothing kept of what was presented.
    ///
    /// # Errors
    /// The refusal. Only [`AuthRefusal::public`] may be shown.
    pub fn authenticate(&self, presented: &str, now: UnixNanos) -> Result<Arc<Principal>, AuthRefusal> {
        if presented.is_empty() {
            return Err(AuthRefusal::Missing);
        }
        let well_formed = secret::is_well_formed(presented);
        let hash = self.hasher.hash(presented.as_bytes());
        let current = self.current.load();
        let entry = current.by_hash.get(&hash.prefix());
        const NO_KEY: KeyHash = KeyHash::from_bytes([0; 32]);
        let same = bool::from(entry.map_or(&NO_KEY, |entry| &entry.hash).ct_eq(&hash));
        match entry {
            _ if !well_formed => Err(AuthRefusal::Malformed),
            Some(entry) if same && entry.revoked => Err(AuthRefusal::Revoked),
            Some(entry) if same && entry.principal.expires.is_some_and(|end| now >= end) => {
                Err(AuthRefusal::Expired)
            }
            Some(entry) if same => Ok(Arc::clone(&entry.principal)),
            _ => Err(AuthRefusal::Unknown),
        }
    }

    /// All keys, by id, revoked and expired ones too.
    pub fn list(&self) -> Vec<KeyRecord> {
        self.current.load().keys.values().cloned().collect()
    }

    /// One key.
    pub fn key(&self, id: &KeyId) -> Option<KeyRecord> {
        self.current.load().keys.get(id).cloned()
    }

    /// All organisations, by id.
    pub fn orgs(&self) -> Vec<OrgRecord> {
        self.current.load().orgs.values().cloned().collect()
    }

    /// One organisation.
    pub fn org(&self, id: &OrgId) -> Option<OrgRecord> {
        self.current.load().orgs.get(id).cloned()
    }

    /// All projects, by id.
    pub fn projects(&self) -> Vec<ProjectRecord> {
        self.current.load().projects.values().cloned().collect()
    }

    /// One project.
    pub fn project(&self, id: &ProjectId) -> Option<ProjectRecord> {
        self.current.load().projects.get(id).cloned()
    }

    /// At most `limit` rows of the audit log after row `after` (0: from the first).
    ///
    /// # Errors
    /// The store's.
    pub fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, IdentityError> {
        Ok(self.store.audit(after, limit)?)
    }

    /// Checks the whole audit log.
    ///
    /// # Errors
    /// The store's; [`StoreError::Corrupt`] names the first bad row.
    pub fn verify_audit(&self) -> Result<AuditSummary, IdentityError> {
        Ok(self.store.verify_audit()?)
    }
}

/// Changing. Every change is durable, with its audit row, before readers see it and before it returns.
/// These block on the store; call them where blocking is allowed.
impl Directory {
    /// Creates a key; its secret is in the answer and nowhere else.
    ///
    /// # Errors
    /// An unknown organisation or project, a name, secret or expiry that does not fit, a secret that is in
    /// use, or the store's.
    pub fn create_key(
        &self,
        new: NewKey,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(KeyRecord, SecretString), IdentityError> {
        check_text("actor", actor)?;
        check_text("name", &new.name)?;
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
            created: now,
            expires: new.expires,
            revoked: None,
        };
        let hash = self.hasher.hash(secret.expose_secret().as_bytes());
        self.insert(StoredKey { hash, record: record.clone() }, actor, now)?;
        Ok((record, secret))
    }

    /// Revokes a key: once this returns, no request authenticates with it. Revoking it again changes nothing.
    ///
    /// # Errors
    /// [`IdentityError::UnknownKey`], or the store's; after the latter it should be tried again.
    pub fn revoke(&self, id: &KeyId, actor: &str, now: UnixNanos) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let mut written = self.written.lock();
        let key = written.keys.iter_mut().find(|key| &key.record.id == id);
        let key = key.ok_or_else(|| IdentityError::UnknownKey(id.clone()))?;
        if key.record.revoked.is_some() {
            return Ok(());
        }
        let audit = entry(now, actor, "key.revoke", id.as_str(), format!("name {:?}", key.record.name));
        self.store.set_revoked(id, now, &audit)?;
        key.record.revoked = Some(now);
        self.publish(&written)
    }

    /// Creates an organisation.
    ///
    /// # Errors
    /// [`IdentityError::Exists`], or the store's.
    pub fn create_org(
        &self,
        id: OrgId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<OrgRecord, IdentityError> {
        check_text("actor", actor)?;
        let mut written = self.written.lock();
        if written.orgs.iter().any(|org| org.id == id) {
            return Err(IdentityError::Exists { what: format!("organisation `{id}`") });
        }
        let org = OrgRecord { id, limits, created: now };
        self.store.upsert_org(&org, &entry(now, actor, "org.create", org.id.as_str(), limits.to_string()))?;
        written.orgs.push(org.clone());
        self.publish(&written)?;
        Ok(org)
    }

    /// Changes an organisation's limits.
    ///
    /// # Errors
    /// [`IdentityError::UnknownOrg`], or the store's.
    pub fn set_org_limits(
        &self,
        id: &OrgId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let mut written = self.written.lock();
        let org = written.orgs.iter_mut().find(|org| &org.id == id);
        let org = org.ok_or_else(|| IdentityError::UnknownOrg(id.clone()))?;
        let changed = OrgRecord { limits, ..org.clone() };
        self.store.upsert_org(&changed, &entry(now, actor, "org.limits", id.as_str(), limits.to_string()))?;
        *org = changed;
        self.publish(&written)
    }

    /// Creates a project within an organisation.
    ///
    /// # Errors
    /// [`IdentityError::UnknownOrg`], [`IdentityError::Exists`], or the store's.
    pub fn create_project(
        &self,
        id: ProjectId,
        org: OrgId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<ProjectRecord, IdentityError> {
        check_text("actor", actor)?;
        let mut written = self.written.lock();
        if !written.orgs.iter().any(|known| known.id == org) {
            return Err(IdentityError::UnknownOrg(org));
        }
        if written.projects.iter().any(|project| project.id == id) {
            return Err(IdentityError::Exists { what: format!("project `{id}`") });
        }
        let project = ProjectRecord { id, org, limits, created: now };
        let detail = format!("org {}, {limits}", project.org);
        let audit = entry(now, actor, "project.create", project.id.as_str(), detail);
        self.store.upsert_project(&project, &audit)?;
        written.projects.push(project.clone());
        self.publish(&written)?;
        Ok(project)
    }

    /// Changes a project's limits.
    ///
    /// # Errors
    /// [`IdentityError::UnknownProject`], or the store's.
    pub fn set_project_limits(
        &self,
        id: &ProjectId,
        limits: RateLimits,
        actor: &str,
        now: UnixNanos,
    ) -> Result<(), IdentityError> {
        check_text("actor", actor)?;
        let mut written = self.written.lock();
        let project = written.projects.iter_mut().find(|project| &project.id == id);
        let project = project.ok_or_else(|| IdentityError::UnknownProject(id.clone()))?;
        let changed = ProjectRecord { limits, ..project.clone() };
        let audit = entry(now, actor, "project.limits", id.as_str(), limits.to_string());
        self.store.upsert_project(&changed, &audit)?;
        *project = changed;
        self.publish(&written)
    }

    /// Reads everything again, for a store that other processes change too.
    ///
    /// # Errors
    /// The store's; readers then keep what they had.
    pub fn reload(&self) -> Result<(), IdentityError> {
        let mut written = self.written.lock();
        let fresh = self.store.load_all()?;
        self.publish(&fresh)?;
        *written = fresh;
        Ok(())
    }

    fn insert(&self, key: StoredKey, actor: &str, now: UnixNanos) -> Result<(), IdentityError> {
        let mut written = self.written.lock();
        check_home(&written, &key.record)?;
        if written.keys.iter().any(|other| other.hash.prefix() == key.hash.prefix()) {
            return Err(IdentityError::Exists { what: "a key with this secret".to_owned() });
        }
        let KeyRecord { id, org, project, name, hint, models, endpoints, limits, .. } = &key.record;
        let detail = format!(
            "org {org}, project {project}, name {name:?}, ends in {hint:?}, {models}, {endpoints}, {limits}"
        );
        self.store.insert_key(&key, &entry(now, actor, "key.create", id.as_str(), detail))?;
        written.keys.push(key);
        self.publish(&written)
    }

    fn publish(&self, written: &StoredDirectory) -> Result<(), IdentityError> {
        self.current.store(Arc::new(Snapshot::of(written)?));
        Ok(())
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.current.load();
        f.debug_struct("Directory")
            .field("orgs", &current.orgs.len())
            .field("projects", &current.projects.len())
            .field("keys", &current.keys.len())
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    fn of(written: &StoredDirectory) -> Result<Self, IdentityError> {
        let orgs: BTreeMap<_, _> = written.orgs.iter().map(|org| (org.id.clone(), org.clone())).collect();
        let projects: BTreeMap<_, _> =
            written.projects.iter().map(|project| (project.id.clone(), project.clone())).collect();
        let mut snapshot = Self { orgs, projects, ..Self::default() };
        for StoredKey { hash, record } in &written.keys {
            let principal = snapshot.principal(record)?;
            let entry = Entry { hash: *hash, revoked: record.revoked.is_some(), principal };
            if snapshot.by_hash.insert(hash.prefix(), entry).is_some() {
                return Err(corrupt(record, "another key has the same hash"));
            }
            snapshot.keys.insert(record.id.clone(), record.clone());
        }
        Ok(snapshot)
    }

    fn principal(&self, key: &KeyRecord) -> Result<Arc<Principal>, IdentityError> {
        let org = self.orgs.get(&key.org).ok_or_else(|| corrupt(key, "its organisation is missing"))?;
        let project =
            self.projects.get(&key.project).ok_or_else(|| corrupt(key, "its project is missing"))?;
        if project.org != org.id {
            return Err(corrupt(key, "its project belongs to another organisation"));
        }
        Ok(Arc::new(Principal {
            org: key.org.clone(),
            project: key.project.clone(),
            key: key.id.clone(),
            name: key.name.clone(),
            models: key.models.clone(),
            endpoints: key.endpoints.clone(),
            limits: key.limits,
            project_limits: project.limits,
            org_limits: org.limits,
            expires: key.expires,
        }))
    }
}

/// That a key's organisation and project are there and belong together.
fn check_home(written: &MutexGuard<'_, StoredDirectory>, key: &KeyRecord) -> Result<(), IdentityError> {
    if !written.orgs.iter().any(|org| org.id == key.org) {
        return Err(IdentityError::UnknownOrg(key.org.clone()));
    }
    let project = written.projects.iter().find(|project| project.id == key.project);
    let project = project.ok_or_else(|| IdentityError::UnknownProject(key.project.clone()))?;
    if project.org != key.org {
        return Err(IdentityError::ProjectOfAnotherOrg {
            project: key.project.clone(),
            org: key.org.clone(),
        });
    }
    Ok(())
}

fn corrupt(key: &KeyRecord, why: &str) -> IdentityError {
    StoreError::Corrupt { what: format!("key `{}`", key.id), why: why.to_owned() }.into()
}

fn entry(at: UnixNanos, actor: &str, act: &str, subject: &str, detail: String) -> AuditEntry {
    AuditEntry { at, actor: actor.to_owned(), act: act.to_owned(), subject: subject.to_owned(), detail }
}

#[cfg(test)]
mod tests;
