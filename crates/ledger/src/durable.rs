//! The promise that a batch is on the disk: a future that can also be waited for, one group of batches at a time.
//! Whoever writes is woken for those who wait, and not for each batch: a wake costs as much as deciding several.
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

/// Whoever writes groups.
pub(crate) trait Scribe: Send + Sync {
    /// Somebody waits for a group. To call it twice costs little.
    fn call(&self, group: &Arc<Group>);

    /// Somebody would hear of a group, and has time: see [`Durable::at_leisure`].
    fn mention(&self, group: &Arc<Group>);
}

/// Resolves when a batch is on the disk. Cheap to clone; every clone resolves alike.
///
/// The first future of a group that is asked lets everybody else have a turn before it wakes the writer: what they add meanwhile is
/// written with it. The others leave that to it: each turn taken for nothing would cost a call more than its wait. Dropped before, it
/// wakes the writer then. One that is [at leisure](Self::at_leisure) wakes nobody who is awake anyway.
#[must_use = "what a batch decided may be acted on only once it is durable"]
pub struct Durable {
    /// `None`: nothing to wait for.
    group: Option<Arc<Group>>,
    /// Where this future's waker stands in the group's list.
    slot: Option<usize>,
    /// Others had their turn.
    stood_back: bool,
    /// Nobody waits for it: it may be written with what comes next.
    has_time: bool,
    /// `None`: it knows that somebody waits, or it is done.
    scribe: Option<Arc<dyn Scribe>>,
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
    /// Somebody will wake the writer.
    is_promised: bool,
    /// The writer knows of the group.
    is_mentioned: bool,
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
        Self { group: None, slot: None, stood_back: false, has_time: false, scribe: None }
    }

    /// With a group that `scribe` writes.
    pub(crate) fn of(group: Arc<Group>, scribe: Arc<dyn Scribe>) -> Self {
        Self { group: Some(group), slot: None, stood_back: false, has_time: false, scribe: Some(scribe) }
    }

    /// Lets it be written with what somebody else waits for, or else within two milliseconds or so: for whoever only watches that it is.
    /// So it costs no commit of its own while there are others. To be said before it is first asked.
    pub fn at_leisure(&mut self) {
        self.has_time = true;
    }

    fn call(&mut self) {
        if let (Some(scribe), Some(group)) = (self.scribe.take(), &self.group) {
            if self.has_time { scribe.mention(group) } else { scribe.call(group) }
        }
    }

    /// Blocks until the batch is on the disk. Not for asynchronous code, which awaits instead.
    ///
    /// # Errors
    /// When the journal failed: the batch did not happen.
    pub fn wait(mut self) -> Result<(), JournalFailed> {
        self.has_time = false;
        self.call();
        let Some(group) = self.group.take() else { return Ok(()) };
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
        let Self { group, has_time, scribe, .. } = self;
        Self {
            group: group.clone(),
            slot: None,
            stood_back: false,
            has_time: *has_time,
            scribe: scribe.clone(),
        }
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        self.call();
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Future for Durable {
    type Output = Result<(), JournalFailed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(group) = self.group.clone() else { return Poll::Ready(Ok(())) };
        let mut state = group.state.lock();
        if let Some(result) = &state.result {
            self.scribe = None;
            return Poll::Ready(result.clone());
        }
        match self.slot.and_then(|slot| state.wakers.get_mut(slot)) {
            Some(waker) => waker.clone_from(context.waker()),
            None => {
                self.slot = Some(state.wakers.len());
                state.wakers.push(context.waker().clone());
                let state = &mut *state;
                let known = if self.has_time { &mut state.is_mentioned } else { &mut state.is_promised };
                if std::mem::replace(known, true) {
                    self.scribe = None;
                }
            }
        }
        drop(state);
        if self.scribe.is_some() {
            if self.has_time || std::mem::replace(&mut self.stood_back, true) {
                self.call();
            } else {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}
