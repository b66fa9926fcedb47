//! The verdicts of one batch, from the thread that decides in turns to the caller that waits for them. Knows nothing of
//! journals.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use headrace_domain::HoldId;
use parking_lot::{Condvar, Mutex};

use crate::command::Receipt;
use crate::durable::{DurableFuture, JournalFailed};
use crate::refusal::LedgerRefusal;
use crate::service::BatchResult;
use crate::verdict::CommandResult;

/// Releases holds that no caller knows of.
pub(super) trait UnclaimedHolds: Send + Sync {
    /// Queues the release of the holds.
    fn release(&self, holds: Vec<HoldId>);
}

/// The place where the verdicts of a batch arrive.
pub(super) struct ReplySlot {
    state: Mutex<ReplyState>,
    arrived: Condvar,
}

enum ReplyState {
    Waiting(Option<Waker>),
    Arrived(Vec<CommandResult>),
    /// The wait was too long. The batch may be written all the same.
    GivenUp(Arc<str>, usize),
    /// The caller has the verdicts, or does not want them.
    Ended,
}

/// The caller's end. Dropping it before the verdicts were taken releases the holds that they name.
pub(super) struct ReplyReceiver {
    slot: Arc<ReplySlot>,
    unclaimed: Weak<dyn UnclaimedHolds>,
}

/// Returns the holds that a batch took.
pub(super) fn holds_taken(verdicts: &[CommandResult]) -> Vec<HoldId> {
    let taken = verdicts.iter().filter_map(|verdict| match verdict {
        CommandResult::Done(Receipt::Held { hold, .. }) => Some(*hold),
        _ => None,
    });
    taken.collect()
}

impl ReplySlot {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(ReplyState::Waiting(None)), arrived: Condvar::new() })
    }

    /// Whether a caller still waits.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(*self.state.lock(), ReplyState::Waiting(_))
    }

    /// Delivers the verdicts. Returns them if no caller waits any more.
    pub(super) fn deliver(&self, verdicts: Vec<CommandResult>) -> Result<(), Vec<CommandResult>> {
        match self.end_wait(ReplyState::Arrived(verdicts)) {
            Some(ReplyState::Arrived(verdicts)) => Err(verdicts),
            _ => Ok(()),
        }
    }

    /// Gives up for a caller that still waits. Its batch has `operations` operations.
    pub(super) fn give_up(&self, why: Arc<str>, operations: usize) {
        // A caller that has its verdicts, or has left, needs no other answer.
        let _ = self.end_wait(ReplyState::GivenUp(why, operations));
    }

    /// Ends the wait of a caller. Returns `how` if no caller waits any more.
    fn end_wait(&self, how: ReplyState) -> Option<ReplyState> {
        let mut state = self.state.lock();
        let ReplyState::Waiting(waker) = &mut *state else { return Some(how) };
        let waker = waker.take();
        *state = how;
        drop(state);
        self.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }
}

impl ReplyReceiver {
    pub(super) fn new(slot: Arc<ReplySlot>, unclaimed: Weak<dyn UnclaimedHolds>) -> Self {
        Self { slot, unclaimed }
    }

    /// Blocks until the verdicts arrive.
    pub(super) fn wait(self) -> BatchResult {
        let mut state = self.slot.state.lock();
        loop {
            if let Some(result) = taken(&mut state) {
                return result;
            }
            self.slot.arrived.wait(&mut state);
        }
    }
}

/// Takes the verdicts if they have arrived.
fn taken(state: &mut ReplyState) -> Option<BatchResult> {
    match std::mem::replace(state, ReplyState::Ended) {
        ReplyState::Arrived(verdicts) => Some(BatchResult { verdicts, durable: DurableFuture::now() }),
        ReplyState::GivenUp(why, operations) => {
            let refused = CommandResult::Refused(LedgerRefusal::Unavailable { why: Arc::clone(&why) });
            let durable = DurableFuture::failed(JournalFailed { why });
            Some(BatchResult { verdicts: vec![refused; operations], durable })
        }
        other => {
            *state = other;
            None
        }
    }
}

impl Future for ReplyReceiver {
    type Output = BatchResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state.lock();
        if let Some(result) = taken(&mut state) {
            return Poll::Ready(result);
        }
        if let ReplyState::Waiting(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
        }
        Poll::Pending
    }
}

impl Drop for ReplyReceiver {
    fn drop(&mut self) {
        let ended = std::mem::replace(&mut *self.slot.state.lock(), ReplyState::Ended);
        let ReplyState::Arrived(verdicts) = ended else { return };
        let holds = holds_taken(&verdicts);
        if !holds.is_empty()
            && let Some(unclaimed) = self.unclaimed.upgrade()
        {
            unclaimed.release(holds);
        }
    }
}
