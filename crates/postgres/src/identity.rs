//! Organisations, projects, keys, operators and the audit log as tables that all gateways share. Every change, its audit
//! row and the number of changes are one transaction. The transaction locks the head of the journal, so that a gateway
//! that takes its turn afterwards sees the change. Knows only hashes, never a key's secret.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_domain::{KeyId, Residency, TierName, UnixNanos};
use headrace_identity::{
    ActLock, AuditChecker, AuditEntry, AuditHash, AuditRow, AuditSummary, DirectoryChanges, KeyStore,
    NotedRevocation, OrgRecord, ProjectRecord, RateLimits, RotatedSecret, StoreError, StoredDirectory,
    StoredKey,
};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use crate::schema;
use crate::session::{DatabaseSession, SessionFault, locked};
use crate::setup;
use crate::url::PostgresUrl;

mod accounts;
mod details;
mod document_table;
mod documents;
mod fill;
mod operators;
mod rows;
mod tiers;

use rows::{
    RowFailure, account, audit_row, corrupt, hash, json, key, nanos, number, org, project, split_tiers,
};

/// How long a change or a read may take.
const LIMIT: Duration = Duration::from_secs(4);
/// How long reading everything may take.
const LOAD_LIMIT: Duration = Duration::from_secs(60);
/// Rows of the audit log that are read at a time during verification.
const VERIFY_PAGE: usize = 1_000;

const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '2s'; SET LOCAL synchronous_commit = 'on'";
/// Locks the head of the journal. Also the first statement of a turn, so that neither waits for the other in a ring.
const CHANGED: &str = "UPDATE headrace.head SET directory = directory + 1 WHERE id = 0";
const CHANGES: &str = "SELECT directory FROM headrace.head WHERE id = 0";
const AUDIT_COLUMNS: &str = "seq, at, actor, act, subject, detail, previous, hash";

/// A value and its type in the database.
type Value<'a> = (&'a (dyn ToSql + Sync), Type);

/// Identities in a database. Calls may come from any thread, and block until the database has answered.
pub struct PostgresKeyStore {
    session: Mutex<DatabaseSession>,
    /// The last error of a write. `None` after a successful one.
    failing: Mutex<Option<String>>,
}

impl std::fmt::Debug for PostgresKeyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresKeyStore").finish_non_exhaustive()
    }
}

impl PostgresKeyStore {
    /// Opens the identities of a database, and makes their tables if they are missing.
    ///
    /// # Errors
    /// [`StoreError::Newer`] if a newer program made the tables. [`StoreError::Unavailable`] if the database cannot be
    /// reached.
    pub fn open(url: Arc<PostgresUrl>) -> Result<Self, StoreError> {
        let unavailable = |why: String| StoreError::Unavailable { doing: "opening", why };
        let mut session = DatabaseSession::new(url);
        schema::ensure(&mut session).map_err(|error| match error {
            headrace_ledger::JournalError::NewerFormat { found, known, .. } => {
                StoreError::Newer { found: i64::from(found), known: i64::from(known) }
            }
            other => unavailable(other.to_string()),
        })?;
        let made = session.run(LIMIT, async |client| client.batch_execute(document_table::TABLES).await);
        made.map_err(|fault| {
            session.close();
            unavailable(fault.why())
        })?;
        Ok(Self { session: Mutex::new(session), failing: Mutex::default() })
    }

    fn read<T: Send>(
        &self,
        doing: &'static str,
        limit: Duration,
        query: impl AsyncFnOnce(&Client) -> Result<T, RowFailure> + Send,
    ) -> Result<T, StoreError> {
        let done = locked(&self.session).run(limit, async |client| split(query(client).await));
        done.map_err(|fault| unavailable(doing, fault))?.map_err(|error| *error)
    }

    /// Runs a change and its audit row as one transaction, which no statement leaves half done.
    fn write<T: Send>(
        &self,
        doing: &'static str,
        change: impl AsyncFnOnce(&Client) -> Result<T, RowFailure> + Send,
    ) -> Result<T, StoreError> {
        let mut session = locked(&self.session);
        let done = session.run(LIMIT, async |client| {
            client.batch_execute(BEGIN).await?;
            client.batch_execute(CHANGED).await?;
            let changed = split(change(client).await)?;
            client.batch_execute(if changed.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
            Ok(changed)
        });
        if let Err(SessionFault::Refused { .. }) = &done {
            // The transaction failed, and is still open.
            let ended = session.run_open(LIMIT, async |client| client.batch_execute("ROLLBACK").await);
            if ended.is_err() {
                session.close();
            }
        }
        drop(session);
        *locked(&self.failing) = done.as_ref().err().map(|fault| fault.clone().why());
        done.map_err(|fault| unavailable(doing, fault))?.map_err(|error| *error)
    }
}

/// Separates errors of the database, which end a transaction, from the store's own.
fn split<T>(done: Result<T, RowFailure>) -> Result<Result<T, Box<StoreError>>, Error> {
    match done {
        Ok(value) => Ok(Ok(value)),
        Err(RowFailure::Store(error)) => Ok(Err(error)),
        Err(RowFailure::Database(error)) => Err(error),
    }
}

fn unavailable(doing: &'static str, fault: SessionFault) -> StoreError {
    StoreError::Unavailable { doing, why: fault.why() }
}

impl KeyStore for PostgresKeyStore {
    fn load_all(&self) -> Result<StoredDirectory, StoreError> {
        Ok(self.changed_since(0)?.records)
    }

