//! An in-memory trace store, for tests, and as the reference for what a store returns.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use headrace_domain::{KeyId, RequestId, TraceRecord, UnixNanos};

use crate::beside::{ConcurrentCall, beside};
use crate::call::CallRow;
use crate::names::{MAX_NAMED, other_names};
use crate::search::{CallCursor, CallPage, CallQuery, MAX_CALLS_PER_PAGE};
use crate::{TraceError, TraceReader, TraceStore};

/// All appended records, without a bound. Clones share the records, so one can write while others read.
#[derive(Debug, Clone, Default)]
pub struct MemoryTraces {
    records: Arc<RwLock<Vec<TraceRecord>>>,
}

impl MemoryTraces {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<TraceRecord>> {
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records by start time, newest first. Records with equal start times are ordered by when they were stored, newest
    /// first.
    fn newest_first(&self) -> Vec<TraceRecord> {
        let records = self.read();
        let ordered: BTreeMap<_, _> =
            records.iter().enumerate().map(|(at, record)| ((record.started, at), record)).collect();
        ordered.into_values().rev().cloned().collect()
    }
}

impl TraceStore for MemoryTraces {
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        for record in batch {
            if !records.iter().any(|known| known.request_id == record.request_id) {
                records.push(record.clone());
            }
        }
        Ok(())
    }
}

impl TraceReader for MemoryTraces {
    fn get(&self, id: RequestId) -> Result<Option<TraceRecord>, TraceError> {
        Ok(self.read().iter().find(|record| record.request_id == id).cloned())
    }

    fn named(&self, name: &str) -> Result<Vec<TraceRecord>, TraceError> {
        let mut found = self.newest_first();
        found.retain(|record| other_names(record).any(|other| other == name));
        // Stable: the newest stay first among calls, and among jobs.
        found.sort_by_key(|record| record.worker_job.is_some());
        found.truncate(MAX_NAMED);
        Ok(found)
    }

    fn last(&self, n: usize) -> Result<Vec<TraceRecord>, TraceError> {
        let mut newest = self.newest_first();
        newest.retain(|record| record.worker_job.is_none());
        newest.truncate(n);
        Ok(newest)
    }

    fn slowest(&self, n: usize, since: UnixNanos) -> Result<Vec<TraceRecord>, TraceError> {
        let is_meant = |record: &&TraceRecord| record.started >= since && record.worker_job.is_none();
        let mut records: Vec<TraceRecord> = self.read().iter().filter(is_meant).cloned().collect();
        // Of equally slow records, the one that was stored later comes first.
        records.reverse();
        records.sort_by_key(|record| std::cmp::Reverse(record.server_ns()));
        records.truncate(n);
        Ok(records)
    }

    fn each(
        &self,
        since: UnixNanos,
        until: UnixNanos,
        show: &mut dyn FnMut(&TraceRecord),
    ) -> Result<(), TraceError> {
        let within = |record: &&TraceRecord| record.started >= since && record.started < until;
        let is_meant = |record: &&TraceRecord| within(record) && record.worker_job.is_none();
        self.read().iter().filter(is_meant).for_each(show);
        Ok(())
    }

    fn shadows(&self, n: usize, since: UnixNanos) -> Result<Vec<TraceRecord>, TraceError> {
        let is_copy = |record: &TraceRecord| record.key.as_ref().map(KeyId::as_str) == Some("shadow");
        let copies = self.newest_first().into_iter();
        Ok(copies.filter(|record| is_copy(record) && record.started >= since).take(n).collect())
    }

    fn search(
        &self,
        query: &CallQuery,
        after: Option<CallCursor>,
        limit: usize,
    ) -> Result<CallPage, TraceError> {
        let records = self.read();
        let number = |at: usize| u64::try_from(at).unwrap_or(u64::MAX).saturating_add(1);
        let found = records.iter().enumerate().filter_map(|(at, record)| {
            let at = CallCursor { started: record.started, number: number(at) };
            let row = CallRow::of(record);
            (after.is_none_or(|after| at < after) && query.matches(&row)).then_some((at, row))
        });
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let limit = limit.clamp(1, MAX_CALLS_PER_PAGE);
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|(at, _)| *at);
        let calls = found.into_iter().map(|(_, row)| row).collect();
        Ok(CallPage { calls, next, ..CallPage::default() })
    }

    fn newest(
        &self,
        since: UnixNanos,
        until: UnixNanos,
        most: usize,
        show: &mut dyn FnMut(&TraceRecord),
    ) -> Result<bool, TraceError> {
        let within = |record: &TraceRecord| record.started >= since && record.started < until;
        let is_meant = |record: &TraceRecord| within(record) && record.worker_job.is_none();
        let mut records = self.newest_first().into_iter().filter(is_meant);
        records.by_ref().take(most).for_each(|record| show(&record));
        Ok(records.next().is_some())
    }

    fn beside(&self, id: RequestId, limit: usize) -> Result<Option<Vec<ConcurrentCall>>, TraceError> {
        let records = self.read();
        let asked = records.iter().find(|record| record.request_id == id);
        Ok(asked.map(|asked| beside(asked, records.iter().cloned(), limit)))
    }
}
