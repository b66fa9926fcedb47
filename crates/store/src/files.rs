//! Clients' files, uploads and batches in a SQLite file of their own, so that storing an answer never waits for another
//! client's gigabyte. The bytes of files are segments in a folder beside it, so that deleting a file frees disk space
//! at once. A finished file is on the disk. Knows no form and no dialect.

mod archive;
mod batches;
pub(crate) mod forget;
mod rows;
mod segments;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    FileDraft, FileLimits, FileRecord, FileStore, ObjectError, PageAsk, UploadFault, UploadRecord,
    UploadStatus,
};

use crate::disk::{DiskBallast, DiskGuard};
use crate::pair::ReadWritePair;
use crate::sqlite::FileFormat;

use segments::SegmentFolder;

/// The triggers that keep `batch.bytes` and `held` correct. Answers of a batch from a file count twice, because they
/// are stored in rows and then in the result files. Each request and each batch adds 256 bytes of overhead.
macro_rules! triggers {
    () => {
        "
        CREATE TRIGGER line_added AFTER INSERT ON line BEGIN
            UPDATE batch SET bytes = bytes + 256 + octet_length(new.custom_id) + octet_length(new.body) WHERE id = new.batch;
        END;
        CREATE TRIGGER line_changed AFTER UPDATE OF body, answer ON line BEGIN
            UPDATE batch SET bytes = bytes + octet_length(new.body) - octet_length(old.body)
                + (octet_length(new.answer) - octet_length(old.answer)) * (2 - messages) WHERE id = new.batch;
        END;
        CREATE TRIGGER line_removed AFTER DELETE ON line BEGIN
            UPDATE batch SET bytes = bytes - 256 - octet_length(old.custom_id) - octet_length(old.body)
                - octet_length(old.answer) * (2 - messages) WHERE id = old.batch;
        END;
        CREATE TRIGGER batch_added AFTER INSERT ON batch BEGIN
            INSERT INTO held (project, files, bytes) VALUES (new.project, 0, 256 + octet_length(new.state) + new.bytes + new.reserved)
                ON CONFLICT (project) DO UPDATE SET bytes = bytes + excluded.bytes;
        END;
        CREATE TRIGGER batch_changed AFTER UPDATE OF state, bytes, reserved ON batch BEGIN
            UPDATE held SET bytes = bytes + octet_length(new.state) + new.bytes + new.reserved
                - octet_length(old.state) - old.bytes - old.reserved
                WHERE project = new.project;
        END;
        CREATE TRIGGER batch_removed AFTER DELETE ON batch BEGIN
            UPDATE held SET bytes = bytes - 256 - octet_length(old.state) - old.bytes - old.reserved WHERE project = old.project;
        END;
    "
    };
}