    fn changed_since(&self, seen: u64) -> Result<DirectoryChanges, StoreError> {
        let seen = i64::try_from(seen).unwrap_or(i64::MAX);
        self.read("loading", LOAD_LIMIT, async |client| {
            let seen = [(&seen as _, Type::INT8)];
            // All are sent at once, and read one snapshot.
            let (begun, changes, orgs, projects, keys, tiers, accounts, ended) = tokio::join!(
                client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
                client.query_typed_one(CHANGES, &[]),
                client.query_typed(
                    "SELECT id, limits, regions, created, tier FROM headrace.orgs WHERE changed > $1 ORDER BY position",
                    &seen
                ),
                client.query_typed(
                    "SELECT id, org, limits, created, tier, records FROM headrace.projects WHERE changed > $1 ORDER BY position",
                    &seen
                ),
                client.query_typed(
                    "SELECT id, hash, number, former, until, org, project, name, hint, models, endpoints, limits, regions, created, \
                     expires, revoked, details, used, tier \
                     FROM headrace.keys LEFT JOIN headrace.key_uses ON key_uses.key = keys.id \
                     WHERE changed > $1 ORDER BY position",
                    &seen
                ),
                client.query_typed(
                    "SELECT name, rules, created FROM headrace.tiers WHERE changed > $1 ORDER BY name",
                    &seen
                ),
                client.query_typed(
                    "SELECT hash, record FROM headrace.accounts WHERE changed > $1 ORDER BY position",
                    &seen
                ),
                client.batch_execute("COMMIT"),
            );
            begun?;
            ended?;
            let (tiers, removed_tiers) = split_tiers(&tiers?)?;
            let records = StoredDirectory {
                tiers,
                removed_tiers,
                orgs: orgs?.iter().map(org).collect::<Result<_, _>>()?,
                projects: projects?.iter().map(project).collect::<Result<_, _>>()?,
                keys: keys?.iter().map(key).collect::<Result<_, _>>()?,
                accounts: accounts?.iter().map(account).collect::<Result<_, _>>()?,
                noted: Vec::new(),
            };
            Ok(DirectoryChanges { changes: number(&changes?, "directory")?, records })
        })
    }

    fn changes(&self) -> Result<Option<u64>, StoreError> {
        self.read("counting changes", LIMIT, async |client| {
            let row = client.query_typed_one(CHANGES, &[]).await?;
            Ok(Some(number(&row, "directory")?))
        })
    }

    fn lock_acts(&self) -> Result<ActLock, StoreError> {
        let url = locked(&self.session).shared_url();
        setup::lock_acts(url).map(ActLock::new)
    }

    fn secret_check(&self, check: [u8; 32]) -> Result<[u8; 32], StoreError> {
        self.read("checking the hash secret", LIMIT, async |client| {
            let check = check.as_slice();
            let insert = "INSERT INTO headrace.secret_check VALUES (0, $1) ON CONFLICT DO NOTHING";
            client.execute_typed(insert, &[(&check, Type::BYTEA)]).await?;
            let row = client.query_typed_one("SELECT value FROM headrace.secret_check", &[]).await?;
            hash(&row, "value")
        })
    }

