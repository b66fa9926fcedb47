//! In-memory records by id, and the entries that presented keys are compared with, by hash. Each change touches only
//! the records that it changes. Knows no store and no clock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use arc_swap::{ArcSwap, Guard};
use headrace_domain::{KeyId, OrgId, ProjectId, Residency, TierName};

use super::account_records::AccountRecords;
use crate::key_use::KeyUseClock;
use crate::{
    IdentityError, KeyHash, KeyRecord, NotedRevocation, OrgRecord, Principal, ProjectRecord, StoreError,
    StoredDirectory, StoredKey, TierRecord,
};

/// All records by id, with the projects of each organisation and the keys of each project.
#[derive(Default)]
pub(super) struct Records {
    pub(super) orgs: BTreeMap<OrgId, OrgRecord>,
    pub(super) projects: BTreeMap<ProjectId, ProjectRecord>,
    pub(super) keys: BTreeMap<KeyId, StoredKey>,
    pub(super) tiers: BTreeMap<TierName, TierRecord>,
    /// When each key was last used. The entries of a key have the same clock.
    pub(super) uses: BTreeMap<KeyId, Arc<KeyUseClock>>,
    pub(super) accounts: AccountRecords,
    projects_of: HashMap<OrgId, Vec<ProjectId>>,
    keys_of: HashMap<ProjectId, Vec<KeyId>>,
}

impl Records {
    /// Builds the records from everything in a store. Applies noted revocations.
    pub(super) fn of(stored: StoredDirectory) -> Result<Self, IdentityError> {
        let tiers = stored.tiers.into_iter().map(|tier| (tier.name.clone(), tier)).collect();
        let mut records = Self { tiers, ..Self::default() };
        for account in stored.accounts {
            records.accounts.put(account);
        }
        stored.orgs.into_iter().for_each(|org| records.put_org(org));
        stored.projects.into_iter().for_each(|project| records.put_project(project));
        for key in stored.keys {
            if records.keys.contains_key(&key.record.id) {
                return Err(corrupt(&key.record, "another key has the same id"));
            }
            records.put_key(key);
        }
        records.revoke_noted(&stored.noted);
        Ok(records)
    }

    /// Adds or replaces records, and applies noted revocations. Returns the entries of all keys that this concerns, and
    /// the hashes of secrets that keys had before.
    pub(super) fn replace(
        &mut self,
        changed: StoredDirectory,
    ) -> Result<(Vec<Entry>, Vec<KeyHash>), IdentityError> {
        let gone = changed.keys.iter().flat_map(|key| self.hashes_before(key)).collect();
        let orgs: Vec<_> = changed.orgs.iter().map(|org| org.id.clone()).collect();
        let projects: Vec<_> = changed.projects.iter().map(|project| project.id.clone()).collect();
        let keys: Vec<_> = changed.keys.iter().map(|key| key.record.id.clone()).collect();
        let tiers: Vec<_> = changed.tiers.iter().map(|tier| tier.name.clone()).collect();
        self.tiers.extend(changed.tiers.into_iter().map(|tier| (tier.name.clone(), tier)));
        let owners: HashSet<_> =
            changed.accounts.into_iter().flat_map(|account| self.accounts.put(account)).collect();
        changed.orgs.into_iter().for_each(|org| self.put_org(org));
        changed.projects.into_iter().for_each(|project| self.put_project(project));
        changed.keys.into_iter().for_each(|key| self.put_key(key));
        self.revoke_noted(&changed.noted);
        for name in &changed.removed_tiers {
            self.tiers.remove(name);
        }
        let mut entries = Vec::new();
        for tier in &tiers {
            entries.extend(self.entries_under(tier)?);
        }
        for org in &orgs {
            entries.extend(self.entries_of_org(org)?);
        }
        for project in &projects {
            entries.extend(self.entries_of_project(project)?);
        }
        for key in keys.iter().filter_map(|id| self.keys.get(id)) {
            entries.extend(self.entries_of_key(key)?);
        }
        entries.extend(self.entries_owned_by(&owners)?);
        Ok((entries, gone))
    }

    /// The hashes of the secrets that a key has now and that `changed` does not have.
    pub(super) fn hashes_before(&self, changed: &StoredKey) -> Vec<KeyHash> {
        let before = self.keys.get(&changed.record.id);
        let before = before.into_iter().flat_map(|key| key.former.into_iter().chain([key.hash]));
        before.filter(|hash| *hash != changed.hash && Some(*hash) != changed.former).collect()
    }

    /// A key as administrators see it, with its last use.
    pub(super) fn listed(&self, key: &StoredKey) -> KeyRecord {
        let last_used = self.uses.get(&key.record.id).and_then(|used| used.last());
        KeyRecord { last_used, ..key.record.clone() }
    }

