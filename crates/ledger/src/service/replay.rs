//! From a journal to a state: the newest snapshot, then the rows after it, each checked against the chain.
//! Used when a ledger opens and when it recovers.

use crate::journal::{GENESIS, Journal, JournalError, JournalRow, LedgerError};
use crate::record::decode_row;
use crate::snapshot;
use crate::state::State;

/// A state and the row that it stands at.
pub(super) struct Replayed {
    pub(super) state: State,
    pub(super) sequence: u64,
    pub(super) checksum: [u8; 32],
    pub(super) rows: u64,
    pub(super) snapshot_sequence: u64,
    pub(super) snapshot_refused: Option<String>,
}

/// Loads a journal. A snapshot that is damaged is passed over and everything replayed; one of a newer format is not,
/// for the rows will be newer, too.
pub(super) fn replay(journal: &mut dyn Journal) -> Result<Replayed, LedgerError> {
    let loaded = journal.load()?;
    let mut replayed = Replayed {
        state: State::default(),
        sequence: 0,
        checksum: GENESIS,
        rows: 0,
        snapshot_sequence: 0,
        snapshot_refused: None,
    };
    let mut rows = loaded.rows;
    if let Some(newest) = loaded.snapshots.last() {
        match snapshot::decode(newest) {
            Ok(state) => {
                replayed.state = state;
                replayed.sequence = newest.sequence;
                replayed.checksum = newest.row_checksum;
                replayed.snapshot_sequence = newest.sequence;
            }
            Err(error @ JournalError::NewerFormat { .. }) => return Err(error.into()),
            Err(error) => {
                replayed.snapshot_refused = Some(error.to_string());
                rows = journal.rows_after(0)?;
            }
        }
    }
    let after = replayed.sequence;
    for row in rows.iter().filter(|row| row.sequence > after) {
        replayed.follow(row)?;
    }
    Ok(replayed)
}

impl Replayed {
    /// Applies the next row.
    pub(super) fn follow(&mut self, row: &JournalRow) -> Result<(), LedgerError> {
        row.check_follows(self.sequence, &self.checksum)?;
        for transaction in decode_row(row)? {
            let breach = |breach: crate::state::Breach| LedgerError::Breach {
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
