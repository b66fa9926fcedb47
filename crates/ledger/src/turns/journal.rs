//! The trait of a journal that several gateways append to. Knows neither how rows are decided nor which database keeps
//! them.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::UnixNanos;

use crate::admin::JournalHistory;
use crate::command::Owner;
use crate::journal::{JournalError, JournalRow, StateSnapshot};
use crate::replay::StoredRows;

/// A journal that several gateways append to, one at a time. One thread of each gateway owns a handle. Every method
/// returns within a bounded time.
pub trait SharedJournal: Send {
    /// Connects anew if the connection is lost, and makes `owner` a live gateway. `newest_format` is the newest row
    /// format that this program reads. An earlier connection of this handle must not be used again.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be reached. An owner that was declared dead stays dead, which
    /// [`SharedJournal::begin`] reports.
    fn join(&mut self, owner: Owner, newest_format: u32) -> Result<(), JournalError>;

    /// Returns the newest snapshot taken at a row before `sequence`, or `None` if there is none.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] names the row of a snapshot that cannot be read; an older snapshot may be readable.
    /// Returns another error if the journal cannot be read.
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError>;

    /// Returns the rows after `sequence`, in order and at most `limit`. Works within a turn and outside of one.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read.
    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError>;

    /// Locks the head of the journal, once every earlier turn has ended, and reads up to `limit` rows after `sequence`. With a `lease`, also finds the live
    /// gateways that did not renew their presence for so long.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be reached, or another gateway keeps the head locked. No turn was started
    /// then.
    fn begin(
        &mut self,
        owner: Owner,
        sequence: u64,
        limit: usize,
        lease: Option<Duration>,
    ) -> Result<StartedTurn, JournalError>;

    /// Appends a row, or none, declares `dead` gateways dead, commits and unlocks the head.
    ///
    /// # Errors
    /// After an error, the row may be in the journal or not, or may still arrive there. The caller joins and begins
    /// another turn to find out.
    fn commit(
        &mut self,
        row: Option<&JournalRow>,
        stamp: TurnStamp,
        dead: &[Owner],
    ) -> Result<(), JournalError>;

    /// Ends a turn without a change.
    fn abandon(&mut self);

    /// Stores a snapshot. Losing it only makes the next start slower.
    ///
    /// # Errors
    /// Returns an error if the snapshot could not be stored.
    fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError>;

    /// Returns a reader of the journal, which works beside all gateways.
    fn history(&self) -> Arc<dyn JournalHistory>;

    /// Records that `owner` has ended and holds nothing.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be reached.
    fn leave(&mut self, owner: Owner) -> Result<(), JournalError>;
}

/// Renews the presence of this gateway, on a connection of its own: a turn may wait for its lock longer than a lease.
pub trait GatewayPresence: Send {
    /// Records that `owner` lives. Returns `false` if it was declared dead.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be reached.
    fn renew(&mut self, owner: Owner) -> Result<bool, JournalError>;
}

/// The identities that several gateways share, as far as this gateway has loaded them. Every change of theirs is counted
/// under the same lock as the turns, so that a turn finds out whether it has loaded all of them.
pub trait SharedIdentities: Send + Sync {
    /// Returns the number of changes that are loaded.
    fn loaded(&self) -> u64;

    /// Loads the changes that other gateways made. Blocks.
    ///
    /// # Errors
    /// Returns an error if they cannot be read.
    fn load(&self) -> Result<(), JournalError>;
}

/// The journal at the start of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedTurn {
    /// The number of the last row.
    pub head: u64,
    /// The checksum of the last row. Zeros if there is none.
    pub checksum: [u8; 32],
    /// The journal's clock.
    pub time: UnixNanos,
    /// Whether the gateway of this turn is live. It was declared dead otherwise, and must not write.
    pub is_live: bool,
    /// The newest row format that every live gateway reads.
    pub newest_format: u32,
    /// How often identities were changed.
    pub identity_changes: u64,
    /// The first rows after the requested one.
    pub rows: Vec<JournalRow>,
    /// Live gateways that did not renew their presence. Empty if they were not asked for.
    pub lapsed: Vec<Owner>,
}

/// The turn that wrote a row. No two rows have the same stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnStamp {
    /// The gateway.
    pub owner: Owner,
    /// The number of its turn. Counts from 1.
    pub turn: u64,
}

impl StoredRows for dyn SharedJournal + '_ {
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
        SharedJournal::snapshot_before(self, sequence)
    }

    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        SharedJournal::rows_after(self, sequence, limit)
    }
}