/// The database format.
const FORMAT: FileFormat = FileFormat {
    what: "store of files",
    application_id: i32::from_be_bytes(*b"HRfi"),
    version: 2,
    newest: 2,
    schema: concat!(
        "
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
        CREATE TABLE segment (          -- where its bytes are from that place on
            file TEXT NOT NULL,
            at INTEGER NOT NULL,
            name TEXT NOT NULL,         -- in the folder of segments
            PRIMARY KEY (file, at)
        ) STRICT;
        CREATE TABLE held (             -- what a project's files and batches come to
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
            state TEXT NOT NULL,        -- JSON
            bytes INTEGER NOT NULL DEFAULT 0, -- what its requests and answers are counted as
            reserved INTEGER NOT NULL DEFAULT 0 -- for requests that are not copied out of its file yet
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
        triggers!()
    ),
    upgrade: UPGRADE,
    shrinks: true,
};

/// Upgrades a file of version 1, which stores file bytes only in `chunk` and does not count batches. The rows of
/// `chunk` stay and are still read.
const UPGRADE: &str = concat!(
    "
    CREATE TABLE segment (file TEXT NOT NULL, at INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (file, at)) STRICT;
    ALTER TABLE batch ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE batch ADD COLUMN reserved INTEGER NOT NULL DEFAULT 0;
    UPDATE batch SET bytes = coalesce((SELECT sum(256 + octet_length(custom_id) + octet_length(body)
        + octet_length(answer) * (2 - batch.messages)) FROM line WHERE line.batch = batch.id), 0);
    INSERT INTO held (project, files, bytes)
        SELECT project, 0, sum(256 + octet_length(state) + bytes) FROM batch WHERE true GROUP BY project
        ON CONFLICT (project) DO UPDATE SET bytes = bytes + excluded.bytes;
",
    triggers!()
);

/// Maximum files, uploads and batches that one sweep removes, so that no sweep takes long.
const SWEPT_AT_ONCE: i64 = 64;

/// Bytes written in addition to those that are counted: rows, and pages of the write-ahead log.
const AROUND_BYTES: u64 = 64 << 10;

/// The store of files. See the top of the file.
pub struct SqliteFiles {
    pair: ReadWritePair,
    segments: SegmentFolder,
    limits: FileLimits,
    guard: Option<DiskGuard>,
    ballast: Option<Arc<DiskBallast>>,
    /// Ids of files that an earlier process was writing or removing. `None` until the database could be read.
    left: Mutex<Option<Vec<String>>>,
}

impl SqliteFiles {
    /// Opens the database, and creates it if it is missing. Removes what an earlier process left unfinished. If the
    /// disk currently prevents opening, the first call that can open the database does so.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the file is not a store of files.
    pub fn open(path: &Path, limits: FileLimits) -> Result<Self, ObjectError> {
        let store = Self {
            pair: ReadWritePair::open(path, FORMAT, None)?,
            segments: SegmentFolder::beside(path),
            limits,
            guard: None,
            ballast: None,
            left: Mutex::default(),
        };
        if let Err(error) = store.tidy() {
            tracing::warn!(%error, "what an earlier process left cannot be removed now; it is tried again");
        }
        Ok(store)
    }

    /// Keeps the disk's reserve free. If the disk is full, removals use space from the ballast.
    #[must_use]
    pub fn guarded(mut self, guard: DiskGuard, ballast: Option<Arc<DiskBallast>>) -> Self {
        (self.guard, self.ballast) = (Some(guard), ballast);
        self
    }

    /// Checks that the disk has room for `more` bytes.
    fn check(&self, more: u64) -> Result<(), ObjectError> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard.check(more.saturating_add(AROUND_BYTES)))
    }

    /// Makes room for a write that frees space.
    fn relieve(&self) {
        if let Some(ballast) = &self.ballast {
            ballast.relieve();
        }
    }

    /// Removes a file that clients no longer see: first its bytes, then its rows in small transactions, so that others
    /// can write in between.
    fn remove(&self, id: &str) -> Result<(), ObjectError> {
        self.remove_bytes(id)?;
        self.relieve();
        while self.pair.write(async |connection| rows::remove_some(connection, id).await)? {}
        Ok(())
    }

    fn remove_bytes(&self, id: &str) -> Result<(), ObjectError> {
        let names = self.pair.read(async |connection| rows::segments(connection, id).await)?;
        names.iter().try_for_each(|name| self.segments.remove(name)).map_err(of_disk)
    }

    /// Removes the rest of what an earlier process was writing or removing.
    fn tidy(&self) -> Result<(), ObjectError> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = self.find_left(&mut left)?;
        while let Some(id) = ids.last() {
            self.remove(id)?;
            ids.pop();
        }
        Ok(())
    }

    /// Finds what an earlier process left. This must run before this process begins its first file, so that none of its
    /// own is included.
    fn find_left<'a>(&self, left: &'a mut Option<Vec<String>>) -> Result<&'a mut Vec<String>, ObjectError> {
        match left {
            Some(ids) => Ok(ids),
            None => {
                let (ids, known) = self.pair.read(async |connection| {
                    Ok((rows::unfinished(connection).await?, rows::all_segments(connection).await?))
                })?;
                // A segment whose row was not committed belongs to no file.
                self.segments.keep(&known.into_iter().collect::<HashSet<_>>()).map_err(of_disk)?;
                Ok(left.insert(ids))
            }
        }
    }

    /// Returns some bytes of a file, starting at position `at`.
    fn bytes(&self, id: &str, at: u64) -> Result<Vec<u8>, ObjectError> {
        let found = self.pair.read(async |connection| rows::segment_at(connection, id, at).await)?;
        if let Some((from, name)) = found {
            let some =
                self.segments.read(&name, at.saturating_sub(from), rows::CHUNK_BYTES).map_err(of_disk)?;
            if !some.is_empty() {
                return Ok(some);
            }
        }
        self.pair.read(async |connection| rows::bytes(connection, id, at).await)
    }

    /// Returns free pages to the disk if there are many of them, or if the disk has no room.
    fn shrink(&self) -> Result<(), ObjectError> {
        let is_low = self.guard.as_ref().is_some_and(|guard| guard.check(0).is_err());
        if is_low {
            self.relieve();
        }
        self.pair.shrink(is_low)
    }
}

/// Converts an I/O error of the segment folder.
fn of_disk(error: std::io::Error) -> ObjectError {
    let why = format!("the bytes of a file: {error}");
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ObjectError::DiskFull { why },
        _ => ObjectError::Unavailable { why },
    }
}

