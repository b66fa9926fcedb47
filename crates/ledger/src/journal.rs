//! The journal trait, its rows chained by checksum, the snapshots that shorten a restart, and the errors of both. Knows
//! neither the meaning of a payload nor where rows are kept.

use std::fmt;

use headrace_domain::UnixNanos;

use crate::durable::JournalFailed;

/// The newest payload format that this program writes and reads. Each row uses the oldest format that can hold it. An
/// older program can therefore read all journals except those that it would misunderstand.
pub const FORMAT_VERSION: u32 = 6;
/// The newest snapshot format that this program writes and reads. A snapshot has the oldest format that can hold it.
pub const SNAPSHOT_FORMAT_VERSION: u32 = 3;

/// The checksum that the first row chains to.
pub(crate) const GENESIS: [u8; 32] = [0; 32];

/// The destination of committed rows. One thread owns it.
pub trait Journal: Send {
    /// Returns the newest snapshot taken at a row before `sequence`, or `None` if there is none. With `u64::MAX`,
    /// returns the newest of all.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] names the row of a snapshot that cannot be read; an older snapshot may be readable.
    /// Returns another error if the journal cannot be read.
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError>;

    /// Returns the rows after `sequence`, in order and at most `limit`. 0 means from the first row on. An empty result
    /// means that there are no more rows.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read.
    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError>;

    /// Writes all of the rows or none. If this returns `Ok`, the rows are on the disk. After an error, they may or may
    /// not be on the disk. The caller calls `recover` and `rows_after` to find out.
    ///
    /// # Errors
    /// Returns an error if the rows may not be on the disk.
    fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError>;

    /// Stores a snapshot. Losing it only makes the next start slower.
    ///
    /// # Errors
    /// Returns an error if the snapshot could not be stored.
    fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError>;

    /// Checks whether writes still reach their destination. Called from time to time while there is nothing to write.
    ///
    /// # Errors
    /// Returns an error if they do not. The ledger is then down until [`Journal::recover`] succeeds.
    fn check(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    /// After a failed append: reopens the journal if necessary, and checks whether it accepts writes again.
    ///
    /// # Errors
    /// Returns an error while the journal does not accept writes.
    fn recover(&mut self) -> Result<(), JournalError> {
        Ok(())
    }
}

/// One group commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRow {
    /// The row's number. Rows count from 1, without gaps.
    pub sequence: u64,
    /// The encoding of the payload.
    pub format_version: u32,
    /// Ledger time of the last transaction in the row.
    pub time: UnixNanos,
    /// The encoded transactions.
    pub payload: Vec<u8>,
    /// Checksum of the previous row. Zeros for the first row.
    pub previous: [u8; 32],
    /// BLAKE3 over all fields above.
    pub checksum: [u8; 32],
}

impl JournalRow {
    /// Creates the row after the one with checksum `previous`. The payload comes with its format version.
    pub(crate) fn chained(
        sequence: u64,
        time: UnixNanos,
        (format_version, payload): (u32, Vec<u8>),
        previous: [u8; 32],
    ) -> Self {
        let mut row = Self { sequence, format_version, time, payload, previous, checksum: GENESIS };
        row.checksum = row.computed_checksum();
        row
    }

    /// Returns the checksum that the row should have.
    pub fn computed_checksum(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("headrace ledger journal row 1");
        hasher.update(&self.sequence.to_le_bytes());
        hasher.update(&self.format_version.to_le_bytes());
        hasher.update(&self.time.get().to_le_bytes());
        hasher.update(&self.previous);
        hasher.update(&self.payload);
        *hasher.finalize().as_bytes()
    }

