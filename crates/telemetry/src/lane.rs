//! A queue of finished calls for one signal, and the task that empties it: bounded, never waited for by a call, and every loss
//! counted. Must not know what is said of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use headrace_trace::Recorded;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, timeout};

use crate::send::{Sender, Sent};

/// What is counted of a signal.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Calls, or points, that were taken.
    pub(crate) sent: AtomicU64,
    /// Those that found the queue full.
    pub(crate) full: AtomicU64,
    /// Those that were not taken as long as it was tried.
    pub(crate) failed: AtomicU64,
    /// Those that were refused for good.
    pub(crate) rejected: AtomicU64,
    /// Sendings that came to nothing.
    pub(crate) failures: AtomicU64,
}

/// The end that calls are handed to.
pub(crate) struct Lane {
    sender: mpsc::Sender<Recorded>,
    counts: Arc<Counts>,
}

impl Lane {
    /// With room for so many calls.
    pub(crate) fn new(records: usize) -> (Self, mpsc::Receiver<Recorded>, Arc<Counts>) {
        let (sender, receiver) = mpsc::channel(records.max(1));
        let counts = Arc::<Counts>::default();
        (Self { sender, counts: Arc::clone(&counts) }, receiver, counts)
    }

    /// How many wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.sender.max_capacity().saturating_sub(self.sender.capacity())
    }

    /// Hands a call over, or counts it where there is no room. Never waits.
    pub(crate) fn offer(&self, record: &Recorded) {
        if self.sender.try_send(record.clone()).is_err() {
            self.counts.full.fetch_add(1, Relaxed);
        }
    }
}

/// How calls are put together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batching {
    pub(crate) records: usize,
    pub(crate) linger: Duration,
}

/// Waits until everything is to end. What it looked at is let go of at once: it may not be held while somebody waits.
pub(crate) async fn ended(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Takes the first call, and those that come within a while; fewer where it is to end. `None`: there will be none any more.
pub(crate) async fn batch(
    receiver: &mut mpsc::Receiver<Recorded>,
    batching: Batching,
    closing: &mut watch::Receiver<bool>,
) -> Option<Vec<Recorded>> {
    let first = tokio::select! {
        first = receiver.recv() => first?,
        () = ended(closing) => {
            // What is there yet is taken; nothing comes behind it.
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

/// Sends a body that stands for so many things, and counts what came of them.
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
