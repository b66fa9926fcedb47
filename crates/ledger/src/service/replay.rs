//! Loads a state from a journal: the newest snapshot, then the rows after it, each checked against the chain. Used when
//! a ledger opens and when it recovers.

use crate::journal::{GENESIS, Journal, JournalError, JournalRow, LedgerError};
use crate::record::decode_row;
use crate::snapshot;
use crate::state::LedgerState;

/// A state, and the journal row up to which it was replayed.
pub(super) struct ReplayedState {
    pub(super) state: LedgerState,
    pub(super) sequence: u64,
    pub(super) checksum: [u8; 32],
    pub(super) rows: u64,
    pub(super) snapshot_sequence: u64,
    pub(super) snapshot_refused: Option<String>,
}

/// The number of rows that are read at a time.
const PAGE_ROWS: usize = 256;

/// Loads a journal. If a snapshot is damaged, the one before it is used, and if none is left, all rows are replayed. A
/// snapshot of a newer format is an error, because the rows will have a newer format, too.
pub(super) fn replay(journal: &mut dyn Journal) -> Result<ReplayedState, LedgerError> {
    let mut replayed = ReplayedState {
        state: LedgerState::default(),
        sequence: 0,
        checksum: GENESIS,
        rows: 0,
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
    pub(super) fn catch_up(&mut self, journal: &mut dyn Journal) -> Result<(), LedgerError> {
        loop {
            let page = journal.rows_after(self.sequence, PAGE_ROWS)?;
            if page.is_empty() {
                return Ok(());
            }
            page.iter().try_for_each(|row| self.follow(row))?;
        }
    }

    /// Applies the next row.
    fn follow(&mut self, row: &JournalRow) -> Result<(), LedgerError> {
        row.check_follows(self.sequence, &self.checksum)?;
        for transaction in decode_row(row)? {
            let breach = |breach: crate::state::RuleBreach| LedgerError::Breach {
                sequence: row.sequence,
                why: breach.why(),
            };
            self.state.replay(&transaction).map_err(breach)?;
        }
        self.sequence = row.sequence;
        self.checksum = row.checksum;
        self.rows += 1;
        Ok(())
    }
}
