//! The promise that a batch is on the disk: a future that can also be waited for, one group of batches at a time.
//! Knows nothing of what the batches hold.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

/// The batch is not on the disk and never will be: whatever its verdicts said did not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFailed {
    /// What the journal said.
    pub why: Arc<str>,
}

impl fmt::Display for JournalFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the change was not written and did not happen: {}", self.why)
    }
}

impl std::error::Error for JournalFailed {}

/// Resolves when a batch is on the disk. Cheap to clone; every clone resolves alike.
#[derive(Debug)]
#[must_use = "what a batch decided may be acted on only once it is durable"]
pub struct Durable {
    /// `None`: nothing to wait for.
    group: Option<Arc<Group>>,
    /// Where this future's waker stands in the group's list.
    slot: Option<usize>,
}

/// Batches that one append makes durable together.
#[derive(Debug, Default)]
pub(crate) struct Group {
    state: Mutex<GroupState>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct GroupState {
    result: Option<Result<(), JournalFailed>>,
    wakers: Vec<Waker>,
}

impl Group {
    /// Tells everyone who waits. The first result stands.
    pub(crate) fn resolve(&self, result: Result<(), JournalFailed>) {
        let wakers = {
            let mut state = self.state.lock();
            if state.result.is_some() {
                return;
            }
            state.result = Some(result);
            std::mem::take(&mut state.wakers)
        };
        self.done.notify_all();
        for waker in wakers {
            waker.wake();
        }
    }
}

impl Durable {
    /// Already on the disk.
    pub const fn now() -> Self {
        Self { group: None, slot: None }
    }

    pub(crate) const fn of(group: Arc<Group>) -> Self {
        Self { group: Some(group), slot: None }
    }

    /// Blocks until the batch is on the disk. Not for asynchronous code, which awaits instead.
    ///
    /// # Errors
    /// When the journal failed: the batch did not happen.
    pub fn wait(self) -> Result<(), JournalFailed> {
        let Some(group) = self.group else { return Ok(()) };
        let mut state = group.state.lock();
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            group.done.wait(&mut state);
        }
    }
}

impl Clone for Durable {
    fn clone(&self) -> Self {
        Self { group: self.group.clone(), slot: None }
    }
}

impl Future for Durable {
    type Output = Result<(), JournalFailed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(group) = self.group.clone() else { return Poll::Ready(Ok(())) };
        let mut state = group.state.lock();
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        match self.slot.and_then(|slot| state.wakers.get_mut(slot)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => {
                self.slot = Some(state.wakers.len());
                state.wakers.push(context.waker().clone());
            }
        }
        Poll::Pending
    }
}
