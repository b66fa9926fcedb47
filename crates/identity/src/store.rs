//! The interface to the stores that keep identities across restarts. A store keeps records and decides nothing. It may
//! block on a disk, so it is called only to change things.

use headrace_domain::{KeyId, Residency, TierName, UnixNanos};

use crate::{
    AccountStore, AuditEntry, AuditRow, AuditSummary, DocumentStore, KeyDetailStore, KeyHash, KeyRecord,
    OrgRecord, ProjectRecord, RateLimits, StoreError, StoredAccount, TierRecord, TierStore,
};

/// A key as a store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// The keyed hash of the key's secret.
    pub hash: KeyHash,
    /// The keyed hash of the secret before the last rotation. `None` if there was none.
    pub former: Option<KeyHash>,
    /// The rest of the key's data.
    pub record: KeyRecord,
}

/// The records that changed in a store after a number of changes, with the number of changes after which they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectoryChanges {
    /// How often the records in the store had been changed.
    pub changes: u64,
    /// The changed records, as they are now. Nothing is noted in them.
    pub records: StoredDirectory,
}

/// The new secret of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotatedSecret {
    /// Its keyed hash.
    pub hash: KeyHash,
    /// The part of it that may be shown.
    pub hint: String,
    /// Its number.
    pub number: u32,
    /// The keyed hash of the secret before it.
    pub former: KeyHash,
    /// Until when the secret before it is valid.
    pub former_until: UnixNanos,
}

/// Everything in a store, in order of creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredDirectory {
    /// Organisations.
    pub orgs: Vec<OrgRecord>,
    /// Projects.
    pub projects: Vec<ProjectRecord>,
    /// Keys, including revoked and expired ones.
    pub keys: Vec<StoredKey>,
    /// Tiers, by name.
    pub tiers: Vec<TierRecord>,
    /// Tiers that were removed.
    pub removed_tiers: Vec<TierName>,
    /// Users, service accounts, groups and SCIM credentials, removed and revoked ones among them.
    pub accounts: Vec<StoredAccount>,
    /// Revocations that were noted and are not applied to `keys` yet.
    pub noted: Vec<NotedRevocation>,
}

/// A revocation that could not be written to the key, with its audit row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedRevocation {
    /// The id of the key. It is revoked since `audit.at`.
    pub id: KeyId,
    /// The entry that the audit log will get.
    pub audit: AuditEntry,
}

/// Keeps other processes from carrying out announced acts until it is dropped.
#[derive(Default)]
pub struct ActLock(Option<Box<dyn Send>>);

impl ActLock {
    /// Creates a lock that ends when `held` is dropped.
    pub fn new(held: impl Send + 'static) -> Self {
        Self(Some(Box::new(held)))
    }
}

impl std::fmt::Debug for ActLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActLock").field("is_shared", &self.0.is_some()).finish()
    }
}

/// Stores organisations, projects, keys and the audit log.
///
/// Every change is durable when it returns, in one transaction with its audit row. Calls may block.
pub trait KeyStore: KeyDetailStore + TierStore + AccountStore + DocumentStore {
    /// Reads everything in the store.
    fn load_all(&self) -> Result<StoredDirectory, StoreError>;

    /// Returns how often the records in the store were changed, by any process. `None` if only this process changes
    /// them.
    fn changes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Reads the records that were changed after the first `seen` changes. A store that does not know them reads
    /// everything.
    fn changed_since(&self, _seen: u64) -> Result<DirectoryChanges, StoreError> {
        let changes = self.changes()?.unwrap_or(0);
        Ok(DirectoryChanges { changes, records: self.load_all()? })
    }

    /// Waits until no other process carries out an act that it announced, and keeps others from it until the lock is
    /// dropped. [`StoreError::Unavailable`] if another process keeps the lock too long.
    fn lock_acts(&self) -> Result<ActLock, StoreError> {
        Ok(ActLock::default())
    }

    /// Stores `check` if no check was stored yet. Returns the stored one.
    fn secret_check(&self, check: [u8; 32]) -> Result<[u8; 32], StoreError>;

    /// Adds a key. [`StoreError::Duplicate`] if a key has the same id or hash already.
    fn insert_key(&self, key: &StoredKey, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Marks a key as revoked. A revoked key and the log stay as they were. [`StoreError::NotFound`] if there is no
    /// such key.
    fn set_revoked(&self, id: &KeyId, at: UnixNanos, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Gives a key another secret. [`StoreError::NotFound`] if there is no such key, or it was revoked.
    fn rotate_key(&self, id: &KeyId, rotated: &RotatedSecret, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Changes a key's limits. [`StoreError::NotFound`] if there is no such key.
    fn set_key_limits(&self, id: &KeyId, limits: RateLimits, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Changes the regions where a key's calls may be processed. [`StoreError::NotFound`] if there is no such key.
    fn set_key_regions(&self, id: &KeyId, regions: &Residency, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Writes revocations into the reserve, replacing those noted before. Used while [`KeyStore::set_revoked`] fails
    /// because the disk is full. An empty list means that all revocations are written.
    fn note_revocations(&self, noted: &[NotedRevocation]) -> Result<(), StoreError>;

    /// Why the last change could not be written. `None` after a successful write.
    fn failing(&self) -> Option<String>;

    /// Writes meaningless data to test whether changes can be written again.
    fn probe(&self) -> Result<(), StoreError>;

    /// Adds an organisation or changes its limits and regions.
    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Adds a project or changes its limits. [`StoreError::NotFound`] if there is no such organisation.
    fn upsert_project(&self, project: &ProjectRecord, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Logs an act that has happened elsewhere.
    fn note(&self, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Logs an act that will be carried out elsewhere, before it happens, with the data needed to carry it out. Returns
    /// the row number. The act stays announced until [`KeyStore::conclude`].
    fn announce(&self, audit: &AuditEntry, act: &str) -> Result<u64, StoreError>;

    /// Concludes the act announced in `row`. It was carried out, or, if `not_done` is set, it never will be, and
    /// `not_done` is logged.
    fn conclude(&self, row: u64, not_done: Option<&AuditEntry>) -> Result<(), StoreError>;

    /// The acts that are announced and not concluded, with their row numbers, oldest first.
    fn announced(&self) -> Result<Vec<(u64, String)>, StoreError>;

    /// The newest rows of the audit log with this act, at most `limit`, newest first. If `subject` is set, only rows
    /// about it.
    fn audit_of(&self, act: &str, subject: Option<&str>, limit: usize) -> Result<Vec<AuditRow>, StoreError>;

    /// At most `limit` rows of the audit log after row `after`. 0 starts at the first row.
    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError>;

    /// The end of the audit log.
    fn audit_end(&self) -> Result<AuditSummary, StoreError>;

    /// Reads the whole audit log and checks its chain. [`StoreError::Corrupt`] names the first bad row.
    fn verify_audit(&self) -> Result<AuditSummary, StoreError>;
}
