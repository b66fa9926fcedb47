//! A store that lives in memory and ends with the process, for tests and simulations. Makes the same promises as a
//! durable store, except durability.

use std::collections::BTreeMap;

use headrace_domain::{KeyId, Residency, TierName, UnixNanos};
use parking_lot::Mutex;

use crate::{
    AccountStore, AuditChecker, AuditEntry, AuditRow, AuditSummary, DocumentStore, DocumentWriter,
    KeyDetailStore, KeyDetails, KeyStore, KeyUse, NewDocument, NotedRevocation, NumberedDocument, OperatorId,
    OperatorStore, OrgRecord, ProjectRecord, RateLimits, RotatedSecret, StoreError, StoredAccount,
    StoredDirectory, StoredKey, StoredOperator, TierHolder, TierRecord, TierStore,
};

/// An in-memory [`KeyStore`] and [`OperatorStore`].
#[derive(Debug, Default)]
pub struct MemoryKeyStore {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    directory: StoredDirectory,
    operators: Vec<StoredOperator>,
    audit: Vec<AuditRow>,
    check: Option<[u8; 32]>,
    announced: BTreeMap<u64, String>,
    documents: Vec<NumberedDocument>,
    /// The last uses of tokens, by user.
    user_uses: BTreeMap<KeyId, UnixNanos>,
}

impl Kept {
    fn end(&self) -> AuditSummary {
        self.audit.last().map_or(AuditSummary::EMPTY, |row| AuditSummary { rows: row.seq, head: row.hash })
    }

    fn log(&mut self, entry: &AuditEntry) {
        let row = entry.clone().chained(&self.end());
        self.audit.push(row);
    }
}

impl MemoryKeyStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl KeyStore for MemoryKeyStore {
    fn load_all(&self) -> Result<StoredDirectory, StoreError> {
        Ok(self.kept.lock().directory.clone())
    }

    fn secret_check(&self, check: [u8; 32]) -> Result<[u8; 32], StoreError> {
        Ok(*self.kept.lock().check.get_or_insert(check))
    }

    fn insert_key(&self, key: &StoredKey, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let keys = &kept.directory.keys;
        if keys.iter().any(|other| other.record.id == key.record.id || other.hash == key.hash) {
            return Err(StoreError::Duplicate { what: "key" });
        }
        if !kept.directory.projects.iter().any(|p| p.id == key.record.project && p.org == key.record.org) {
            return Err(StoreError::NotFound { what: "project" });
        }
        kept.directory.keys.push(key.clone());
        kept.log(audit);
        Ok(())
    }

    fn set_revoked(&self, id: &KeyId, at: UnixNanos, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let key = kept.directory.keys.iter_mut().find(|key| &key.record.id == id);
        let key = key.ok_or(StoreError::NotFound { what: "key" })?;
        if key.record.revoked.replace(key.record.revoked.unwrap_or(at)).is_none() {
            kept.log(audit);
        }
        Ok(())
    }

    fn rotate_key(&self, id: &KeyId, rotated: &RotatedSecret, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let keys = &mut kept.directory.keys;
        let has_hash = keys.iter().any(|other| &other.record.id != id && other.hash == rotated.hash);
        let key = keys.iter_mut().find(|key| &key.record.id == id && key.record.revoked.is_none());
        let key = key.ok_or(StoreError::NotFound { what: "key" })?;
        if has_hash {
            return Err(StoreError::Duplicate { what: "key" });
        }
        rotated.apply(key);
        kept.log(audit);
        Ok(())
    }

    fn set_key_limits(&self, id: &KeyId, limits: RateLimits, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let key = kept.directory.keys.iter_mut().find(|key| &key.record.id == id);
        key.ok_or(StoreError::NotFound { what: "key" })?.record.limits = limits;
        kept.log(audit);
        Ok(())
    }

    fn set_key_regions(&self, id: &KeyId, regions: &Residency, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let key = kept.directory.keys.iter_mut().find(|key| &key.record.id == id);
        key.ok_or(StoreError::NotFound { what: "key" })?.record.regions = regions.clone();
        kept.log(audit);
        Ok(())
    }

    fn note_revocations(&self, noted: &[NotedRevocation]) -> Result<(), StoreError> {
        self.kept.lock().directory.noted = noted.to_vec();
        Ok(())
    }

