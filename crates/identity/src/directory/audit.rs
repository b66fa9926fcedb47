//! Reads and writes the audit log of a directory's store, for acts of other crates too. Must not know what the acts mean.

use super::{Directory, IdentityError};
use crate::record::check_text;
use crate::{AuditEntry, AuditRow, AuditSummary};

impl Directory {
    /// At most `limit` rows of the audit log after row `after`. 0 starts at the first row.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails.
    pub fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, IdentityError> {
        Ok(self.store.audit(after, limit)?)
    }

    /// The newest rows of the audit log, at most `count`, oldest first. Reads no other rows.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails.
    pub fn audit_newest(&self, count: usize) -> Result<Vec<AuditRow>, IdentityError> {
        let rows = self.store.audit_end()?.rows;
        // Rows are numbered without gaps.
        let after = rows.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(self.store.audit(after, count)?)
    }

    /// The newest rows with this act, at most `count`, newest first. If `subject` is set, only rows about it.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails.
    pub fn audit_of(
        &self,
        act: &str,
        subject: Option<&str>,
        count: usize,
    ) -> Result<Vec<AuditRow>, IdentityError> {
        Ok(self.store.audit_of(act, subject, count)?)
    }

    /// Acts of other crates that are announced and not concluded, with their row numbers, oldest first.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails.
    pub fn announced(&self) -> Result<Vec<(u64, String)>, IdentityError> {
        Ok(self.store.announced()?)
    }

    /// The end of the audit log.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails.
    pub fn audit_end(&self) -> Result<AuditSummary, IdentityError> {
        Ok(self.store.audit_end()?)
    }

    /// Checks the whole audit log.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails. [`StoreError::Corrupt`] names the first bad row.
    pub fn verify_audit(&self) -> Result<AuditSummary, IdentityError> {
        Ok(self.store.verify_audit()?)
    }

    /// Logs an act that has happened in another crate.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails.
    pub fn note(&self, audit: &AuditEntry) -> Result<(), IdentityError> {
        check_text("actor", &audit.actor)?;
        let _one_change = self.waiting.lock();
        Ok(self.store.note(audit)?)
    }

    /// Logs an act that another crate is about to carry out, with the data needed to carry it out after a crash.
    /// Returns the row number.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails. The act must not be carried out in that case.
    pub fn announce(&self, audit: &AuditEntry, act: &str) -> Result<u64, IdentityError> {
        check_text("actor", &audit.actor)?;
        let _one_change = self.waiting.lock();
        Ok(self.store.announce(audit, act)?)
    }

    /// Concludes an announced act. It was carried out, or, if `not_done` is set, it never will be, and `not_done` is
    /// logged.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails. The act stays announced in that case.
    pub fn conclude(&self, row: u64, not_done: Option<&AuditEntry>) -> Result<(), IdentityError> {
        let _one_change = self.waiting.lock();
        Ok(self.store.conclude(row, not_done)?)
    }
}
