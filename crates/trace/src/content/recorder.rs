//! Takes recorded requests and answers off the path of calls. A thread reads, redacts and stores them. Never blocks a
//! call: what does not fit into the queue, and what the store refuses, is dropped and counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

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
/// Interval of sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Contents after which a sweep is made before its time.
const SWEEP_AFTER_CONTENTS: u64 = 1_024;

/// Bounds of the recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentRecorderConfig {
    /// Maximum bytes of a request, and of an answer.
    pub max_bytes: usize,
    /// Maximum bytes that wait for the thread.
    pub queue_bytes: usize,
}

impl Default for ContentRecorderConfig {
    fn default() -> Self {
        Self { max_bytes: 1 << 20, queue_bytes: 64 << 20 }
    }
}

/// Numbers of contents since the start.
#[derive(Debug, Default)]
struct ContentCounts {
    stored: AtomicU64,
    dropped: AtomicU64,
    expired: AtomicU64,
    queued_bytes: AtomicUsize,
}

/// The sink of requests and answers. See the top of the file.
pub struct ContentRecorder {
    sender: SyncSender<RecorderMessage>,
    counts: Arc<ContentCounts>,
    config: ContentRecorderConfig,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum RecorderMessage {
    Content(Box<CallContent>),
    /// Reply once everything from before is stored or dropped, and a sweep was made.
    Flush(SyncSender<()>),
    /// Like `Flush`, and end the thread.
    Close(SyncSender<()>),
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
        let (sender, receiver) = sync_channel(QUEUE_CONTENTS);
        let counts = Arc::<ContentCounts>::default();
        let writer = ContentWriter {
            store,
            redactor,
            clock,
            counts: Arc::clone(&counts),
            unswept: 0,
            is_failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("headrace-content".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(TraceError::Thread)?;
        Ok(Arc::new(Self { sender, counts, config, thread: Mutex::new(Some(thread)) }))
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
        self.ask(RecorderMessage::Flush, timeout)
    }

    /// Flushes and ends the thread. Returns `false` if that takes longer than `timeout`. Later contents are dropped.
    pub fn close(&self, timeout: Duration) -> bool {
        let done = self.ask(RecorderMessage::Close, timeout);
        match self.thread.lock().take() {
            // The thread has replied, so it is about to return.
            Some(thread) if done => thread.join().is_ok(),
            Some(_) => false,
            None => true,
        }
    }

    fn ask(&self, question: impl FnOnce(SyncSender<()>) -> RecorderMessage, timeout: Duration) -> bool {
        let (answer, answered) = sync_channel(1);
        if self.sender.send(question(answer)).is_err() {
            return true;
        }
        !matches!(answered.recv_timeout(timeout), Err(RecvTimeoutError::Timeout))
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
        let refused = !fits
            || matches!(
                self.sender.try_send(RecorderMessage::Content(content)),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
            );
        if refused {
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
    /// Contents that were stored since the last sweep.
    unswept: u64,
    /// The last write failed.
    is_failing: bool,
}

impl ContentWriter {
    fn run(mut self, receiver: &Receiver<RecorderMessage>) {
        self.sweep();
        let mut batch = Vec::new();
        loop {
            match receiver.recv_timeout(SWEEP_EVERY) {
                Ok(RecorderMessage::Content(content)) => {
                    self.add(*content, &mut batch);
                    while batch.len() < BATCH_CONTENTS {
                        match receiver.try_recv() {
                            Ok(RecorderMessage::Content(content)) => self.add(*content, &mut batch),
                            Ok(RecorderMessage::Flush(answer)) => {
                                self.write(&mut batch);
                                self.reply(&answer);
                            }
                            Ok(RecorderMessage::Close(answer)) => {
                                self.write(&mut batch);
                                return self.reply(&answer);
                            }
                            Err(_) => break,
                        }
                    }
                    self.write(&mut batch);
                    if self.unswept >= SWEEP_AFTER_CONTENTS {
                        self.sweep();
                    }
                }
                Ok(RecorderMessage::Flush(answer)) => self.reply(&answer),
                Ok(RecorderMessage::Close(answer)) => return self.reply(&answer),
                Err(RecvTimeoutError::Timeout) => self.sweep(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn reply(&mut self, answer: &SyncSender<()>) {
        self.sweep();
        // The caller may have stopped waiting.
        let _ = answer.try_send(());
    }

    /// Reads a content and adds it to the batch. One that cannot be read is dropped.
    fn add(&self, content: CallContent, batch: &mut Vec<StoredContent>) {
        self.counts.queued_bytes.fetch_sub(queue_bytes(&content), Relaxed);
        let redactor = self.redactor.as_ref();
        match catch_unwind(AssertUnwindSafe(|| stored(content, redactor))) {
            Ok(stored) => batch.push(stored),
            Err(_) => self.lost(1),
        }
    }

    fn lost(&self, count: usize) {
        self.counts.dropped.fetch_add(count as u64, Relaxed);
    }

    fn write(&mut self, batch: &mut Vec<StoredContent>) {
        if batch.is_empty() {
            return;
        }
        match self.store.append(batch) {
            Ok(()) => {
                self.is_failing = false;
                self.unswept = self.unswept.saturating_add(batch.len() as u64);
                self.counts.stored.fetch_add(batch.len() as u64, Relaxed);
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, contents = batch.len(), "requests and answers cannot be stored");
                }
                self.lost(batch.len());
            }
        }
        batch.clear();
    }

    fn sweep(&mut self) {
        self.unswept = 0;
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
