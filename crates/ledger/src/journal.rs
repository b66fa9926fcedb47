//! The journal seam: rows chained by checksum, snapshots that shorten a restart, and what can go wrong with either.
//! Knows neither what a payload means nor where rows are kept.

use std::fmt;

use headrace_domain::UnixNanos;

use crate::durable::JournalFailed;

/// The newest payload format that this program writes and reads. A row has the oldest format that can hold it, so that an
/// older program reads all journals but those that it would misunderstand.
pub const FORMAT_VERSION: u32 = 4;
/// The newest snapshot format that this program writes and reads.
pub const SNAPSHOT_FORMAT_VERSION: u32 = 1;

/// The checksum that the first row chains to.
pub(crate) const GENESIS: [u8; 32] = [0; 32];

/// Where committed rows go. One thread owns it.
pub trait Journal: Send {
    /// The newest snapshot of a row before `sequence`, if one is kept; of `u64::MAX`, the newest.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] names the row of a snapshot that cannot be read; an older one may be. Others when the
    /// journal cannot be read.
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<Snapshot>, JournalError>;

    /// The rows after `sequence`, in order, at most `limit`; from 0, the first ones. None: there are no more.
    ///
    /// # Errors
    /// When the journal cannot be read.
    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError>;

    /// Writes the rows, all or none of them. They are on the disk when this returns `Ok`. After an error it is open
    /// whether they are: the caller calls `recover` and `rows_after` to learn it.
    ///
    /// # Errors
    /// When the rows may not be on the disk.
    fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError>;

    /// Keeps a snapshot. Losing it loses nothing but time at the next start.
    ///
    /// # Errors
    /// When it could not be kept.
    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), JournalError>;

    /// Whether what is written still goes where it should. Asked now and then while there is nothing to write.
    ///
    /// # Errors
    /// When it does not: the ledger is down until [`Journal::recover`] says otherwise.
    fn check(&mut self) -> Result<(), JournalError> {
        Ok(())
    }

    /// After a failed append: opens the journal anew if need be and tries whether it takes writes again.
    ///
    /// # Errors
    /// While it does not.
    fn recover(&mut self) -> Result<(), JournalError> {
        Ok(())
    }
}

/// One group commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalRow {
    /// From 1, without gaps.
    pub sequence: u64,
    /// How the payload is encoded.
    pub format_version: u32,
    /// Ledger time of the last transaction in it.
    pub time: UnixNanos,
    /// The transactions.
    pub payload: Vec<u8>,
    /// Checksum of the row before it; zeros for the first.
    pub previous: [u8; 32],
    /// BLAKE3 over all of the above.
    pub checksum: [u8; 32],
}

impl JournalRow {
    /// The row that follows `previous`, its payload in `format_version`.
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

    /// The checksum that the row should have.
    pub fn computed_checksum(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("headrace ledger journal row 1");
        hasher.update(&self.sequence.to_le_bytes());
        hasher.update(&self.format_version.to_le_bytes());
        hasher.update(&self.time.get().to_le_bytes());
        hasher.update(&self.previous);
        hasher.update(&self.payload);
        *hasher.finalize().as_bytes()
    }

    /// Checks that the row follows the row `sequence` whose checksum is `checksum`.
    pub(crate) fn check_follows(&self, sequence: u64, checksum: &[u8; 32]) -> Result<(), JournalError> {
        // First: a newer format may chain and hash in ways of its own.
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

/// The whole state after a row, so that a restart need not replay what came before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The last row that it includes.
    pub sequence: u64,
    /// How the payload is encoded.
    pub format_version: u32,
    /// That row's checksum.
    pub row_checksum: [u8; 32],
    /// The state.
    pub payload: Vec<u8>,
    /// BLAKE3 over all of the above.
    pub checksum: [u8; 32],
}

impl Snapshot {
    /// A snapshot of this program's format.
    pub(crate) fn sealed(sequence: u64, row_checksum: [u8; 32], payload: Vec<u8>) -> Self {
        let mut snapshot = Self {
            sequence,
            format_version: SNAPSHOT_FORMAT_VERSION,
            row_checksum,
            payload,
            checksum: GENESIS,
        };
        snapshot.checksum = snapshot.computed_checksum();
        snapshot
    }

    /// The checksum that the snapshot should have.
    pub fn computed_checksum(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("headrace ledger snapshot 1");
        hasher.update(&self.sequence.to_le_bytes());
        hasher.update(&self.format_version.to_le_bytes());
        hasher.update(&self.row_checksum);
        hasher.update(&self.payload);
        *hasher.finalize().as_bytes()
    }
}

/// What a journal holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loaded {
    /// Snapshots, oldest first. For opening, the newest is enough; `verify` checks each.
    pub snapshots: Vec<Snapshot>,
    /// Rows, in order. For opening, those after the newest snapshot are enough; `verify` wants all.
    pub rows: Vec<JournalRow>,
}

/// What went wrong with a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalError {
    /// The disk or the quota is full.
    Full(String),
    /// It cannot be read or written.
    Io(String),
    /// It holds something that this program's format does not.
    NewerFormat {
        /// What has the newer format.
        what: &'static str,
        /// Its format.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// It holds something that it should not.
    Corrupt {
        /// The row, or the snapshot's row.
        sequence: u64,
        /// What is wrong.
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

/// Why the ledger could not be opened or closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerError {
    /// The journal cannot be used.
    Journal(JournalError),
    /// A row breaks the ledger's rules. `headrace ledger verify` says more.
    Breach {
        /// The row.
        sequence: u64,
        /// The rule.
        why: &'static str,
    },
    /// The holds of earlier processes could not be released: the journal does not take writes.
    NotWritten(JournalFailed),
    /// The thread that writes the journal could not be started, or ended before its time.
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
