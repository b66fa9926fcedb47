//! Takes finished records off the request's path: counts them, keeps the newest, and hands them to a thread that
//! batches them into the store. It never blocks a request; what the queue or the store cannot take is dropped and counted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headrace_domain::{RequestId, TraceRecord, TraceSink};
use parking_lot::Mutex;

use crate::metrics::DropReason;
use crate::recent::Recent;
use crate::{Metrics, TraceError, TraceStore};

/// How much the recorder may hold, and how it batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Records that may wait for the store; more are dropped and counted.
    pub queue_records: usize,
    /// Records kept in memory for reading right after the answer. Zero keeps none.
    pub recent_records: usize,
    /// Most records in one write to the store.
    pub batch_records: usize,
    /// How long the first record of a batch waits for company.
    pub linger: Duration,
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self {
            queue_records: 8192,
            recent_records: 1024,
            batch_records: 256,
            linger: Duration::from_millis(5),
        }
    }
}

impl RecorderConfig {
    fn check(&self) -> Result<(), TraceError> {
        if self.queue_records == 0 {
            return Err(TraceError::Config { field: "queue_records", why: "must be at least 1" });
        }
        if self.batch_records == 0 {
            return Err(TraceError::Config { field: "batch_records", why: "must be at least 1" });
        }
        if self.linger > Duration::from_secs(10) {
            return Err(TraceError::Config { field: "linger", why: "must be at most 10 s" });
        }
        Ok(())
    }
}

/// The sink of finished records. Dropping the last handle lets the thread finish what is queued, without waiting
/// for it: [`Recorder::close`] waits.
pub struct Recorder {
    sender: SyncSender<Message>,
    recent: Recent,
    metrics: Arc<Metrics>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Message {
    Record(Arc<TraceRecord>),
    /// Answered when everything sent before it has been written or dropped.
    Flush(SyncSender<()>),
    /// As `Flush`, and the thread ends after it.
    Close(SyncSender<()>),
}

impl Recorder {
    /// Starts the thread. Without a store, records are counted and kept in memory only.
    pub fn start(
        store: Option<Box<dyn TraceStore>>,
        metrics: Arc<Metrics>,
        config: RecorderConfig,
    ) -> Result<Arc<Self>, TraceError> {
        config.check()?;
        let (sender, receiver) = sync_channel(config.queue_records);
        let recent = Recent::new(config.recent_records);
        let writer = Writer { receiver, store, metrics: Arc::clone(&metrics), config, failing: false };
        let thread = std::thread::Builder::new()
            .name("headrace-trace".to_owned())
            .spawn(move || writer.run())
            .map_err(TraceError::Thread)?;
        Ok(Arc::new(Self { sender, recent, metrics, thread: Mutex::new(Some(thread)) }))
    }

    /// A record still in memory: there from the moment it was recorded, stored or not.
    pub fn recent(&self, id: RequestId) -> Option<Arc<TraceRecord>> {
        self.recent.get(id)
    }

    /// Records that never reached the store: the queue was full, the store failed, or the recorder was closed.
    pub fn dropped(&self) -> u64 {
        self.metrics.trace_drops()
    }

    /// Waits until everything recorded so far is stored or dropped; false if that took longer than `timeout`.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.ask(Message::Flush, timeout)
    }

    /// Flushes, closes the store and ends the thread; false if that took longer than `timeout`. What is recorded
    /// afterwards is counted as dropped.
    pub fn close(&self, timeout: Duration) -> bool {
        let done = self.ask(Message::Close, timeout);
        let thread = self.thread.lock().take();
        match thread {
            // It has answered, so only its return is left.
            Some(thread) if done => thread.join().is_ok(),
            // Closed before, or by another thread just now.
            None => true,
            Some(_) => false,
        }
    }

    /// Sends a question and waits for its answer. A thread that has ended counts as having nothing left to do.
    fn ask(&self, question: impl FnOnce(SyncSender<()>) -> Message, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let (answer, answered) = sync_channel(1);
        let mut message = question(answer);
        loop {
            match self.sender.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return true,
                Err(TrySendError::Full(back)) if Instant::now() < deadline => {
                    message = back;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TrySendError::Full(_)) => return false,
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        !matches!(answered.recv_timeout(left), Err(RecvTimeoutError::Timeout))
    }
}

impl TraceSink for Recorder {
    fn record(&self, record: Box<TraceRecord>) {
        let record: Arc<TraceRecord> = Arc::from(record);
        self.metrics.observe(&record);
        self.recent.insert(&record);
        match self.sender.try_send(Message::Record(record)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.metrics.count_drops(DropReason::QueueFull, 1),
            Err(TrySendError::Disconnected(_)) => self.metrics.count_drops(DropReason::Closed, 1),
        }
    }
}

/// The thread's side.
struct Writer {
    receiver: Receiver<Message>,
    store: Option<Box<dyn TraceStore>>,
    metrics: Arc<Metrics>,
    config: RecorderConfig,
    /// Whether the last write failed, so that an outage is logged once and not once a batch.
    failing: bool,
}

/// What one round of reading brought.
#[derive(Default)]
struct Round {
    records: Vec<TraceRecord>,
    waiting: Vec<SyncSender<()>>,
    closing: bool,
}

impl Round {
    fn take(&mut self, message: Message) {
        match message {
            // The record stays in memory for readers, so the store gets a copy: made here, off the request's path.
            Message::Record(record) => self.records.push(Arc::unwrap_or_clone(record)),
            Message::Flush(answer) => self.waiting.push(answer),
            Message::Close(answer) => {
                self.waiting.push(answer);
                self.closing = true;
            }
        }
    }
}

impl Writer {
    fn run(mut self) {
        let mut gone = false;
        while !gone {
            // While the thread sleeps in `linger`, senders find nobody to wake: one wake-up per batch, not per record.
            let Ok(first) = self.receiver.recv() else { return };
            let mut round = Round::default();
            round.take(first);
            if round.waiting.is_empty() {
                std::thread::sleep(self.config.linger);
            }
            while round.records.len() < self.config.batch_records && !round.closing {
                match self.receiver.try_recv() {
                    Ok(message) => round.take(message),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        gone = true;
                        break;
                    }
                }
            }
            self.write(&round.records);
            if round.closing {
                // The store is closed before the answer: whoever waits may open its file next.
                self.store = None;
                gone = true;
            }
            for answer in round.waiting {
                // Whoever asked may have stopped waiting.
                let _ = answer.try_send(());
            }
        }
    }

    fn write(&mut self, records: &[TraceRecord]) {
        let Some(store) = self.store.as_mut() else { return };
        if records.is_empty() {
            return;
        }
        match store.append(records) {
            Ok(()) => {
                if self.failing {
                    tracing::info!("traces are stored again");
                }
                self.failing = false;
                self.metrics.count_stored(records.len());
            }
            Err(error) => {
                self.metrics.count_drops(DropReason::StoreFailed, records.len());
                if !self.failing {
                    tracing::warn!(%error, records = records.len(), "traces are being dropped");
                }
                self.failing = true;
            }
        }
    }
}
