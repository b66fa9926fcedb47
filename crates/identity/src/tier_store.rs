//! The seam to the stores that keep tiers and their assignments. Must not know what tiers allow.

use headrace_domain::TierName;

use crate::{AuditEntry, StoreError, TierHolder, TierRecord};

/// Stores tiers. Part of a [`crate::KeyStore`].
pub trait TierStore: Send + Sync {
    /// Adds a tier, or changes its rules.
    fn put_tier(&self, tier: &TierRecord, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Removes a tier. [`StoreError::NotFound`] if there is no such tier, [`StoreError::InUse`] while it is assigned.
    fn remove_tier(&self, name: &TierName, audit: &AuditEntry) -> Result<(), StoreError>;

    /// Assigns a tier in place of the one before, or none. [`StoreError::NotFound`] if there is no such tier or holder.
    fn assign_tier(
        &self,
        to: &TierHolder,
        tier: Option<&TierName>,
        audit: &AuditEntry,
    ) -> Result<(), StoreError>;
}
