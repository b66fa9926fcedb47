//! The file of recorded requests and answers, and its connection. Deleted bytes are overwritten. Must not know what is asked.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use headrace_trace::TraceError;
use sqlx::sqlite::SqliteConnection;

use crate::disk::DiskGuard;
use crate::sqlite::{CommitDurability, FileFormat, FormatError, SqliteFile};

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

/// The store of contents. One connection writes and reads, because neither is on the path of a call.
pub struct SqliteContents {
    pub(super) path: PathBuf,
    database: Mutex<SqliteFile>,
    pub(super) max_bytes: u64,
    pub(super) guard: Option<DiskGuard>,
}

impl SqliteContents {
    /// Describes a store. The file opens, and is created, with the first content. The oldest contents are removed if it
    /// exceeds `max_bytes`. With a guard, the disk's reserve stays free.
    pub fn new(path: &Path, max_bytes: u64, guard: Option<DiskGuard>) -> Self {
        let database = Mutex::new(SqliteFile::closed(path, CommitDurability::Normal, FORMAT, None));
        Self { path: path.to_owned(), database, max_bytes, guard }
    }

    /// Whether there is a file. A server that records no contents has none.
    pub(super) fn exists(&self) -> bool {
        self.path.exists()
    }

    pub(super) fn write<T, F>(&self, doing: &str, change: F) -> Result<T, TraceError>
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

    pub(super) fn read<T, F>(&self, query: F) -> Result<T, TraceError>
    where
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, FormatError>,
    {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        database.read(query).map_err(|error| self.failed("read", &error))
    }

    /// Empties the write-ahead log, which has the bytes of deleted rows. Those of the file are overwritten.
    pub(super) fn empty_log(&self) -> Result<(), TraceError> {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        database.empty_log().map_err(|error| self.failed("empty the log of", &error))
    }

    pub(super) fn failed(&self, doing: &str, error: &FormatError) -> TraceError {
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
}

impl fmt::Debug for SqliteContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteContents").field("path", &self.path).finish_non_exhaustive()
    }
}
