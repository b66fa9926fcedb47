//! Finds the journal row in which a hold was settled. Rows have numbers and times, and no index by hold.

use headrace_domain::{HoldId, UnixNanos};

use crate::admin::JournalHistory;
use crate::journal::JournalError;
use crate::record::decode_row;
use crate::transaction::{HoldSettled, JournalEvent};

/// Rows that a search reads at a time.
const PAGE_ROWS: usize = 256;
/// How far the times of a call and of its row may differ, in nanoseconds. A wider window follows if the hold is not in the
/// one before.
const MARGINS_NS: [u64; 3] = [2_000_000_000, 120_000_000_000, 3_600_000_000_000];

/// A settlement with its place in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournaledSettlement {
    /// The number of the row.
    pub sequence: u64,
    /// The checksum of the row, which covers all rows before it.
    pub checksum: [u8; 32],
    /// The ledger time of the settlement.
    pub time: UnixNanos,
    /// The settlement.
    pub settled: HoldSettled,
}

/// Finds the settlement of a call that ran from `started` to `ended`, by the clock of its gateway. Returns `None` if the hold
/// was not settled, or if the ledger's time differed from that clock by more than an hour.
///
/// # Errors
/// Returns an error if the journal or one of its rows cannot be read.
pub fn find_settlement(
    history: &dyn JournalHistory,
    hold: HoldId,
    started: UnixNanos,
    ended: UnixNanos,
) -> Result<Option<JournaledSettlement>, JournalError> {
    for margin in MARGINS_NS {
        let from = UnixNanos::new(started.get().saturating_sub(margin));
        let until = UnixNanos::new(ended.get().saturating_add(margin));
        let before = history.last_row_before(from)?;
        match search(history, hold, before, until)? {
            HoldEnd::Settled(found) => return Ok(Some(*found)),
            HoldEnd::Released => return Ok(None),
            HoldEnd::NotFound => {}
        }
    }
    Ok(None)
}

/// How a hold ended, in the rows that were searched.
enum HoldEnd {
    Settled(Box<JournaledSettlement>),
    Released,
    NotFound,
}

/// Searches the rows after row `after`, up to the first one that is later than `until`.
fn search(
    history: &dyn JournalHistory,
    hold: HoldId,
    mut after: u64,
    until: UnixNanos,
) -> Result<HoldEnd, JournalError> {
    loop {
        let rows = history.rows_after(after, PAGE_ROWS)?;
        let Some(last) = rows.last() else { return Ok(HoldEnd::NotFound) };
        after = last.sequence;
        for row in &rows {
            for transaction in decode_row(row)? {
                match transaction.event {
                    JournalEvent::Settled(settled) if settled.hold == hold => {
                        let (sequence, checksum, time) = (row.sequence, row.checksum, transaction.time);
                        let found = JournaledSettlement { sequence, checksum, time, settled };
                        return Ok(HoldEnd::Settled(Box::new(found)));
                    }
                    JournalEvent::Released { hold: released, .. } if released == hold => {
                        return Ok(HoldEnd::Released);
                    }
                    _ => {}
                }
            }
            if row.time > until {
                return Ok(HoldEnd::NotFound);
            }
        }
    }
}