    fn insert_key(&self, key: &StoredKey, audit: &AuditEntry) -> Result<(), StoreError> {
        let StoredKey { hash, record, .. } = key;
        self.write("adding a key", async |client| {
            let hash = hash.as_bytes().as_slice();
            let (id, org, project) = (record.id.as_str(), record.org.as_str(), record.project.as_str());
            let home: [Value<'_>; 2] = [(&project, Type::TEXT), (&org, Type::TEXT)];
            if !exists(client, "SELECT FROM headrace.projects WHERE id = $1 AND org = $2", &home).await? {
                return Err(StoreError::NotFound { what: "project" }.into());
            }
            let same: [Value<'_>; 2] = [(&id, Type::TEXT), (&hash, Type::BYTEA)];
            if exists(client, "SELECT FROM headrace.keys WHERE id = $1 OR hash = $2", &same).await? {
                return Err(StoreError::Duplicate { what: "key" }.into());
            }
            add_key(client, key).await?;
            log(client, audit).await.map(drop)
        })
    }

    fn set_revoked(&self, id: &KeyId, at: UnixNanos, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("revoking a key", async |client| {
            let (id, at) = (id.as_str(), nanos(at)?);
            let set = "UPDATE headrace.keys SET revoked = $2 WHERE id = $1 AND revoked IS NULL";
            if client.execute_typed(set, &[(&id, Type::TEXT), (&at, Type::INT8)]).await? > 0 {
                return log(client, audit).await.map(drop);
            }
            match exists(client, "SELECT FROM headrace.keys WHERE id = $1", &[(&id, Type::TEXT)]).await? {
                true => Ok(()),
                false => Err(StoreError::NotFound { what: "key" }.into()),
            }
        })
    }

    fn rotate_key(&self, id: &KeyId, rotated: &RotatedSecret, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("rotating a key", async |client| {
            let (id, number) = (id.as_str(), i32::try_from(rotated.number).unwrap_or(i32::MAX));
            let [hash, former] = [&rotated.hash, &rotated.former].map(|hash| hash.as_bytes().as_slice());
            let until = nanos(rotated.former_until)?;
            let set = "UPDATE headrace.keys SET hash = $2, hint = $3, number = $4, former = $5, until = $6 \
                       WHERE id = $1 AND revoked IS NULL";
            let values = [
                (&id as _, Type::TEXT),
                (&hash as _, Type::BYTEA),
                (&rotated.hint as _, Type::TEXT),
                (&number as _, Type::INT4),
                (&former as _, Type::BYTEA),
                (&until as _, Type::INT8),
            ];
            if client.execute_typed(set, &values).await? == 0 {
                return Err(StoreError::NotFound { what: "key" }.into());
            }
            log(client, audit).await.map(drop)
        })
    }

    fn set_key_limits(&self, id: &KeyId, limits: RateLimits, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("changing a key's limits", async |client| {
            let set = "UPDATE headrace.keys SET limits = $2 WHERE id = $1";
            change_key(client, set, id, &json(&limits)?, audit).await
        })
    }

    fn set_key_regions(&self, id: &KeyId, regions: &Residency, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("changing a key's regions", async |client| {
            let set = "UPDATE headrace.keys SET regions = $2 WHERE id = $1";
            change_key(client, set, id, &json(regions)?, audit).await
        })
    }

    fn note_revocations(&self, noted: &[NotedRevocation]) -> Result<(), StoreError> {
        if noted.is_empty() {
            return Ok(());
        }
        // The reserve is a file of one server. Other gateways would not know of it.
        let why = "the database does not accept changes, and it has no reserve".to_owned();
        Err(StoreError::Unavailable { doing: "noting a revocation", why })
    }

    fn failing(&self) -> Option<String> {
        locked(&self.failing).clone()
    }

    fn probe(&self) -> Result<(), StoreError> {
        // A change that changes nothing, so that no gateway loads identities again.
        let tried = locked(&self.session).run(LIMIT, async |client| {
            client.batch_execute("UPDATE headrace.schema_version SET version = version").await
        });
        *locked(&self.failing) = tried.as_ref().err().map(|fault| fault.clone().why());
        tried.map_err(|fault| unavailable("trying the database", fault))
    }

    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("writing an organisation", async |client| {
            put_org(client, org).await?;
            log(client, audit).await.map(drop)
        })
    }

    fn upsert_project(&self, project: &ProjectRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("writing a project", async |client| {
            put_project(client, project).await?;
            log(client, audit).await.map(drop)
        })
    }

    fn note(&self, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("noting an act", async |client| log(client, audit).await.map(drop))
    }

    fn announce(&self, audit: &AuditEntry, act: &str) -> Result<u64, StoreError> {
        self.write("announcing an act", async |client| {
            let row = log(client, audit).await?;
            let seq = i64::try_from(row).map_err(|error| corrupt("the audit log", error))?;
            let insert = "INSERT INTO headrace.announced VALUES ($1, $2)";
            client.execute_typed(insert, &[(&seq, Type::INT8), (&act, Type::TEXT)]).await?;
            Ok(row)
        })
    }

    fn conclude(&self, row: u64, not_done: Option<&AuditEntry>) -> Result<(), StoreError> {
        self.write("concluding an act", async |client| {
            let seq = i64::try_from(row).unwrap_or(i64::MAX);
            let gone = "DELETE FROM headrace.announced WHERE seq = $1";
            match (client.execute_typed(gone, &[(&seq, Type::INT8)]).await?, not_done) {
                (1.., Some(audit)) => log(client, audit).await.map(drop),
                _ => Ok(()),
            }
        })
    }

    fn announced(&self) -> Result<Vec<(u64, String)>, StoreError> {
        self.read("reading announced acts", LIMIT, async |client| {
            let rows =
                client.query_typed("SELECT seq, act FROM headrace.announced ORDER BY seq", &[]).await?;
            rows.iter().map(|row| Ok((number(row, "seq")?, row.try_get("act")?))).collect()
        })
    }

    fn audit_of(&self, act: &str, subject: Option<&str>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.read("reading the audit log", LIMIT, async |client| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let query = format!(
                "SELECT {AUDIT_COLUMNS} FROM headrace.audit WHERE act = $1 AND ($2::text IS NULL OR subject = $2) \
                 ORDER BY seq DESC LIMIT $3"
            );
            let values: [Value<'_>; 3] = [(&act, Type::TEXT), (&subject, Type::TEXT), (&limit, Type::INT8)];
            client.query_typed(&query, &values).await?.iter().map(audit_row).collect()
        })
    }

    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.read("reading the audit log", LIMIT, async |client| page(client, after, limit).await)
    }

