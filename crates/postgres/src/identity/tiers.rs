//! Tiers and their assignments. A removed tier stays as a row without rules, so that other gateways learn of it.

use headrace_domain::TierName;
use headrace_identity::{AuditEntry, StoreError, TierHolder, TierRecord, TierStore};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::rows::{RowFailure, from_json, json, nanos, parsed, time};
use super::{PostgresKeyStore, exists, log};

/// The tiers that were changed or removed after a number of changes.
pub(super) const CHANGED_TIERS: &str =
    "SELECT name, rules, created FROM headrace.tiers WHERE changed > $1 ORDER BY name";

/// Separates tiers from those that were removed.
pub(super) fn split(rows: &[Row]) -> Result<(Vec<TierRecord>, Vec<TierName>), RowFailure> {
    let (mut tiers, mut removed) = (Vec::new(), Vec::new());
    for row in rows {
        let name = parsed(row, "name", TierName::new)?;
        match row.try_get::<_, Option<&str>>("rules")? {
            None => removed.push(name),
            Some(_) => {
                let (rules, created) = (from_json(row, "rules")?, time(row, "created")?);
                tiers.push(TierRecord { name, rules, created });
            }
        }
    }
    Ok((tiers, removed))
}

/// The tier in a row of an organisation, a project or a key.
pub(super) fn tier_of(row: &Row) -> Result<Option<TierName>, RowFailure> {
    let tier: Option<&str> = row.try_get("tier")?;
    tier.map(|_| parsed(row, "tier", TierName::new)).transpose()
}

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
                        SELECT FROM headrace.keys WHERE tier = $1 LIMIT 1";
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
