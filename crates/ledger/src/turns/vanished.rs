//! Finds out whether rows that a gateway has read, and that are no longer in the journal, were acknowledged to a caller.
//!
//! A database can lose such rows without having acknowledged them. PostgreSQL shows a commit to others before its
//! standby has it if the session that waits for the standby is ended, for example because the server's first process was
//! killed. A failover at that moment loses a row that another gateway has read already.
//!
//! A gateway knows what was acknowledged to its own callers. If such a row is lost, it halts at once. If only rows of
//! other gateways are lost, it asks whether these gateways still run: each of them would halt, and stop renewing its
//! presence, if one of its acknowledged rows were lost. So it observes them for [`OBSERVED_FOR`], and refuses new work
//! meanwhile. If all renew their presence, the rows were never acknowledged, and it continues from what the journal has.
//! If one does not, nothing vouches for its rows, and the gateway halts.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::UnixNanos;

use crate::command::Owner;
use crate::durable::JournalFailed;
use crate::journal::{GENESIS, JournalError, JournalRow, LedgerError};

use super::journal::SharedJournal;
use super::shared::not_written;

/// How long a gateway observes the others. Each of them takes several turns in this time.
const OBSERVED_FOR: Duration = Duration::from_secs(3);
/// A running gateway renews its presence more often than this.
const RENEWED_WITHIN: Duration = Duration::from_millis(1_500);

/// A place in the journal.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPosition {
    sequence: u64,
    checksum: [u8; 32],
}

/// Rows that vanished from the journal, while the other gateways are observed.
pub(super) struct VanishedRows {
    /// The number of the last row that the gateway has read.
    read: u64,
    /// The number of the journal's last row.
    head: u64,
    /// The journal's time when they were missed.
    since: UnixNanos,
    /// The gateways that were live then.
    live: Vec<Owner>,
}

/// The reason why other gateways need not be observed.
pub(super) enum LossError {
    /// A row was lost that was acknowledged to a caller of this gateway.
    Lost(LedgerError),
    /// The journal cannot be read now.
    Unreachable(JournalError),
}

impl RowPosition {
    /// The place before the first row.
    pub(super) const START: Self = Self { sequence: 0, checksum: GENESIS };

    /// The place of a row.
    pub(super) const fn of(row: &JournalRow) -> Self {
        Self { sequence: row.sequence, checksum: row.checksum }
    }

    /// Returns whether a journal has the row at this place.
    fn is_in(self, journal: &mut dyn SharedJournal) -> Result<bool, JournalError> {
        if self.sequence == 0 {
            return Ok(true);
        }
        let rows = journal.rows_after(self.sequence - 1, 1)?;
        Ok(rows.first().is_some_and(|row| row.sequence == self.sequence && row.checksum == self.checksum))
    }
}

impl VanishedRows {
    /// Begins to observe the other gateways, for a gateway that has read up to row `read` of a journal that now ends with
    /// row `head`. `confirmed` is the last row that was acknowledged to one of its callers.
    pub(super) fn missed(
        journal: &mut dyn SharedJournal,
        (owner, read): (Owner, u64),
        head: u64,
        confirmed: RowPosition,
    ) -> Result<Self, LossError> {
        if !confirmed.is_in(journal).map_err(LossError::Unreachable)? {
            return Err(LossError::Lost(loss(read, head)));
        }
        let live = silent_gateways(journal, owner, head, Duration::ZERO);
        let (since, live) = live.map_err(LossError::Unreachable)?;
        tracing::error!(
            row = read,
            head,
            "rows of other gateways are no longer in the shared journal; finding out whether they were acknowledged"
        );
        Ok(Self { read, head, since, live })
    }

    /// Returns whether every gateway that was live when the rows vanished still runs and has not halted. Returns `None` if
    /// it is too early to say.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read now.
    pub(super) fn are_gateways_running(
        &self,
        journal: &mut dyn SharedJournal,
        owner: Owner,
    ) -> Result<Option<bool>, JournalError> {
        let (now, live) = silent_gateways(journal, owner, self.head, Duration::ZERO)?;
        if now.since(self.since) < OBSERVED_FOR {
            return Ok(None);
        }
        let (_, silent) = silent_gateways(journal, owner, self.head, RENEWED_WITHIN)?;
        Ok(Some(self.live.iter().all(|owner| live.contains(owner) && !silent.contains(owner))))
    }

    /// Returns the error if the rows may have been acknowledged.
    pub(super) fn loss(&self) -> LedgerError {
        loss(self.read, self.head)
    }
}

/// Returns the journal's time, and the live gateways that did not renew their presence for `time`.
fn silent_gateways(
    journal: &mut dyn SharedJournal,
    owner: Owner,
    sequence: u64,
    time: Duration,
) -> Result<(UnixNanos, Vec<Owner>), JournalError> {
    let started = journal.begin(owner, sequence, 1, Some(time))?;
    journal.abandon();
    Ok((started.time, started.lapsed))
}

fn loss(read: u64, head: u64) -> LedgerError {
    let why: Arc<str> = format!(
        "the shared journal went back: this gateway knows row {read}, and the journal, whose last row is now {head}, does not have it. The database lost acknowledged rows, for example in a failover to a standby that was not synchronous. Compare \
         `headrace ledger verify` with a backup, then restart this gateway to continue from what the journal has"
    )
    .into();
    LedgerError::NotWritten(JournalFailed { why })
}

/// Returns the error of a turn while the other gateways are observed.
pub(super) fn in_doubt() -> LedgerError {
    not_written(
        "rows of other gateways are no longer in the shared journal, and this gateway finds out whether they were acknowledged",
    )
}
