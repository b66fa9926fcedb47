//! The thread that takes turns until the ledger is closed. Must not know what a turn does.

use std::sync::Arc;
use std::time::Duration;

use crate::journal::LedgerError;

use super::shared::{TurnShared, not_written};
use super::writer::{TurnOutcome, TurnWriter};

/// The first wait after a turn that failed. It doubles up to [`MAX_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(25);
const MAX_RETRY: Duration = Duration::from_millis(400);
/// The number of failed turns after which closing gives up.
const CLOSING_TRIES: u32 = 20;

/// Ends the other threads, also after a panic.
struct EndOnExit(Arc<TurnShared>);

impl Drop for EndOnExit {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Takes turns until the ledger is closed.
///
/// # Errors
/// Returns an error if the journal cannot be reached while the ledger is closed.
pub(super) fn take_turns(mut writer: TurnWriter) -> Result<(), LedgerError> {
    let _end = EndOnExit(Arc::clone(writer.shared()));
    let (mut retry, mut tries) = (FIRST_RETRY, 0);
    loop {
        let closing = writer.wait_for_work();
        match writer.turn() {
            TurnOutcome::Failed => {
                tries += 1;
                if closing && tries >= CLOSING_TRIES {
                    return Err(unreachable());
                }
                std::thread::sleep(retry);
                retry = (retry * 2).min(MAX_RETRY);
            }
            TurnOutcome::Read | TurnOutcome::Written => {
                (retry, tries) = (FIRST_RETRY, 0);
                if closing && writer.is_idle() {
                    return leave(writer);
                }
            }
        }
    }
}

/// Releases the holds that this gateway still has, and leaves the journal.
fn leave(mut writer: TurnWriter) -> Result<(), LedgerError> {
    writer.release_own();
    let mut tries = 0;
    while !writer.has_decided_all() {
        tries += 1;
        if writer.turn() == TurnOutcome::Failed {
            if tries >= CLOSING_TRIES {
                return Err(unreachable());
            }
            std::thread::sleep(FIRST_RETRY);
        }
    }
    writer.leave()
}

fn unreachable() -> LedgerError {
    not_written("the shared journal cannot be reached")
}
