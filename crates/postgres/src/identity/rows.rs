//! Rows of the identity tables: how they are decoded, and what may be wrong with them. Knows no statements.

use std::fmt;

use headrace_domain::{KeyId, OrgId, ProjectId, TierName, UnixNanos};
use headrace_identity::{
    AccountRecord, AuditEntry, AuditHash, AuditRow, KeyHash, KeyRecord, OrgRecord, ProjectRecord, StoreError,
    StoredAccount, StoredKey, TierRecord,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::{Error, Row};

/// Why a call failed.
pub(super) enum RowFailure {
    /// The database could not be reached, or refused a statement.
    Database(Error),
    Store(Box<StoreError>),
}

impl From<Error> for RowFailure {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

impl From<StoreError> for RowFailure {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

pub(super) fn corrupt(what: impl fmt::Display, why: impl fmt::Display) -> RowFailure {
    StoreError::Corrupt { what: what.to_string(), why: why.to_string() }.into()
}

pub(super) fn org(row: &Row) -> Result<OrgRecord, RowFailure> {
    Ok(OrgRecord {
        id: parsed(row, "id", OrgId::new)?,
        limits: from_json(row, "limits")?,
        regions: from_json(row, "regions")?,
        created: time(row, "created")?,
        tier: tier_of(row)?,
    })
}

pub(super) fn project(row: &Row) -> Result<ProjectRecord, RowFailure> {
    Ok(ProjectRecord {
        id: parsed(row, "id", ProjectId::new)?,
        org: parsed(row, "org", OrgId::new)?,
        limits: from_json(row, "limits")?,
        created: time(row, "created")?,
        tier: tier_of(row)?,
        records: from_json(row, "records")?,
    })
}

pub(super) fn key(row: &Row) -> Result<StoredKey, RowFailure> {
    let former: Option<&[u8]> = row.try_get("former")?;
    let number: i32 = row.try_get("number")?;
    Ok(StoredKey {
        hash: KeyHash::from_bytes(hash(row, "hash")?),
        former: former.map(|_| hash(row, "former").map(KeyHash::from_bytes)).transpose()?,
        record: KeyRecord {
            id: parsed(row, "id", KeyId::new)?,
            org: parsed(row, "org", OrgId::new)?,
            project: parsed(row, "project", ProjectId::new)?,
            name: row.try_get("name")?,
            hint: row.try_get("hint")?,
            models: from_json(row, "models")?,
            endpoints: from_json(row, "endpoints")?,
            limits: from_json(row, "limits")?,
            regions: from_json(row, "regions")?,
            secret_number: u32::try_from(number).unwrap_or(1),
            former_until: optional_time(row, "until")?,
            created: time(row, "created")?,
            expires: optional_time(row, "expires")?,
            revoked: optional_time(row, "revoked")?,
            details: from_json(row, "details")?,
            last_used: optional_time(row, "used")?,
            tier: tier_of(row)?,
        },
    })
}

/// Separates tiers from those that were removed.
pub(super) fn split_tiers(rows: &[Row]) -> Result<(Vec<TierRecord>, Vec<TierName>), RowFailure> {
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
fn tier_of(row: &Row) -> Result<Option<TierName>, RowFailure> {
    let tier: Option<&str> = row.try_get("tier")?;
    tier.map(|_| parsed(row, "tier", TierName::new)).transpose()
}

pub(super) fn audit_row(row: &Row) -> Result<AuditRow, RowFailure> {
    Ok(AuditRow {
        seq: number(row, "seq")?,
        previous: AuditHash::from_bytes(hash(row, "previous")?),
        hash: AuditHash::from_bytes(hash(row, "hash")?),
        entry: AuditEntry {
            at: time(row, "at")?,
            actor: row.try_get("actor")?,
            act: row.try_get("act")?,
            subject: row.try_get("subject")?,
            detail: row.try_get("detail")?,
        },
    })
}

pub(super) fn account(row: &Row) -> Result<StoredAccount, RowFailure> {
    let has_hash: Option<&[u8]> = row.try_get("hash")?;
    let hash = has_hash.map(|_| hash(row, "hash").map(KeyHash::from_bytes)).transpose()?;
    Ok(StoredAccount { hash, record: from_json::<AccountRecord>(row, "record")? })
}

pub(super) fn parsed<T, E: fmt::Display>(
    row: &Row,
    column: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, RowFailure> {
    let text: &str = row.try_get(column)?;
    parse(text).map_err(|error| corrupt(format_args!("column `{column}`"), error))
}

pub(super) fn from_json<T: DeserializeOwned>(row: &Row, column: &str) -> Result<T, RowFailure> {
    let text: &str = row.try_get(column)?;
    serde_json::from_str(text).map_err(|error| corrupt(format_args!("column `{column}`"), error))
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String, RowFailure> {
    serde_json::to_string(value).map_err(|error| corrupt("a record to be written", error))
}

pub(super) fn hash(row: &Row, column: &str) -> Result<[u8; 32], RowFailure> {
    let blob: &[u8] = row.try_get(column)?;
    blob.try_into().map_err(|_| corrupt(format_args!("column `{column}`"), "it does not have 32 bytes"))
}

pub(super) fn number(row: &Row, column: &str) -> Result<u64, RowFailure> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| corrupt(format_args!("column `{column}`"), "it is negative"))
}

pub(super) fn time(row: &Row, column: &str) -> Result<UnixNanos, RowFailure> {
    number(row, column).map(UnixNanos::new)
}

pub(super) fn optional_time(row: &Row, column: &str) -> Result<Option<UnixNanos>, RowFailure> {
    let number: Option<i64> = row.try_get(column)?;
    let time = number.map(u64::try_from).transpose();
    Ok(time.map_err(|_| corrupt(format_args!("column `{column}`"), "it is negative"))?.map(UnixNanos::new))
}

pub(super) fn nanos(time: UnixNanos) -> Result<i64, RowFailure> {
    i64::try_from(time.get()).map_err(|_| corrupt("a time to be written", "it lies beyond the year 2262"))
}
