//! The seam to whatever keeps identities across restarts.
//! A store keeps records and decides nothing; it may block on a disk, so it is called only to change things.

use headrace_domain::{KeyId, UnixNanos};

use crate::{AuditEntry, AuditRow, AuditSummary, KeyHash, KeyRecord, OrgRecord, ProjectRecord, StoreError};

/// A key as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// The keyed hash of its secret.
    pub hash: KeyHash,
    /// Everything else.
    pub record: KeyRecord,
}

/// Everything a store keeps, in order of creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredDirectory {
    /// Organisations.
    pub orgs: Vec<OrgRecord>,
    /// Projects.
    pub projects: Vec<ProjectRecord>,
    /// Keys, revoked and expired ones too.
    pub keys: Vec<StoredKey>,
}

/// Keeps organisations, projects, keys and the audit log.
///
/// Every change is durable when it returns, in one transaction with its audit row. Calls may block.
pub trait KeyStore: Send + Sync {
    /// Everything it keeps.
    fn load_all(&self) -> Result<StoredDirectory, StoreError>;

    /// Keeps `check` if nothing was kept yet; returns what is kept.
    fn secret_check(&self, check: [u8; 32]) -> Result<[u8; 32], StoreError>;

    /// Adds a key. [`StoreError::Duplicate`] if its id or hash is there already.
    fn insert_key(&self, key: &StoredKey, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Marks a key as revoked; the first revocation's time stays. [`StoreError::NotFound`] if there is no
    /// such key.
    fn set_revoked(&self, id: &KeyId, at: UnixNanos, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Adds an organisation or changes its limits.
    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Adds a project or changes its limits. [`StoreError::NotFound`] if there is no such organisation.
    fn upsert_project(&self, project: &ProjectRecord, audit: &AuditEntry) -> Result<(), StoreError>;

    /// At most `limit` rows of the audit log, from the one after `after` (0: from the first).
    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError>;

    /// Reads the whole audit log and checks its chain. [`StoreError::Corrupt`] names the first bad row.
    fn verify_audit(&self) -> Result<AuditSummary, StoreError>;
}
