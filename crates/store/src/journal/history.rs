//! Reads a ledger's journal beside its writer, or without one. Must not know what is searched for.

use std::path::{Path, PathBuf};

use headrace_ledger::verify::VerifyReport;
use headrace_ledger::{JournalError, JournalHistory, JournalRow, Transaction, decode_row};

use super::{JournalReader, PAGE_ROWS, verify_file};

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
    fn has_after(&self, after: u64, is_it: &dyn Fn(&Transaction) -> bool) -> Result<bool, JournalError> {
        let mut journal = JournalReader::open(&self.path)?;
        let mut after = after;
        loop {
            let rows = journal.after(after, usize::try_from(PAGE_ROWS).unwrap_or(usize::MAX))?;
            let Some(last) = rows.last() else { return Ok(false) };
            after = last.sequence;
            for row in &rows {
                if decode_row(row)?.iter().any(is_it) {
                    return Ok(true);
                }
            }
        }
    }

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
