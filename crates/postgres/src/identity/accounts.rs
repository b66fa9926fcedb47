//! Users, service accounts, groups and SCIM credentials in the shared tables.

use headrace_domain::TierName;
use headrace_identity::{AccountStore, AuditEntry, StoreError, StoredAccount};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::rows::{RowFailure, json};
use super::{PostgresKeyStore, Value, exists, log};

impl AccountStore for PostgresKeyStore {
    fn put_account(&self, account: &StoredAccount, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("writing an account", async |client| {
            check(client, account).await?;
            put_account(client, account, false).await?;
            log(client, audit).await.map(drop)
        })
    }
}

/// Checks what the constraints of the table check, too: a violated constraint would end the session's transaction.
async fn check(client: &Client, account: &StoredAccount) -> Result<(), RowFailure> {
    let StoredAccount { hash, record } = account;
    let (id, kind, org) = (record.id().as_str(), record.id().kind().name(), record.org().as_str());
    if !exists(client, "SELECT FROM headrace.orgs WHERE id = $1", &[(&org, Type::TEXT)]).await? {
        return Err(StoreError::NotFound { what: "organisation" }.into());
    }
    let tier = record.tier().map(TierName::as_str);
    let known = "SELECT FROM headrace.tiers WHERE name = $1 AND rules IS NOT NULL";
    if tier.is_some() && !exists(client, known, &[(&tier, Type::TEXT)]).await? {
        return Err(StoreError::NotFound { what: "tier" }.into());
    }
    let (name, login) = (record.unique_name(), record.unique_login());
    let hash = hash.as_ref().map(|hash| hash.as_bytes().as_slice());
    let values: [Value<'_>; 6] = [
        (&id, Type::TEXT),
        (&kind, Type::TEXT),
        (&org, Type::TEXT),
        (&name, Type::TEXT),
        (&login, Type::TEXT),
        (&hash, Type::BYTEA),
    ];
    let same = "SELECT FROM headrace.accounts WHERE id <> $1 AND \
                ((kind = $2 AND org = $3 AND name = $4) OR login = $5 OR hash = $6)";
    match exists(client, same, &values).await? {
        true => Err(StoreError::Duplicate { what: kind }.into()),
        false => Ok(()),
    }
}

/// Adds an account without regard to versions, or replaces the version before, within the caller's transaction.
pub(super) async fn put_account(
    client: &Client,
    account: &StoredAccount,
    is_copy: bool,
) -> Result<(), RowFailure> {
    let StoredAccount { hash, record } = account;
    let (id, kind, org) = (record.id().as_str(), record.id().kind().name(), record.org().as_str());
    let (name, login) = (record.unique_name(), record.unique_login());
    let hash = hash.as_ref().map(|hash| hash.as_bytes().as_slice());
    let tier = record.tier().map(TierName::as_str);
    let version = i64::try_from(record.version()).unwrap_or(i64::MAX);
    let text = json(record)?;
    let values: [Value<'_>; 9] = [
        (&id, Type::TEXT),
        (&kind, Type::TEXT),
        (&org, Type::TEXT),
        (&name, Type::TEXT),
        (&login, Type::TEXT),
        (&hash, Type::BYTEA),
        (&tier, Type::TEXT),
        (&version, Type::INT8),
        (&text, Type::TEXT),
    ];
    let put = match is_copy || version == 1 {
        true => {
            "INSERT INTO headrace.accounts (id, kind, org, name, login, hash, tier, version, record) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        }
        false => {
            "UPDATE headrace.accounts SET name = $4, login = $5, hash = $6, tier = $7, version = $8, record = $9 \
             WHERE id = $1 AND kind = $2 AND org = $3 AND version = $8 - 1"
        }
    };
    match client.execute_typed(put, &values).await? {
        0 => Err(StoreError::Conflict { what: kind }.into()),
        _ => Ok(()),
    }
}
