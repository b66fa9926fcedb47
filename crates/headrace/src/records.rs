//! Where the gateway finds finished traces again: in memory right after the answer, then in the store.

use std::sync::Arc;

use headrace_domain::{RequestId, TraceRecord};
use headrace_gateway::Records;
use headrace_store::trace::SqliteTraceReader;
use headrace_trace::{Recorder, TraceReader, record_json};

/// The recorder's memory before the store.
pub(crate) struct StoredRecords {
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) reader: SqliteTraceReader,
}

impl Records for StoredRecords {
    fn find(&self, id: RequestId) -> Option<Arc<TraceRecord>> {
        if let Some(record) = self.recorder.recent(id) {
            return Some(record);
        }
        // One indexed row of a local file; the runtime may use the thread's place meanwhile.
        match tokio::task::block_in_place(|| self.reader.get(id)) {
            Ok(found) => found.map(Arc::new),
            Err(error) => {
                tracing::warn!(%error, "a trace could not be read");
                None
            }
        }
    }

    fn json(&self, record: &TraceRecord) -> Vec<u8> {
        record_json(record).to_string().into_bytes()
    }
}