impl FileStore for SqliteFiles {
    fn limits(&self) -> FileLimits {
        self.limits
    }

    fn begin(&self, draft: &FileDraft) -> Result<(), ObjectError> {
        self.check(0)?;
        self.find_left(&mut self.left.lock().unwrap_or_else(PoisonError::into_inner))?;
        self.pair.write(async |connection| {
            rows::begin(connection, draft).await?;
            rows::count(connection, &self.limits, draft.project().as_str(), draft.is_bounded(), 1, 0).await
        })
    }

    fn append(&self, id: &str, at: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        self.pair.write(async |connection| {
            // Checked within the transaction, so that no two writers count on the same space.
            self.check(bytes.len() as u64)?;
            rows::append(connection, &self.limits, id, at, bytes).await?;
            self.segments.write(id, at, bytes).map_err(of_disk)?;
            Ok(())
        })
    }

    fn finish(&self, draft: &FileDraft, now: UnixNanos) -> Result<bool, ObjectError> {
        for name in self.pair.read(async |connection| rows::segments(connection, draft.id()).await)? {
            self.segments.finish(&name, draft.bytes()).map_err(of_disk)?;
        }
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
        self.bytes(id, at)
    }

    fn delete_file(&self, project: &ProjectId, id: &str, now: UnixNanos) -> Result<bool, ObjectError> {
        self.relieve();
        let hide = || self.pair.write(async |connection| rows::hide(connection, project, id, now).await);
        let mut hidden = hide();
        if matches!(hidden, Err(ObjectError::DiskFull { .. })) && self.file(project, id, now)?.is_some() {
            // The file's own bytes make the room that its removal needs.
            self.remove_bytes(id)?;
            hidden = hide();
        }
        let there = hidden?;
        if there {
            self.remove(id)?;
        }
        Ok(there)
    }

    fn create_upload(&self, upload: &UploadRecord) -> Result<(), ObjectError> {
        self.check(upload.bytes)?;
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
    ) -> Result<Option<Result<UploadRecord, UploadFault>>, ObjectError> {
        let outcome = self.pair.write(async |connection| {
            let Some(mut upload) = rows::upload(connection, project, id).await? else { return Ok(None) };
            if upload.status != UploadStatus::Pending || upload.expires <= now {
                return Ok(Some((Err(UploadFault::NotPending), Vec::new())));
            }
            upload.status = UploadStatus::Cancelled;
            let parts = rows::end_upload(connection, &upload).await?;
            Ok(Some((Ok(upload), parts)))
        })?;
        let Some((outcome, parts)) = outcome else { return Ok(None) };
        parts.iter().try_for_each(|part| self.remove(part))?;
        Ok(Some(outcome))
    }

    fn read_part(&self, upload: &str, part: &str, at: u64) -> Result<Vec<u8>, ObjectError> {
        let bytes = self.pair.read(async |connection| rows::part_bytes(connection, upload, part).await)?;
        bytes.map_or_else(|| Ok(Vec::new()), |_| self.bytes(part, at))
    }

    fn complete_upload(
        &self,
        project: &ProjectId,
        id: &str,
        parts: &[String],
        file: &str,
        now: UnixNanos,
    ) -> Result<Result<(UploadRecord, FileRecord), UploadFault>, ObjectError> {
        let (outcome, left) = self.pair.write(async |connection| {
            let Some(mut upload) = rows::upload(connection, project, id).await? else {
                return Ok((Err(UploadFault::Missing), Vec::new()));
            };
            if upload.status != UploadStatus::Pending || upload.expires <= now {
                return Ok((Err(UploadFault::NotPending), Vec::new()));
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
        Ok(outcome)
    }

    fn sweep_files(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        self.relieve();
        self.tidy()?;
        let (files, others) = self.pair.write(async |connection| {
            let mut files = rows::expired(connection, now, SWEPT_AT_ONCE).await?;
            let (parts, uploads) = rows::expired_uploads(connection, now, SWEPT_AT_ONCE).await?;
            files.extend(parts);
            let batches = rows::sweep_batches(connection, now, SWEPT_AT_ONCE).await?;
            Ok((files, uploads + batches))
        })?;
        files.iter().try_for_each(|file| self.remove(file))?;
        self.shrink()?;
        Ok(files.len() as u64 + others)
    }

    fn failing(&self) -> Option<String> {
        self.pair.failing().or_else(|| self.check(0).err().map(|error| error.to_string()))
    }
}

impl fmt::Debug for SqliteFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteFiles").field("limits", &self.limits).finish_non_exhaustive()
    }
}
