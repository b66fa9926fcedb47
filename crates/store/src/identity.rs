//! Organisations, projects, keys and the audit log in a SQLite file of their own, behind `identity`'s seam.
//! Every change and its audit row are one `synchronous=FULL` transaction. Knows hashes only, never a key's
//! secret.

use std::fmt;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use headrace_domain::{KeyId, OrgId, ProjectId, UnixNanos};
use headrace_identity::{
    AuditChecker, AuditEntry, AuditHash, AuditRow, AuditSummary, KeyHash, KeyRecord, KeyStore, OrgRecord,
    ProjectRecord, RateLimits, StoreError, StoredDirectory, StoredKey,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Connection, Row};
use tokio::runtime::Runtime;

use crate::sqlite::{self, Durability, Format, FormatError};

const FORMAT: Format =
    Format { what: "identity store", application_id: 0x4852_6964, version: 1, schema: SCHEMA };

/// Format 1. Limits, models and endpoints are JSON, times are Unix nanoseconds.
const SCHEMA: &str = "
CREATE TABLE orgs (
    id      TEXT NOT NULL PRIMARY KEY,
    limits  TEXT NOT NULL,
    created INTEGER NOT NULL
) STRICT;
CREATE TABLE projects (
    id      TEXT NOT NULL PRIMARY KEY,
    org     TEXT NOT NULL REFERENCES orgs (id),
    limits  TEXT NOT NULL,
    created INTEGER NOT NULL,
    UNIQUE (id, org)
) STRICT;
CREATE TABLE keys (
    id        TEXT NOT NULL PRIMARY KEY,
    hash      BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    org       TEXT NOT NULL,
    project   TEXT NOT NULL,
    name      TEXT NOT NULL,
    hint      TEXT NOT NULL,
    models    TEXT NOT NULL,
    endpoints TEXT NOT NULL,
    limits    TEXT NOT NULL,
    created   INTEGER NOT NULL,
    expires   INTEGER,
    revoked   INTEGER,
    FOREIGN KEY (project, org) REFERENCES projects (id, org)
) STRICT;
CREATE TABLE audit (
    seq      INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,
    actor    TEXT NOT NULL,
    act      TEXT NOT NULL,
    subject  TEXT NOT NULL,
    detail   TEXT NOT NULL,
    previous BLOB NOT NULL CHECK (length(previous) = 32),
    hash     BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE TRIGGER audit_rows_are_never_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'audit rows are never changed'); END;
