//! Recorded requests and answers: opens their store and their recorder, and finds calls by their content. Must not know
//! who may read them.

use std::sync::Arc;
use std::time::Duration;

use headrace_config::record_fields::ContentBounds;
use headrace_domain::{Clock, RequestId};
use headrace_moderation::PiiRedactor;
use headrace_store::disk::DiskGuard;
use headrace_trace::{
    CallCursor, CallPage, CallQuery, CallRow, ContentArchive, ContentQuery, ContentRecorder,
    ContentRecorderConfig, ContentRedactor, ContentStore, Metrics, StoredContent, TraceError, TraceReader,
};

use crate::datadir::DataDir;

/// Time limit for storing contents that wait, before a read.
const FLUSH: Duration = Duration::from_secs(2);

/// The store of contents and its recorder. Clones share both.
#[derive(Clone)]
pub(crate) struct RecordedContents {
    pub(crate) store: Arc<dyn ContentArchive>,
    pub(crate) recorder: Arc<ContentRecorder>,
}

/// Replaces personal data by the recognisers of content rules.
struct RecordRedactor(PiiRedactor);

impl ContentRedactor for RecordRedactor {
    fn redact(&self, text: &str) -> Option<String> {
        self.0.redact(text)
    }
}

impl RecordedContents {
    /// Opens the store in a data directory, and starts its recorder. Registers its figures.
    ///
    /// # Errors
    /// Returns why the recorder cannot be started.
    pub(crate) fn open(
        data_dir: &DataDir,
        bounds: ContentBounds,
        guard: DiskGuard,
        (clock, metrics): (&Arc<dyn Clock>, &Metrics),
    ) -> Result<Self, String> {
        let store = data_dir.storage().contents(bounds.max_total_bytes, Some(guard));
        let redactor = Arc::new(RecordRedactor(PiiRedactor::new()?));
        let config =
            ContentRecorderConfig { max_bytes: bounds.max_call_bytes, ..ContentRecorderConfig::default() };
        let recorder = ContentRecorder::start(
            Arc::clone(&store) as Arc<dyn ContentStore>,
            redactor,
            Arc::clone(clock),
            config,
        );
        let recorder = recorder.map_err(|error| error.to_string())?;
        register(metrics, &recorder);
        Ok(Self { store, recorder })
    }

    /// Waits until contents of ended calls are stored, for some seconds at most.
    pub(crate) fn wait(&self) {
        self.recorder.flush(FLUSH);
    }

    /// The content of a call.
    ///
    /// # Errors
    /// An error if the store cannot be read.
    pub(crate) fn get(&self, id: RequestId) -> Result<Option<StoredContent>, TraceError> {
        self.recorder.flush(FLUSH);
        self.store.get(id)
    }

    /// Searches calls by their content: a page of calls whose content has the text and whose trace meets the other
    /// criteria.
    ///
    /// # Errors
    /// An error if a store cannot be read.
    pub(crate) fn search(
        &self,
        traces: &dyn TraceReader,
        query: &CallQuery,
        after: Option<CallCursor>,
        limit: usize,
    ) -> Result<CallPage, TraceError> {
        self.recorder.flush(FLUSH);
        search_contents(self.store.as_ref(), traces, query, after, limit)
    }
}

/// See [`RecordedContents::search`].
///
/// # Errors
/// An error if a store cannot be read.
pub fn search_contents(
    contents: &dyn ContentStore,
    traces: &dyn TraceReader,
    query: &CallQuery,
    after: Option<CallCursor>,
    limit: usize,
) -> Result<CallPage, TraceError> {
    let found = contents.search(&ContentQuery::of(query), after, limit)?;
    let mut page = CallPage { next: found.next, searched_to: found.searched_to, ..CallPage::default() };
    for content in found.contents {
        let row = traces.get(content.id)?.map(|record| CallRow::of(&record));
        page.calls.extend(row.filter(|row| query.matches(row)));
    }
    Ok(page)
}

fn register(metrics: &Metrics, recorder: &Arc<ContentRecorder>) {
    type Read = fn(&ContentRecorder) -> u64;
    let counters: [(&str, &str, Read); 3] = [
        (
            "headrace_contents_stored_total",
            "Requests and answers that were recorded.",
            ContentRecorder::stored,
        ),
        (
            "headrace_contents_dropped_total",
            "Requests and answers that were to be recorded, and were dropped.",
            ContentRecorder::dropped,
        ),
        (
            "headrace_contents_removed_total",
            "Recorded requests and answers that were removed by age or size.",
            ContentRecorder::removed,
        ),
    ];
    for (name, help, read) in counters {
        let recorder = Arc::clone(recorder);
        metrics.register_counter(name, help, &[], Box::new(move || read(&recorder) as f64));
    }
}
