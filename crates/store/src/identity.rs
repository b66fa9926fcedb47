//! Organisations, projects, keys and the audit log in their own SQLite file, behind the `identity` crate's seam. Every
//! change and its audit row are one `synchronous=FULL` transaction. Knows only hashes, never a key's secret.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_domain::{KeyId, Residency, UnixNanos};
use headrace_identity::{
    AuditChecker, AuditEntry, AuditHash, AuditRow, AuditSummary, KeyStore, NotedRevocation, OrgRecord,
    ProjectRecord, RateLimits, RotatedSecret, StoreError, StoredDirectory, StoredKey,
};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::disk::DiskBallast;
use crate::sqlite::{CommitDurability, FileFormat, SqliteFile};

mod account_rows;

mod accounts;

mod changes;

mod detail_rows;

mod details;

mod document_table;

mod documents;

mod fill;

mod operators;

mod record_rows;

mod reserve;

mod rows;

mod tier_rows;

mod tiers;

use account_rows::WITH_ACCOUNTS;
use changes::{OF_KEY, OF_ORG, add_key, pin, put_org, put_project, put_rotation};
use reserve::RevocationReserve;
use rows::{
    RowFailure, bytes, constraint, corrupt, from_json, json, key, nanos, number, org, project, unavailable,
};

const FORMAT: FileFormat = FileFormat {
    what: "identity store",
    application_id: 0x4852_6964,
    version: 1,
    newest: WITH_ACCOUNTS,
    schema: SCHEMA,
    upgrade: "",
    shrinks: false,
};

/// Format 1. Limits, models and endpoints are JSON. Times are Unix nanoseconds.
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

