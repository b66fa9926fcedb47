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
/// wakes the writer then. A task asks it once a turn, behind what it has to do otherwise: a second time counts as the next turn. One that is [at leisure](Self::at_leisure) wakes nobody who is awake anyway.
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
    /// The writer knows of it.
    is_mentioned: bool,
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
        Self::new(None, None)
    }

    /// With a group that `scribe` writes.
    pub(crate) fn of(group: Arc<Group>, scribe: Arc<dyn Scribe>) -> Self {
        Self::new(Some(group), Some(scribe))
    }

    const fn new(group: Option<Arc<Group>>, scribe: Option<Arc<dyn Scribe>>) -> Self {
        Self { group, slot: None, stood_back: false, has_time: false, is_mentioned: false, scribe }
    }

    /// Lets it be written with what somebody else waits for, or else within two milliseconds or so: for whoever only watches that it is,
    /// or does something else first. So it costs no commit of its own while there are others. To be said before it is first asked.
    pub fn at_leisure(&mut self) {
        self.has_time = true;
    }

    /// From now on somebody waits for it.
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
        let mut same = Self::new(self.group.clone(), self.scribe.clone());
        same.has_time = self.has_time;
        same
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

    /// Counts how often it is called, and told.
    #[derive(Default)]
    struct Counts {
        calls: AtomicU32,
        mentions: AtomicU32,
    }

    impl Scribe for Counts {
        fn call(&self, _group: &Arc<Group>) {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }

        fn mention(&self, _group: &Arc<Group>) {
            self.mentions.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Counts {
        fn of(&self) -> (u32, u32) {
            (self.calls.load(Ordering::Relaxed), self.mentions.load(Ordering::Relaxed))
        }
    }

    fn is_ready(durable: &mut Durable) -> bool {
        Pin::new(durable).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_writer_is_woken_once_for_those_who_wait_and_told_once_of_those_who_do_not() {
        let (counts, group) = (Arc::new(Counts::default()), Arc::new(Group::default()));
        let scribe = || Arc::clone(&counts) as Arc<dyn Scribe>;
        let at_leisure = || {
            let mut durable = Durable::of(Arc::clone(&group), scribe());
            durable.at_leisure();
            durable
        };
        let [mut first, mut second] = [at_leisure(), at_leisure()];
        for durable in [&mut first, &mut second, &mut at_leisure()] {
            assert!(!is_ready(durable) && !is_ready(durable));
        }
        assert_eq!(counts.of(), (0, 1), "nobody waits");
        first.hurry();
        assert!(!is_ready(&mut first));
        assert_eq!(counts.of(), (0, 1), "others have a turn before");
        second.hurry();
        let mut third = Durable::of(Arc::clone(&group), scribe());
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
        let counts = Arc::new(Counts::default());
        let fresh = || Durable::of(Arc::default(), Arc::clone(&counts) as Arc<dyn Scribe>);
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
        assert_eq!(counts.of(), (3, 2), "nobody else would");
        drop(Durable::now());
    }
}