CREATE TRIGGER audit_rows_are_never_deleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'audit rows are never deleted'); END;
CREATE TABLE audit_end (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    seq  INTEGER NOT NULL,
    hash BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE TABLE secret_check (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    value BLOB NOT NULL CHECK (length(value) = 32)
) STRICT;
";

/// Rows of the audit log that are read at a time while it is checked.
const VERIFY_PAGE: usize = 1_000;

/// Identities in a SQLite file. The connection lives on a thread of its own, so that calls may come from
/// anywhere; they block until the disk has answered.
pub struct SqliteKeyStore {
    /// Taken when the store is dropped, which ends the thread.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

type Job = Box<dyn FnOnce(&Runtime, &mut SqliteConnection) + Send>;

impl SqliteKeyStore {
    /// Opens the file at `path`, creating it (readable by its owner only) if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Newer`] if a newer program wrote it; [`StoreError::Corrupt`] if it is another kind of
    /// file.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let doing = "opening";
        create_private(path).map_err(|error| unavailable(doing, error))?;
        let path = path.to_owned();
        let (jobs, queue) = mpsc::channel::<Job>();
        let (opened, result) = mpsc::channel();
        let serve = move || {
            let ready = connect(&path);
            let (runtime, mut connection) = match ready {
                Ok(ready) => ready,
                // Whoever opens waits for this answer.
                Err(error) => return drop(opened.send(Err(error))),
            };
            drop(opened.send(Ok(())));
            for job in queue {
                job(&runtime, &mut connection);
            }
            // A close that fails leaves the write-ahead log, which the next opening reads.
            drop(runtime.block_on(connection.close()));
        };
        let thread = std::thread::Builder::new().name("identity-store".to_owned()).spawn(serve);
        let thread = thread.map_err(|error| unavailable(doing, error))?;
        result.recv().map_err(|_| unavailable(doing, "its thread ended"))??;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs `work` on the store's thread and waits for it.
    fn call<T, F>(&self, doing: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, Failure> + Send + 'static,
    {
        let ended = || unavailable(doing, "its thread ended");
        let (answer, result) = mpsc::channel();
        let job: Job = Box::new(move |runtime, connection| {
            let done = runtime.block_on(work(connection)).map_err(|failure| failure.while_doing(doing));
            // Nobody waits any more if the caller's thread is gone.
            drop(answer.send(done));
        });
        self.jobs.as_ref().ok_or_else(ended)?.send(job).map_err(|_| ended())?;
        result.recv().map_err(|_| ended())?
    }
}

impl Drop for SqliteKeyStore {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // It panicked or it did not: either way it is over.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for SqliteKeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteKeyStore").finish_non_exhaustive()
    }
}

impl KeyStore for SqliteKeyStore {
    fn load_all(&self) -> Result<StoredDirectory, StoreError> {
        self.call("loading", async |connection| {
            let mut snapshot = connection.begin().await?;
            let mut all = StoredDirectory::default();
            for row in sqlx::query("SELECT id, limits, created FROM orgs ORDER BY rowid")
                .fetch_all(&mut *snapshot)
                .await?
            {
                all.orgs.push(org(&row)?);
            }
            for row in sqlx::query("SELECT id, org, limits, created FROM projects ORDER BY rowid")
                .fetch_all(&mut *snapshot)
                .await?
            {
                all.projects.push(project(&row)?);
            }
            for row in sqlx::query("SELECT * FROM keys ORDER BY rowid").fetch_all(&mut *snapshot).await? {
                all.keys.push(key(&row)?);
            }
            snapshot.rollback().await?;
            Ok(all)
        })
    }

    fn secret_check(&self, check: [u8; 32]) -> Result<[u8; 32], StoreError> {
        self.call("checking the hash secret", async move |connection| {
            let mut change = connection.begin_with("BEGIN IMMEDIATE").await?;
            sqlx::query("INSERT INTO secret_check (only, value) VALUES (1, ?) ON CONFLICT DO NOTHING")
                .bind(check.as_slice())
                .execute(&mut *change)
                .await?;
            let row = sqlx::query("SELECT value FROM secret_check").fetch_one(&mut *change).await?;
            let kept = bytes(&row, "value")?;
            change.commit().await?;
            Ok(kept)
        })
    }

    fn insert_key(&self, key: &StoredKey, audit: &AuditEntry) -> Result<(), StoreError> {
        let (key, audit) = (key.clone(), audit.clone());
        self.call("adding a key", async move |connection| {
            let mut change = connection.begin_with("BEGIN IMMEDIATE").await?;
            let StoredKey { hash, record } = key;
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
            .execute(&mut *change)
            .await;
            inserted.map_err(|error| constraint(error, "key", "project"))?;
            log(&mut change, audit).await?;
            Ok(change.commit().await?)
        })
    }

    fn set_revoked(&self, id: &KeyId, at: UnixNanos, audit: &AuditEntry) -> Result<(), StoreError> {
        let (id, audit) = (id.clone(), audit.clone());
        self.call("revoking a key", async move |connection| {
            let mut change = connection.begin_with("BEGIN IMMEDIATE").await?;
            let found = sqlx::query("UPDATE keys SET revoked = coalesce(revoked, ?) WHERE id = ?")
                .bind(nanos(at)?)
                .bind(id.as_str())
                .execute(&mut *change)
                .await?;
            if found.rows_affected() == 0 {
                return Err(Failure::Store(StoreError::NotFound { what: "key" }));
            }
            log(&mut change, audit).await?;
            Ok(change.commit().await?)
        })
    }

    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        let (org, audit) = (org.clone(), audit.clone());
        self.call("writing an organisation", async move |connection| {
            let mut change = connection.begin_with("BEGIN IMMEDIATE").await?;
            sqlx::query(
                "INSERT INTO orgs (id, limits, created) VALUES (?, ?, ?) \
                 ON CONFLICT (id) DO UPDATE SET limits = excluded.limits",
            )
            .bind(org.id.as_str())
            .bind(json(&org.limits)?)
            .bind(nanos(org.created)?)
            .execute(&mut *change)
            .await?;
            log(&mut change, audit).await?;
            Ok(change.commit().await?)
        })
    }

    fn upsert_project(&self, project: &ProjectRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        let (project, audit) = (project.clone(), audit.clone());
        self.call("writing a project", async move |connection| {
            let mut change = connection.begin_with("BEGIN IMMEDIATE").await?;
            let written = sqlx::query(
                "INSERT INTO projects (id, org, limits, created) VALUES (?, ?, ?, ?) \
                 ON CONFLICT (id) DO UPDATE SET limits = excluded.limits WHERE org = excluded.org",
            )
            .bind(project.id.as_str())
            .bind(project.org.as_str())
            .bind(json(&project.limits)?)
            .bind(nanos(project.created)?)
            .execute(&mut *change)
            .await;
            let written = written.map_err(|error| constraint(error, "project", "organisation"))?;
            if written.rows_affected() == 0 {
                return Err(Failure::Store(StoreError::Duplicate { what: "project" }));
            }
            log(&mut change, audit).await?;
            Ok(change.commit().await?)
        })
    }

    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.call("reading the audit log", async move |connection| page(connection, after, limit).await)
    }

    fn verify_audit(&self) -> Result<AuditSummary, StoreError> {
        self.call("checking the audit log", async |connection| {
            let mut snapshot = connection.begin().await?;
            let recorded = end(&mut snapshot).await?;
            let mut checker = AuditChecker::new();
            let mut after = 0;
            loop {
                let rows = page(&mut snapshot, after, VERIFY_PAGE).await?;
                let Some(last) = rows.last() else { break };
                after = last.seq;
                rows.iter().try_for_each(|row| checker.check(row)).map_err(Failure::Store)?;
            }
            snapshot.rollback().await?;
            checker.finish(recorded).map_err(Failure::Store)
        })
    }
}

