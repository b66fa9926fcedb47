//! Files of clients, uploads and batches in one SQLite file of its own, so that nobody who stores an answer waits for somebody's
//! gigabyte. Bytes lie in rows of a bounded size. What was written is on the disk (`synchronous=FULL`). Knows no form and no dialect.

mod batches;
mod rows;

use std::fmt;
use std::path::Path;

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    Draft, FileLimits, FileRecord, FileStore, Incomplete, ObjectError, PageAsk, UploadRecord, UploadStatus,
};

use crate::pair::Pair;
use crate::sqlite::Format;

/// The file's format.
const FORMAT: Format = Format {
    what: "store of files",
    application_id: i32::from_be_bytes(*b"HRfi"),
    version: 1,
    newest: 1,
    schema: "
        CREATE TABLE file (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            project TEXT NOT NULL,
            created INTEGER NOT NULL,   -- nanoseconds since 1970, UTC
            expires INTEGER,            -- likewise; NULL: when it is deleted
            bytes INTEGER NOT NULL,
            name TEXT NOT NULL,
            purpose TEXT NOT NULL,
            upload TEXT,                -- of a part: whose
            state INTEGER NOT NULL      -- 0: being written, 1: a file, 2: a part, 3: being removed
        ) STRICT;
        CREATE INDEX file_project ON file (project, state, seq);
        CREATE INDEX file_expires ON file (expires) WHERE expires IS NOT NULL;
        CREATE INDEX file_upload ON file (upload) WHERE upload IS NOT NULL;
        CREATE TABLE chunk (
            file TEXT NOT NULL,
            at INTEGER NOT NULL,        -- its first byte's place in the file
            data BLOB NOT NULL,
            PRIMARY KEY (file, at)
        ) STRICT;
        CREATE TABLE held (             -- what a project's files come to
            project TEXT PRIMARY KEY,
            files INTEGER NOT NULL,
            bytes INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE upload (
            id TEXT PRIMARY KEY,
            project TEXT NOT NULL,
            created INTEGER NOT NULL,
            expires INTEGER NOT NULL,
            status INTEGER NOT NULL,    -- 0: pending, 1: completed, 2: cancelled
            bytes INTEGER NOT NULL,
            name TEXT NOT NULL,
            purpose TEXT NOT NULL,
            mime TEXT NOT NULL,
            kept_seconds INTEGER,
            file TEXT
        ) STRICT;
        CREATE INDEX upload_expires ON upload (expires);
        CREATE INDEX upload_project ON upload (project);
        CREATE TABLE batch (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            project TEXT NOT NULL,
            messages INTEGER NOT NULL,  -- 0: from a file, 1: of messages
            gone INTEGER,               -- once it is over: from when on it may be removed
            total INTEGER NOT NULL,
            completed INTEGER NOT NULL,
            failed INTEGER NOT NULL,
            cancelled INTEGER NOT NULL,
            expired INTEGER NOT NULL,
            state TEXT NOT NULL         -- JSON
        ) STRICT;
        CREATE INDEX batch_project ON batch (project, messages, seq);
        CREATE INDEX batch_open ON batch (project) WHERE gone IS NULL;
        CREATE INDEX batch_gone ON batch (gone) WHERE gone IS NOT NULL;
        CREATE TABLE line (
            batch TEXT NOT NULL,
            at INTEGER NOT NULL,
            custom_id TEXT NOT NULL,
            body TEXT NOT NULL,         -- empty once it has ended
            request TEXT NOT NULL,      -- the call that was answered; empty: none
            answer TEXT NOT NULL,
            status INTEGER NOT NULL,
            ended INTEGER NOT NULL,     -- 0: not, 1: completed, 2: failed, 3: cancelled, 4: expired
            PRIMARY KEY (batch, at)
        ) STRICT;
        CREATE UNIQUE INDEX line_custom ON line (batch, custom_id);
    ",
};

/// Files, uploads and batches that one sweep removes at most, so that none takes long.
const SWEPT_AT_ONCE: i64 = 64;

/// See the top of the file.
pub struct SqliteFiles {
    pair: Pair,
    limits: FileLimits,
}

impl SqliteFiles {
    /// Opens the file, creating it if it is missing. What another process was writing when it ended is removed.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] for one that cannot be opened or holds something else.
    pub fn open(path: &Path, limits: FileLimits) -> Result<Self, ObjectError> {
        let store = Self { pair: Pair::open(path, FORMAT)?, limits };
        for id in store.pair.read(async |connection| rows::unfinished(connection).await)? {
            store.remove(&id)?;
        }
        Ok(store)
    }

    /// Removes a file that nobody sees any more, piece by piece: others write in between.
    fn remove(&self, id: &str) -> Result<(), ObjectError> {
        while self.pair.write(async |connection| rows::remove_some(connection, id).await)? {}
        Ok(())
    }
}

impl FileStore for SqliteFiles {
    fn limits(&self) -> FileLimits {
        self.limits
    }

    fn begin(&self, draft: &Draft) -> Result<(), ObjectError> {
        self.pair.write(async |connection| {
            rows::begin(connection, draft).await?;
            rows::count(connection, &self.limits, draft.project().as_str(), draft.is_bounded(), 1, 0).await
        })
    }

    fn append(&self, id: &str, at: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        self.pair.write(async |connection| rows::append(connection, &self.limits, id, at, bytes).await)
    }

    fn finish(&self, draft: &Draft, now: UnixNanos) -> Result<bool, ObjectError> {
        self.pair.write(async |connection| rows::finish(connection, draft, now).await)
    }

    fn give_up(&self, id: &str) -> Result<(), ObjectError> {
        self.remove(id)
    }

    fn file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<Option<FileRecord>, ObjectError> {
        self.pair.read(async |connection| rows::file(connection, project, id, now).await)
    }

    fn files(
        &self,
        project: &ProjectId,
        purpose: Option<&str>,
        ask: &PageAsk,
        now: UnixNanos,
    ) -> Result<(Vec<FileRecord>, bool), ObjectError> {
        self.pair.read(async |connection| rows::files(connection, project, purpose, ask, now).await)
    }

    fn read(&self, id: &str, at: u64) -> Result<Vec<u8>, ObjectError> {
        self.pair.read(async |connection| rows::bytes(connection, id, at).await)
    }

    fn delete_file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError> {
        let there = self.pair.write(async |connection| rows::hide(connection, project, id, now).await)?;
        if there {
            self.remove(id)?;
        }
        Ok(there)
    }

    fn create_upload(&self, upload: &UploadRecord) -> Result<(), ObjectError> {
        self.pair.write(async |connection| rows::create_upload(connection, &self.limits, upload).await)
    }

    fn upload(&self, project: &ProjectId, id: &str) -> Result<Option<UploadRecord>, ObjectError> {
        self.pair.read(async |connection| rows::upload(connection, project, id).await)
    }

    fn cancel_upload(
        &self,
        project: &ProjectId,
        id: &str,
        now: UnixNanos,
    ) -> Result<Option<Result<UploadRecord, Incomplete>>, ObjectError> {
        let told = self.pair.write(async |connection| {
            let Some(mut upload) = rows::upload(connection, project, id).await? else { return Ok(None) };
            if upload.status != UploadStatus::Pending || upload.expires <= now {
                return Ok(Some((Err(Incomplete::NotPending), Vec::new())));
            }
            upload.status = UploadStatus::Cancelled;
            let parts = rows::end_upload(connection, &upload).await?;
            Ok(Some((Ok(upload), parts)))
        })?;
        let Some((told, parts)) = told else { return Ok(None) };
        parts.iter().try_for_each(|part| self.remove(part))?;
        Ok(Some(told))
    }

    fn read_part(&self, upload: &str, part: &str, at: u64) -> Result<Vec<u8>, ObjectError> {
        self.pair.read(async |connection| match rows::part_bytes(connection, upload, part).await? {
            Some(_) => rows::bytes(connection, part, at).await,
            None => Ok(Vec::new()),
        })
    }

    fn complete_upload(
        &self,
        project: &ProjectId,
        id: &str,
        parts: &[String],
        file: &str,
        now: UnixNanos,
    ) -> Result<Result<(UploadRecord, FileRecord), Incomplete>, ObjectError> {
        let (told, left) = self.pair.write(async |connection| {
            let Some(mut upload) = rows::upload(connection, project, id).await? else {
                return Ok((Err(Incomplete::Missing), Vec::new()));
            };
            if upload.status != UploadStatus::Pending || upload.expires <= now {
                return Ok((Err(Incomplete::NotPending), Vec::new()));
            }
            match rows::join(connection, &upload, parts, file, now).await? {
                Ok(joined) => {
                    upload.status = UploadStatus::Completed;
                    upload.file = Some(joined.id.clone());
                    let left = rows::end_upload(connection, &upload).await?;
                    Ok((Ok((upload, joined)), left))
                }
                Err(why) => Ok((Err(why), Vec::new())),
            }
        })?;
        left.iter().try_for_each(|part| self.remove(part))?;
        Ok(told)
    }

    fn sweep_files(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        let (files, others) = self.pair.write(async |connection| {
            let mut files = rows::expired(connection, now, SWEPT_AT_ONCE).await?;
            let (parts, uploads) = rows::expired_uploads(connection, now, SWEPT_AT_ONCE).await?;
            files.extend(parts);
            let batches = rows::sweep_batches(connection, now, SWEPT_AT_ONCE).await?;
            Ok((files, uploads + batches))
        })?;
        files.iter().try_for_each(|file| self.remove(file))?;
        Ok(files.len() as u64 + others)
    }
}

impl fmt::Debug for SqliteFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteFiles").field("limits", &self.limits).finish_non_exhaustive()
    }
}
