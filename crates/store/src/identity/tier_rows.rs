//! Statements about tiers and their assignments, within the caller's transaction. Their tables are beside format 1.

use headrace_domain::{TierName, UnixNanos};
use headrace_identity::{StoredDirectory, TierRecord};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::detail_rows::{RESTRICTED, raise_format};
use super::rows::{RowFailure, constraint, corrupt, from_json, json, nanos, number, parsed};

/// Tables that are added to files of every format.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS tiers (
    name    TEXT NOT NULL PRIMARY KEY,
    rules   TEXT NOT NULL,
    created INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS tier_of (
    kind TEXT NOT NULL,
    id   TEXT NOT NULL,
    tier TEXT NOT NULL REFERENCES tiers (name),
    PRIMARY KEY (kind, id)
) STRICT;
";

/// Adds or changes a tier, within the caller's transaction.
pub(super) async fn put_tier(connection: &mut SqliteConnection, tier: &TierRecord) -> Result<(), RowFailure> {
    let put = sqlx::query(
        "INSERT INTO tiers (name, rules, created) VALUES (?, ?, ?) \
         ON CONFLICT (name) DO UPDATE SET rules = excluded.rules",
    );
    let put = put.bind(tier.name.as_str()).bind(json(&tier.rules)?).bind(nanos(tier.created)?);
    put.execute(connection).await?;
    Ok(())
}

/// Assigns a tier or none, within the caller's transaction.
pub(super) async fn put_tier_of(
    connection: &mut SqliteConnection,
    kind: &str,
    id: &str,
    tier: Option<&TierName>,
) -> Result<(), RowFailure> {
    let Some(tier) = tier else {
        let gone = sqlx::query("DELETE FROM tier_of WHERE kind = ? AND id = ?").bind(kind).bind(id);
        gone.execute(connection).await?;
        return Ok(());
    };
    let put = sqlx::query("INSERT OR REPLACE INTO tier_of (kind, id, tier) VALUES (?, ?, ?)");
    let put = put.bind(kind).bind(id).bind(tier.as_str()).execute(&mut *connection).await;
    put.map_err(|error| constraint(error, "tier", "tier"))?;
    raise_format(connection, RESTRICTED).await
}

/// Reads all tiers, and assigns them to the records that were read.
pub(super) async fn load(
    connection: &mut SqliteConnection,
    all: &mut StoredDirectory,
) -> Result<(), RowFailure> {
    let tiers = sqlx::query("SELECT name, rules, created FROM tiers ORDER BY name");
    for row in tiers.fetch_all(&mut *connection).await? {
        all.tiers.push(TierRecord {
            name: parsed(&row, "name", TierName::new)?,
            rules: from_json(&row, "rules")?,
            created: UnixNanos::new(number(&row, "created")?),
        });
    }
    let of = sqlx::query("SELECT kind, id, tier FROM tier_of WHERE kind != 'key'");
    for row in of.fetch_all(connection).await? {
        assign(&row, all)?;
    }
    Ok(())
}

/// Assigns the tier in a row to its organisation or project.
fn assign(row: &SqliteRow, all: &mut StoredDirectory) -> Result<(), RowFailure> {
    let (kind, id): (&str, &str) = (row.try_get("kind")?, row.try_get("id")?);
    let held = match kind {
        "org" => all.orgs.iter_mut().find(|org| org.id.as_str() == id).map(|org| &mut org.tier),
        _ => {
            let project = all.projects.iter_mut().find(|project| project.id.as_str() == id);
            project.map(|project| &mut project.tier)
        }
    };
    let none = || corrupt("table `tier_of`", format_args!("there is no {kind} `{id}`"));
    *held.ok_or_else(none)? = Some(parsed(row, "tier", TierName::new)?);
    Ok(())
}
