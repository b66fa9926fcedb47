//! Tiers and their assignments behind their seam.

use headrace_domain::TierName;
use headrace_identity::{AuditEntry, StoreError, TierHolder, TierRecord, TierStore};

use super::rows::RowFailure;
use super::tier_rows::{put_tier, put_tier_of};
use super::{SqliteKeyStore, log};

impl TierStore for SqliteKeyStore {
    fn put_tier(&self, tier: &TierRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("writing a tier", async |connection| {
            put_tier(&mut *connection, tier).await?;
            log(connection, audit.clone()).await
        })
    }

    fn remove_tier(&self, name: &TierName, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("removing a tier", async |connection| {
            let gone = sqlx::query("DELETE FROM tiers WHERE name = ?").bind(name.as_str());
            let gone =
                gone.execute(&mut *connection).await.map_err(|error| match error.as_database_error() {
                    Some(known) if known.is_foreign_key_violation() => {
                        RowFailure::Store(StoreError::InUse { what: "tier" })
                    }
                    _ => error.into(),
                })?;
            if gone.rows_affected() == 0 {
                return Err(RowFailure::Store(StoreError::NotFound { what: "tier" }));
            }
            log(connection, audit.clone()).await
        })
    }

    fn assign_tier(
        &self,
        to: &TierHolder,
        tier: Option<&TierName>,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        self.write("assigning a tier", async |connection| {
            if let Some(tier) = tier {
                let known = sqlx::query("SELECT 1 FROM tiers WHERE name = ?").bind(tier.as_str());
                if known.fetch_optional(&mut *connection).await?.is_none() {
                    return Err(RowFailure::Store(StoreError::NotFound { what: "tier" }));
                }
            }
            let found = match to {
                TierHolder::Org(_) => "SELECT 1 FROM orgs WHERE id = ?",
                TierHolder::Project(_) => "SELECT 1 FROM projects WHERE id = ?",
                TierHolder::Key(_) => "SELECT 1 FROM keys WHERE id = ?",
            };
            if sqlx::query(found).bind(to.id()).fetch_optional(&mut *connection).await?.is_none() {
                return Err(RowFailure::Store(StoreError::NotFound { what: to.kind() }));
            }
            put_tier_of(connection, to.kind(), to.id(), tier).await?;
            log(connection, audit.clone()).await
        })
    }
}
