//! The promise that a batch is on the disk: a future that a thread can also block on, for one group of batches. The
//! writer is woken for waiting callers and not for each batch, because a wake-up costs as much as deciding several
//! batches. Does not know the content of the batches.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

/// The batch is not on the disk and never will be. Nothing that its verdicts report has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFailed {
    /// The error of the journal.
    pub why: Arc<str>,
}

impl fmt::Display for JournalFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the change was not written and did not happen: {}", self.why)
    }
}

impl std::error::Error for JournalFailed {}

/// The writer of groups.
pub(crate) trait GroupWriter: Send + Sync {
    /// Reports that a caller waits for a group. A repeated call costs little.
    fn call(&self, group: &Arc<CommitGroup>);

    /// Reports that a caller is interested in a group but not in a hurry; see [`DurableFuture::at_leisure`].
    fn mention(&self, group: &Arc<CommitGroup>);
}

/// Resolves when a batch is on the disk. Cheap to clone, and all clones resolve in the same way.
///
/// The first future of a group that is polled lets all other tasks run once before it wakes the writer. Batches that
/// they add meanwhile are written with it. The other futures of the group rely on the first one, because yielding in
/// vain would cost a call more than the wait. If the first future is dropped early, it wakes the writer then.
///
/// A task should poll the future once per turn, after its other work, because a second poll counts as the next turn. A
/// future that is [at leisure](Self::at_leisure) does not wake a writer that will soon look for work by itself.
#[must_use = "what a batch decided may be acted on only once it is durable"]
pub struct DurableFuture {
    /// `None` if there is nothing to wait for.
    group: Option<Arc<CommitGroup>>,
    /// The index of this future's waker in the group's list.
    slot: Option<usize>,
    /// Whether other tasks had their turn.
    stood_back: bool,
    /// Whether no caller waits, so that the batch may be written with later ones.
    has_time: bool,
    /// Whether the writer knows that a caller is interested.
    is_mentioned: bool,
    /// `None` if the writer is informed, if another future will inform it, or if the batch is done.
    scribe: Option<Arc<dyn GroupWriter>>,
}

/// Batches that one append makes durable together.
#[derive(Debug, Default)]
pub(crate) struct CommitGroup {
    state: Mutex<GroupState>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct GroupState {
    result: Option<Result<(), JournalFailed>>,
    wakers: Vec<Waker>,
    /// Whether a future of the group will wake the writer.
    is_promised: bool,
    /// Whether the writer knows of the group.
    is_mentioned: bool,
}

impl CommitGroup {
    /// Sets the result and wakes all waiting callers. Only the first result counts.
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

impl DurableFuture {
    /// Returns a promise that is already fulfilled.
    pub const fn now() -> Self {
        Self::new(None, None)
    }

    /// Returns a promise that was broken: the batch may be on the disk or not.
    pub(crate) fn failed(failed: JournalFailed) -> Self {
        let group = CommitGroup::default();
        group.resolve(Err(failed));
        Self::new(Some(Arc::new(group)), None)
    }

    /// Returns the promise for a group that `scribe` writes.
    pub(crate) fn of(group: Arc<CommitGroup>, scribe: Arc<dyn GroupWriter>) -> Self {
        Self::new(Some(group), Some(scribe))
    }

    const fn new(group: Option<Arc<CommitGroup>>, scribe: Option<Arc<dyn GroupWriter>>) -> Self {
        Self { group, slot: None, stood_back: false, has_time: false, is_mentioned: false, scribe }
    }

    /// Allows the batch to be written together with batches that other callers wait for, or else within about two
    /// milliseconds. Meant for callers that only observe the result or do other work first. The batch then causes no
    /// commit of its own while others arrive. Must be called before the first poll.
    pub fn at_leisure(&mut self) {
        self.has_time = true;
    }

    /// Marks that a caller waits for the batch from now on.
    pub fn hurry(&mut self) {
        if !std::mem::take(&mut self.has_time) || self.slot.is_none() {
            return;
        }
        let Some(group) = &self.group else { return };
        if std::mem::replace(&mut group.state.lock().is_promised, true) {
            self.scribe = None;
        }
    }

    fn call(&mut self) {
        if self.has_time {
            return self.mention();
        }
        if let (Some(scribe), Some(group)) = (self.scribe.take(), &self.group) {
            scribe.call(group);
        }
    }

