//! One database of clients' objects with one connection to write and one to read, so that readers never wait for
//! writers. Knows no table.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use headrace_objects::ObjectError;
use sqlx::sqlite::SqliteConnection;

use crate::grouped::GroupCommit;
use crate::sqlite::{CommitDurability, FileFormat, FormatError, SqliteFile};
use crate::statement_error::StatementError;

/// Pages returned to the disk in one transaction: 4 MiB, so that others can write in between.
const PAGES_GIVEN: u32 = 1024;

/// Free bytes in a file that are worth returning, because the pages after them must be moved.
const MUCH_FREE_BYTES: u64 = 32 << 20;

/// A writer and a reader of one database. See the top of the file.
pub(crate) struct ReadWritePair {
    writer: GroupCommit,
    reader: Mutex<SqliteFile>,
    /// The last write error. `None` after a successful write.
    failing: Mutex<Option<String>>,
}

impl ReadWritePair {
    /// Opens the database, and creates it if it is missing. A change is on the disk when its write returns. If the disk
    /// currently prevents opening or creating it, the first call that can open it does so.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the file has another content.
    pub(crate) fn open(
        path: &Path,
        format: FileFormat,
        most_bytes: Option<u64>,
    ) -> Result<Self, ObjectError> {
        let closed = || SqliteFile::closed(path, CommitDurability::Full, format, most_bytes);
        let (mut writer, mut reader) = (closed(), closed());
        let failing = match writer.connect().and_then(|()| reader.connect()) {
            Ok(()) => None,
            Err(FormatError::Sqlite(error)) => Some(format!("{}: {error}", path.display())),
            Err(error) => return Err(StatementError::from(error).into()),
        };
        let (reader, failing) = (Mutex::new(reader), Mutex::new(failing));
        Ok(Self { writer: GroupCommit::new(writer), reader, failing })
    }

    /// Runs `change` and keeps all of it or none. Callers that arrive while another one writes share its commit.
    ///
    /// # Errors
    /// Returns the error of `change` or of the disk.
    pub(crate) fn write<T>(
        &self,
        change: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StatementError>,
    ) -> Result<T, ObjectError> {
        let written = self.writer.write(change);
        self.note(written.as_ref().err());
        written
    }

    /// Runs changes that save themselves, each as [`Self::write`] does. Returns the result of each.
    pub(crate) fn write_each<C>(&self, changes: impl Iterator<Item = C>) -> Vec<Result<(), ObjectError>>
    where
        C: AsyncFnOnce(&mut SqliteConnection) -> Result<(), StatementError>,
    {
        let written = self.writer.write_each(changes);
        if let Some(last) = written.last() {
            self.note(last.as_ref().err());
        }
        written
    }

    /// Runs `query` on the database as of one moment.
    ///
    /// # Errors
    /// Returns the error of `query` or of the disk.
    pub(crate) fn read<T>(
        &self,
        query: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StatementError>,
    ) -> Result<T, ObjectError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.read(query).map_err(ObjectError::from)
    }

    /// Returns free pages to the disk: all of them if the disk `is_low`, otherwise only if there are many.
    ///
    /// # Errors
    /// Returns the disk's error.
    pub(crate) fn shrink(&self, is_low: bool) -> Result<(), ObjectError> {
        let free = self.read(async |connection| {
            let (free,): (i64,) = sqlx::query_as(
                "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size",
            )
            .fetch_one(connection)
            .await?;
            Ok(free.unsigned_abs())
        })?;
        if !is_low && free < MUCH_FREE_BYTES {
            return Ok(());
        }
        while self.writer.between(|database| database.shrink(PAGES_GIVEN))? {}
        Ok(())
    }

    /// The last write error. After a failure, first checks whether the disk accepts a write now.
    pub(crate) fn failing(&self) -> Option<String> {
        if self.last_failure().is_some() {
            let tried = self.writer.between(SqliteFile::probe);
            self.note(tried.as_ref().err());
        }
        self.last_failure()
    }

    fn last_failure(&self) -> Option<String> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, error: Option<&ObjectError>) {
        let why = match error {
            None => None,
            Some(ObjectError::DiskFull { why } | ObjectError::Unavailable { why }) => Some(why.clone()),
            // A refusal by a limit says nothing about the disk.
            Some(ObjectError::Full { .. } | ObjectError::Grew) => return,
        };
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if *failing != why {
            *failing = why;
        }
    }
}