    fn failing(&self) -> Option<String> {
        None
    }

    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        match kept.directory.orgs.iter_mut().find(|other| other.id == org.id) {
            Some(other) => (other.limits, other.regions) = (org.limits, org.regions.clone()),
            None => kept.directory.orgs.push(org.clone()),
        }
        kept.log(audit);
        Ok(())
    }

    fn upsert_project(&self, project: &ProjectRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        if !kept.directory.orgs.iter().any(|org| org.id == project.org) {
            return Err(StoreError::NotFound { what: "organisation" });
        }
        match kept.directory.projects.iter_mut().find(|other| other.id == project.id) {
            Some(other) if other.org != project.org => {
                return Err(StoreError::Duplicate { what: "project" });
            }
            Some(other) => (other.limits, other.records) = (project.limits, project.records),
            None => kept.directory.projects.push(project.clone()),
        }
        kept.log(audit);
        Ok(())
    }

    fn note(&self, audit: &AuditEntry) -> Result<(), StoreError> {
        self.kept.lock().log(audit);
        Ok(())
    }

    fn announce(&self, audit: &AuditEntry, act: &str) -> Result<u64, StoreError> {
        let mut kept = self.kept.lock();
        kept.log(audit);
        let row = kept.end().rows;
        kept.announced.insert(row, act.to_owned());
        Ok(row)
    }

    fn conclude(&self, row: u64, not_done: Option<&AuditEntry>) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        if kept.announced.remove(&row).is_some() {
            not_done.into_iter().for_each(|audit| kept.log(audit));
        }
        Ok(())
    }

    fn announced(&self) -> Result<Vec<(u64, String)>, StoreError> {
        Ok(self.kept.lock().announced.iter().map(|(row, act)| (*row, act.clone())).collect())
    }

    fn audit_of(&self, act: &str, subject: Option<&str>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        let kept = self.kept.lock();
        let of = |row: &&AuditRow| {
            row.entry.act == act && subject.is_none_or(|subject| row.entry.subject == subject)
        };
        Ok(kept.audit.iter().rev().filter(of).take(limit).cloned().collect())
    }

    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        let kept = self.kept.lock();
        Ok(kept.audit.iter().filter(|row| row.seq > after).take(limit).cloned().collect())
    }

    fn audit_end(&self) -> Result<AuditSummary, StoreError> {
        Ok(self.kept.lock().end())
    }

    fn verify_audit(&self) -> Result<AuditSummary, StoreError> {
        let kept = self.kept.lock();
        let mut checker = AuditChecker::new();
        kept.audit.iter().try_for_each(|row| checker.check(row))?;
        checker.finish(kept.end())
    }
}

impl TierStore for MemoryKeyStore {
    fn put_tier(&self, tier: &TierRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let tiers = &mut kept.directory.tiers;
        tiers.retain(|other| other.name != tier.name);
        tiers.push(tier.clone());
        tiers.sort_by(|a, b| a.name.cmp(&b.name));
        kept.log(audit);
        Ok(())
    }

    fn remove_tier(&self, name: &TierName, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let StoredDirectory { orgs, projects, keys, tiers, accounts, .. } = &mut kept.directory;
        let holders = orgs.iter().map(|org| &org.tier).chain(projects.iter().map(|project| &project.tier));
        let mut holders = holders.chain(keys.iter().map(|key| &key.record.tier));
        let has_group = accounts.iter().any(|account| account.record.tier() == Some(name));
        if has_group || holders.any(|tier| tier.as_ref() == Some(name)) {
            return Err(StoreError::InUse { what: "tier" });
        }
        let before = tiers.len();
        tiers.retain(|tier| tier.name != *name);
        if tiers.len() == before {
            return Err(StoreError::NotFound { what: "tier" });
        }
        kept.log(audit);
        Ok(())
    }

    fn assign_tier(
        &self,
        to: &TierHolder,
        tier: Option<&TierName>,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let StoredDirectory { orgs, projects, keys, tiers, .. } = &mut kept.directory;
        if tier.is_some_and(|name| tiers.iter().all(|tier| tier.name != *name)) {
            return Err(StoreError::NotFound { what: "tier" });
        }
        let held = match to {
            TierHolder::Org(id) => orgs.iter_mut().find(|org| org.id == *id).map(|org| &mut org.tier),
            TierHolder::Project(id) => {
                projects.iter_mut().find(|project| project.id == *id).map(|project| &mut project.tier)
            }
            TierHolder::Key(id) => {
                keys.iter_mut().find(|key| key.record.id == *id).map(|key| &mut key.record.tier)
            }
        };
        *held.ok_or(StoreError::NotFound { what: to.kind() })? = tier.cloned();
        kept.log(audit);
        Ok(())
    }
}

