//! The interfaces between traces and the stores that keep them. Knows no files, SQL or formats.

use headrace_domain::{ProjectId, RequestId, TraceRecord, UnixNanos};

use crate::TraceError;
use crate::beside::ConcurrentCall;
use crate::cache::{CacheQuery, CacheReport, MAX_CACHE_CALLS};
use crate::recorded::SharedRecord;
use crate::search::{CallCursor, CallPage, CallQuery};
use crate::statement::{Month, MonthStatement};
use crate::usage::{UsageQuery, UsageReport};

/// An observer that sees each record when its call ends, on the call's own task.
pub trait RecordObserver: Send + Sync {
    /// Called when a call has ended. Must return at once, and must neither block nor fail.
    fn seen(&self, record: &SharedRecord);
}

/// How to write a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePace {
    /// In pieces of a fraction of a millisecond, yielding the core after each. Calls that share the core hardly wait.
    GivesWay,
    /// In as few steps as possible. More records wait than fit in one batch, and those that do not fit in the queue
    /// would be lost.
    Hurries,
}

/// The writing side of a trace store. The recorder's thread calls it, so it may block.
pub trait TraceStore: Send {
    /// Stores a batch, all or nothing. A record whose id is stored already stays as it was.
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError>;

    /// Like [`TraceStore::append`], for shared records. A store that need not own the records copies none.
    fn append_shared(&mut self, batch: &[SharedRecord], _pace: WritePace) -> Result<(), TraceError> {
        self.append(&batch.iter().map(|record| TraceRecord::clone(record)).collect::<Vec<_>>())
    }
}

/// The reading side of a trace store. Calls block, so async code must use a blocking thread.
///
/// `get`, `named`, and a search for [`headrace_domain::WORKER_JOB_KEY`] find worker jobs. All other methods leave them
/// out.
pub trait TraceReader: Send + Sync {
    /// The record of one request, if it is stored.
    fn get(&self, id: RequestId) -> Result<Option<TraceRecord>, TraceError>;

    /// The newest records with this other name, newest first, at most [`crate::MAX_NAMED`]. The name is the id that an
    /// upstream gave its answer, or the W3C trace id (32 hex digits) that the caller sent. Worker jobs follow the calls.
    /// They also have the name of the gateway's call ([`crate::trace_name`]).
    fn named(&self, name: &str) -> Result<Vec<TraceRecord>, TraceError>;

    /// The newest `n` records, newest first.
    fn last(&self, n: usize) -> Result<Vec<TraceRecord>, TraceError>;

    /// The slowest `n` records that started at `since` or later, slowest first. Only the server's time counts: a slow
    /// client does not make a call slow.
    fn slowest(&self, n: usize, since: UnixNanos) -> Result<Vec<TraceRecord>, TraceError>;

    /// Passes to `show` every record of a call that started at `since` or later and before `until`, in the order in
    /// which they were stored. Reads a few records at a time.
    fn each(
        &self,
        since: UnixNanos,
        until: UnixNanos,
        show: &mut dyn FnMut(&TraceRecord),
    ) -> Result<(), TraceError>;

    /// The newest `n` shadow copies that started at `since` or later, newest first.
    fn shadows(&self, n: usize, since: UnixNanos) -> Result<Vec<TraceRecord>, TraceError>;

    /// A page of the matching calls, newest first, at most `limit` (1 to [`crate::MAX_CALLS_PER_PAGE`]), after the
    /// cursor `after`. One search examines a bounded number of calls, so a page may be short and still have a `next`.
    fn search(
        &self,
        query: &CallQuery,
        after: Option<CallCursor>,
        limit: usize,
    ) -> Result<CallPage, TraceError>;

    /// The calls that the same worker processed at the same time as call `id`, longest overlap first. Returns at most
    /// `limit` and at most [`crate::MAX_BESIDE`] calls, or `None` if there is no record of `id`.
    fn beside(&self, id: RequestId, limit: usize) -> Result<Option<Vec<ConcurrentCall>>, TraceError>;

    /// Passes to `show` the newest records of calls that started at `since` or later and before `until`, newest first,
    /// at most `most`. Returns whether there are older ones.
    fn newest(
        &self,
        since: UnixNanos,
        until: UnixNanos,
        most: usize,
        show: &mut dyn FnMut(&TraceRecord),
    ) -> Result<bool, TraceError>;

    /// How prompts of the query's period used prefix caches. Covers the newest [`MAX_CACHE_CALLS`] calls.
    fn cache(&self, query: &CacheQuery) -> Result<CacheReport, TraceError> {
        let mut report = CacheReport::new(query.by.clone());
        let since = query.since.unwrap_or(UnixNanos::new(0));
        let until = query.until.unwrap_or(UnixNanos::new(u64::MAX));
        if self.newest(since, until, MAX_CACHE_CALLS, &mut |record| report.add(record))? {
            report.is_cut();
        }
        Ok(report)
    }
}

/// Reads usage from the ledger. Calls block.
pub trait UsageReader: Send + Sync {
    /// The usage that the ledger has recorded by now.
    ///
    /// # Errors
    /// [`TraceError::TooMuch`] for more than [`crate::MAX_USAGE_ROWS`] rows. Other errors if the ledger cannot be read.
    fn usage(&self, query: &UsageQuery) -> Result<UsageReport, TraceError>;

    /// The statement of a project's charges in a month. `None` if the ledger does not know the project.
    ///
    /// # Errors
    /// An error if the ledger cannot be read.
    fn statement(&self, project: &ProjectId, month: Month) -> Result<Option<MonthStatement>, TraceError>;

    /// Processes what the ledger and the traces have recorded since the last call, so that queries need not wait for
    /// it.
    ///
    /// # Errors
    /// An error if the ledger or the traces cannot be read.
    fn catch_up(&self) -> Result<(), TraceError>;
}
