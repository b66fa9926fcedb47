//! A bounded queue of finished calls for one signal, and the batching that drains it. No call ever waits for the queue,
//! and every loss is counted. Must not know what is exported about a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use headrace_trace::SharedRecord;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, timeout};

use crate::send::{Sender, Sent};

/// Counters of a signal.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Calls or points that the receiver accepted.
    pub(crate) sent: AtomicU64,
    /// Calls that were dropped because the queue was full.
    pub(crate) full: AtomicU64,
    /// Calls or points that were dropped after the retry time.
    pub(crate) failed: AtomicU64,
    /// Calls or points that the receiver rejected for good.
    pub(crate) rejected: AtomicU64,
    /// Exports that failed.
    pub(crate) failures: AtomicU64,
}

/// The sending side of the queue.
pub(crate) struct RecordQueue {
    sender: mpsc::Sender<SharedRecord>,
    counts: Arc<Counts>,
}

impl RecordQueue {
    /// Creates a queue with room for `records` calls.
    pub(crate) fn new(records: usize) -> (Self, mpsc::Receiver<SharedRecord>, Arc<Counts>) {
        let (sender, receiver) = mpsc::channel(records.max(1));
        let counts = Arc::<Counts>::default();
        (Self { sender, counts: Arc::clone(&counts) }, receiver, counts)
    }

    /// Number of waiting calls.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.sender.max_capacity().saturating_sub(self.sender.capacity())
    }

    /// Queues a call, or counts it if there is no room. Never waits.
    pub(crate) fn offer(&self, record: &SharedRecord) {
        if self.sender.try_send(record.clone()).is_err() {
            self.counts.full.fetch_add(1, Relaxed);
        }
    }
}

/// Limits of one batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batching {
    pub(crate) records: usize,
    pub(crate) linger: Duration,
}

/// Waits until the exporter closes. Drops the guard of the watched value at once, since it must not be held across an
/// `await`.
pub(crate) async fn ended(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Takes the first call and further calls that arrive within the linger time. Ends earlier if the exporter closes.
/// Returns `None` if no call is left and none can come.
pub(crate) async fn batch(
    receiver: &mut mpsc::Receiver<SharedRecord>,
    batching: Batching,
    closing: &mut watch::Receiver<bool>,
) -> Option<Vec<SharedRecord>> {
    let first = tokio::select! {
        first = receiver.recv() => first?,
        () = ended(closing) => {
            // Take the waiting calls and accept no more.
            receiver.close();
            receiver.recv().await?
        }
    };
    let mut records = vec![first];
    let gather = async {
        while records.len() < batching.records {
            match receiver.recv().await {
                Some(record) => records.push(record),
                None => break,
            }
        }
    };
    let linger = if *closing.borrow() { Duration::ZERO } else { batching.linger };
    tokio::select! {
        _ = timeout(linger, gather) => {}
        () = ended(closing), if linger > Duration::ZERO => {}
    }
    while records.len() < batching.records {
        match receiver.try_recv() {
            Ok(record) => records.push(record),
            Err(_) => break,
        }
    }
    Some(records)
}

/// Sends a body that contains `things` calls or points, and counts the result.
pub(crate) async fn deliver(
    sender: &Sender,
    signal: &'static str,
    body: Bytes,
    things: u64,
    counts: &Counts,
    closing: &mut watch::Receiver<bool>,
) {
    match sender.send(body, closing).await {
        Sent::Taken { rejected: 0, .. } => {
            counts.sent.fetch_add(things, Relaxed);
        }
        Sent::Taken { rejected, why } => {
            let rejected = rejected.min(things);
            counts.sent.fetch_add(things.saturating_sub(rejected), Relaxed);
            counts.rejected.fetch_add(rejected, Relaxed);
            tracing::warn!(signal, rejected, why, "telemetry was taken in part");
        }
        Sent::Rejected(why) => {
            counts.rejected.fetch_add(things, Relaxed);
            counts.failures.fetch_add(1, Relaxed);
            tracing::warn!(signal, things, why, "telemetry was refused and is dropped");
        }
        Sent::Failed(why) => {
            counts.failed.fetch_add(things, Relaxed);
            counts.failures.fetch_add(1, Relaxed);
            tracing::warn!(signal, things, why, "telemetry could not be sent and is dropped");
        }
    }
}