impl AccountStore for MemoryKeyStore {
    fn put_account(&self, account: &StoredAccount, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let record = &account.record;
        let StoredDirectory { orgs, tiers, accounts, .. } = &mut kept.directory;
        if orgs.iter().all(|org| org.id != *record.org()) {
            return Err(StoreError::NotFound { what: "organisation" });
        }
        if record.tier().is_some_and(|name| tiers.iter().all(|tier| tier.name != *name)) {
            return Err(StoreError::NotFound { what: "tier" });
        }
        let what = record.id().kind().name();
        let (name, login) = (record.unique_name(), record.unique_login());
        let is_same = |other: &StoredAccount| {
            let kind = other.record.id().kind();
            let has_name = name.is_some()
                && kind == record.id().kind()
                && other.record.org() == record.org()
                && other.record.unique_name() == name;
            let has_login = login.is_some() && other.record.unique_login() == login;
            has_name || has_login || (account.hash.is_some() && other.hash == account.hash)
        };
        if accounts.iter().any(|other| other.record.id() != record.id() && is_same(other)) {
            return Err(StoreError::Duplicate { what });
        }
        let at = accounts.iter().position(|other| other.record.id() == record.id());
        match at.and_then(|at| accounts.get_mut(at)) {
            None if record.version() == 1 => accounts.push(account.clone()),
            Some(before) if before.record.version().saturating_add(1) == record.version() => {
                *before = account.clone();
            }
            _ => return Err(StoreError::Conflict { what }),
        }
        kept.log(audit);
        Ok(())
    }
}

impl KeyDetailStore for MemoryKeyStore {
    fn set_key_details(
        &self,
        id: &KeyId,
        details: &KeyDetails,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let key = kept.directory.keys.iter_mut().find(|key| &key.record.id == id);
        key.ok_or(StoreError::NotFound { what: "key" })?.record.details = details.clone();
        kept.log(audit);
        Ok(())
    }

    fn put_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        for KeyUse { key: id, at } in uses {
            if let Some(key) = kept.directory.keys.iter_mut().find(|key| &key.record.id == id) {
                key.record.last_used = key.record.last_used.max(Some(*at));
            } else if kept
                .directory
                .accounts
                .iter()
                .any(|account| account.record.id().as_str() == id.as_str())
            {
                let used = kept.user_uses.entry(id.clone()).or_insert(*at);
                *used = (*used).max(*at);
            }
        }
        Ok(())
    }

    fn key_uses(&self, since: UnixNanos) -> Result<Vec<KeyUse>, StoreError> {
        let kept = self.kept.lock();
        let uses = kept.directory.keys.iter().filter_map(|key| {
            let at = key.record.last_used.filter(|at| *at > since)?;
            Some(KeyUse { key: key.record.id.clone(), at })
        });
        let of_users = kept.user_uses.iter().filter(|(_, at)| **at > since);
        Ok(uses.chain(of_users.map(|(key, at)| KeyUse { key: key.clone(), at: *at })).collect())
    }
}

impl DocumentStore for MemoryKeyStore {
    fn number_document(
        &self,
        new: &NewDocument,
        write: DocumentWriter<'_>,
    ) -> Result<NumberedDocument, StoreError> {
        let mut kept = self.kept.lock();
        let is_same = |other: &&NumberedDocument| {
            (&other.kind, &other.org, &other.period, &other.about)
                == (&new.kind, &new.org, &new.period, &new.about)
        };
        if kept.documents.iter().any(|other| is_same(&other)) {
            return Err(StoreError::Duplicate { what: "document" });
        }
        let series = kept.documents.iter().filter(|other| other.series == new.series);
        let next = series.map(|other| other.number).max().unwrap_or(0).saturating_add(1);
        let (document, audit) = new.numbered(next, write(next));
        kept.documents.push(document.clone());
        kept.log(&audit);
        Ok(document)
    }

    fn documents(&self) -> Result<Vec<NumberedDocument>, StoreError> {
        let mut all = self.kept.lock().documents.clone();
        all.sort_by(|a, b| (&a.series, a.number).cmp(&(&b.series, b.number)));
        Ok(all)
    }

    fn document(&self, series: &str, number: u64) -> Result<Option<NumberedDocument>, StoreError> {
        let kept = self.kept.lock();
        let found = kept.documents.iter().find(|other| other.series == series && other.number == number);
        Ok(found.cloned())
    }
}

impl OperatorStore for MemoryKeyStore {
    fn operators(&self) -> Result<Vec<StoredOperator>, StoreError> {
        Ok(self.kept.lock().operators.clone())
    }

    fn insert_operator(&self, operator: &StoredOperator, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let same =
            |other: &StoredOperator| other.record.id == operator.record.id || other.hash == operator.hash;
        if kept.operators.iter().any(same) {
            return Err(StoreError::Duplicate { what: "operator" });
        }
        kept.operators.push(operator.clone());
        kept.log(audit);
        Ok(())
    }

    fn set_operator_revoked(
        &self,
        id: &OperatorId,
        at: UnixNanos,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        let operator = kept.operators.iter_mut().find(|operator| &operator.record.id == id);
        let record = &mut operator.ok_or(StoreError::NotFound { what: "operator" })?.record;
        if record.revoked.replace(record.revoked.unwrap_or(at)).is_none() {
            kept.log(audit);
        }
        Ok(())
    }
}
