//! One file of clients' objects with a connection to write and one to read, so that who looks waits for nobody who stores. Knows no
//! table.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use headrace_objects::ObjectError;
use sqlx::sqlite::SqliteConnection;

use crate::grouped::Grouped;
use crate::objects::rows::Looked;
use crate::sqlite::{Database, Durability, Format};

/// See the top of the file.
pub(crate) struct Pair {
    writer: Grouped,
    reader: Mutex<Database>,
}

impl Pair {
    /// Opens the file, creating it if it is missing. What is written is on the disk when it is told.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] for one that cannot be opened or holds something else.
    pub(crate) fn open(path: &Path, format: Format) -> Result<Self, ObjectError> {
        let open = || Database::open(path, Durability::Full, format).map_err(Looked::from);
        Ok(Self { writer: Grouped::new(open()?), reader: Mutex::new(open()?) })
    }

    /// Runs `change`: all of it is kept, or none. Those who come while another one writes share its commit.
    ///
    /// # Errors
    /// What `change` says, or the disk.
    pub(crate) fn write<T>(
        &self,
        change: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Looked>,
    ) -> Result<T, ObjectError> {
        self.writer.write(change)
    }

    /// Runs changes that save themselves, each as by [`Self::write`]; what becomes of each.
    pub(crate) fn write_each<C>(&self, changes: impl Iterator<Item = C>) -> Vec<Result<(), ObjectError>>
    where
        C: AsyncFnOnce(&mut SqliteConnection) -> Result<(), Looked>,
    {
        self.writer.write_each(changes)
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
}
