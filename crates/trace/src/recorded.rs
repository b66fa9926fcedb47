//! A finished record that the store, readers and taps share. It stays in the allocation that its call made.

use std::ops::Deref;
use std::sync::Arc;

use headrace_domain::TraceRecord;

/// A shared record. Cheap to clone.
///
/// Moving a record into its own `Arc` would copy more than a kilobyte at the end of each call. The target memory would
/// be in no CPU cache.
#[derive(Debug, Clone)]
pub struct SharedRecord(Arc<BoxedRecord>);

#[derive(Debug)]
struct BoxedRecord(Box<TraceRecord>);

impl SharedRecord {
    /// Copies the record into an `Arc` of its own.
    pub fn to_arc(&self) -> Arc<TraceRecord> {
        Arc::new(TraceRecord::clone(self))
    }
}

impl From<Box<TraceRecord>> for SharedRecord {
    fn from(record: Box<TraceRecord>) -> Self {
        Self(Arc::new(BoxedRecord(record)))
    }
}

impl Deref for SharedRecord {
    type Target = TraceRecord;

    fn deref(&self) -> &TraceRecord {
        &self.0.0
    }
}
