//! The interface to the store of finished trace records.

use crate::TraceRecord;

/// Receives finished records. It never blocks. It drops and counts the records that it cannot take.
pub trait TraceSink: Send + Sync {
    /// Takes one record.
    fn record(&self, record: Box<TraceRecord>);
}

/// Discards every record. For tests and benchmarks.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTrace;

impl TraceSink for NoTrace {
    fn record(&self, _record: Box<TraceRecord>) {}
}
