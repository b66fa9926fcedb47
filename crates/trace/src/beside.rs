//! The calls that one worker processed at the same time as a call. Must not know how records are kept.

use headrace_domain::TraceRecord;
use serde_json::Value;

use crate::call::CallRow;
use crate::units::micros;

/// Maximum number of calls to return.
pub const MAX_BESIDE: usize = 100;

/// A call that the same worker processed at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcurrentCall {
    /// The other call.
    pub call: CallRow,
    /// When the worker received it, in nanoseconds after it received the call in question. Negative if earlier.
    pub from_ns: i64,
    /// Nanoseconds during which the worker had both calls.
    pub overlap_ns: u64,
}

impl ConcurrentCall {
    /// The row's JSON, plus `from_us` and `overlap_us`.
    pub fn json(&self) -> Value {
        let mut row = self.call.json();
        let from = micros(self.from_ns.unsigned_abs());
        row["from_us"] = (if self.from_ns < 0 { -from } else { from }).into();
        row["overlap_us"] = micros(self.overlap_ns).into();
        row
    }
}

/// The time that a call spent at a worker, in nanoseconds since 1970. If the call had several workers, the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStay {
    /// The worker's name.
    pub worker: String,
    /// Start of the stay.
    pub from: u64,
    /// End of the stay.
    pub until: u64,
}

impl WorkerStay {
    /// The stay of a call. `None` if no worker had the call.
    pub fn of(record: &TraceRecord) -> Option<Self> {
        let last = record.attempts.last()?;
        // With several prompts, or several attempts at one worker, this covers all of them.
        let same = record.attempts.iter().filter(|attempt| attempt.worker == last.worker);
        let from = same.clone().map(|attempt| attempt.start_ns).min().unwrap_or(last.start_ns);
        let until = same.map(|attempt| attempt.start_ns.saturating_add(attempt.duration_ns)).max();
        let at = |nanos| record.started.get().saturating_add(nanos);
        Some(Self { worker: last.worker.to_string(), from: at(from), until: at(until.unwrap_or(from)) })
    }
}

/// Returns the calls among `others` that overlapped with `asked` at the same worker, longest overlap first. Returns at
/// most `limit` and at most [`MAX_BESIDE`] calls.
pub fn beside(
    asked: &TraceRecord,
    others: impl IntoIterator<Item = TraceRecord>,
    limit: usize,
) -> Vec<ConcurrentCall> {
    let Some(stay) = WorkerStay::of(asked) else { return Vec::new() };
    let overlap = |other: TraceRecord| {
        let theirs = WorkerStay::of(&other).filter(|theirs| theirs.worker == stay.worker)?;
        let overlap_ns = stay.until.min(theirs.until).saturating_sub(stay.from.max(theirs.from));
        let from_ns = i64::try_from(i128::from(theirs.from) - i128::from(stay.from)).ok()?;
        let is_other = other.request_id != asked.request_id;
        (is_other && overlap_ns > 0).then(|| ConcurrentCall {
            call: CallRow::of(&other),
            from_ns,
            overlap_ns,
        })
    };
    let mut found: Vec<ConcurrentCall> = others.into_iter().filter_map(overlap).collect();
    found.sort_by(|a, b| b.overlap_ns.cmp(&a.overlap_ns).then(a.call.id.cmp(&b.call.id)));
    found.truncate(limit.min(MAX_BESIDE));
    found
}