    fn mention(&mut self) {
        if !std::mem::replace(&mut self.is_mentioned, true)
            && let (Some(scribe), Some(group)) = (&self.scribe, &self.group)
        {
            scribe.mention(group);
        }
    }

    /// Blocks until the batch is on the disk. Asynchronous code must await instead.
    ///
    /// # Errors
    /// Returns an error if the journal failed. The batch then did not happen.
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

impl Clone for DurableFuture {
    fn clone(&self) -> Self {
        let mut same = Self::new(self.group.clone(), self.scribe.clone());
        same.has_time = self.has_time;
        same
    }
}

impl Drop for DurableFuture {
    fn drop(&mut self) {
        self.call();
    }
}

impl fmt::Debug for DurableFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableFuture").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Future for DurableFuture {
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
                if self.has_time {
                    self.is_mentioned |= std::mem::replace(&mut state.is_mentioned, true);
                } else if std::mem::replace(&mut state.is_promised, true) {
                    self.scribe = None;
                }
            }
        }
        drop(state);
        if self.has_time {
            self.mention();
        } else if self.scribe.is_some() {
            if std::mem::replace(&mut self.stood_back, true) {
                self.call();
            } else {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Counts its calls and mentions.
    #[derive(Default)]
    struct CountingWriter {
        calls: AtomicU32,
        mentions: AtomicU32,
    }

    impl GroupWriter for CountingWriter {
        fn call(&self, _group: &Arc<CommitGroup>) {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }

        fn mention(&self, _group: &Arc<CommitGroup>) {
            self.mentions.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl CountingWriter {
        fn of(&self) -> (u32, u32) {
            (self.calls.load(Ordering::Relaxed), self.mentions.load(Ordering::Relaxed))
        }
    }

    fn is_ready(durable: &mut DurableFuture) -> bool {
        Pin::new(durable).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_writer_is_woken_once_for_those_who_wait_and_told_once_of_those_who_do_not() {
        let (counts, group) = (Arc::new(CountingWriter::default()), Arc::new(CommitGroup::default()));
        let scribe = || Arc::clone(&counts) as Arc<dyn GroupWriter>;
        let at_leisure = || {
            let mut durable = DurableFuture::of(Arc::clone(&group), scribe());
            durable.at_leisure();
            durable
        };
        let [mut first, mut second] = [at_leisure(), at_leisure()];
        for durable in [&mut first, &mut second, &mut at_leisure()] {
            assert!(!is_ready(durable) && !is_ready(durable));
        }
        assert_eq!(counts.of(), (0, 1), "no caller waits");
        first.hurry();
        assert!(!is_ready(&mut first));
        assert_eq!(counts.of(), (0, 1), "others have a turn before");
        second.hurry();
        let mut third = DurableFuture::of(Arc::clone(&group), scribe());
        for _ in 0..2 {
            assert!(!is_ready(&mut second) && !is_ready(&mut third));
        }
        assert_eq!(counts.of(), (0, 1), "the first one will wake it for all");
        assert!(!is_ready(&mut first) && !is_ready(&mut first));
        assert_eq!(counts.of(), (1, 1));
        group.resolve(Ok(()));
        for mut durable in [first, second, third, at_leisure()] {
            assert!(is_ready(&mut durable));
        }
        assert_eq!(counts.of(), (1, 1), "nothing is left to say");
    }

    #[test]
    fn what_is_dropped_is_written_all_the_same() {
        let counts = Arc::new(CountingWriter::default());
        let fresh = || DurableFuture::of(Arc::default(), Arc::clone(&counts) as Arc<dyn GroupWriter>);
        drop(fresh());
        assert_eq!(counts.of(), (1, 0));
        let mut durable = fresh();
        durable.at_leisure();
        drop(durable);
        assert_eq!(counts.of(), (1, 1));
        let mut durable = fresh();
        assert!(!is_ready(&mut durable));
        drop(durable);
        assert_eq!(counts.of(), (2, 1), "one that promised to wake the writer, and went");
        let mut durable = fresh();
        durable.at_leisure();
        assert!(!is_ready(&mut durable));
        durable.hurry();
        drop(durable);
        assert_eq!(counts.of(), (3, 2), "no other caller waits");
        drop(DurableFuture::now());
    }
}