/// What went wrong within a call.
enum Failure {
    Sqlite(sqlx::Error),
    Store(StoreError),
}

impl Failure {
    fn while_doing(self, doing: &'static str) -> StoreError {
        match self {
            Self::Sqlite(error) => unavailable(doing, error),
            Self::Store(error) => error,
        }
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlite(error)
    }
}

fn unavailable(doing: &'static str, why: impl fmt::Display) -> StoreError {
    StoreError::Unavailable { doing, why: why.to_string() }
}

fn corrupt(what: impl fmt::Display, why: impl fmt::Display) -> Failure {
    Failure::Store(StoreError::Corrupt { what: what.to_string(), why: why.to_string() })
}

/// What SQLite's constraints mean: `unique` is there already, or what it belongs to is not.
fn constraint(error: sqlx::Error, unique: &'static str, belongs_to: &'static str) -> Failure {
    match error.as_database_error() {
        Some(known) if known.is_unique_violation() => Failure::Store(StoreError::Duplicate { what: unique }),
        Some(known) if known.is_foreign_key_violation() => {
            Failure::Store(StoreError::NotFound { what: belongs_to })
        }
        _ => Failure::Sqlite(error),
    }
}

/// Makes the file if there is none. SQLite gives its write-ahead log the same permissions.
fn create_private(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

fn connect(path: &Path) -> Result<(Runtime, SqliteConnection), StoreError> {
    let doing = "opening";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| unavailable(doing, error))?;
    let opened = runtime.block_on(async {
        let mut connection = sqlite::open(path, Durability::Full, false).await?;
        sqlite::ensure_format(&mut connection, FORMAT, false).await?;
        Ok(connection)
    });
    let connection = opened.map_err(|error| match error {
        FormatError::Sqlite(error) => unavailable(doing, error),
        FormatError::Newer { found, known, .. } => {
            StoreError::Newer { found: i64::from(found), known: i64::from(known) }
        }
        other => StoreError::Corrupt { what: path.display().to_string(), why: other.to_string() },
    })?;
    Ok((runtime, connection))
}

