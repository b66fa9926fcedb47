//! Statements that add or change records, within the caller's transaction.

use headrace_domain::{KeyId, Residency, UnixNanos};
use headrace_identity::{KeyDetails, KeyHash, KeyUse, OrgRecord, ProjectRecord, StoreError, StoredKey};
use sqlx::sqlite::SqliteConnection;

use super::detail_rows::{put_details, put_uses, raise_format};
use super::record_rows::put_records;
use super::rows::{RowFailure, constraint, json, nanos};
use super::tier_rows::put_tier_of;

/// Format of a file that contains region pins. A program that does not know region pins must refuse such a file.
pub(super) const PINNED: i32 = 2;

/// Values of `regions.kind`. An owner without a row may be served anywhere.
pub(super) const OF_ORG: &str = "org";
pub(super) const OF_KEY: &str = "key";

/// Adds a key, within the caller's transaction.
pub(super) async fn add_key(connection: &mut SqliteConnection, key: &StoredKey) -> Result<(), RowFailure> {
    let StoredKey { hash, former, record } = key;
    let inserted = sqlx::query(
        "INSERT INTO keys (id, hash, org, project, name, hint, models, endpoints, limits, created, expires, \
         revoked) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(record.id.as_str())
    .bind(hash.as_bytes().as_slice())
    .bind(record.org.as_str())
    .bind(record.project.as_str())
    .bind(&record.name)
    .bind(&record.hint)
    .bind(json(&record.models)?)
    .bind(json(&record.endpoints)?)
    .bind(json(&record.limits)?)
    .bind(nanos(record.created)?)
    .bind(record.expires.map(nanos).transpose()?)
    .bind(record.revoked.map(nanos).transpose()?)
    .execute(&mut *connection)
    .await;
    inserted.map_err(|error| constraint(error, "key", "project"))?;
    pin(&mut *connection, OF_KEY, record.id.as_str(), &record.regions).await?;
    if let (Some(former), Some(until)) = (former, record.former_until) {
        put_rotation(&mut *connection, &record.id, record.secret_number, former, until).await?;
    }
    if record.details != KeyDetails::default() {
        put_details(&mut *connection, &record.id, &record.details).await?;
    }
    if record.tier.is_some() {
        put_tier_of(&mut *connection, "key", record.id.as_str(), record.tier.as_ref()).await?;
    }
    if let Some(at) = record.last_used {
        put_uses(connection, &[KeyUse { key: record.id.clone(), at }]).await?;
    }
    Ok(())
}

pub(super) async fn put_rotation(
    connection: &mut SqliteConnection,
    id: &KeyId,
    number: u32,
    former: &KeyHash,
    until: UnixNanos,
) -> Result<(), RowFailure> {
    let put = sqlx::query("INSERT OR REPLACE INTO rotations VALUES (?, ?, ?, ?)");
    let put = put.bind(id.as_str()).bind(i64::from(number)).bind(former.as_bytes().as_slice());
    put.bind(nanos(until)?).execute(connection).await?;
    Ok(())
}

/// Adds or changes an organisation, within the caller's transaction.
pub(super) async fn put_org(connection: &mut SqliteConnection, org: &OrgRecord) -> Result<(), RowFailure> {
    sqlx::query(
        "INSERT INTO orgs (id, limits, created) VALUES (?, ?, ?) \
         ON CONFLICT (id) DO UPDATE SET limits = excluded.limits",
    )
    .bind(org.id.as_str())
    .bind(json(&org.limits)?)
    .bind(nanos(org.created)?)
    .execute(&mut *connection)
    .await?;
    pin(connection, OF_ORG, org.id.as_str(), &org.regions).await?;
    Ok(())
}

/// Adds or changes a project, within the caller's transaction.
pub(super) async fn put_project(
    connection: &mut SqliteConnection,
    project: &ProjectRecord,
) -> Result<(), RowFailure> {
    let written = sqlx::query(
        "INSERT INTO projects (id, org, limits, created) VALUES (?, ?, ?, ?) \
         ON CONFLICT (id) DO UPDATE SET limits = excluded.limits WHERE org = excluded.org",
    )
    .bind(project.id.as_str())
    .bind(project.org.as_str())
    .bind(json(&project.limits)?)
    .bind(nanos(project.created)?)
    .execute(&mut *connection)
    .await;
    let written = written.map_err(|error| constraint(error, "project", "organisation"))?;
    if written.rows_affected() == 0 {
        return Err(RowFailure::Store(StoreError::Duplicate { what: "project" }));
    }
    put_records(connection, &project.id, project.records).await
}
/// Writes the regions of an organisation or a key, within the caller's transaction.
pub(super) async fn pin(
    connection: &mut SqliteConnection,
    kind: &str,
    id: &str,
    regions: &Residency,
) -> Result<(), RowFailure> {
    if *regions == Residency::Anywhere {
        let gone = sqlx::query("DELETE FROM regions WHERE kind = ? AND id = ?").bind(kind).bind(id);
        gone.execute(connection).await?;
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO regions (kind, id, regions) VALUES (?, ?, ?) \
         ON CONFLICT (kind, id) DO UPDATE SET regions = excluded.regions",
    )
    .bind(kind)
    .bind(id)
    .bind(json(regions)?)
    .execute(&mut *connection)
    .await?;
    raise_format(connection, PINNED).await
}
