//! Queues of finished records that wait for the store, one bounded queue per kind of call. They are drained in order of
//! value, so that refusals never displace the trace of a call that ran. Senders never wait and never take a lock.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use headrace_domain::{CallOutcome, TraceRecord};

use crate::metrics::DropReason;
use crate::recorded::SharedRecord;

/// Divisor of the queue size for refusals of known callers.
const REFUSALS_PART: usize = 4;
/// Worker jobs may take this part of the queue.
const JOBS_PART: usize = 4;
/// Queue size for refusals of unknown callers. These are sampled, so few of them wait.
const STRANGERS_WAITING: usize = 64;

/// The kind of call that a record describes, most valuable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// The call ran: it completed, was cancelled or failed.
    Ran,
    /// It is a worker job.
    Job,
    /// The call was refused, and its caller is known.
    Refused,
    /// The call was refused before its caller was known.
    Stranger,
}

impl RecordKind {
    pub(crate) fn of(record: &TraceRecord) -> Self {
        if record.worker_job.is_some() {
            return Self::Job;
        }
        match (&record.outcome, &record.org) {
            (CallOutcome::Refused(_), None) => Self::Stranger,
            (CallOutcome::Refused(_), Some(_)) => Self::Refused,
            _ => Self::Ran,
        }
    }
}

/// The sending side of the queues.
pub(crate) struct QueueSenders {
    queues: [SyncSender<SharedRecord>; 4],
    bell: Arc<WakeBell>,
}

/// The receiving side of the queues, for one thread.
pub(crate) struct QueueReceivers {
    queues: [Receiver<SharedRecord>; 4],
    bell: Arc<WakeBell>,
}

/// Wakes the receiving thread. Costs almost nothing while the thread is awake.
#[derive(Default)]
struct WakeBell {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// Creates queues for `capacity` records of calls that ran, and for some refusals.
pub(crate) fn record_queues(capacity: usize) -> (QueueSenders, QueueReceivers) {
    let (ran, ran_out) = sync_channel(capacity);
    let (jobs, jobs_out) = sync_channel(capacity.div_ceil(JOBS_PART));
    let (refused, refused_out) = sync_channel(capacity.div_ceil(REFUSALS_PART));
    let (strangers, strangers_out) = sync_channel(STRANGERS_WAITING);
    let bell = Arc::<WakeBell>::default();
    let senders = QueueSenders { queues: [ran, jobs, refused, strangers], bell: Arc::clone(&bell) };
    (senders, QueueReceivers { queues: [ran_out, jobs_out, refused_out, strangers_out], bell })
}

impl QueueSenders {
    /// Puts a record into its queue. Returns why it was dropped if it does not fit.
    pub(crate) fn send(&self, kind: RecordKind, record: SharedRecord) -> Result<(), DropReason> {
        let [ran, jobs, refused, strangers] = &self.queues;
        let queue = match kind {
            RecordKind::Ran => ran,
            RecordKind::Job => jobs,
            RecordKind::Refused => refused,
            RecordKind::Stranger => strangers,
        };
        queue.try_send(record).map_err(|error| match error {
            TrySendError::Full(_) => DropReason::QueueFull,
            TrySendError::Disconnected(_) => DropReason::Closed,
        })?;
        // The receiver sets `asleep` and then checks the queues. Here, the order is reversed, so at least one of the
        // two sees the other.
        fence(SeqCst);
        if self.bell.asleep.load(SeqCst) {
            self.ring();
        }
        Ok(())
    }

    /// Wakes the receiving thread.
    pub(crate) fn ring(&self) {
        self.bell.asleep.store(false, SeqCst);
        if let Some(thread) = self.bell.thread.get() {
            thread.unpark();
        }
    }
}

impl QueueReceivers {
    /// Registers the current thread as the receiver. Must be called once, before anything else.
    pub(crate) fn belongs_to_this_thread(&self) {
        // Cannot be set twice, since the receivers belong to one thread.
        let _ = self.bell.thread.set(std::thread::current());
    }

    /// The next record, from the most valuable queue that is not empty.
    pub(crate) fn next(&self) -> Option<SharedRecord> {
        self.queues.iter().find_map(|queue| queue.try_recv().ok())
    }

    /// Sleeps until a record arrives or `ring` is called, unless `busy` still finds something to do.
    pub(crate) fn sleep(&self, busy: impl FnOnce() -> bool) {
        self.bell.asleep.store(true, SeqCst);
        fence(SeqCst);
        if !busy() {
            std::thread::park();
        }
        self.bell.asleep.store(false, SeqCst);
    }

    /// Waits for `wait`, or until [`QueueSenders::ring`]. New records alone do not end the wait.
    pub(crate) fn pause(&self, wait: Duration) {
        std::thread::park_timeout(wait);
    }
}