/// Puts a row at the end of the log, within the caller's transaction.
async fn log(change: &mut SqliteConnection, audit: AuditEntry) -> Result<(), Failure> {
    let row = audit.chained(&end(change).await?);
    let seq = i64::try_from(row.seq).map_err(|error| corrupt("the audit log", error))?;
    sqlx::query(
        "INSERT INTO audit (seq, at, actor, act, subject, detail, previous, hash) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(seq)
    .bind(nanos(row.entry.at)?)
    .bind(&row.entry.actor)
    .bind(&row.entry.act)
    .bind(&row.entry.subject)
    .bind(&row.entry.detail)
    .bind(row.previous.as_bytes().as_slice())
    .bind(row.hash.as_bytes().as_slice())
    .execute(&mut *change)
    .await?;
    sqlx::query(
        "INSERT INTO audit_end (only, seq, hash) VALUES (1, ?, ?) \
         ON CONFLICT (only) DO UPDATE SET seq = excluded.seq, hash = excluded.hash",
    )
    .bind(seq)
    .bind(row.hash.as_bytes().as_slice())
    .execute(change)
    .await?;
    Ok(())
}

/// Where the log ends, by its own record.
async fn end(connection: &mut SqliteConnection) -> Result<AuditSummary, Failure> {
    let row = sqlx::query("SELECT seq, hash FROM audit_end").fetch_optional(connection).await?;
    row.map_or(Ok(AuditSummary::EMPTY), |row| {
        Ok(AuditSummary { rows: number(&row, "seq")?, head: AuditHash::from_bytes(bytes(&row, "hash")?) })
    })
}

/// At most `limit` rows of the log after row `after`.
async fn page(connection: &mut SqliteConnection, after: u64, limit: usize) -> Result<Vec<AuditRow>, Failure> {
    let rows = sqlx::query(
        "SELECT seq, at, actor, act, subject, detail, previous, hash FROM audit WHERE seq > ? ORDER BY seq LIMIT ?",
    )
    .bind(i64::try_from(after).unwrap_or(i64::MAX))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    rows.iter().map(audit_row).collect()
}

fn audit_row(row: &SqliteRow) -> Result<AuditRow, Failure> {
    Ok(AuditRow {
        seq: number(row, "seq")?,
        previous: AuditHash::from_bytes(bytes(row, "previous")?),
        hash: AuditHash::from_bytes(bytes(row, "hash")?),
        entry: AuditEntry {
            at: UnixNanos::new(number(row, "at")?),
            actor: row.try_get("actor")?,
            act: row.try_get("act")?,
            subject: row.try_get("subject")?,
            detail: row.try_get("detail")?,
        },
    })
}

fn org(row: &SqliteRow) -> Result<OrgRecord, Failure> {
    Ok(OrgRecord {
        id: parsed(row, "id", OrgId::new)?,
        limits: from_json::<RateLimits>(row, "limits")?,
        created: UnixNanos::new(number(row, "created")?),
    })
}

fn project(row: &SqliteRow) -> Result<ProjectRecord, Failure> {
    Ok(ProjectRecord {
        id: parsed(row, "id", ProjectId::new)?,
        org: parsed(row, "org", OrgId::new)?,
        limits: from_json::<RateLimits>(row, "limits")?,
        created: UnixNanos::new(number(row, "created")?),
    })
}

fn key(row: &SqliteRow) -> Result<StoredKey, Failure> {
    Ok(StoredKey {
        hash: KeyHash::from_bytes(bytes(row, "hash")?),
        record: KeyRecord {
            id: parsed(row, "id", KeyId::new)?,
            org: parsed(row, "org", OrgId::new)?,
            project: parsed(row, "project", ProjectId::new)?,
            name: row.try_get("name")?,
            hint: row.try_get("hint")?,
            models: from_json(row, "models")?,
            endpoints: from_json(row, "endpoints")?,
            limits: from_json(row, "limits")?,
            created: UnixNanos::new(number(row, "created")?),
            expires: optional_time(row, "expires")?,
            revoked: optional_time(row, "revoked")?,
        },
    })
}

fn parsed<T, E: fmt::Display>(
    row: &SqliteRow,
    column: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Failure> {
    let text: &str = row.try_get(column)?;
    parse(text).map_err(|error| corrupt(format_args!("column `{column}`"), error))
}

fn from_json<T: DeserializeOwned>(row: &SqliteRow, column: &str) -> Result<T, Failure> {
    let text: &str = row.try_get(column)?;
    serde_json::from_str(text).map_err(|error| corrupt(format_args!("column `{column}`"), error))
}

fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| corrupt("a record to be written", error))
}

fn bytes(row: &SqliteRow, column: &str) -> Result<[u8; 32], Failure> {
    let blob: &[u8] = row.try_get(column)?;
    blob.try_into().map_err(|_| corrupt(format_args!("column `{column}`"), "it does not have 32 bytes"))
}

fn number(row: &SqliteRow, column: &str) -> Result<u64, Failure> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| corrupt(format_args!("column `{column}`"), "it is negative"))
}

fn optional_time(row: &SqliteRow, column: &str) -> Result<Option<UnixNanos>, Failure> {
    let number: Option<i64> = row.try_get(column)?;
    let time = number.map(u64::try_from).transpose();
    Ok(time.map_err(|_| corrupt(format_args!("column `{column}`"), "it is negative"))?.map(UnixNanos::new))
}

fn nanos(time: UnixNanos) -> Result<i64, Failure> {
    i64::try_from(time.get()).map_err(|_| corrupt("a time to be written", "it lies beyond the year 2262"))
}

#[cfg(test)]
mod tests;
