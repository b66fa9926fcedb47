//! Takes recorded requests and answers off the path of calls. A thread reads, redacts and stores them. Never blocks a
//! call: what does not fit into the queue, and what the store refuses, is dropped and counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headrace_domain::{CallContent, Clock, ContentSink, RecordLevel, UnixNanos};
use parking_lot::Mutex;

use super::answer::answer_parts;
use super::redaction::{ContentRedactor, redact_parts, redact_request};
use super::seam::ContentStore;
use super::stored::StoredContent;
use crate::TraceError;

/// Contents that wait for the thread.
const QUEUE_CONTENTS: usize = 4_096;
/// Contents that are stored in one transaction.
const BATCH_CONTENTS: usize = 64;

/// Bounds of the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentRecorderConfig {
    /// Maximum bytes of a request, and of an answer.
    pub max_bytes: usize,
    /// Maximum bytes that wait for the thread.
    pub queue_bytes: usize,
    /// Interval of sweeps, also while contents arrive.
    pub sweep_every: Duration,
    /// Bytes that are stored before the next sweep at most.
    pub sweep_bytes: usize,
}

impl Default for ContentRecorderConfig {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 20,
            queue_bytes: 64 << 20,
            sweep_every: Duration::from_secs(60),
            sweep_bytes: 8 << 20,
        }
    }
}

/// Numbers of contents since the start.
#[derive(Debug, Default)]
struct ContentCounts {
    /// Contents that were put into the queue.
    queued: AtomicU64,
    stored: AtomicU64,
    dropped: AtomicU64,
    expired: AtomicU64,
    queued_bytes: AtomicUsize,
}

/// The sink of requests and answers. See the top of the file.
pub struct ContentRecorder {
    queue: SyncSender<QueueEntry>,
    commands: Sender<RecorderCommand>,
    counts: Arc<ContentCounts>,
    config: ContentRecorderConfig,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum QueueEntry {
    Content(Box<CallContent>),
    /// Wakes the thread for a command.
    Wake,
}

/// A command to the thread. It does not wait in the queue of contents, which may be full.
struct RecorderCommand {
    /// Number of contents that were queued before. They are stored or dropped before the reply.
    queued: u64,
    /// Ends the thread after the reply.
    is_last: bool,
    reply: SyncSender<()>,
}

impl ContentRecorder {
    /// Starts the recorder's thread.
    ///
    /// # Errors
    /// [`TraceError::Thread`] if the thread cannot be started.
    pub fn start(
        store: Arc<dyn ContentStore>,
        redactor: Arc<dyn ContentRedactor>,
        clock: Arc<dyn Clock>,
        config: ContentRecorderConfig,
    ) -> Result<Arc<Self>, TraceError> {
        let (queue, contents) = sync_channel(QUEUE_CONTENTS);
        let (commands, commanded) = channel();
        let counts = Arc::<ContentCounts>::default();
        let writer = ContentWriter {
            store,
            redactor,
            clock,
            counts: Arc::clone(&counts),
            config,
            contents,
            commanded,
            waiting: Vec::new(),
            batch: Vec::new(),
            taken: 0,
            next_sweep: Instant::now(),
            unswept_bytes: 0,
            is_failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("headrace-content".to_owned())
            .spawn(move || writer.run())
            .map_err(TraceError::Thread)?;
        Ok(Arc::new(Self { queue, commands, counts, config, thread: Mutex::new(Some(thread)) }))
    }

    /// Number of contents that were stored.
    pub fn stored(&self) -> u64 {
        self.counts.stored.load(Relaxed)
    }

    /// Number of contents that were not stored, because the queue, the memory of their call or the disk was full, or the
    /// store failed.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Relaxed)
    }

    /// Number of contents that were removed because they expired or had no room.
    pub fn removed(&self) -> u64 {
        self.counts.expired.load(Relaxed)
    }

    /// Waits until all contents so far are stored or dropped, and expired ones are removed. Returns `false` if that
    /// takes longer than `timeout`.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.ask(false, timeout)
    }

    /// Flushes and ends the thread. Returns `false` if that takes longer than `timeout`. Later contents are dropped.
    pub fn close(&self, timeout: Duration) -> bool {
        let done = self.ask(true, timeout);
        match self.thread.lock().take() {
            // The thread has replied, so it is about to return.
            Some(thread) if done => thread.join().is_ok(),
            Some(_) => false,
            None => true,
        }
    }

    /// Sends a command and waits for the reply. A thread that has ended counts as having replied.
    fn ask(&self, is_last: bool, timeout: Duration) -> bool {
        let (reply, replied) = sync_channel(1);
        let command = RecorderCommand { queued: self.counts.queued.load(SeqCst), is_last, reply };
        if self.commands.send(command).is_err() {
            return true;
        }
        // If the queue is full, the thread is awake.
        let _ = self.queue.try_send(QueueEntry::Wake);
        !matches!(replied.recv_timeout(timeout), Err(RecvTimeoutError::Timeout))
    }
}

impl ContentSink for ContentRecorder {
    fn max_bytes(&self) -> usize {
        self.config.max_bytes
    }

    fn record(&self, content: Box<CallContent>) {
        let bytes = queue_bytes(&content);
        let before = self.counts.queued_bytes.fetch_add(bytes, Relaxed);
        let fits = before.saturating_add(bytes) <= self.config.queue_bytes;
        if fits && self.queue.try_send(QueueEntry::Content(content)).is_ok() {
            self.counts.queued.fetch_add(1, SeqCst);
        } else {
            self.counts.queued_bytes.fetch_sub(bytes, Relaxed);
            self.count_lost();
        }
    }