    /// Checks that this row follows row `sequence`, whose checksum is `checksum`.
    pub(crate) fn check_follows(&self, sequence: u64, checksum: &[u8; 32]) -> Result<(), JournalError> {
        // This check comes first, because a newer format may chain and hash rows differently.
        if self.format_version > FORMAT_VERSION {
            let (found, known) = (self.format_version, FORMAT_VERSION);
            return Err(JournalError::NewerFormat { what: "journal row", found, known });
        }
        let corrupt = |why: &str| Err(JournalError::Corrupt { sequence: self.sequence, why: why.to_owned() });
        if Some(self.sequence) != sequence.checked_add(1) {
            return corrupt(&format!("it follows row {sequence}: rows are missing or doubled"));
        }
        if self.previous != *checksum {
            return corrupt("it does not chain to the row before it");
        }
        if self.computed_checksum() != self.checksum {
            return corrupt("its checksum does not match its content");
        }
        Ok(())
    }
}

/// The whole state after a row. With it, a restart need not replay the rows before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateSnapshot {
    /// The last row that the state includes.
    pub sequence: u64,
    /// The encoding of the payload.
    pub format_version: u32,
    /// The checksum of that row.
    pub row_checksum: [u8; 32],
    /// The encoded state.
    pub payload: Vec<u8>,
    /// BLAKE3 over all fields above.
    pub checksum: [u8; 32],
}

impl StateSnapshot {
    /// Creates a snapshot. The payload comes with its format version.
    pub(crate) fn sealed(
        sequence: u64,
        row_checksum: [u8; 32],
        (format_version, payload): (u32, Vec<u8>),
    ) -> Self {
        let mut snapshot = Self { sequence, format_version, row_checksum, payload, checksum: GENESIS };
        snapshot.checksum = snapshot.computed_checksum();
        snapshot
    }

    /// Returns the checksum that the snapshot should have.
    pub fn computed_checksum(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("headrace ledger snapshot 1");
        hasher.update(&self.sequence.to_le_bytes());
        hasher.update(&self.format_version.to_le_bytes());
        hasher.update(&self.row_checksum);
        hasher.update(&self.payload);
        *hasher.finalize().as_bytes()
    }
}

/// The content of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedJournal {
    /// Snapshots, oldest first. Opening needs only the newest one; `verify` checks all of them.
    pub snapshots: Vec<StateSnapshot>,
    /// Rows, in order. Opening needs only those after the newest snapshot; `verify` needs all of them.
    pub rows: Vec<JournalRow>,
}

/// An error of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalError {
    /// The disk or the quota is full.
    Full(String),
    /// The journal cannot be read or written.
    Io(String),
    /// The journal contains something in a format that this program does not know.
    NewerFormat {
        /// The item that has the newer format.
        what: &'static str,
        /// Its format version.
        found: u32,
        /// The newest format version that this program knows.
        known: u32,
    },
    /// The journal contains something invalid.
    Corrupt {
        /// The number of the row, or of the snapshot's row.
        sequence: u64,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(why) => write!(f, "no space is left for the ledger's journal: {why}"),
            Self::Io(why) => write!(f, "the ledger's journal cannot be read or written: {why}"),
            Self::NewerFormat { what, found, known } => write!(
                f,
                "a {what} of the ledger has format {found}, and this program knows formats up to {known}: use a newer Headrace"
            ),
            Self::Corrupt { sequence, why } => {
                write!(f, "row {sequence} of the ledger's journal is corrupt: {why}")
            }
        }
    }
}

impl std::error::Error for JournalError {}

/// The reason why the ledger could not be opened or closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerError {
    /// The journal cannot be used.
    Journal(JournalError),
    /// A row breaks the ledger's rules. `headrace ledger verify` reports more.
    Breach {
        /// The number of the row.
        sequence: u64,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The holds of earlier processes could not be released, because the journal does not accept writes.
    NotWritten(JournalFailed),
    /// The journal thread could not be started, or ended too early.
    Thread(String),
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Journal(error) => error.fmt(f),
            Self::Breach { sequence, why } => {
                write!(f, "row {sequence} of the ledger's journal breaks a rule: {why}")
            }
            Self::NotWritten(failed) => failed.fmt(f),
            Self::Thread(why) => write!(f, "the ledger's journal thread: {why}"),
        }
    }
}

impl std::error::Error for LedgerError {}

impl From<JournalError> for LedgerError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}