    fn audit_end(&self) -> Result<AuditSummary, StoreError> {
        self.read("reading the end of the audit log", LIMIT, async |client| end(client, "").await)
    }

    fn verify_audit(&self) -> Result<AuditSummary, StoreError> {
        self.read("checking the audit log", LOAD_LIMIT, async |client| {
            let recorded = end(client, "").await?;
            let mut checker = AuditChecker::new();
            let mut after = 0;
            while after < recorded.rows {
                let mut rows = page(client, after, VERIFY_PAGE).await?;
                // Other gateways may write while this one reads.
                rows.retain(|row| row.seq <= recorded.rows);
                let Some(last) = rows.last() else { break };
                after = last.seq;
                rows.iter().try_for_each(|row| checker.check(row))?;
            }
            Ok(checker.finish(recorded)?)
        })
    }
}

async fn exists(client: &Client, query: &str, values: &[Value<'_>]) -> Result<bool, Error> {
    client.query_typed_opt(query, values).await.map(|row| row.is_some())
}

/// Adds or changes an organisation, within the caller's transaction.
async fn put_org(client: &Client, org: &OrgRecord) -> Result<(), RowFailure> {
    let (id, limits, regions) = (org.id.as_str(), json(&org.limits)?, json(&org.regions)?);
    let created = nanos(org.created)?;
    client
        .execute_typed(
            "INSERT INTO headrace.orgs (id, limits, regions, created, tier) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (id) DO UPDATE SET limits = excluded.limits, regions = excluded.regions",
            &[
                (&id, Type::TEXT),
                (&limits, Type::TEXT),
                (&regions, Type::TEXT),
                (&created, Type::INT8),
                (&org.tier.as_ref().map(TierName::as_str), Type::TEXT),
            ],
        )
        .await?;
    Ok(())
}

/// Adds or changes a project, within the caller's transaction.
async fn put_project(client: &Client, project: &ProjectRecord) -> Result<(), RowFailure> {
    let (id, org, limits) = (project.id.as_str(), project.org.as_str(), json(&project.limits)?);
    let (created, records) = (nanos(project.created)?, json(&project.records)?);
    if !exists(client, "SELECT FROM headrace.orgs WHERE id = $1", &[(&org, Type::TEXT)]).await? {
        return Err(StoreError::NotFound { what: "organisation" }.into());
    }
    let written = client
        .execute_typed(
            "INSERT INTO headrace.projects (id, org, limits, created, tier, records) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (id) DO UPDATE SET limits = excluded.limits, records = excluded.records \
             WHERE projects.org = excluded.org",
            &[
                (&id, Type::TEXT),
                (&org, Type::TEXT),
                (&limits, Type::TEXT),
                (&created, Type::INT8),
                (&project.tier.as_ref().map(TierName::as_str), Type::TEXT),
                (&records, Type::TEXT),
            ],
        )
        .await?;
    if written == 0 {
        return Err(StoreError::Duplicate { what: "project" }.into());
    }
    Ok(())
}

/// Adds a key to the table, within the caller's transaction.
async fn add_key(client: &Client, key: &StoredKey) -> Result<(), RowFailure> {
    let StoredKey { hash, former, record } = key;
    let (hash, former) =
        (hash.as_bytes().as_slice(), former.as_ref().map(|former| former.as_bytes().as_slice()));
    let number = i32::try_from(record.secret_number).unwrap_or(i32::MAX);
    let created = nanos(record.created)?;
    let [until, expires, revoked] = [record.former_until, record.expires, record.revoked];
    let (until, expires) = (until.map(nanos).transpose()?, expires.map(nanos).transpose()?);
    let revoked = revoked.map(nanos).transpose()?;
    let (models, endpoints) = (json(&record.models)?, json(&record.endpoints)?);
    let (limits, regions) = (json(&record.limits)?, json(&record.regions)?);
    let details = json(&record.details)?;
    let (id, org, project) = (record.id.as_str(), record.org.as_str(), record.project.as_str());
    client
        .execute_typed(
            "INSERT INTO headrace.keys (id, hash, org, project, name, hint, models, endpoints, limits, regions, \
             created, expires, revoked, number, former, until, details, tier) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)",
            &[
                (&id, Type::TEXT),
                (&hash, Type::BYTEA),
                (&org, Type::TEXT),
                (&project, Type::TEXT),
                (&record.name, Type::TEXT),
                (&record.hint, Type::TEXT),
                (&models, Type::TEXT),
                (&endpoints, Type::TEXT),
                (&limits, Type::TEXT),
                (&regions, Type::TEXT),
                (&created, Type::INT8),
                (&expires, Type::INT8),
                (&revoked, Type::INT8),
                (&number, Type::INT4),
                (&former, Type::BYTEA),
                (&until, Type::INT8),
                (&details, Type::TEXT),
                (&record.tier.as_ref().map(TierName::as_str), Type::TEXT),
            ],
        )
        .await?;
    if let Some(used) = record.last_used {
        let used = nanos(used)?;
        let put = "INSERT INTO headrace.key_uses VALUES ($1, $2)";
        client.execute_typed(put, &[(&id, Type::TEXT), (&used, Type::INT8)]).await?;
    }
    Ok(())
}

async fn change_key(
    client: &Client,
    set: &str,
    id: &KeyId,
    value: &str,
    audit: &AuditEntry,
) -> Result<(), RowFailure> {
    let id = id.as_str();
    if client.execute_typed(set, &[(&id, Type::TEXT), (&value, Type::TEXT)]).await? == 0 {
        return Err(StoreError::NotFound { what: "key" }.into());
    }
    log(client, audit).await.map(drop)
}

/// Appends a row to the log, within the caller's transaction. Returns its number.
async fn log(client: &Client, audit: &AuditEntry) -> Result<u64, RowFailure> {
    let row = audit.clone().chained(&end(client, "FOR UPDATE").await?);
    let seq = i64::try_from(row.seq).map_err(|error| corrupt("the audit log", error))?;
    let at = nanos(row.entry.at)?;
    let (previous, hash) = (row.previous.as_bytes().as_slice(), row.hash.as_bytes().as_slice());
    let AuditEntry { actor, act, subject, detail, .. } = &row.entry;
    client
        .execute_typed(
            "INSERT INTO headrace.audit VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                (&seq, Type::INT8),
                (&at, Type::INT8),
                (actor, Type::TEXT),
                (act, Type::TEXT),
                (subject, Type::TEXT),
                (detail, Type::TEXT),
                (&previous, Type::BYTEA),
                (&hash, Type::BYTEA),
            ],
        )
        .await?;
    let moved = "UPDATE headrace.audit_end SET seq = $1, hash = $2 WHERE id = 0";
    client.execute_typed(moved, &[(&seq, Type::INT8), (&hash, Type::BYTEA)]).await?;
    Ok(row.seq)
}

/// The end of the log, as the store recorded it.
async fn end(client: &Client, lock: &str) -> Result<AuditSummary, RowFailure> {
    let query = format!("SELECT seq, hash FROM headrace.audit_end WHERE id = 0 {lock}");
    let row: Row = client.query_typed_one(&query, &[]).await?;
    Ok(AuditSummary { rows: number(&row, "seq")?, head: AuditHash::from_bytes(hash(&row, "hash")?) })
}

/// Returns at most `limit` rows of the log after row `after`.
async fn page(client: &Client, after: u64, limit: usize) -> Result<Vec<AuditRow>, RowFailure> {
    let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    let query = format!("SELECT {AUDIT_COLUMNS} FROM headrace.audit WHERE seq > $1 ORDER BY seq LIMIT $2");
    let rows = client.query_typed(&query, &[(&after, Type::INT8), (&limit, Type::INT8)]).await?;
    rows.iter().map(audit_row).collect()
}