    fn revoke_noted(&mut self, noted: &[NotedRevocation]) {
        for noted in noted {
            if let Some(key) = self.keys.get_mut(&noted.id) {
                key.record.revoked.get_or_insert(noted.audit.at);
            }
        }
    }

    pub(super) fn put_org(&mut self, org: OrgRecord) {
        self.orgs.insert(org.id.clone(), org);
    }

    pub(super) fn put_project(&mut self, project: ProjectRecord) {
        let (id, org) = (project.id.clone(), project.org.clone());
        if self.projects.insert(id.clone(), project).is_none() {
            self.projects_of.entry(org).or_default().push(id);
        }
    }

    /// Adds or replaces a key. Its entries must be built afterwards.
    pub(super) fn put_key(&mut self, key: StoredKey) {
        let (id, project) = (key.record.id.clone(), key.record.project.clone());
        let used = self.uses.entry(id.clone()).or_default();
        if let Some(at) = key.record.last_used {
            used.record_written(at);
        }
        if self.keys.insert(id.clone(), key).is_none() {
            self.keys_of.entry(project).or_default().push(id);
        }
    }

    /// The entries of all keys of an organisation.
    pub(super) fn entries_of_org(&self, org: &OrgId) -> Result<Vec<Entry>, IdentityError> {
        let projects = self.projects_of.get(org).into_iter().flatten();
        let entries: Result<Vec<_>, _> = projects.map(|project| self.entries_of_project(project)).collect();
        Ok(entries?.concat())
    }

    /// The entries of all keys of a project.
    pub(super) fn entries_of_project(&self, project: &ProjectId) -> Result<Vec<Entry>, IdentityError> {
        let keys = self.keys_of.get(project).into_iter().flatten();
        let entries: Result<Vec<_>, _> =
            keys.filter_map(|id| self.keys.get(id)).map(|key| self.entries_of_key(key)).collect();
        Ok(entries?.concat())
    }

    /// Builds the entry of a key: its hash and its principal.
    pub(super) fn entry(&self, key: &StoredKey) -> Result<Entry, IdentityError> {
        let StoredKey { hash, record, .. } = key;
        let org = self.orgs.get(&record.org).ok_or_else(|| corrupt(record, "its organisation is missing"))?;
        let project =
            self.projects.get(&record.project).ok_or_else(|| corrupt(record, "its project is missing"))?;
        if project.org != org.id {
            return Err(corrupt(record, "its project belongs to another organisation"));
        }
        let mut principal = Principal {
            org: record.org.clone(),
            project: record.project.clone(),
            key: record.id.clone(),
            name: record.name.clone(),
            user: None,
            models: record.models.clone(),
            endpoints: record.endpoints.clone(),
            regions: record.regions.and(&org.regions),
            org_regions: org.regions.clone(),
            secret_number: record.secret_number,
            limits: record.limits,
            project_limits: project.limits,
            org_limits: org.limits,
            expires: record.expires,
            allowed_ips: record.details.allowed_ips.clone(),
            tier: None,
            records: project.records,
        };
        let owner = record.details.owner.as_deref();
        self.assigned_tiers(&principal, record.tier.as_ref(), owner)?.narrow(&mut principal);
        let principal = Arc::new(principal);
        let used = self.uses.get(&record.id).map(Arc::clone).unwrap_or_default();
        let owner_inactive = self.accounts.is_inactive(owner);
        Ok(Entry { hash: *hash, revoked: record.revoked.is_some(), owner_inactive, principal, used })
    }

    /// Builds the entries of a key: that of its secret, and that of the secret before it, which ends by itself.
    pub(super) fn entries_of_key(&self, key: &StoredKey) -> Result<Vec<Entry>, IdentityError> {
        let entry = self.entry(key)?;
        let former = key.former.zip(key.record.former_until).map(|(hash, until)| {
            let mut principal = Principal::clone(&entry.principal);
            principal.secret_number = key.record.secret_number.saturating_sub(1);
            principal.expires = Some(principal.expires.map_or(until, |end| end.min(until)));
            Entry {
                hash,
                revoked: entry.revoked,
                owner_inactive: entry.owner_inactive,
                principal: Arc::new(principal),
                used: Arc::clone(&entry.used),
            }
        });
        Ok(former.into_iter().chain([entry]).collect())
    }

    /// Checks that a key's organisation and project exist and belong together, and that the organisation allows the
    /// key's regions.
    pub(super) fn check_home(&self, key: &KeyRecord) -> Result<(), IdentityError> {
        let org = self.orgs.get(&key.org).ok_or_else(|| IdentityError::UnknownOrg(key.org.clone()))?;
        let project = self.projects.get(&key.project);
        let project = project.ok_or_else(|| IdentityError::UnknownProject(key.project.clone()))?;
        if project.org != key.org {
            return Err(IdentityError::ProjectOfAnotherOrg {
                project: key.project.clone(),
                org: key.org.clone(),
            });
        }
        if let Some(tier) = key.tier.as_ref().filter(|tier| !self.tiers.contains_key(tier)) {
            return Err(IdentityError::UnknownTier(tier.clone()));
        }
        self.check_owner(&key.details, &key.org, &key.project)?;
        may_have(&key.regions, &org.regions)
    }
}

