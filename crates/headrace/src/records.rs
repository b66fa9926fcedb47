//! Where the gateway finds finished traces again: in memory right after the answer, then in the store.

use std::sync::Arc;

use headrace_domain::{RequestId, TraceRecord};
use headrace_gateway::{Records, Stored};
use headrace_store::trace::SqliteTraceReader;
use headrace_trace::{Recorder, TraceContext, TraceReader, answer_json, record_json};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Look-ups in the store at once: it reads over one connection, and more would only hold threads that wait for it.
const READS_AT_ONCE: usize = 1;

/// The recorder's memory before the store.
pub(crate) struct StoredRecords {
    recorder: Arc<Recorder>,
    reader: Arc<SqliteTraceReader>,
    turns: Arc<Semaphore>,
}

impl StoredRecords {
    pub(crate) fn new(recorder: Arc<Recorder>, reader: SqliteTraceReader) -> Self {
        Self { recorder, reader: Arc::new(reader), turns: Arc::new(Semaphore::new(READS_AT_ONCE)) }
    }
}

impl Records for StoredRecords {
    fn recent(&self, id: RequestId) -> Option<Arc<TraceRecord>> {
        self.recorder.recent(id).map(|record| record.to_arc())
    }

    fn stored(&self, id: RequestId) -> Stored<'_> {
        Box::pin(async move {
            let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
            let reader = Arc::clone(&self.reader);
            // Who asked may be gone before it is read: the turn ends with the reading.
            let reading = spawn_blocking(move || {
                let found = reader.get(id);
                drop(turn);
                found
            });
            match reading.await {
                Ok(Ok(found)) => found.map(Arc::new),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a trace could not be read");
                    None
                }
                // The runtime is going down.
                Err(_) => None,
            }
        })
    }

    fn json(&self, record: &TraceRecord) -> Vec<u8> {
        record_json(record).to_string().into_bytes()
    }

    fn block(&self, record: &TraceRecord) -> Value {
        answer_json(record)
    }

    fn traceparent(&self, record: &TraceRecord) -> Option<String> {
        let last = record.attempts.len().checked_sub(1)?;
        Some(TraceContext::of(record).attempt(last).traceparent())
    }
}
