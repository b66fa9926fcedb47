//! Tiers and their assignments. A removed tier stays as a row without rules, so that other gateways learn of it.

use headrace_domain::TierName;
use headrace_identity::{AuditEntry, StoreError, TierHolder, TierRecord, TierStore};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::rows::{RowFailure, json, nanos};
use super::{PostgresKeyStore, exists, log};

/// Adds or changes a tier, within the caller's transaction.
pub(super) async fn put_tier(client: &Client, tier: &TierRecord) -> Result<(), RowFailure> {
    let (name, rules, created) = (tier.name.as_str(), json(&tier.rules)?, nanos(tier.created)?);
    let put = "INSERT INTO headrace.tiers (name, rules, created) VALUES ($1, $2, $3) \
               ON CONFLICT (name) DO UPDATE SET rules = excluded.rules, created = excluded.created";
    let values = [(&name as _, Type::TEXT), (&rules as _, Type::TEXT), (&created as _, Type::INT8)];
    client.execute_typed(put, &values).await?;
    Ok(())
}

impl TierStore for PostgresKeyStore {
    fn put_tier(&self, tier: &TierRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("writing a tier", async |client| {
            put_tier(client, tier).await?;
            log(client, audit).await.map(drop)
        })
    }

    fn remove_tier(&self, name: &TierName, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("removing a tier", async |client| {
            let name = name.as_str();
            let values = [(&name as _, Type::TEXT)];
            let held = "SELECT FROM headrace.orgs WHERE tier = $1 UNION ALL \
                        SELECT FROM headrace.projects WHERE tier = $1 UNION ALL \
                        SELECT FROM headrace.keys WHERE tier = $1 UNION ALL \
                        SELECT FROM headrace.accounts WHERE tier = $1 LIMIT 1";
            if exists(client, held, &values).await? {
                return Err(StoreError::InUse { what: "tier" }.into());
            }
            let gone = "UPDATE headrace.tiers SET rules = NULL WHERE name = $1 AND rules IS NOT NULL";
            if client.execute_typed(gone, &values).await? == 0 {
                return Err(StoreError::NotFound { what: "tier" }.into());
            }
            log(client, audit).await.map(drop)
        })
    }

    fn assign_tier(
        &self,
        to: &TierHolder,
        tier: Option<&TierName>,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        self.write("assigning a tier", async |client| {
            let (id, tier) = (to.id(), tier.map(TierName::as_str));
            let known = "SELECT FROM headrace.tiers WHERE name = $1 AND rules IS NOT NULL";
            if tier.is_some() && !exists(client, known, &[(&tier, Type::TEXT)]).await? {
                return Err(StoreError::NotFound { what: "tier" }.into());
            }
            let set = match to {
                TierHolder::Org(_) => "UPDATE headrace.orgs SET tier = $2 WHERE id = $1",
                TierHolder::Project(_) => "UPDATE headrace.projects SET tier = $2 WHERE id = $1",
                TierHolder::Key(_) => "UPDATE headrace.keys SET tier = $2 WHERE id = $1",
            };
            if client.execute_typed(set, &[(&id, Type::TEXT), (&tier, Type::TEXT)]).await? == 0 {
                return Err(StoreError::NotFound { what: to.kind() }.into());
            }
            log(client, audit).await.map(drop)
        })
    }
}
