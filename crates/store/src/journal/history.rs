//! Reads a ledger's journal beside its writer, or without one.

use std::path::{Path, PathBuf};

use headrace_ledger::verify::VerifyReport;
use headrace_ledger::{JournalError, JournalHistory, JournalRow};

use super::{JournalReader, verify_file};

/// A journal's file, opened anew for each question.
#[derive(Debug, Clone)]
pub struct SqliteJournalHistory {
    path: PathBuf,
}

impl SqliteJournalHistory {
    /// Names the file. It is not opened yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl JournalHistory for SqliteJournalHistory {
    fn rows_after(&self, after: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        // Without a file nothing was ever written.
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        JournalReader::open(&self.path)?.after(after, limit)
    }

    fn verify(&self) -> Result<VerifyReport, JournalError> {
        verify_file(&self.path)
    }
}
