//! The seam to the stores that keep accounts. Must not know what an account may do.

use crate::{AuditEntry, StoreError, StoredAccount};

/// Stores users, service accounts, groups and SCIM credentials. Part of a [`crate::KeyStore`].
pub trait AccountStore: Send + Sync {
    /// Adds an account of version 1, or replaces the version before.
    ///
    /// [`StoreError::Duplicate`] if another account has the same unique name, login or hash.
    /// [`StoreError::Conflict`] if the stored version is not the version before. [`StoreError::NotFound`] if there is no
    /// such organisation, or no such tier.
    fn put_account(&self, account: &StoredAccount, audit: &AuditEntry) -> Result<(), StoreError>;
}
