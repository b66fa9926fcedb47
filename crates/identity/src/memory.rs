//! A store that forgets everything with the process: for tests and simulations.
//! Keeps the same promises as a durable one, save durability.

use headrace_domain::{KeyId, UnixNanos};
use parking_lot::Mutex;

use crate::{
    AuditChecker, AuditEntry, AuditRow, AuditSummary, KeyStore, OrgRecord, ProjectRecord, StoreError,
    StoredDirectory, StoredKey,
};

/// Identities in memory.
#[derive(Debug, Default)]
pub struct MemoryKeyStore {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    directory: StoredDirectory,
    audit: Vec<AuditRow>,
    check: Option<[u8; 32]>,
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
        key.record.revoked.get_or_insert(at);
        kept.log(audit);
        Ok(())
    }

    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        let mut kept = self.kept.lock();
        match kept.directory.orgs.iter_mut().find(|other| other.id == org.id) {
            Some(other) => other.limits = org.limits,
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
            Some(other) => other.limits = project.limits,
            None => kept.directory.projects.push(project.clone()),
        }
        kept.log(audit);
        Ok(())
    }

    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        let kept = self.kept.lock();
        Ok(kept.audit.iter().filter(|row| row.seq > after).take(limit).cloned().collect())
    }

    fn verify_audit(&self) -> Result<AuditSummary, StoreError> {
        let kept = self.kept.lock();
        let mut checker = AuditChecker::new();
        kept.audit.iter().try_for_each(|row| checker.check(row))?;
        checker.finish(kept.end())
    }
}
