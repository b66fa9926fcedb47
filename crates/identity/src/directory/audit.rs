//! Reads the audit log of a directory's store. Must not know what the acts mean.

use super::{Directory, IdentityError};
use crate::{AuditRow, AuditSummary};

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

    /// Checks the whole audit log.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails. [`StoreError::Corrupt`] names the first bad row.
    pub fn verify_audit(&self) -> Result<AuditSummary, IdentityError> {
        Ok(self.store.verify_audit()?)
    }
}
