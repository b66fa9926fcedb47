//! The writing side of a trace file that the disk may currently not allow to open or write. Each write tries again, so
//! that traces are stored as soon as there is room. Until then the recorder keeps and drops them. Knows no records.

use std::fmt;
use std::path::{Path, PathBuf};

use headrace_domain::TraceRecord;
use headrace_trace::{SharedRecord, TraceError, TraceStore, WritePace};

use crate::disk::DiskGuard;
use crate::trace::{SqliteTraceStore, TraceRetention};

/// Maximum disk space of a trace in the guard's estimate: first in the log, then in the file.
const RECORD_BYTES: u64 = 8 << 10;

/// A trace store that opens its file when it can. See the top of the file.
pub struct LateTraceStore {
    path: PathBuf,
    retention: TraceRetention,
    max_bytes: u64,
    guard: DiskGuard,
    /// `None` until the file could be opened.
    store: Option<SqliteTraceStore>,
}

impl LateTraceStore {
    /// Opens the file, now or in a later write. The oldest records are removed if the file reaches `max_bytes`. No
    /// record is written that would use up the last free space of the disk.
    ///
    /// # Errors
    /// Same as [`SqliteTraceStore::open`], except that a file that cannot be opened now is not an error.
    pub fn open(
        path: &Path,
        retention: TraceRetention,
        max_bytes: u64,
        guard: DiskGuard,
    ) -> Result<Self, TraceError> {
        let mut late = Self { path: path.to_owned(), retention, max_bytes, guard, store: None };
        match late.opened() {
            Err(error @ TraceError::Store { .. }) => {
                tracing::warn!(%error, "traces cannot be stored now; trying again");
            }
            opened => drop(opened?),
        }
        Ok(late)
    }

    fn opened(&mut self) -> Result<&mut SqliteTraceStore, TraceError> {
        let store = match self.store.take() {
            Some(open) => open,
            None => SqliteTraceStore::open(&self.path, self.retention)?.within(self.max_bytes),
        };
        Ok(self.store.insert(store))
    }

    fn ready(&mut self, records: usize) -> Result<&mut SqliteTraceStore, TraceError> {
        let more = RECORD_BYTES.saturating_mul(records as u64);
        self.guard.check(more).map_err(|full| TraceError::Store {
            doing: format!("cannot write to {}", self.path.display()),
            why: full.to_string(),
        })?;
        self.opened()
    }
}

impl TraceStore for LateTraceStore {
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
        self.ready(batch.len())?.append(batch)
    }

    fn append_shared(&mut self, batch: &[SharedRecord], pace: WritePace) -> Result<(), TraceError> {
        self.ready(batch.len())?.append_shared(batch, pace)
    }
}

impl fmt::Debug for LateTraceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateTraceStore").field("path", &self.path).finish_non_exhaustive()
    }
}