    fn count_lost(&self) {
        self.counts.dropped.fetch_add(1, Relaxed);
    }
}

fn queue_bytes(content: &CallContent) -> usize {
    content.request.len().saturating_add(content.answer.len()).saturating_add(size_of::<CallContent>())
}

/// The state of the recorder's thread.
struct ContentWriter {
    store: Arc<dyn ContentStore>,
    redactor: Arc<dyn ContentRedactor>,
    clock: Arc<dyn Clock>,
    counts: Arc<ContentCounts>,
    config: ContentRecorderConfig,
    contents: Receiver<QueueEntry>,
    commanded: Receiver<RecorderCommand>,
    /// Commands without a reply.
    waiting: Vec<RecorderCommand>,
    batch: Vec<StoredContent>,
    /// Contents that were taken out of the queue.
    taken: u64,
    next_sweep: Instant,
    /// Bytes that were stored since the last sweep.
    unswept_bytes: usize,
    /// The last write failed.
    is_failing: bool,
}

impl ContentWriter {
    fn run(mut self) {
        loop {
            // Before the queue is read, so that an empty queue has nothing from before the commands.
            self.waiting.extend(self.commanded.try_iter());
            let is_empty = self.fill();
            self.write();
            let is_due = Instant::now() >= self.next_sweep || self.unswept_bytes >= self.config.sweep_bytes;
            let (ready, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|command| is_empty || command.queued <= self.taken);
            self.waiting = waiting;
            if is_due || !ready.is_empty() {
                self.sweep();
            }
            let mut is_last = false;
            for command in ready {
                // The caller may have stopped waiting.
                let _ = command.reply.try_send(());
                is_last |= command.is_last;
            }
            if is_last {
                let late = self.contents.try_iter().filter(|entry| matches!(entry, QueueEntry::Content(_)));
                return self.lost(late.count());
            }
            if is_empty && !self.sleep() {
                return;
            }
        }
    }

    /// Fills the batch from the queue. Returns whether the queue is empty.
    fn fill(&mut self) -> bool {
        while self.batch.len() < BATCH_CONTENTS {
            match self.contents.try_recv() {
                Ok(entry) => self.take(entry),
                Err(_) => return true,
            }
        }
        false
    }

    /// Sleeps until there is something to do. Returns `false` if the recorder was dropped.
    fn sleep(&mut self) -> bool {
        match self.contents.recv_timeout(self.next_sweep.saturating_duration_since(Instant::now())) {
            Ok(entry) => {
                self.take(entry);
                true
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    fn take(&mut self, entry: QueueEntry) {
        match entry {
            QueueEntry::Content(content) => {
                self.taken = self.taken.saturating_add(1);
                self.add(*content);
            }
            QueueEntry::Wake => {}
        }
    }

    /// Reads a content and adds it to the batch. One that cannot be read is dropped.
    fn add(&mut self, content: CallContent) {
        self.counts.queued_bytes.fetch_sub(queue_bytes(&content), Relaxed);
        let redactor = self.redactor.as_ref();
        match catch_unwind(AssertUnwindSafe(|| stored(content, redactor))) {
            Ok(stored) => self.batch.push(stored),
            Err(_) => self.lost(1),
        }
    }

    fn lost(&self, count: usize) {
        self.counts.dropped.fetch_add(count as u64, Relaxed);
    }

    fn write(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let bytes: usize = self.batch.iter().map(StoredContent::stored_bytes).sum();
        match self.store.append(&self.batch) {
            Ok(()) => {
                self.is_failing = false;
                self.unswept_bytes = self.unswept_bytes.saturating_add(bytes);
                self.counts.stored.fetch_add(self.batch.len() as u64, Relaxed);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, contents = self.batch.len(), "requests and answers cannot be stored");
                }
                self.lost(self.batch.len());
            }
        }
        self.batch.clear();
    }

    fn sweep(&mut self) {
        self.unswept_bytes = 0;
        self.next_sweep = Instant::now() + self.config.sweep_every;
        match self.store.sweep(self.clock.now()) {
            Ok(removed) => {
                self.counts.expired.fetch_add(removed, Relaxed);
            }
            Err(error) => tracing::warn!(%error, "expired requests and answers cannot be removed"),
        }
    }
}

/// What is stored of a content.
fn stored(content: CallContent, redactor: &dyn ContentRedactor) -> StoredContent {
    let mut answer = answer_parts(content.endpoint, &content.answer);
    let request = match content.policy.level {
        RecordLevel::Full => String::from_utf8_lossy(&content.request).into_owned(),
        RecordLevel::Redacted => {
            // A value could hide where the answer breaks off. The same applies to a request, which is no JSON then.
            if content.answer_cut {
                answer.clear();
            }
            redact_parts(redactor, &mut answer);
            redact_request(redactor, &content.request)
        }
        RecordLevel::Nothing | RecordLevel::Metadata => {
            answer.clear();
            String::new()
        }
    };
    let keep_ns = content.policy.keep_seconds.saturating_mul(1_000_000_000);
    StoredContent {
        id: content.id,
        started: content.started,
        expires: UnixNanos::new(content.started.get().saturating_add(keep_ns)),
        org: content.org,
        project: content.project,
        key: content.key,
        user: content.user,
        model: content.model,
        endpoint: content.endpoint,
        level: content.policy.level,
        request,
        request_cut: content.request_cut,
        answer,
        answer_cut: content.answer_cut,
    }
}
