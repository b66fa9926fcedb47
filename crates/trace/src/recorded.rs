//! A finished record in the hands of several: of whoever stores it, of readers, of taps. It stays where its call made it.

use std::ops::Deref;
use std::sync::Arc;

use headrace_domain::TraceRecord;

/// A record that is shared. Cheap to clone.
///
/// To move a record into an `Arc` of its own would copy more than a kilobyte at the end of each call, into memory that no
/// cache holds.
#[derive(Debug, Clone)]
pub struct Recorded(Arc<Boxed>);

#[derive(Debug)]
struct Boxed(Box<TraceRecord>);

impl Recorded {
    /// A copy that belongs to whoever asked.
    pub fn to_arc(&self) -> Arc<TraceRecord> {
        Arc::new(TraceRecord::clone(self))
    }
}

impl From<Box<TraceRecord>> for Recorded {
    fn from(record: Box<TraceRecord>) -> Self {
        Self(Arc::new(Boxed(record)))
    }
}

impl Deref for Recorded {
    type Target = TraceRecord;

    fn deref(&self) -> &TraceRecord {
        &self.0.0
    }
}
