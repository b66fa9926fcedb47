//! Details and uses of keys, in tables of their own beside format 1.

use headrace_domain::{KeyId, UnixNanos};
use headrace_identity::{AuditEntry, KeyDetailStore, KeyDetails, KeyUse, StoreError};
use sqlx::sqlite::SqliteConnection;

use super::rows::{RowFailure, json, nanos, number, parsed};
use super::{SqliteKeyStore, log};
use crate::sqlite::stamp;

/// Format of a file whose records are restricted in ways that programs of earlier formats do not know. They must refuse
/// such a file.
pub(super) const RESTRICTED: i32 = 3;

/// Tables that are added to files of every format.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS key_details (
    key     TEXT NOT NULL PRIMARY KEY REFERENCES keys (id),
    details TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS key_uses (
    key  TEXT NOT NULL PRIMARY KEY,
    used INTEGER NOT NULL
) STRICT;
";

/// Raises the file's format to at least `version`, within the caller's transaction.
pub(super) async fn raise_format(connection: &mut SqliteConnection, version: i32) -> Result<(), RowFailure> {
    let (now,): (i32,) = sqlx::query_as("PRAGMA user_version").fetch_one(&mut *connection).await?;
    if now < version {
        stamp(connection, version).await?;
    }
    Ok(())
}

/// Writes the details of a key, within the caller's transaction.
pub(super) async fn put_details(
    connection: &mut SqliteConnection,
    id: &KeyId,
    details: &KeyDetails,
) -> Result<(), RowFailure> {
    let put = sqlx::query("INSERT OR REPLACE INTO key_details (key, details) VALUES (?, ?)");
    put.bind(id.as_str()).bind(json(details)?).execute(&mut *connection).await?;
    match details.allowed_ips.is_empty() {
        true => Ok(()),
        false => raise_format(connection, RESTRICTED).await,
    }
}

/// Writes uses of keys, within the caller's transaction. A later use stays.
pub(super) async fn put_uses(connection: &mut SqliteConnection, uses: &[KeyUse]) -> Result<(), RowFailure> {
    for KeyUse { key, at } in uses {
        let put = sqlx::query(
            "INSERT INTO key_uses (key, used) SELECT id, ?2 FROM keys WHERE id = ?1 \
             ON CONFLICT (key) DO UPDATE SET used = max(used, excluded.used)",
        );
        put.bind(key.as_str()).bind(nanos(*at)?).execute(&mut *connection).await?;
    }
    Ok(())
}

impl KeyDetailStore for SqliteKeyStore {
    fn set_key_details(
        &self,
        id: &KeyId,
        details: &KeyDetails,
        audit: &AuditEntry,
    ) -> Result<(), StoreError> {
        self.write("changing a key's details", async |connection| {
            let found = sqlx::query("SELECT 1 FROM keys WHERE id = ?").bind(id.as_str());
            if found.fetch_optional(&mut *connection).await?.is_none() {
                return Err(RowFailure::Store(StoreError::NotFound { what: "key" }));
            }
            put_details(connection, id, details).await?;
            log(connection, audit.clone()).await
        })
    }

    fn put_key_uses(&self, uses: &[KeyUse]) -> Result<(), StoreError> {
        self.write("writing uses of keys", async |connection| put_uses(connection, uses).await)
    }

    fn key_uses(&self, since: UnixNanos) -> Result<Vec<KeyUse>, StoreError> {
        self.read("reading uses of keys", async |connection| {
            let rows = sqlx::query("SELECT key, used FROM key_uses WHERE used > ?").bind(nanos(since)?);
            let rows = rows.fetch_all(connection).await?;
            let read = |row| {
                Ok(KeyUse { key: parsed(row, "key", KeyId::new)?, at: UnixNanos::new(number(row, "used")?) })
            };
            rows.iter().map(read).collect()
        })
    }
}
