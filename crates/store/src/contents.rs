//! Recorded requests and answers in one SQLite file. One connection writes and reads, because neither is on the path of a
//! call. Deleted bytes are overwritten. Knows nothing of what a request means.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use headrace_domain::{ForgottenName, ProjectId, RequestId, UnixNanos};
use headrace_trace::{
    CallCursor, CallScore, ContentArchive, ContentPage, ContentQuery, ContentStore, Dataset, RecordName,
    StoredContent, TraceError,
};
use sqlx::sqlite::SqliteConnection;

use crate::disk::DiskGuard;
use crate::sqlite::{CommitDurability, FileFormat, FormatError, SqliteFile};
use crate::trace::integer;

mod datasets;
mod forget;
mod rows;
mod scores;
mod search;

use rows::{COLUMNS, ContentRow, insert};

/// The file's format.
const FORMAT: FileFormat = FileFormat {
    what: "store of contents",
    application_id: i32::from_be_bytes(*b"HRco"),
    version: 1,
    newest: 1,
    schema: "
        CREATE TABLE content (
            seq INTEGER PRIMARY KEY,
            id BLOB NOT NULL UNIQUE,
            started INTEGER NOT NULL, -- nanoseconds since 1970, UTC
            expires INTEGER NOT NULL,
            org TEXT,
            project TEXT NOT NULL,
            key TEXT,
            user TEXT,
            model TEXT,
            facts TEXT NOT NULL,      -- JSON
            request TEXT NOT NULL,
            answer TEXT NOT NULL      -- JSON
        ) STRICT;
        CREATE INDEX content_started ON content (started, seq);
        CREATE INDEX content_project ON content (project, started, seq);
        CREATE INDEX content_expires ON content (expires);
        CREATE INDEX content_user ON content (user) WHERE user IS NOT NULL;
        CREATE TABLE score (
            id BLOB NOT NULL,
            name TEXT NOT NULL,
            value INTEGER NOT NULL,   -- millionths
            comment TEXT NOT NULL,
            actor TEXT NOT NULL,
            at INTEGER NOT NULL
        ) STRICT;
        CREATE UNIQUE INDEX score_call ON score (id, name);
        CREATE TABLE dataset (
            name TEXT NOT NULL PRIMARY KEY,
            record TEXT NOT NULL      -- JSON
        ) STRICT;
        CREATE TABLE item (           -- as in `content`
            dataset TEXT NOT NULL REFERENCES dataset (name),
            number INTEGER NOT NULL,
            id BLOB NOT NULL,
            started INTEGER NOT NULL,
            expires INTEGER NOT NULL,
            org TEXT,
            project TEXT NOT NULL,
            key TEXT,
            user TEXT,
            model TEXT,
            facts TEXT NOT NULL,
            request TEXT NOT NULL,
            answer TEXT NOT NULL,
            PRIMARY KEY (dataset, number)
        ) STRICT;
    ",
    upgrade: "",
    shrinks: false,
};

/// Contents that one transaction of a sweep removes, so that others can write in between.
const SWEPT_AT_ONCE: i64 = 256;
/// Transactions of one sweep. The next sweep continues.
const MOST_STEPS: usize = 400;

/// Removes the oldest contents whose sizes together are at least a number of bytes, or as many as one step may.
const OLDEST: &str = "
    DELETE FROM content WHERE seq IN (
        SELECT seq FROM (
            SELECT seq, sum(size) OVER (ORDER BY started, seq) - size AS removed FROM (
                SELECT seq, started, length(CAST(request AS BLOB)) + length(CAST(answer AS BLOB)) + length(facts) AS size
                FROM content ORDER BY started, seq LIMIT ?))
        WHERE removed < ?)";

/// The store of contents. See the top of the file.
pub struct SqliteContents {
    path: PathBuf,
    database: Mutex<SqliteFile>,
    max_bytes: u64,
    guard: Option<DiskGuard>,
}

impl SqliteContents {
    /// Describes a store. The file opens, and is created, with the first content. The oldest contents are removed if it
    /// exceeds `max_bytes`. With a guard, the disk's reserve stays free.
    pub fn new(path: &Path, max_bytes: u64, guard: Option<DiskGuard>) -> Self {
        let database = Mutex::new(SqliteFile::closed(path, CommitDurability::Normal, FORMAT, None));
        Self { path: path.to_owned(), database, max_bytes, guard }
    }

    /// Whether there is a file. A server that records no contents has none.
    fn exists(&self) -> bool {
        self.path.exists()
    }

    fn write<T, F>(&self, doing: &str, change: F) -> Result<T, TraceError>
    where
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, FormatError>,
    {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let written = database.write(async |connection| {
            // Freed bytes are overwritten with zeros.
            sqlx::raw_sql("PRAGMA secure_delete = ON").execute(&mut *connection).await?;
            change(connection).await
        });
        written.map_err(|error| self.failed(doing, &error))
    }

    fn read<T, F>(&self, query: F) -> Result<T, TraceError>
    where
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, FormatError>,
    {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        database.read(query).map_err(|error| self.failed("read", &error))
    }

