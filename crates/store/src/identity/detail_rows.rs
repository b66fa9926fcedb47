//! Statements about details and uses of keys, within the caller's transaction. Their tables are beside format 1.

use headrace_domain::KeyId;
use headrace_identity::{KeyDetails, KeyUse};
use sqlx::sqlite::SqliteConnection;

use super::rows::{RowFailure, json, nanos};
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

/// Writes uses of keys, and of users' tokens, within the caller's transaction. A later use stays.
pub(super) async fn put_uses(connection: &mut SqliteConnection, uses: &[KeyUse]) -> Result<(), RowFailure> {
    for KeyUse { key, at } in uses {
        let put = sqlx::query(
            "INSERT INTO key_uses (key, used) SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM keys WHERE id = ?1) \
             OR EXISTS (SELECT 1 FROM accounts WHERE id = ?1) \
             ON CONFLICT (key) DO UPDATE SET used = max(used, excluded.used)",
        );
        put.bind(key.as_str()).bind(nanos(*at)?).execute(&mut *connection).await?;
    }
    Ok(())
}
