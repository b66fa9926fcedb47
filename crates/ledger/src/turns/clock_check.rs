//! Notices that the journal's clock jumped ahead. Must not know what is decided at its time.

use std::time::Duration;

use headrace_domain::UnixNanos;

use crate::journal::{JournalError, LedgerError};

/// How much the journal's clock may gain on this machine's monotonic clock. Budgets would turn over too early beyond it.
const MAX_CLOCK_GAIN: Duration = Duration::from_secs(3600);

/// Compares the journal's clock with this machine's monotonic clock.
#[derive(Debug, Default)]
pub(super) struct JournalClockCheck {
    /// Both clocks at the first turn: the journal's, and the monotonic one in nanoseconds.
    first_times: Option<(UnixNanos, u64)>,
}

impl JournalClockCheck {
    /// Checks that the journal's clock, which shows `time`, did not jump ahead since the first turn. It may be set right
    /// again. `now` is the monotonic clock in nanoseconds.
    pub(super) fn check(&mut self, time: UnixNanos, now: u64) -> Result<(), LedgerError> {
        let (first, since) = *self.first_times.get_or_insert((time, now));
        let gained = time.since(first).saturating_sub(Duration::from_nanos(now.saturating_sub(since)));
        if gained <= MAX_CLOCK_GAIN {
            return Ok(());
        }
        let why = format!(
            "the database's clock is {} s ahead of where it was when this gateway started, so that budgets would turn over too early: set the clock right, or restart this gateway if the clock is right now",
            gained.as_secs()
        );
        Err(JournalError::Io(why).into())
    }
}