    /// Writes the file anew, without the bytes of what was deleted.
    fn rewrite(&self) -> Result<(), TraceError> {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        database.rewrite().map_err(|error| self.failed("rewrite", &error))
    }

    fn failed(&self, doing: &str, error: &FormatError) -> TraceError {
        match error {
            FormatError::Newer { found, known, .. } => TraceError::NewerFormat {
                what: self.path.display().to_string(),
                found: u64::try_from(*found).unwrap_or(0),
                known: u64::try_from(*known).unwrap_or(0),
            },
            error => TraceError::Store {
                doing: format!("cannot {doing} {}", self.path.display()),
                why: error.to_string(),
            },
        }
    }

    /// Removes at most [`SWEPT_AT_ONCE`] contents: those that have expired, or the oldest ones if the file is too long.
    fn sweep_some(&self, now: UnixNanos) -> Result<u64, TraceError> {
        let most = self.max_bytes;
        self.write("remove contents from", async |connection| {
            let expired = sqlx::query(
                "DELETE FROM content WHERE seq IN (SELECT seq FROM content WHERE expires <= ? LIMIT ?)",
            );
            let expired =
                expired.bind(integer(now.get())).bind(SWEPT_AT_ONCE).execute(&mut *connection).await?;
            let beyond = used_bytes(connection).await?.saturating_sub(most);
            if expired.rows_affected() > 0 || beyond == 0 {
                return Ok(expired.rows_affected());
            }
            let oldest = sqlx::query(OLDEST).bind(SWEPT_AT_ONCE).bind(integer(beyond));
            Ok(oldest.execute(&mut *connection).await?.rows_affected())
        })
    }
}

/// Bytes of the file that are in use.
async fn used_bytes(connection: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let pages = "SELECT (page_count - freelist_count) * page_size \
                 FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
    let (bytes,): (i64,) = sqlx::query_as(pages).fetch_one(connection).await?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

impl ContentStore for SqliteContents {
    fn append(&self, contents: &[StoredContent]) -> Result<(), TraceError> {
        let bytes: usize = contents.iter().map(StoredContent::stored_bytes).sum();
        if let Some(guard) = &self.guard {
            // First in the log, then in the file.
            guard.check((bytes as u64).saturating_mul(2)).map_err(|full| TraceError::Store {
                doing: format!("cannot write to {}", self.path.display()),
                why: full.to_string(),
            })?;
        }
        self.write("write to", async |connection| {
            for content in contents {
                insert(&mut *connection, content).await?;
            }
            Ok(())
        })
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, TraceError> {
        let mut removed = 0;
        if !self.exists() {
            return Ok(0);
        }
        for _ in 0..MOST_STEPS {
            let some = self.sweep_some(now)?;
            removed += some;
            if some == 0 {
                break;
            }
        }
        Ok(removed)
    }

    fn get(&self, id: RequestId) -> Result<Option<StoredContent>, TraceError> {
        if !self.exists() {
            return Ok(None);
        }
        self.read(async |connection| {
            // No part of the statement comes from outside.
            let query = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM content WHERE id = ?"));
            let query = sqlx::query(query).bind(&id.bits().to_be_bytes()[..]);
            let found = query.fetch_optional(connection).await?;
            Ok(found.as_ref().map(ContentRow::of).transpose()?)
        })?
        .map(ContentRow::content)
        .transpose()
    }

    fn search(
        &self,
        query: &ContentQuery,
        after: Option<CallCursor>,
        limit: usize,
    ) -> Result<ContentPage, TraceError> {
        if !self.exists() {
            return Ok(ContentPage::default());
        }
        search::search(self, query, after, limit)
    }

    fn forget(&self, user: &ForgottenName, project: Option<&ProjectId>) -> Result<u64, TraceError> {
        if !self.exists() {
            return Ok(0);
        }
        forget::forget(self, user, project)
    }
}

impl ContentArchive for SqliteContents {
    fn put_score(&self, score: &CallScore) -> Result<(), TraceError> {
        scores::put(self, score)
    }

    fn scores(&self, id: RequestId) -> Result<Vec<CallScore>, TraceError> {
        if self.exists() { scores::of(self, id) } else { Ok(Vec::new()) }
    }

    fn create_dataset(&self, dataset: &Dataset, items: &[StoredContent]) -> Result<bool, TraceError> {
        datasets::create(self, dataset, items)
    }

    fn datasets(&self) -> Result<Vec<Dataset>, TraceError> {
        if self.exists() { datasets::list(self) } else { Ok(Vec::new()) }
    }

    fn dataset_items(
        &self,
        name: &RecordName,
        after: u64,
        limit: usize,
    ) -> Result<Option<Vec<(u64, StoredContent)>>, TraceError> {
        if self.exists() { datasets::items(self, name, after, limit) } else { Ok(None) }
    }

    fn remove_dataset(&self, name: &RecordName) -> Result<bool, TraceError> {
        if self.exists() { datasets::remove(self, name) } else { Ok(false) }
    }
}

impl fmt::Debug for SqliteContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteContents").field("path", &self.path).finish_non_exhaustive()
    }
}
