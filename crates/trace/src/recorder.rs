//! Takes finished records off the request's path. Counts them, keeps the newest in memory, and queues them for a thread
//! that writes them to the store in batches. Never blocks a request. If the store fails, the batch waits and is tried
//! again. Records that do not fit into the queue are dropped and counted.

use std::cmp::Reverse;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use headrace_domain::{ForgottenName, ProjectId, Region, RequestId, TraceRecord, TraceSink};
use parking_lot::Mutex;

use crate::live::LiveCalls;
use crate::metrics::DropReason;
use crate::names::other_names;
use crate::recent::RecentRecords;
use crate::record_queues::{QueueReceivers, QueueSenders, RecordKind, record_queues};
use crate::recorded::SharedRecord;
use crate::sampling::SampleRate;
use crate::{Metrics, RecordObserver, TraceError, TraceStore, WritePace};

/// Initial wait before a failed write is tried again. Doubles with each failure.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Maximum wait before a retry.
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// Divisor of `recent_records` for the separate memory of unknown callers' records.
const STRANGERS_PART: usize = 8;
/// The part of the memory for recent records that worker jobs have on top of it.
const JOBS_PART: usize = 4;

/// Sizes and batching of the recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderConfig {
    /// Maximum records of calls that ran and wait for the store. Further records are dropped and counted. Refusals have
    /// their own queue of a quarter of this size.
    pub queue_records: usize,
    /// Number of records kept in memory for reading right after the answer. Zero keeps none.
    pub recent_records: usize,
    /// Maximum records in one write to the store.
    pub batch_records: usize,
    /// How long the first record of a batch waits for more records.
    pub linger: Duration,
    /// Maximum refusals of unknown callers that are stored per second. Further ones are counted and kept in memory for
    /// a while. Zero stores none.
    pub strangers_per_second: u32,
    /// The region of this server, which every record gets. `None` if it has none.
    pub region: Option<Region>,
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self {
            queue_records: 8192,
            recent_records: 1024,
            batch_records: 256,
            linger: Duration::from_millis(25),
            strangers_per_second: 10,
            region: None,
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

/// The sink for finished records. Dropping the last handle lets the thread finish the queued records, but does not wait
/// for it. [`TraceRecorder::close`] waits.
pub struct TraceRecorder {
    senders: QueueSenders,
    asks: Sender<RecorderCommand>,
    recent: RecentRecords,
    /// Recent records of unknown callers, kept apart so that their refusals evict no other records.
    strangers: RecentRecords,
    /// Worker jobs: they push no call's record out.
    jobs: RecentRecords,
    sampling: SampleRate,
    region: Option<Region>,
    /// The last store error. `None` after a successful write.
    failing: Arc<Mutex<Option<String>>>,
    metrics: Arc<Metrics>,
    live: Arc<LiveCalls>,
    taps: OnceLock<Vec<Arc<dyn RecordObserver>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum RecorderCommand {
    /// Reply once every record from before the request has been written or dropped.
    Flush(SyncSender<()>),
    /// Like `Flush`, and end the thread afterwards.
    Close(SyncSender<()>),
}

impl TraceRecorder {
    /// Starts the recorder's thread. Without a store, records are only counted and kept in memory.
    pub fn start(
        store: Option<Box<dyn TraceStore>>,
        metrics: Arc<Metrics>,
        config: RecorderConfig,
    ) -> Result<Arc<Self>, TraceError> {
        config.check()?;
        let (senders, receivers) = record_queues(config.queue_records);
        let (asks, asked) = channel();
        let recent = RecentRecords::new(config.recent_records);
        let strangers = RecentRecords::new(config.recent_records / STRANGERS_PART);
        let jobs = RecentRecords::new(config.recent_records / JOBS_PART);
        let sampling = SampleRate::new(config.strangers_per_second);
        let failing = Arc::<Mutex<Option<String>>>::default();
        let live = Arc::<LiveCalls>::default();
        let region = config.region.clone();
        let writer = RecorderThread {
            live: Arc::clone(&live),
            receivers,
            asked,
            store,
            metrics: Arc::clone(&metrics),
            config,
            failing: Arc::clone(&failing),
            batch: Vec::new(),
            waiting: Vec::new(),
            closing: false,
            retry: FIRST_RETRY,
        };
        let thread = std::thread::Builder::new()
            .name("headrace-trace".to_owned())
            .spawn(move || writer.run())
            .map_err(TraceError::Thread)?;
        let (thread, taps) = (Mutex::new(Some(thread)), OnceLock::new());
        Ok(Arc::new(Self {
            senders,
            asks,
            recent,
            strangers,
            jobs,
            sampling,
            region,
            failing,
            metrics,
            live,
            taps,
            thread,
        }))
    }

    /// Passes every record from now on to `taps` too, whether it is stored or not. Only the first call has an effect.
    pub fn tap(&self, taps: Vec<Arc<dyn RecordObserver>>) {
        // Fails if taps are set already. The first ones stay.
        let _ = self.taps.set(taps);
    }

    /// A record that is still in memory. It is there from the moment it was recorded, whether it is stored or not.
    pub fn recent(&self, id: RequestId) -> Option<SharedRecord> {
        self.recent.get(id).or_else(|| self.strangers.get(id)).or_else(|| self.jobs.get(id))
    }

    /// The calls with this W3C trace id (32 lower-case hexadecimal digits) that are still in memory, newest first.
    /// Worker jobs of that trace follow the calls, as do jobs of the gateway's call that has these digits. Excludes
    /// shadow copies.
    pub fn traced(&self, trace_id: &str) -> Vec<SharedRecord> {
        let mut calls = self.recent.all();
        calls.extend(self.strangers.all());
        calls.retain(|record| record.shadow_of.is_none() && record.trace_id.as_deref() == Some(trace_id));
        let mut jobs = self.jobs.all();
        jobs.retain(|record| other_names(record).any(|name| name == trace_id));
        for records in [&mut calls, &mut jobs] {
            records.sort_unstable_by_key(|record| Reverse((record.started, record.request_id.bits())));
        }
        calls.extend(jobs);
        calls
    }

    /// Removes the records that have the name of a user from memory: of one project, or all. They stay in the store.
    pub fn forget(&self, user: &ForgottenName, project: Option<&ProjectId>) {
        let is_gone = |record: &SharedRecord| {
            (project.is_none() || record.project.as_ref() == project)
                && TraceRecord::clone(record).forget(user)
        };
        for records in [&self.recent, &self.strangers, &self.jobs] {
            records.remove(is_gone);
        }
    }

    /// The newest calls that are still in memory, at most `most`, newest first. Excludes shadow copies and worker jobs.
    pub fn newest(&self, most: usize) -> Vec<SharedRecord> {
        let mut all = self.recent.all();
        all.extend(self.strangers.all());
        all.retain(|record| record.is_call());
        all.sort_unstable_by_key(|record| Reverse((record.started, record.request_id.bits())));
        all.truncate(most);
        all
    }

    /// The region of this server, as its records have it. `None` if it has none.
    pub const fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// The live view of finished calls.
    pub fn live(&self) -> &Arc<LiveCalls> {
        &self.live
    }

    /// The last store error. `None` after a successful write.
    pub fn failing(&self) -> Option<String> {
        self.failing.lock().clone()
    }

    /// Number of records that never reached the store. The queue was full, the store failed until the end, the recorder
    /// was closed, or an unknown caller's record exceeded the quota.
    pub fn dropped(&self) -> u64 {
        self.metrics.trace_drops()
    }

    /// Waits until all records so far are stored or dropped. Returns `false` if that takes longer than `timeout`, as it
    /// does while the store fails.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.ask(RecorderCommand::Flush, timeout)
    }

    /// Flushes, closes the store and ends the thread. Returns `false` if that takes longer than `timeout`. Later
    /// records are counted as dropped.
    pub fn close(&self, timeout: Duration) -> bool {
        let done = self.ask(RecorderCommand::Close, timeout);
        let thread = self.thread.lock().take();
        match thread {
            // The thread has replied, so it is about to return.
            Some(thread) if done => thread.join().is_ok(),
            // The recorder was closed before, or by another thread just now.
            None => true,
            Some(_) => false,
        }
    }

    /// Sends a request to the thread and waits for the reply. A thread that has ended counts as having replied.
    fn ask(&self, question: impl FnOnce(SyncSender<()>) -> RecorderCommand, timeout: Duration) -> bool {
        let (answer, answered) = sync_channel(1);
        if self.asks.send(question(answer)).is_err() {
            return true;
        }
        self.senders.ring();
        !matches!(answered.recv_timeout(timeout), Err(RecvTimeoutError::Timeout))
    }
}

impl TraceSink for TraceRecorder {
    fn record(&self, mut record: Box<TraceRecord>) {
        record.region.clone_from(&self.region);
        let record = SharedRecord::from(record);
        self.metrics.observe(&record);
        self.live.count(&record);
        self.taps.get().into_iter().flatten().for_each(|tap| tap.seen(&record));
        let kind = RecordKind::of(&record);
        match kind {
            RecordKind::Ran | RecordKind::Refused => self.recent.insert(&record),
            RecordKind::Job => self.jobs.insert(&record),
            RecordKind::Stranger => {
                self.strangers.insert(&record);
                if !self.sampling.keeps(record.started) {
                    return self.metrics.count_drops(DropReason::Sampled, 1);
                }
            }
        }
        if let Err(reason) = self.senders.send(kind, record) {
            self.metrics.count_drops(reason, 1);
        }
    }
}

impl Drop for TraceRecorder {
    /// Disconnects the request channel, so that the thread closes.
    fn drop(&mut self) {
        let (nobody, _) = channel();
        self.asks = nobody;
        self.senders.ring();
    }
}

/// The state of the recorder's thread.
struct RecorderThread {
    live: Arc<LiveCalls>,
    receivers: QueueReceivers,
    asked: Receiver<RecorderCommand>,
    store: Option<Box<dyn TraceStore>>,
    metrics: Arc<Metrics>,
    config: RecorderConfig,
    failing: Arc<Mutex<Option<String>>>,
    /// The records being written. They stay here while the store fails.
    batch: Vec<SharedRecord>,
    /// Senders to reply to once no record is left.
    waiting: Vec<SyncSender<()>>,
    closing: bool,
    retry: Duration,
}

impl RecorderThread {
    fn run(mut self) {
        self.receivers.belongs_to_this_thread();
        loop {
            self.listen();
            self.fill();
            if !self.batch.is_empty() {
                self.gather();
                self.write();
                continue;
            }
            if self.closing {
                // Close the store before replying, since the caller may open its file next.
                self.store = None;
            }
            for answer in self.waiting.drain(..) {
                // The caller may have stopped waiting.
                let _ = answer.try_send(());
            }
            if self.closing {
                return;
            }
            self.sleep();
        }
    }

    /// Receives requests. A disconnected channel means that the recorder was dropped, so the thread closes.
    fn listen(&mut self) {
        loop {
            match self.asked.try_recv() {
                Ok(RecorderCommand::Flush(answer)) => self.waiting.push(answer),
                Ok(RecorderCommand::Close(answer)) => {
                    self.waiting.push(answer);
                    self.closing = true;
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closing = true;
                    return;
                }
            }
        }
    }

    /// Fills the batch with waiting records.
    fn fill(&mut self) {
        while self.batch.len() < self.config.batch_records {
            let Some(record) = self.receivers.next() else { return };
            self.live.publish(&record);
            // The record stays in memory for readers, so the store shares it.
            self.batch.push(record);
        }
    }

    /// Waits for more records to fill the batch, unless a caller waits for a flush. While the thread sleeps here,
    /// senders need not wake it: one wake-up per batch, not per record.
    fn gather(&mut self) {
        let hurried = self.closing || !self.waiting.is_empty();
        if !hurried && self.batch.len() < self.config.batch_records {
            std::thread::sleep(self.config.linger);
            self.fill();
        }
    }

    fn write(&mut self) {
        let Some(store) = self.store.as_mut() else { return self.batch.clear() };
        let is_full = self.batch.len() >= self.config.batch_records;
        match store.append_shared(&self.batch, if is_full { WritePace::Hurries } else { WritePace::GivesWay })
        {
            Ok(()) => {
                if self.failing.lock().take().is_some() {
                    tracing::info!("traces are stored again");
                }
                self.retry = FIRST_RETRY;
                self.metrics.count_stored(self.batch.len());
                self.batch.clear();
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Handles a store error. A full disk may have room again later, so such a batch is kept and tried again after a
    /// wait. Any other error is permanent, so the batch is dropped.
    fn failed(&mut self, error: &TraceError) {
        let news = self.failing.lock().replace(error.to_string()).is_none();
        if news {
            tracing::warn!(%error, records = self.batch.len(), "traces cannot be stored; trying again");
        }
        if self.closing || !matches!(error, TraceError::Store { .. }) {
            self.metrics.count_drops(DropReason::StoreFailed, self.batch.len());
            self.batch.clear();
            return;
        }
        self.receivers.pause(self.retry);
        self.retry = (self.retry * 2).min(LONGEST_RETRY);
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self) {
        let Self { live, receivers, asked, batch, waiting, closing, .. } = self;
        receivers.sleep(|| {
            match asked.try_recv() {
                Ok(RecorderCommand::Flush(answer)) => waiting.push(answer),
                Ok(RecorderCommand::Close(answer)) => {
                    waiting.push(answer);
                    *closing = true;
                }
                Err(TryRecvError::Empty) => {
                    let Some(record) = receivers.next() else { return false };
                    live.publish(&record);
                    batch.push(record);
                }
                Err(TryRecvError::Disconnected) => *closing = true,
            }
            true
        });
    }
}
