//! Loads a state from a journal: the newest snapshot, then the rows after it, each checked against the chain. Used when
//! a ledger opens and when it recovers.

use crate::journal::{GENESIS, Journal, JournalError, JournalRow, LedgerError, StateSnapshot};
use crate::record::{BUDGET_FORMAT, LOT_FORMAT, decode_row};
use crate::snapshot;
use crate::state::LedgerState;
use crate::transaction::Transaction;

/// The part of a journal that is read when a ledger opens.
pub(crate) trait StoredRows {
    /// Returns the newest snapshot taken at a row before `sequence`.
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError>;

    /// Returns the rows after `sequence`, at most `limit`.
    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError>;
}

impl StoredRows for dyn Journal + '_ {
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
        Journal::snapshot_before(self, sequence)
    }

    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        Journal::rows_after(self, sequence, limit)
    }
}

/// A state, and the journal row up to which it was replayed.
pub(crate) struct ReplayedState {
    pub(crate) state: LedgerState,
    pub(crate) sequence: u64,
    pub(crate) checksum: [u8; 32],
    /// The newest format among the rows and the snapshot that were read.
    pub(crate) newest_format: u32,
    /// The number of rows applied after the snapshot.
    pub(crate) rows: u64,
    /// The number of transactions in those rows.
    pub(crate) transactions: u64,
    pub(crate) snapshot_sequence: u64,
    pub(crate) snapshot_refused: Option<String>,
}

/// The number of rows that are read at a time.
const PAGE_ROWS: usize = 256;

/// Loads a journal. If a snapshot is damaged, the one before it is used, and if none is left, all rows are replayed. A
/// snapshot of a newer format is an error, because the rows will have a newer format, too.
pub(crate) fn replay(journal: &mut (impl StoredRows + ?Sized)) -> Result<ReplayedState, LedgerError> {
    let mut replayed = ReplayedState {
        state: LedgerState::default(),
        sequence: 0,
        checksum: GENESIS,
        newest_format: 1,
        rows: 0,
        transactions: 0,
        snapshot_sequence: 0,
        snapshot_refused: None,
    };
    let mut before = u64::MAX;
    loop {
        let (sequence, error) = match journal.snapshot_before(before) {
            Ok(None) => break,
            Ok(Some(newest)) => match snapshot::decode(&newest) {
                Ok(state) => {
                    replayed.state = state;
                    replayed.sequence = newest.sequence;
                    replayed.checksum = newest.row_checksum;
                    replayed.snapshot_sequence = newest.sequence;
                    replayed.newest_format = match newest.format_version {
                        snapshot::LOT_FORMAT.. => LOT_FORMAT,
                        snapshot::BUDGET_FORMAT => BUDGET_FORMAT,
                        _ => replayed.newest_format,
                    };
                    break;
                }
                Err(error) => (newest.sequence, error),
            },
            Err(error @ JournalError::Corrupt { sequence, .. }) => (sequence, error),
            Err(error) => return Err(error.into()),
        };
        if matches!(error, JournalError::NewerFormat { .. }) {
            return Err(error.into());
        }
        replayed.snapshot_refused.get_or_insert(error.to_string());
        before = sequence.min(before.saturating_sub(1));
    }
    replayed.catch_up(journal)?;
    Ok(replayed)
}

impl ReplayedState {
    /// Applies all rows of the journal after this state, a page at a time.
    pub(crate) fn catch_up(&mut self, journal: &mut (impl StoredRows + ?Sized)) -> Result<(), LedgerError> {
        loop {
            let page = journal.rows_after(self.sequence, PAGE_ROWS)?;
            if page.is_empty() {
                return Ok(());
            }
            for row in &page {
                self.follow(row)?;
            }
        }
    }

    /// Applies the next row, and returns its transactions.
    pub(crate) fn follow(&mut self, row: &JournalRow) -> Result<Vec<Transaction>, LedgerError> {
        row.check_follows(self.sequence, &self.checksum)?;
        let transactions = decode_row(row)?;
        for transaction in &transactions {
            let breach = |breach: crate::state::RuleBreach| LedgerError::Breach {
                sequence: row.sequence,
                why: breach.why(),
            };
            self.state.replay(transaction).map_err(breach)?;
        }
        self.sequence = row.sequence;
        self.checksum = row.checksum;
        self.newest_format = self.newest_format.max(row.format_version);
        self.rows += 1;
        self.transactions += transactions.len() as u64;
        Ok(transactions)
    }
}
