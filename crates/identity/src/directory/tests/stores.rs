//! A store whose disk can be made to fail.

use std::sync::atomic::{AtomicBool, Ordering};

use headrace_domain::{KeyId, Residency, TierName, UnixNanos};

use crate::{
    AccountStore, AuditEntry, AuditRow, AuditSummary, DocumentStore, DocumentWriter, KeyDetailStore,
    KeyDetails, KeyStore, KeyUse, MemoryKeyStore, NewDocument, NotedRevocation, NumberedDocument, OrgRecord,
    ProjectRecord, RateLimits, RotatedSecret, StoreError, StoredAccount, StoredDirectory, StoredKey,
    TierHolder, TierRecord, TierStore,
};

/// A store whose disk can be made to fail.
#[derive(Default)]
pub(super) struct Failing {
    pub(super) store: MemoryKeyStore,
    pub(super) broken: AtomicBool,
    /// Set if the reserve for revocations fails, too.
    pub(super) no_reserve: AtomicBool,
}

impl Failing {
    fn check(&self) -> Result<(), StoreError> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable { doing: "writing", why: "disk full".to_owned() });
        }
        Ok(())
    }
}

impl KeyStore for Failing {
    fn load_all(&self) -> Result<StoredDirectory, StoreError> {
        self.check().and_then(|()| self.store.load_all())
    }
    fn secret_check(&self, check: [u8; 32]) -> Result<[u8; 32], StoreError> {
        self.check().and_then(|()| self.store.secret_check(check))
    }
    fn insert_key(&self, key: &StoredKey, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.insert_key(key, audit))
    }
    fn set_revoked(&self, id: &KeyId, at: UnixNanos, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.set_revoked(id, at, audit))
    }
    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.upsert_org(org, audit))
    }
    fn upsert_project(&self, project: &ProjectRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.upsert_project(project, audit))
    }
    fn set_key_regions(&self, id: &KeyId, regions: &Residency, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.set_key_regions(id, regions, audit))
    }
    fn rotate_key(&self, id: &KeyId, rotated: &RotatedSecret, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.rotate_key(id, rotated, audit))
    }
    fn set_key_limits(&self, id: &KeyId, limits: RateLimits, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.set_key_limits(id, limits, audit))
    }
    fn audit_end(&self) -> Result<AuditSummary, StoreError> {
        self.store.audit_end()
    }
    fn note(&self, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.note(audit))
    }
    fn announce(&self, audit: &AuditEntry, act: &str) -> Result<u64, StoreError> {
        self.check().and_then(|()| self.store.announce(audit, act))
    }
    fn conclude(&self, row: u64, not_done: Option<&AuditEntry>) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.conclude(row, not_done))
    }
    fn announced(&self) -> Result<Vec<(u64, String)>, StoreError> {
        self.store.announced()
    }
    fn audit_of(&self, act: &str, subject: Option<&str>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.store.audit_of(act, subject, limit)
    }
    fn note_revocations(&self, noted: &[NotedRevocation]) -> Result<(), StoreError> {
        if self.no_reserve.load(Ordering::SeqCst) { self.check() } else { self.store.note_revocations(noted) }
    }
    fn failing(&self) -> Option<String> {
        self.check().err().map(|error| error.to_string())
    }
    fn probe(&self) -> Result<(), StoreError> {
        self.check()
    }
    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.store.audit(after, limit)
    }
    fn verify_audit(&self) -> Result<AuditSummary, StoreError> {
        self.store.verify_audit()
    }
}

impl KeyDetailStore for Failing {
    fn set_key_details(
        &self,
        id: &KeyId,
        details: &KeyDetails,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.set_key_details(id, details, audit))
    }
    fn put_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.put_key_uses(uses))
    }
    fn key_uses(&self, since: UnixNanos) -> Result<Vec<KeyUse>, StoreError> {
        self.check().and_then(|()| self.store.key_uses(since))
    }
}

impl AccountStore for Failing {
    fn put_account(&self, account: &StoredAccount, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.put_account(account, audit))
    }
}

impl DocumentStore for Failing {
    fn number_document(
        &self,
        new: &NewDocument,
        write: DocumentWriter<'_>,
    ) -> Result<NumberedDocument, StoreError> {
        self.check().and_then(|()| self.store.number_document(new, write))
    }
    fn documents(&self) -> Result<Vec<NumberedDocument>, StoreError> {
        self.store.documents()
    }
    fn document(&self, series: &str, number: u64) -> Result<Option<NumberedDocument>, StoreError> {
        self.store.document(series, number)
    }
}

impl TierStore for Failing {
    fn put_tier(&self, tier: &TierRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.put_tier(tier, audit))
    }
    fn remove_tier(&self, name: &TierName, audit: &AuditEntry) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.remove_tier(name, audit))
    }
    fn assign_tier(
        &self,
        to: &TierHolder,
        tier: Option<&TierName>,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        self.check().and_then(|()| self.store.assign_tier(to, tier, audit))
    }
}
