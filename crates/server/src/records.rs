//! Finds finished traces for the gateway: in memory right after the answer, later in the store.

use std::sync::Arc;

use headrace_domain::{Region, RequestId, TraceRecord};
use headrace_gateway::{MadeReceipt, ReceiptUnavailable, Stored, StoredTrace, TraceLookup};
use headrace_trace::{TraceContext, TraceError, TraceReader, TraceRecorder, answer_json, record_json};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::receipts::LiveReceipts;

/// Maximum number of simultaneous store reads. The store has one connection, so further reads would only block threads.
const READS_AT_ONCE: usize = 1;

/// Looks in the recorder's memory first, then in the store.
pub(crate) struct StoredRecords {
    recorder: Arc<TraceRecorder>,
    reader: Arc<dyn TraceReader>,
    receipts: Arc<LiveReceipts>,
    turns: Arc<Semaphore>,
}

impl StoredRecords {
    pub(crate) fn new(
        recorder: Arc<TraceRecorder>,
        reader: Arc<dyn TraceReader>,
        receipts: Arc<LiveReceipts>,
    ) -> Self {
        Self { recorder, reader, receipts, turns: Arc::new(Semaphore::new(READS_AT_ONCE)) }
    }
}

impl StoredRecords {
    /// Reads from the store, off the event loop. `None` if it cannot be read.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn TraceReader) -> Result<T, TraceError> + Send + 'static,
    ) -> Option<T> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        let reader = Arc::clone(&self.reader);
        // The caller may be gone before the record is read, so the permit is returned only when the read has ended.
        let reading = spawn_blocking(move || {
            let found = read(reader.as_ref());
            drop(turn);
            found
        });
        match reading.await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a trace could not be read");
                None
            }
            // The runtime is shutting down.
            Err(_) => None,
        }
    }
}

impl TraceLookup for StoredRecords {
    fn recent(&self, id: RequestId) -> Option<Arc<TraceRecord>> {
        self.recorder.recent(id).map(|record| record.to_arc())
    }

    fn stored(&self, id: RequestId) -> Stored<'_> {
        Box::pin(async move { self.read(move |reader| reader.get(id)).await?.map(Arc::new) })
    }

    fn recent_of_trace(&self, trace_id: &str) -> Vec<Arc<TraceRecord>> {
        self.recorder.traced(trace_id).into_iter().map(|record| record.to_arc()).collect()
    }

    fn stored_of_trace(&self, trace_id: String) -> StoredTrace<'_> {
        Box::pin(async move {
            let stored = self.read(move |reader| reader.named(&trace_id)).await.unwrap_or_default();
            stored.into_iter().map(Arc::new).collect()
        })
    }

    fn receipt(&self, record: Arc<TraceRecord>) -> MadeReceipt<'_> {
        Box::pin(async move {
            let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| ReceiptUnavailable)?;
            let receipts = Arc::clone(&self.receipts);
            let made = spawn_blocking(move || {
                let made = receipts.receipt(&record);
                drop(turn);
                made
            });
            let made = made.await.map_err(|_| ReceiptUnavailable)?.map_err(|error| {
                tracing::warn!(%error, "a receipt could not be made");
                ReceiptUnavailable
            })?;
            Ok(made.map(|receipt| receipt.json().to_string().into_bytes()))
        })
    }

    fn json(&self, record: &TraceRecord) -> Vec<u8> {
        record_json(record).to_string().into_bytes()
    }

    fn block(&self, record: &TraceRecord) -> Value {
        let mut json = answer_json(record);
        // The recorder adds the region to the record when the call has ended.
        json["region"] = self.recorder.region().map(Region::as_str).into();
        json
    }

    fn traceparent(&self, record: &TraceRecord) -> Option<String> {
        let last = record.attempts.len().checked_sub(1)?;
        Some(TraceContext::of(record).attempt(last).traceparent())
    }
}