/// Additions to format 1 since its first version. They are also created in older files. Programs that do not know them
/// ignore them.
const ADDITIONS: &str = "
CREATE TABLE IF NOT EXISTS announced (
    seq INTEGER PRIMARY KEY REFERENCES audit (seq),
    act TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS audit_act ON audit (act, seq);
CREATE INDEX IF NOT EXISTS audit_about ON audit (act, subject, seq);
CREATE TABLE IF NOT EXISTS regions (
    kind    TEXT NOT NULL,
    id      TEXT NOT NULL,
    regions TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT;
CREATE TABLE IF NOT EXISTS rotations (
    key    TEXT NOT NULL PRIMARY KEY REFERENCES keys (id),
    number INTEGER NOT NULL,
    former BLOB NOT NULL CHECK (length(former) = 32),
    until  INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS operators (
    id      TEXT NOT NULL PRIMARY KEY,
    hash    BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    name    TEXT NOT NULL,
    role    TEXT NOT NULL,
    hint    TEXT NOT NULL,
    created INTEGER NOT NULL,
    revoked INTEGER
) STRICT;
";
/// Keys with the secrets before their last rotation, their details, last uses and tiers.
const KEYS: &str = "SELECT keys.*, rotations.number, rotations.former, rotations.until, details, used, tier FROM keys \
                    LEFT JOIN rotations ON rotations.key = keys.id \
                    LEFT JOIN key_details ON key_details.key = keys.id \
                    LEFT JOIN key_uses ON key_uses.key = keys.id \
                    LEFT JOIN tier_of ON tier_of.kind = 'key' AND tier_of.id = keys.id ORDER BY keys.rowid";
/// Rows of the audit log that are read at a time during verification.
const VERIFY_PAGE: usize = 1_000;

/// Identities in a SQLite file. Calls may come from any thread, and block until the disk has answered.
pub struct SqliteKeyStore {
    database: Mutex<SqliteFile>,
    reserve: Mutex<RevocationReserve>,
    /// The last write error. `None` after a successful write.
    failing: Mutex<Option<String>>,
    /// Releases space if the disk is full.
    ballast: Option<Arc<DiskBallast>>,
}

impl SqliteKeyStore {
    /// Opens the file at `path`, and creates it (readable only by its owner) if it is missing. Also opens the reserve
    /// file beside it, in which revocations are noted while the disk is full.
    ///
    /// # Errors
    /// [`StoreError::Newer`] if a newer program wrote the file, [`StoreError::Corrupt`] if it is another kind of file.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let database = SqliteFile::open(path, CommitDurability::Full, FORMAT);
        let mut database = database.map_err(|error| RowFailure::from(error).while_doing("opening"))?;
        let added = database.write(async |connection| {
            sqlx::raw_sql(ADDITIONS).execute(&mut *connection).await?;
            sqlx::raw_sql(detail_rows::TABLES).execute(&mut *connection).await?;
            sqlx::raw_sql(tier_rows::TABLES).execute(&mut *connection).await?;
            sqlx::raw_sql(account_rows::TABLES).execute(&mut *connection).await?;
            sqlx::raw_sql(record_rows::TABLES).execute(&mut *connection).await?;
            sqlx::raw_sql(document_table::TABLES).execute(connection).await?;
            Ok::<_, RowFailure>(())
        });
        added.map_err(|failure| failure.while_doing("opening"))?;
        let reserve =
            RevocationReserve::open(path).map_err(|error| unavailable("opening its reserve", error))?;
        Ok(Self {
            database: Mutex::new(database),
            reserve: Mutex::new(reserve),
            failing: Mutex::default(),
            ballast: None,
        })
    }

    /// Returns the store with a ballast, whose space it uses if the disk is full.
    #[must_use]
    pub fn backed_by(mut self, ballast: Arc<DiskBallast>) -> Self {
        self.ballast = Some(ballast);
        self
    }

    fn read<T, F>(&self, doing: &'static str, query: F) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, RowFailure>,
    {
        locked(&self.database).read(query).map_err(|failure| failure.while_doing(doing))
    }

    fn write<T, F>(&self, doing: &'static str, change: F) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, RowFailure>,
    {
        if let Some(ballast) = &self.ballast {
            ballast.relieve();
        }
        let done = locked(&self.database).write(change);
        *locked(&self.failing) = match &done {
            Err(RowFailure::Sqlite(error)) => Some(error.to_string()),
            // A store that refuses a change is able to write.
            Ok(_) | Err(RowFailure::Store(_)) => None,
        };
        done.map_err(|failure| failure.while_doing(doing))
    }
}

/// Locks a mutex. Poisoning is ignored, because a panic leaves no half-done state behind.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for SqliteKeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteKeyStore").finish_non_exhaustive()
    }
}

impl KeyStore for SqliteKeyStore {
    fn load_all(&self) -> Result<StoredDirectory, StoreError> {
        let noted = locked(&self.reserve).noted();
        let noted = noted.map_err(|error| unavailable("reading its reserve", error))?;
        self.read("loading", async |connection| {
            let mut all = StoredDirectory { noted, ..StoredDirectory::default() };
            for row in sqlx::query("SELECT id, limits, created FROM orgs ORDER BY rowid")
                .fetch_all(&mut *connection)
                .await?
            {
                all.orgs.push(org(&row)?);
            }
            for row in sqlx::query("SELECT id, org, limits, created FROM projects ORDER BY rowid")
                .fetch_all(&mut *connection)
                .await?
            {
                all.projects.push(project(&row)?);
            }
            for row in sqlx::query(KEYS).fetch_all(&mut *connection).await? {
                all.keys.push(key(&row)?);
            }
            for row in
                sqlx::query("SELECT kind, id, regions FROM regions").fetch_all(&mut *connection).await?
            {
                pinned(&row, &mut all)?;
            }
            tier_rows::load(&mut *connection, &mut all).await?;
            record_rows::load(&mut *connection, &mut all).await?;
            account_rows::load(connection, &mut all).await?;
            Ok(all)
        })
    }

    fn secret_check(&self, check: [u8; 32]) -> Result<[u8; 32], StoreError> {
        self.write("checking the hash secret", async move |connection| {
            sqlx::query("INSERT INTO secret_check (only, value) VALUES (1, ?) ON CONFLICT DO NOTHING")
                .bind(check.as_slice())
                .execute(&mut *connection)
                .await?;
            let row = sqlx::query("SELECT value FROM secret_check").fetch_one(&mut *connection).await?;
            let kept = bytes(&row, "value")?;
            Ok(kept)
        })
    }

    fn insert_key(&self, key: &StoredKey, audit: &AuditEntry) -> Result<(), StoreError> {
        let (key, audit) = (key.clone(), audit.clone());
        self.write("adding a key", async move |connection| {
            add_key(connection, &key).await?;
            log(connection, audit).await
        })
    }

    fn set_revoked(&self, id: &KeyId, at: UnixNanos, audit: &AuditEntry) -> Result<(), StoreError> {
        let (id, audit) = (id.clone(), audit.clone());
        self.write("revoking a key", async move |connection| {
            let set = sqlx::query("UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL");
            let set = set.bind(nanos(at)?).bind(id.as_str()).execute(&mut *connection).await?;
            if set.rows_affected() > 0 {
                return log(connection, audit).await;
            }
            let found = sqlx::query("SELECT 1 FROM keys WHERE id = ?").bind(id.as_str());
            match found.fetch_optional(connection).await? {
                Some(_) => Ok(()),
                None => Err(RowFailure::Store(StoreError::NotFound { what: "key" })),
            }
        })
    }

    fn rotate_key(&self, id: &KeyId, rotated: &RotatedSecret, audit: &AuditEntry) -> Result<(), StoreError> {
        let (id, rotated, audit) = (id.clone(), rotated.clone(), audit.clone());
        self.write("rotating a key", async move |connection| {
            let set = sqlx::query("UPDATE keys SET hash = ?, hint = ? WHERE id = ? AND revoked IS NULL");
            let set = set.bind(rotated.hash.as_bytes().as_slice()).bind(&rotated.hint).bind(id.as_str());
            let set = set.execute(&mut *connection).await;
            if set.map_err(|error| constraint(error, "key", "project"))?.rows_affected() == 0 {
                return Err(RowFailure::Store(StoreError::NotFound { what: "key" }));
            }
            let RotatedSecret { number, former, former_until, .. } = &rotated;
            put_rotation(connection, &id, *number, former, *former_until).await?;
            log(connection, audit).await
        })
    }

    fn set_key_limits(&self, id: &KeyId, limits: RateLimits, audit: &AuditEntry) -> Result<(), StoreError> {
        let (id, audit) = (id.clone(), audit.clone());
        self.write("changing a key's limits", async move |connection| {
            let set = sqlx::query("UPDATE keys SET limits = ? WHERE id = ?");
            let set = set.bind(json(&limits)?).bind(id.as_str()).execute(&mut *connection).await?;
            if set.rows_affected() == 0 {
                return Err(RowFailure::Store(StoreError::NotFound { what: "key" }));
            }
            log(connection, audit).await
        })
    }

    fn set_key_regions(&self, id: &KeyId, regions: &Residency, audit: &AuditEntry) -> Result<(), StoreError> {
        let (id, regions, audit) = (id.clone(), regions.clone(), audit.clone());
        self.write("changing a key's regions", async move |connection| {
            let found = sqlx::query("SELECT 1 FROM keys WHERE id = ?").bind(id.as_str());
            if found.fetch_optional(&mut *connection).await?.is_none() {
                return Err(RowFailure::Store(StoreError::NotFound { what: "key" }));
            }
            pin(connection, OF_KEY, id.as_str(), &regions).await?;
            log(connection, audit).await
        })
    }

    fn note_revocations(&self, noted: &[NotedRevocation]) -> Result<(), StoreError> {
        let kept = locked(&self.reserve).keep(noted);
        kept.map_err(|error| unavailable("noting a revocation in its reserve", error))
    }

    fn failing(&self) -> Option<String> {
        locked(&self.failing).clone()
    }

    fn probe(&self) -> Result<(), StoreError> {
        let tried = locked(&self.database).probe();
        *locked(&self.failing) = tried.as_ref().err().map(ToString::to_string);
        tried.map_err(|error| RowFailure::from(error).while_doing("trying its file"))
    }

    fn upsert_org(&self, org: &OrgRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        let (org, audit) = (org.clone(), audit.clone());
        self.write("writing an organisation", async move |connection| {
            put_org(connection, &org).await?;
            log(connection, audit).await
        })
    }

    fn upsert_project(&self, project: &ProjectRecord, audit: &AuditEntry) -> Result<(), StoreError> {
        let (project, audit) = (project.clone(), audit.clone());
        self.write("writing a project", async move |connection| {
            put_project(connection, &project).await?;
            log(connection, audit).await
        })
    }

    fn note(&self, audit: &AuditEntry) -> Result<(), StoreError> {
        self.write("noting an act", async |connection| log(connection, audit.clone()).await)
    }

    fn announce(&self, audit: &AuditEntry, act: &str) -> Result<u64, StoreError> {
        self.write("announcing an act", async |connection| {
            log(connection, audit.clone()).await?;
            let row = end(connection).await?.rows;
            sqlx::query("INSERT INTO announced (seq, act) VALUES (?, ?)")
                .bind(i64::try_from(row).map_err(|error| corrupt("the audit log", error))?)
                .bind(act)
                .execute(connection)
                .await?;
            Ok(row)
        })
    }

    fn conclude(&self, row: u64, not_done: Option<&AuditEntry>) -> Result<(), StoreError> {
        self.write("concluding an act", async |connection| {
            let row = i64::try_from(row).unwrap_or(i64::MAX);
            let gone = sqlx::query("DELETE FROM announced WHERE seq = ?").bind(row);
            match (gone.execute(&mut *connection).await?.rows_affected(), not_done) {
                (1.., Some(audit)) => log(connection, audit.clone()).await,
                _ => Ok(()),
            }
        })
    }

    fn announced(&self) -> Result<Vec<(u64, String)>, StoreError> {
        self.read("reading announced acts", async |connection| {
            let rows =
                sqlx::query("SELECT seq, act FROM announced ORDER BY seq").fetch_all(connection).await?;
            rows.iter().map(|row| Ok((number(row, "seq")?, row.try_get("act")?))).collect()
        })
    }

    fn audit_of(&self, act: &str, subject: Option<&str>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.read("reading the audit log", async |connection| {
            let rows = sqlx::query(
                "SELECT seq, at, actor, act, subject, detail, previous, hash FROM audit \
                 WHERE act = ?1 AND (?2 IS NULL OR subject = ?2) ORDER BY seq DESC LIMIT ?3",
            )
            .bind(act)
            .bind(subject)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(connection)
            .await?;
            rows.iter().map(audit_row).collect()
        })
    }

    fn audit(&self, after: u64, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.read("reading the audit log", async move |connection| page(connection, after, limit).await)
    }

    fn audit_end(&self) -> Result<AuditSummary, StoreError> {
        self.read("reading the end of the audit log", async |connection| end(connection).await)
    }

    fn verify_audit(&self) -> Result<AuditSummary, StoreError> {
        self.read("checking the audit log", async |connection| {
            let recorded = end(connection).await?;
            let mut checker = AuditChecker::new();
            let mut after = 0;
            loop {
                let rows = page(connection, after, VERIFY_PAGE).await?;
                let Some(last) = rows.last() else { break };
                after = last.seq;
                rows.iter().try_for_each(|row| checker.check(row)).map_err(RowFailure::Store)?;
            }
            checker.finish(recorded).map_err(RowFailure::Store)
        })
    }
}

/// Assigns the regions in a row to their organisation or key.
fn pinned(row: &SqliteRow, all: &mut StoredDirectory) -> Result<(), RowFailure> {
    let (kind, id): (&str, &str) = (row.try_get("kind")?, row.try_get("id")?);
    let kept = match kind {
        OF_ORG => all.orgs.iter_mut().find(|org| org.id.as_str() == id).map(|org| &mut org.regions),
        OF_KEY => {
            let key = all.keys.iter_mut().find(|key| key.record.id.as_str() == id);
            key.map(|key| &mut key.record.regions)
        }
        _ => None,
    };
    let Some(kept) = kept else {
        return Err(corrupt("table `regions`", format_args!("there is no {kind} `{id}`")));
    };
    *kept = from_json(row, "regions")?;
    Ok(())
}

/// Appends a row to the log, within the caller's transaction.
async fn log(connection: &mut SqliteConnection, audit: AuditEntry) -> Result<(), RowFailure> {
    let row = audit.chained(&end(connection).await?);
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
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "INSERT INTO audit_end (only, seq, hash) VALUES (1, ?, ?) \
         ON CONFLICT (only) DO UPDATE SET seq = excluded.seq, hash = excluded.hash",
    )
    .bind(seq)
    .bind(row.hash.as_bytes().as_slice())
    .execute(connection)
    .await?;
    Ok(())
}

/// The end of the log, as the store recorded it.
async fn end(connection: &mut SqliteConnection) -> Result<AuditSummary, RowFailure> {
    let row = sqlx::query("SELECT seq, hash FROM audit_end").fetch_optional(connection).await?;
    row.map_or(Ok(AuditSummary::EMPTY), |row| {
        Ok(AuditSummary { rows: number(&row, "seq")?, head: AuditHash::from_bytes(bytes(&row, "hash")?) })
    })
}

/// Returns at most `limit` rows of the log after row `after`.
async fn page(
    connection: &mut SqliteConnection,
    after: u64,
    limit: usize,
) -> Result<Vec<AuditRow>, RowFailure> {
    let rows = sqlx::query(
        "SELECT seq, at, actor, act, subject, detail, previous, hash FROM audit WHERE seq > ? ORDER BY seq LIMIT ?",
    )
    .bind(i64::try_from(after).unwrap_or(i64::MAX))
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    rows.iter().map(audit_row).collect()
}

fn audit_row(row: &SqliteRow) -> Result<AuditRow, RowFailure> {
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

#[cfg(test)]
mod tests;
