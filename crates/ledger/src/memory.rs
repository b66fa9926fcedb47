//! A journal in memory, for tests and benchmarks. Tests can make it fail, and benchmarks can make it discard rows.
//! Nothing in it survives the process.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::admin::JournalHistory;
use crate::journal::{Journal, JournalError, JournalRow, LoadedJournal, StateSnapshot};
use crate::verify::{VerifyReport, verify};

/// Rows and snapshots in memory. Clones share them, so that a test can inspect or reopen the content that a ledger
/// wrote.
#[derive(Debug, Clone, Default)]
pub struct MemoryJournal {
    shared: Arc<Mutex<MemoryRows>>,
    discards: bool,
}

#[derive(Debug, Default)]
struct MemoryRows {
    rows: Vec<JournalRow>,
    snapshots: Vec<StateSnapshot>,
    appends: u64,
    faults: Vec<(u64, AppendFault)>,
    down: bool,
}

/// The way in which an append fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFault {
    /// Nothing is written.
    NotWritten,
    /// The rows are written, but an error is reported.
    Written,
}

impl MemoryJournal {
    /// Creates an empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a journal that accepts rows and discards them, for benchmarks. It cannot be opened again.
    pub fn discarding() -> Self {
        Self { discards: true, ..Self::default() }
    }

    /// Makes the `n`-th append from now on fail. Counts from 1.
    pub fn fail_append(&self, n: u64, fault: AppendFault) {
        let mut contents = self.shared.lock();
        let at = contents.appends + n;
        contents.faults.push((at, fault));
    }

    /// Makes every append and recovery fail, as on a full disk, until it is called with `false`.
    pub fn set_down(&self, down: bool) {
        self.shared.lock().down = down;
    }

    /// Returns the whole content.
    pub fn contents(&self) -> LoadedJournal {
        let contents = self.shared.lock();
        LoadedJournal { snapshots: contents.snapshots.clone(), rows: contents.rows.clone() }
    }

    /// Creates a journal with this content.
    pub fn with(loaded: LoadedJournal) -> Self {
        let contents = MemoryRows { rows: loaded.rows, snapshots: loaded.snapshots, ..MemoryRows::default() };
        Self { shared: Arc::new(Mutex::new(contents)), discards: false }
    }
}

fn full() -> JournalError {
    JournalError::Full("a fault was injected".into())
}

impl Journal for MemoryJournal {
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
        let contents = self.shared.lock();
        Ok(contents.snapshots.iter().rev().find(|snapshot| snapshot.sequence < sequence).cloned())
    }

    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        let contents = self.shared.lock();
        Ok(contents.rows.iter().filter(|row| row.sequence > sequence).take(limit).cloned().collect())
    }

    fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
        let mut contents = self.shared.lock();
        contents.appends += 1;
        let this = contents.appends;
        let fault = contents.faults.iter().find(|(at, _)| *at == this).map(|(_, fault)| *fault);
        if contents.down || fault == Some(AppendFault::NotWritten) {
            return Err(full());
        }
        if !self.discards {
            contents.rows.extend_from_slice(rows);
        }
        if fault == Some(AppendFault::Written) { Err(full()) } else { Ok(()) }
    }

    fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError> {
        if !self.discards {
            self.shared.lock().snapshots.push(snapshot.clone());
        }
        Ok(())
    }

    fn recover(&mut self) -> Result<(), JournalError> {
        if self.shared.lock().down { Err(full()) } else { Ok(()) }
    }
}

impl JournalHistory for MemoryJournal {
    fn rows_after(&self, after: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        let contents = self.shared.lock();
        Ok(contents.rows.iter().filter(|row| row.sequence > after).take(limit).cloned().collect())
    }

    fn verify(&self) -> Result<VerifyReport, JournalError> {
        Ok(verify(&self.contents()))
    }
}
