//! One file of clients' objects with a connection to write and one to read, so that who looks waits for nobody who stores. Knows no
//! table.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use headrace_objects::ObjectError;
use sqlx::sqlite::SqliteConnection;

use crate::grouped::Grouped;
use crate::objects::rows::Looked;
use crate::sqlite::{Database, Durability, Format, FormatError};

/// Pages that are given back to the disk in one transaction: 4 MiB, as others write in between.
const PAGES_GIVEN: u32 = 1024;

/// Bytes that are free in a file and worth giving back: pages behind them move.
const MUCH_FREE_BYTES: u64 = 32 << 20;

/// See the top of the file.
pub(crate) struct Pair {
    writer: Grouped,
    reader: Mutex<Database>,
    /// Why the last write failed. `None` after a write that did not.
    failing: Mutex<Option<String>>,
}

impl Pair {
    /// Opens the file, creating it if it is missing. What is written is on the disk when it is told. A file that the disk does not let
    /// it open or create now is opened by the first call that can.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] for one that holds something else.
    pub(crate) fn open(path: &Path, format: Format, most_bytes: Option<u64>) -> Result<Self, ObjectError> {
        let closed = || Database::closed(path, Durability::Full, format, most_bytes);
        let (mut writer, mut reader) = (closed(), closed());
        let failing = match writer.connect().and_then(|()| reader.connect()) {
            Ok(()) => None,
            Err(FormatError::Sqlite(error)) => Some(format!("{}: {error}", path.display())),
            Err(error) => return Err(Looked::from(error).into()),
        };
        let (reader, failing) = (Mutex::new(reader), Mutex::new(failing));
        Ok(Self { writer: Grouped::new(writer), reader, failing })
    }

    /// Runs `change`: all of it is kept, or none. Those who come while another one writes share its commit.
    ///
    /// # Errors
    /// What `change` says, or the disk.
    pub(crate) fn write<T>(
        &self,
        change: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Looked>,
    ) -> Result<T, ObjectError> {
        let written = self.writer.write(change);
        self.note(written.as_ref().err());
        written
    }

    /// Runs changes that save themselves, each as by [`Self::write`]; what becomes of each.
    pub(crate) fn write_each<C>(&self, changes: impl Iterator<Item = C>) -> Vec<Result<(), ObjectError>>
    where
        C: AsyncFnOnce(&mut SqliteConnection) -> Result<(), Looked>,
    {
        let written = self.writer.write_each(changes);
        if let Some(last) = written.last() {
            self.note(last.as_ref().err());
        }
        written
    }

    /// Runs `query` on one moment of the file.
    ///
    /// # Errors
    /// What `query` says, or the disk.
    pub(crate) fn read<T>(
        &self,
        query: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Looked>,
    ) -> Result<T, ObjectError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.read(query).map_err(ObjectError::from)
    }

    /// Gives what is free in the file back to the disk: all of it if the disk `is_low`, otherwise where it is much.
    ///
    /// # Errors
    /// What the disk says.
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

    /// Why the last write failed. After a failure it is tried whether the disk takes one now.
    pub(crate) fn failing(&self) -> Option<String> {
        if self.last_failure().is_some() {
            let tried = self.writer.between(Database::probe);
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
            // What a bound refuses says nothing of the disk.
            Some(ObjectError::Full { .. } | ObjectError::Grew) => return,
        };
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if *failing != why {
            *failing = why;
        }
    }
}