/// Checks that a key of an organisation may have these regions.
pub(super) fn may_have(key: &Residency, org: &Residency) -> Result<(), IdentityError> {
    if key.narrows(org) {
        return Ok(());
    }
    Err(IdentityError::Widens { key: key.clone(), org: org.clone() })
}

fn corrupt(key: &KeyRecord, why: &str) -> IdentityError {
    StoreError::Corrupt { what: format!("key `{}`", key.id), why: why.to_owned() }.into()
}

/// The data that one presented key is compared with.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) hash: KeyHash,
    pub(super) revoked: bool,
    /// The account that owns the key is not active.
    pub(super) owner_inactive: bool,
    pub(super) principal: Arc<Principal>,
    pub(super) used: Arc<KeyUseClock>,
}

/// Number of parts of the entry table. A change copies the parts that it touches.
const PARTS: usize = 256;

type Part = HashMap<u128, Entry, BuildHasherDefault<AsItIs>>;

/// Passes keys through unhashed. Entries are keyed by a keyed hash whose key no caller knows, so a second hash adds
/// nothing.
#[derive(Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        // Not called for a `u128` key. It only must not lose any bytes.
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    /// Uses the upper half. The lower half selects the part, so its lowest bits are equal within a part.
    fn write_u128(&mut self, prefix: u128) {
        self.0 = (prefix >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Entries by the first half of their hash. Read without a lock, changed part by part.
pub(super) struct Entries {
    parts: Box<[ArcSwap<Part>]>,
    /// Number of changes.
    version: AtomicU64,
    /// Number of entries copied by changes, for tests that count work.
    #[cfg(test)]
    pub(super) copied: std::sync::atomic::AtomicUsize,
}

impl Entries {
    /// Builds the entries of all keys.
    pub(super) fn of(records: &Records) -> Result<Self, IdentityError> {
        let mut parts: Vec<Part> = (0..PARTS).map(|_| Part::default()).collect();
        for key in records.keys.values() {
            for entry in records.entries_of_key(key)? {
                let Some(part) = parts.get_mut(part_of(&entry.hash)) else { continue };
                if part.insert(entry.hash.prefix(), entry).is_some() {
                    return Err(corrupt(&key.record, "another key has the same hash"));
                }
            }
        }
        Ok(Self {
            parts: parts.into_iter().map(ArcSwap::from_pointee).collect(),
            version: AtomicU64::new(0),
            #[cfg(test)]
            copied: std::sync::atomic::AtomicUsize::new(0),
        })
    }

    /// Number of changes so far.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// The part that contains a hash, if any part does.
    pub(super) fn part(&self, hash: &KeyHash) -> Option<Guard<Arc<Part>>> {
        self.parts.get(part_of(hash)).map(ArcSwap::load)
    }

    /// Returns `true` if a key with this hash exists.
    pub(super) fn has(&self, hash: &KeyHash) -> bool {
        self.part(hash).is_some_and(|part| part.contains_key(&hash.prefix()))
    }

    /// Removes entries. Callers must not run at the same time.
    pub(super) fn remove(&self, hashes: &[KeyHash]) {
        for hash in hashes {
            let Some(part) = self.parts.get(part_of(hash)) else { continue };
            let mut fresh = Part::clone(&part.load());
            fresh.remove(&hash.prefix());
            part.store(Arc::new(fresh));
        }
    }

    /// Adds or replaces entries. Callers must not run at the same time.
    pub(super) fn put(&self, entries: Vec<Entry>) {
        let mut by_part: BTreeMap<usize, Vec<Entry>> = BTreeMap::new();
        for entry in entries {
            by_part.entry(part_of(&entry.hash)).or_default().push(entry);
        }
        for (at, changed) in by_part {
            let Some(part) = self.parts.get(at) else { continue };
            let mut fresh = Part::clone(&part.load());
            #[cfg(test)]
            self.copied.fetch_add(fresh.len(), std::sync::atomic::Ordering::Relaxed);
            fresh.extend(changed.into_iter().map(|entry| (entry.hash.prefix(), entry)));
            part.store(Arc::new(fresh));
        }
        self.version.fetch_add(1, Release);
    }
}

/// Hashes are uniformly distributed, and so are their lowest bits.
fn part_of(hash: &KeyHash) -> usize {
    usize::try_from(hash.prefix() % PARTS as u128).unwrap_or(0)
}
