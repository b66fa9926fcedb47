//! Rows of the identity store: how they are decoded, and what may be wrong with them. Knows no statements.

use std::fmt;

use headrace_domain::{KeyId, OrgId, ProjectId, RecordRules, Residency, TierName, UnixNanos};
use headrace_identity::{KeyHash, KeyRecord, OrgRecord, ProjectRecord, RateLimits, StoreError, StoredKey};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::sqlite::FormatError;

/// Why a call failed.
pub(super) enum RowFailure {
    /// The file could not be opened, read or written.
    Sqlite(sqlx::Error),
    Store(StoreError),
}

impl RowFailure {
    pub(super) fn while_doing(self, doing: &'static str) -> StoreError {
        match self {
            Self::Sqlite(error) => unavailable(doing, error),
            Self::Store(error) => error,
        }
    }
}

impl From<sqlx::Error> for RowFailure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<FormatError> for RowFailure {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Sqlite(error) => Self::Sqlite(error),
            FormatError::Newer { found, known, .. } => {
                Self::Store(StoreError::Newer { found: i64::from(found), known: i64::from(known) })
            }
            other => corrupt("its file", other),
        }
    }
}

pub(super) fn unavailable(doing: &'static str, why: impl fmt::Display) -> StoreError {
    StoreError::Unavailable { doing, why: why.to_string() }
}

pub(super) fn corrupt(what: impl fmt::Display, why: impl fmt::Display) -> RowFailure {
    RowFailure::Store(StoreError::Corrupt { what: what.to_string(), why: why.to_string() })
}

/// Interprets SQLite's constraint errors: `unique` already exists, or its owner `belongs_to` does not.
pub(super) fn constraint(error: sqlx::Error, unique: &'static str, belongs_to: &'static str) -> RowFailure {
    match error.as_database_error() {
        Some(known) if known.is_unique_violation() => {
            RowFailure::Store(StoreError::Duplicate { what: unique })
        }
        Some(known) if known.is_foreign_key_violation() => {
            RowFailure::Store(StoreError::NotFound { what: belongs_to })
        }
        _ => RowFailure::Sqlite(error),
    }
}

pub(super) fn org(row: &SqliteRow) -> Result<OrgRecord, RowFailure> {
    Ok(OrgRecord {
        id: parsed(row, "id", OrgId::new)?,
        limits: from_json::<RateLimits>(row, "limits")?,
        regions: Residency::Anywhere,
        created: UnixNanos::new(number(row, "created")?),
        tier: None,
    })
}

pub(super) fn project(row: &SqliteRow) -> Result<ProjectRecord, RowFailure> {
    Ok(ProjectRecord {
        id: parsed(row, "id", ProjectId::new)?,
        org: parsed(row, "org", OrgId::new)?,
        limits: from_json::<RateLimits>(row, "limits")?,
        created: UnixNanos::new(number(row, "created")?),
        tier: None,
        records: RecordRules::default(),
    })
}

pub(super) fn key(row: &SqliteRow) -> Result<StoredKey, RowFailure> {
    let former: Option<&[u8]> = row.try_get("former")?;
    let number: Option<u32> = row.try_get("number")?;
    Ok(StoredKey {
        hash: KeyHash::from_bytes(bytes(row, "hash")?),
        former: former.map(|_| bytes(row, "former").map(KeyHash::from_bytes)).transpose()?,
        record: KeyRecord {
            id: parsed(row, "id", KeyId::new)?,
            org: parsed(row, "org", OrgId::new)?,
            project: parsed(row, "project", ProjectId::new)?,
            name: row.try_get("name")?,
            hint: row.try_get("hint")?,
            models: from_json(row, "models")?,
            endpoints: from_json(row, "endpoints")?,
            limits: from_json(row, "limits")?,
            regions: Residency::Anywhere,
            secret_number: number.unwrap_or(1),
            former_until: optional_time(row, "until")?,
            created: time(row, "created")?,
            expires: optional_time(row, "expires")?,
            revoked: optional_time(row, "revoked")?,
            details: optional_json(row, "details")?,
            last_used: optional_time(row, "used")?,
            tier: match row.try_get::<Option<&str>, _>("tier")? {
                Some(_) => Some(parsed(row, "tier", TierName::new)?),
                None => None,
            },
        },
    })
}

pub(super) fn parsed<T, E: fmt::Display>(
    row: &SqliteRow,
    column: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, RowFailure> {
    let text: &str = row.try_get(column)?;
    parse(text).map_err(|error| corrupt(format_args!("column `{column}`"), error))
}

pub(super) fn from_json<T: DeserializeOwned>(row: &SqliteRow, column: &str) -> Result<T, RowFailure> {
    let text: &str = row.try_get(column)?;
    serde_json::from_str(text).map_err(|error| corrupt(format_args!("column `{column}`"), error))
}

/// Parses a column that is null for the default value.
pub(super) fn optional_json<T: DeserializeOwned + Default>(
    row: &SqliteRow,
    column: &str,
) -> Result<T, RowFailure> {
    let text: Option<&str> = row.try_get(column)?;
    let parsed = text.map_or_else(|| Ok(T::default()), serde_json::from_str);
    parsed.map_err(|error| corrupt(format_args!("column `{column}`"), error))
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String, RowFailure> {
    serde_json::to_string(value).map_err(|error| corrupt("a record to be written", error))
}

pub(super) fn bytes(row: &SqliteRow, column: &str) -> Result<[u8; 32], RowFailure> {
    let blob: &[u8] = row.try_get(column)?;
    blob.try_into().map_err(|_| corrupt(format_args!("column `{column}`"), "it does not have 32 bytes"))
}

pub(super) fn number(row: &SqliteRow, column: &str) -> Result<u64, RowFailure> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| corrupt(format_args!("column `{column}`"), "it is negative"))
}

fn time(row: &SqliteRow, column: &str) -> Result<UnixNanos, RowFailure> {
    number(row, column).map(UnixNanos::new)
}

pub(super) fn optional_time(row: &SqliteRow, column: &str) -> Result<Option<UnixNanos>, RowFailure> {
    let number: Option<i64> = row.try_get(column)?;
    let time = number.map(u64::try_from).transpose();
    Ok(time.map_err(|_| corrupt(format_args!("column `{column}`"), "it is negative"))?.map(UnixNanos::new))
}

pub(super) fn nanos(time: UnixNanos) -> Result<i64, RowFailure> {
    i64::try_from(time.get()).map_err(|_| corrupt("a time to be written", "it lies beyond the year 2262"))
}
