//! Copies keys, operators, audit log and ledger to empty stores elsewhere, and checks the copy. Must not know why.

mod objects;
mod outbox;

use std::fmt;
use std::sync::Arc;

use headrace_identity::{AuditSummary, HashSecret, IdentityContents, IdentityError, StoreError};
use headrace_ledger::{Journal as _, JournalError, JournalHistory, JournalRow, OutboxError};
use headrace_objects::ObjectError;
use headrace_postgres::{PostgresJournalFiller, PostgresKeyStore};

use crate::identity::SqliteKeyStore;
use crate::journal::SqliteJournal;
use crate::storage::{Storage, StoreName};

pub use objects::CopiedObjects;

/// Rows of the journal that are copied at a time.
const PAGE_ROWS: usize = 1_000;

/// A finished copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferReport {
    /// Keys, revoked ones among them.
    pub keys: usize,
    /// Rows of the ledger's journal.
    pub rows: u64,
    /// The audit log.
    pub audit: AuditSummary,
}

/// Why stores could not be copied. The source is unchanged.
#[derive(Debug)]
pub enum TransferError {
    /// Keys or operators cannot be read or written.
    Identity(IdentityError),
    /// The ledger's journal cannot be read or written.
    Journal(JournalError),
    /// Objects, files or batches cannot be read or written.
    Objects(ObjectError),
    /// The outbox of webhooks cannot be read or written.
    Outbox(OutboxError),
    /// The copy differs from the source, or its ledger has faults.
    Differs {
        /// The difference.
        why: String,
    },
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity(error) => error.fmt(f),
            Self::Journal(error) => error.fmt(f),
            Self::Objects(error) => error.fmt(f),
            Self::Outbox(error) => error.fmt(f),
            Self::Differs { why } => write!(f, "the copy is not good: {why}"),
        }
    }
}

impl std::error::Error for TransferError {}

impl From<StoreError> for TransferError {
    fn from(error: StoreError) -> Self {
        Self::Identity(error.into())
    }
}

impl From<IdentityError> for TransferError {
    fn from(error: IdentityError) -> Self {
        Self::Identity(error)
    }
}

impl From<ObjectError> for TransferError {
    fn from(error: ObjectError) -> Self {
        Self::Objects(error)
    }
}

impl From<OutboxError> for TransferError {
    fn from(error: OutboxError) -> Self {
        Self::Outbox(error)
    }
}

impl From<JournalError> for TransferError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl Storage {
    /// Copies keys, operators, audit log and ledger to `to`, which must not have any. The keys are hashed with `secret`.
    /// `progress` receives the number of copied rows of the journal. An interrupted copy can be repeated.
    ///
    /// Identities are read before the ledger, so that a project that is made meanwhile is at most in the ledger's copy.
    ///
    /// # Errors
    /// Returns an error if a store cannot be read or written, `to` has other contents, or the copy differs.
    pub fn transfer_to(
        &self,
        to: &Self,
        secret: &HashSecret,
        mut progress: impl FnMut(u64),
    ) -> Result<TransferReport, TransferError> {
        let from = self.identities()?;
        let contents = IdentityContents::read(from.keys.as_ref(), from.operators.as_ref(), secret)?;
        let source = self.reader().ledger();
        let mut target = JournalTarget::open(to)?;
        let mut last = target.last(source.as_ref())?;
        loop {
            let rows = source.rows_after(last.map_or(0, |(sequence, _)| sequence), PAGE_ROWS)?;
            let Some(end) = rows.last() else { break };
            last = Some((end.sequence, end.checksum));
            target.append(&rows)?;
            progress(end.sequence);
        }
        drop(target);
        match to.url().database() {
            Some(database) => PostgresKeyStore::open(Arc::clone(database))?.fill(&contents)?,
            None => SqliteKeyStore::open(&to.path(StoreName::Identities))?.fill(&contents)?,
        }
        let report = to.reader().ledger().verify()?;
        if !report.ok() {
            return Err(TransferError::Differs {
                why: format!("its ledger has {} faults", report.finding_count),
            });
        }
        let rows = last.map_or(0, |(sequence, _)| sequence);
        if report.rows != rows {
            return Err(TransferError::Differs {
                why: format!("its journal has {} rows instead of {rows}", report.rows),
            });
        }
        let audit = to.identities()?.keys.verify_audit()?;
        Ok(TransferReport { keys: contents.directory.keys.len(), rows, audit })
    }
}

/// The journal that is filled.
enum JournalTarget {
    Sqlite(SqliteJournal),
    Postgres(PostgresJournalFiller),
}

impl JournalTarget {
    fn open(to: &Storage) -> Result<Self, JournalError> {
        Ok(match to.url().database() {
            Some(database) => Self::Postgres(PostgresJournalFiller::open(Arc::clone(database))?),
            None => Self::Sqlite(SqliteJournal::open(&to.path(StoreName::Ledger))?),
        })
    }

    /// Returns the last row of an interrupted copy, or `None` if there is none. It must be the source's own.
    fn last(&mut self, source: &dyn JournalHistory) -> Result<Option<(u64, [u8; 32])>, JournalError> {
        let (sequence, checksum) = match self {
            Self::Postgres(filler) => filler.head()?,
            Self::Sqlite(journal) => {
                let mut last = None;
                loop {
                    let after = last.as_ref().map_or(0, |row: &JournalRow| row.sequence);
                    let rows = journal.rows_after(after, PAGE_ROWS)?;
                    match rows.into_iter().last() {
                        Some(row) => last = Some(row),
                        None => break,
                    }
                }
                last.map_or((0, vec![0; 32]), |row| (row.sequence, row.checksum.to_vec()))
            }
        };
        if sequence == 0 {
            return Ok(None);
        }
        let found = source.rows_after(sequence - 1, 1)?;
        match found.first() {
            Some(row) if row.sequence == sequence && row.checksum.as_slice() == checksum => {
                Ok(Some((sequence, row.checksum)))
            }
            _ => {
                let why = "the target has another journal: name an empty place".to_owned();
                Err(JournalError::Corrupt { sequence, why })
            }
        }
    }

    fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
        match self {
            Self::Sqlite(journal) => journal.append(rows),
            Self::Postgres(filler) => filler.append(rows),
        }
    }
}
