//! The seam between traces and whatever keeps them. Says nothing of files, SQL or formats.

use headrace_domain::{ProjectId, RequestId, TraceRecord, UnixNanos};

use crate::TraceError;
use crate::beside::Beside;
use crate::cache::{CacheQuery, CacheReport, MAX_CACHE_CALLS};
use crate::recorded::Recorded;
use crate::search::{CallCursor, CallPage, CallQuery};
use crate::statement::{Month, Statement};
use crate::usage::{UsageQuery, UsageReport};

/// Whoever is shown each record as its call ends, on the call's own task: it takes the record and returns at once.
pub trait Tap: Send + Sync {
    /// A call has ended. It must neither block nor fail.
    fn seen(&self, record: &Recorded);
}

/// How a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// A fraction of a millisecond's work at a time, and whoever wants the core has a turn behind each: calls that share it hardly wait.
    GivesWay,
    /// In as few steps as it can be: more is waiting than one batch takes, and what does not fit would be lost.
    Hurries,
}

/// The writing side. The recorder's thread calls it, so it may block.
pub trait TraceStore: Send {
    /// Stores a batch, whole or not at all. A record whose id is stored already is left as it was.
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError>;

    /// As [`TraceStore::append`], of records that others hold as well. A store that need not own them copies none.
    fn append_shared(&mut self, batch: &[Recorded], _pace: Pace) -> Result<(), TraceError> {
        self.append(&batch.iter().map(|record| TraceRecord::clone(record)).collect::<Vec<_>>())
    }
}

/// The reading side. Calls block; from async code they belong on a blocking thread.
///
/// Worker jobs are no calls: `get`, `named`, and a search for [`headrace_domain::WORKER_JOB_KEY`] find them, and every other question
/// leaves them out.
pub trait TraceReader: Send + Sync {
    /// The record of one request, if it is stored.
    fn get(&self, id: RequestId) -> Result<Option<TraceRecord>, TraceError>;

    /// The newest records of requests that have this other name, newest first, at most [`crate::MAX_NAMED`]: the id that an upstream
    /// gave its answer, or the W3C trace id (32 hex digits) that the caller sent. Worker jobs follow the calls: they also have the
    /// name of the gateway's call ([`crate::trace_name`]).
    fn named(&self, name: &str) -> Result<Vec<TraceRecord>, TraceError>;

    /// The newest `n` records, newest first.
    fn last(&self, n: usize) -> Result<Vec<TraceRecord>, TraceError>;

    /// The slowest `n` records that started at `since` or later, slowest first, by what the server took: a slow client does
    /// not make a call slow.
    fn slowest(&self, n: usize, since: UnixNanos) -> Result<Vec<TraceRecord>, TraceError>;

    /// Shows every record of a call that started at `since` or later and before `until`, some at a time, in the order in which they
    /// were stored.
    fn each(
        &self,
        since: UnixNanos,
        until: UnixNanos,
        show: &mut dyn FnMut(&TraceRecord),
    ) -> Result<(), TraceError>;

    /// The newest `n` shadow copies that started at `since` or later, newest first.
    fn shadows(&self, n: usize, since: UnixNanos) -> Result<Vec<TraceRecord>, TraceError>;

    /// The calls that are meant, newest first, at most `limit` of them (1 to [`crate::MAX_CALLS_PER_PAGE`]) from a place on. One
    /// question looks through a bounded number of calls, so a page may be short and still have a `next`.
    fn search(
        &self,
        query: &CallQuery,
        after: Option<CallCursor>,
        limit: usize,
    ) -> Result<CallPage, TraceError>;

    /// The calls that its worker had at the same time as one call, what overlaps longest first, at most `limit` of them (and at
    /// most [`crate::MAX_BESIDE`]); `None`: there is no record of it.
    fn beside(&self, id: RequestId, limit: usize) -> Result<Option<Vec<Beside>>, TraceError>;

    /// Shows the newest records of calls that started at `since` or later and before `until`, newest first, at most `most` of them;
    /// whether there are older ones.
    fn newest(
        &self,
        since: UnixNanos,
        until: UnixNanos,
        most: usize,
        show: &mut dyn FnMut(&TraceRecord),
    ) -> Result<bool, TraceError>;

    /// How prompts of that time met prefix caches: of the newest [`MAX_CACHE_CALLS`] calls.
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

/// Reads the books as far as usage goes. Calls block.
pub trait UsageReader: Send + Sync {
    /// What was used, as it stands in the books by now.
    ///
    /// # Errors
    /// `TooMuch` for more than [`crate::MAX_USAGE_ROWS`] rows; others where the books cannot be read.
    fn usage(&self, query: &UsageQuery) -> Result<UsageReport, TraceError>;

    /// What a project was charged for in a month; `None`: the books know no such project.
    ///
    /// # Errors
    /// Where the books cannot be read.
    fn statement(&self, project: &ProjectId, month: Month) -> Result<Option<Statement>, TraceError>;
}
