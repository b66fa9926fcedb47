//! The seam to whatever keeps identities across restarts.
//! A store keeps records and decides nothing; it may block on a disk, so it is called only to change things.

use headrace_domain::{KeyId, Residency, UnixNanos};

use crate::{
    AuditEntry, AuditRow, AuditSummary, KeyHash, KeyRecord, OrgRecord, ProjectRecord, RateLimits, StoreError,
};

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
    /// Revocations that were noted and are not among `keys` yet.
    pub noted: Vec<NotedRevocation>,
}

/// A revocation that could not be written where keys are, with its audit row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedRevocation {
    /// The key; it is revoked since `audit.at`.
    pub id: KeyId,
    /// What the audit log will say.
    pub audit: AuditEntry,
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

    /// Marks a key as revoked. One that is revoked already stays as it was, and the log too.
    /// [`StoreError::NotFound`] if there is no such key.
    fn set_revoked(&self, id: &KeyId, at: UnixNanos, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Changes a key's limits. [`StoreError::NotFound`] if there is no such key.
    fn set_key_limits(&self, id: &KeyId, limits: RateLimits, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Changes where a key's calls may be worked on. [`StoreError::NotFound`] if there is no such key.
    fn set_key_regions(&self, id: &KeyId, regions: &Residency, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Notes revocations where room is set aside for them, instead of those noted before, for as long as
    /// [`KeyStore::set_revoked`] cannot be: on a full disk. None: they are all written.
    fn note_revocations(&self, noted: &[NotedRevocation]) -> Result<(), StoreError>;

    /// Why the last change could not be written; `None` since one was.
    fn failing(&self) -> Option<String>;

    /// Writes something of no meaning, to see whether changes can be written again.
    fn probe(&self) -> Result<(), StoreError>;

    /// Adds an organisation or changes its limits and regions.
    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Adds a project or changes its limits. [`StoreError::NotFound`] if there is no such organisation.
    fn upsert_project(&self, project: &ProjectRecord, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Logs what has happened elsewhere.
    fn note(&self, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Logs an act that is carried out elsewhere, before it is, with what is needed to carry it out. Answers with its
    /// row. The act stays announced until [`KeyStore::conclude`].
    fn announce(&self, audit: &AuditEntry, act: &str) -> Result<u64, StoreError>;

    /// Ends what was announced in that row: it is carried out, or, with a row that says so, it never will be.
    fn conclude(&self, row: u64, not_done: Option<&AuditEntry>) -> Result<(), StoreError>;

    /// What is announced and not concluded, by its row, oldest first.
    fn announced(&self) -> Result<Vec<(u64, String)>, StoreError>;

    /// The newest rows of the audit log whose act is this one, at most `limit`, newest first; of one subject only, if
    /// one is named.
    fn audit_of(&self, act: &str, subject: Option<&str>, limit: usize) -> Result<Vec<AuditRow>, StoreError>;

    /// At most `limit` rows of the audit log, from the one after `after` (0: from the first).
    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError>;

    /// Where the audit log ends.
    fn audit_end(&self) -> Result<AuditSummary, StoreError>;

    /// Reads the whole audit log and checks its chain. [`StoreError::Corrupt`] names the first bad row.
    fn verify_audit(&self) -> Result<AuditSummary, StoreError>;
}
