//! Where finished records wait for the store: a bounded lane for each kind of call, emptied in order of what they are
//! worth, so that refusals never cost the trace of a call that ran. Senders never wait and never take a lock.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use headrace_domain::{Outcome, TraceRecord};

use crate::metrics::DropReason;
use crate::recorded::Recorded;

/// Refusals of known callers may take this part of the queue.
const REFUSALS_PART: usize = 4;
/// Worker jobs may take this part of the queue.
const JOBS_PART: usize = 4;
/// What waits of callers who are not known is little anyway: they are sampled.
const STRANGERS_WAITING: usize = 64;

/// What kind of call a record tells of, most valuable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// It ran: completed, cancelled or failed.
    Ran,
    /// It is a worker job.
    Job,
    /// It was refused, to a caller who is known.
    Refused,
    /// It was refused before anybody knew whose it was.
    Stranger,
}

impl Lane {
    pub(crate) fn of(record: &TraceRecord) -> Self {
        if record.worker_job.is_some() {
            return Self::Job;
        }
        match (&record.outcome, &record.org) {
            (Outcome::Refused(_), None) => Self::Stranger,
            (Outcome::Refused(_), Some(_)) => Self::Refused,
            _ => Self::Ran,
        }
    }
}

/// The sending side.
pub(crate) struct Senders {
    lanes: [SyncSender<Recorded>; 4],
    bell: Arc<Bell>,
}

/// The receiving side, for one thread.
pub(crate) struct Receivers {
    lanes: [Receiver<Recorded>; 4],
    bell: Arc<Bell>,
}

/// Wakes the thread, and costs nothing while it is awake.
#[derive(Default)]
struct Bell {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// Lanes for `capacity` records of calls that ran, and some of others.
pub(crate) fn lanes(capacity: usize) -> (Senders, Receivers) {
    let (ran, ran_out) = sync_channel(capacity);
    let (jobs, jobs_out) = sync_channel(capacity.div_ceil(JOBS_PART));
    let (refused, refused_out) = sync_channel(capacity.div_ceil(REFUSALS_PART));
    let (strangers, strangers_out) = sync_channel(STRANGERS_WAITING);
    let bell = Arc::<Bell>::default();
    let senders = Senders { lanes: [ran, jobs, refused, strangers], bell: Arc::clone(&bell) };
    (senders, Receivers { lanes: [ran_out, jobs_out, refused_out, strangers_out], bell })
}

impl Senders {
    /// Puts a record into its lane, or says why it is dropped.
    pub(crate) fn send(&self, lane: Lane, record: Recorded) -> Result<(), DropReason> {
        let [ran, jobs, refused, strangers] = &self.lanes;
        let lane = match lane {
            Lane::Ran => ran,
            Lane::Job => jobs,
            Lane::Refused => refused,
            Lane::Stranger => strangers,
        };
        lane.try_send(record).map_err(|error| match error {
            TrySendError::Full(_) => DropReason::QueueFull,
            TrySendError::Disconnected(_) => DropReason::Closed,
        })?;
        // The thread says that it sleeps and then looks once more; here it is the other way round. One of the two
        // sees the other.
        fence(SeqCst);
        if self.bell.asleep.load(SeqCst) {
            self.ring();
        }
        Ok(())
    }

    /// Wakes the thread.
    pub(crate) fn ring(&self) {
        self.bell.asleep.store(false, SeqCst);
        if let Some(thread) = self.bell.thread.get() {
            thread.unpark();
        }
    }
}

impl Receivers {
    /// Must be called once by the thread that receives, before anything else.
    pub(crate) fn belongs_to_this_thread(&self) {
        // Set once: the receivers go to one thread.
        let _ = self.bell.thread.set(std::thread::current());
    }

    /// The next record, of the most valuable lane that has one.
    pub(crate) fn next(&self) -> Option<Recorded> {
        self.lanes.iter().find_map(|lane| lane.try_recv().ok())
    }

    /// Sleeps until a record or a ring comes, unless `busy` finds, once more, that there is something to do.
    pub(crate) fn sleep(&self, busy: impl FnOnce() -> bool) {
        self.bell.asleep.store(true, SeqCst);
        fence(SeqCst);
        if !busy() {
            std::thread::park();
        }
        self.bell.asleep.store(false, SeqCst);
    }

    /// Waits so long, or until a ring; records alone do not end it.
    pub(crate) fn pause(&self, wait: Duration) {
        std::thread::park_timeout(wait);
    }
}
