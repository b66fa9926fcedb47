//! When a snapshot is due. Must not know what it contains.

use crate::replay::ReplayedState;

/// Counts what was written since the last snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotSchedule {
    /// Rows since the last snapshot.
    rows: u64,
    /// Transactions in these rows.
    transactions: u64,
    max_rows: u64,
    max_transactions: u64,
}

impl SnapshotSchedule {
    /// A snapshot is due after `max_rows` rows or `max_transactions` transactions, whichever comes first. What was
    /// replayed counts.
    pub(crate) const fn after(replayed: &ReplayedState, max_rows: u64, max_transactions: u64) -> Self {
        Self { rows: replayed.rows, transactions: replayed.transactions, max_rows, max_transactions }
    }

    /// Counts rows that were written or read.
    pub(crate) const fn count(&mut self, rows: usize, transactions: usize) {
        self.rows += rows as u64;
        self.transactions += transactions as u64;
    }

    /// Returns whether a snapshot is due.
    pub(crate) const fn is_due(&self) -> bool {
        self.rows >= self.max_rows || self.transactions >= self.max_transactions
    }

    /// Returns whether a start from the last snapshot would replay rows.
    pub(crate) const fn has_rows(&self) -> bool {
        self.rows > 0
    }

    /// Counts from a snapshot that was taken now.
    pub(crate) const fn restart(&mut self) {
        (self.rows, self.transactions) = (0, 0);
    }
}
