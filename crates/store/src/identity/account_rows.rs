//! Statements about accounts, within the caller's transaction. Their table is beside format 1.

use headrace_domain::TierName;
use headrace_identity::{AccountRecord, KeyHash, StoreError, StoredAccount, StoredDirectory};
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::detail_rows::raise_format;
use super::rows::{RowFailure, bytes, constraint, from_json, json, number};

/// Format of a file that has accounts, or operators of one organisation. A program that does not know them would accept
/// the keys of users that are not active, and let such operators change other organisations. It must refuse the file.
pub(super) const WITH_ACCOUNTS: i32 = 4;

/// The table that is added to files of every format. `name`, `login` and `hash` are set only to be unique.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS accounts (
    id      TEXT NOT NULL PRIMARY KEY,
    kind    TEXT NOT NULL,
    org     TEXT NOT NULL REFERENCES orgs (id),
    name    TEXT,
    login   TEXT UNIQUE,
    hash    BLOB UNIQUE CHECK (length(hash) = 32),
    tier    TEXT REFERENCES tiers (name),
    version INTEGER NOT NULL,
    record  TEXT NOT NULL,
    UNIQUE (kind, org, name)
) STRICT;
CREATE TABLE IF NOT EXISTS operator_scopes (
    operator TEXT NOT NULL PRIMARY KEY REFERENCES operators (id),
    org      TEXT NOT NULL,
    user     TEXT
) STRICT;
";

/// Reads all accounts.
pub(super) async fn load(
    connection: &mut SqliteConnection,
    all: &mut StoredDirectory,
) -> Result<(), RowFailure> {
    let rows = sqlx::query("SELECT hash, record FROM accounts ORDER BY rowid").fetch_all(connection).await?;
    for row in rows {
        let hash: Option<&[u8]> = row.try_get("hash")?;
        let hash = hash.map(|_| bytes(&row, "hash").map(KeyHash::from_bytes)).transpose()?;
        all.accounts.push(StoredAccount { hash, record: from_json::<AccountRecord>(&row, "record")? });
    }
    Ok(())
}

/// Adds an account of version 1, or replaces the version before, within the caller's transaction.
pub(super) async fn change_account(
    connection: &mut SqliteConnection,
    account: &StoredAccount,
) -> Result<(), RowFailure> {
    let StoredAccount { hash, record } = account;
    let what = record.id().kind().name();
    let refuse = |error| Err(RowFailure::Store(error));
    let org = sqlx::query("SELECT 1 FROM orgs WHERE id = ?").bind(record.org().as_str());
    if org.fetch_optional(&mut *connection).await?.is_none() {
        return refuse(StoreError::NotFound { what: "organisation" });
    }
    if let Some(tier) = record.tier() {
        let known = sqlx::query("SELECT 1 FROM tiers WHERE name = ?").bind(tier.as_str());
        if known.fetch_optional(&mut *connection).await?.is_none() {
            return refuse(StoreError::NotFound { what: "tier" });
        }
    }
    let same = sqlx::query(
        "SELECT 1 FROM accounts WHERE id <> ? AND ((kind = ? AND org = ? AND name = ?) OR login = ? OR hash = ?)",
    );
    let same = same.bind(record.id().as_str()).bind(what).bind(record.org().as_str());
    let same = same.bind(record.unique_name()).bind(record.unique_login());
    let same = same.bind(hash.as_ref().map(|hash| hash.as_bytes().as_slice()));
    if same.fetch_optional(&mut *connection).await?.is_some() {
        return refuse(StoreError::Duplicate { what });
    }
    let before = sqlx::query("SELECT version FROM accounts WHERE id = ?").bind(record.id().as_str());
    let before = before.fetch_optional(&mut *connection).await?;
    let before = before.map(|row| number(&row, "version")).transpose()?.unwrap_or(0);
    if before.saturating_add(1) != record.version() {
        return refuse(StoreError::Conflict { what });
    }
    put_account(connection, account).await
}

/// Adds or replaces an account without regard to versions, within the caller's transaction.
pub(super) async fn put_account(
    connection: &mut SqliteConnection,
    account: &StoredAccount,
) -> Result<(), RowFailure> {
    let StoredAccount { hash, record } = account;
    let what = record.id().kind().name();
    let put = sqlx::query(
        "INSERT INTO accounts (id, kind, org, name, login, hash, tier, version, record) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET name = excluded.name, \
         login = excluded.login, hash = excluded.hash, tier = excluded.tier, version = excluded.version, \
         record = excluded.record",
    )
    .bind(record.id().as_str())
    .bind(what)
    .bind(record.org().as_str())
    .bind(record.unique_name())
    .bind(record.unique_login())
    .bind(hash.as_ref().map(|hash| hash.as_bytes().as_slice()))
    .bind(record.tier().map(TierName::as_str))
    .bind(i64::try_from(record.version()).unwrap_or(i64::MAX))
    .bind(json(record)?);
    put.execute(&mut *connection).await.map_err(|error| constraint(error, what, "organisation"))?;
    raise_format(connection, WITH_ACCOUNTS).await
}
