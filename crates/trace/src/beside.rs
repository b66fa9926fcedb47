//! What ran beside a call: calls that one worker had at the same time. Must not know how records are kept.

use headrace_domain::TraceRecord;
use serde_json::Value;

use crate::call::CallRow;
use crate::units::micros;

/// Most calls that are told of.
pub const MAX_BESIDE: usize = 100;

/// A call that the same worker had at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// Which.
    pub call: CallRow,
    /// When the worker got it, in nanoseconds from when it got the call that was asked about; below zero: before it.
    pub from_ns: i64,
    /// For how many nanoseconds it had both.
    pub overlap_ns: u64,
}

impl Beside {
    /// The row's JSON, and `from_us` and `overlap_us`.
    pub fn json(&self) -> Value {
        let mut row = self.call.json();
        let from = micros(self.from_ns.unsigned_abs());
        row["from_us"] = (if self.from_ns < 0 { -from } else { from }).into();
        row["overlap_us"] = micros(self.overlap_ns).into();
        row
    }
}

/// When a worker had a call, in nanoseconds since 1970, and which. Of several the last that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stay {
    /// The worker.
    pub worker: String,
    /// From when on.
    pub from: u64,
    /// Until when.
    pub until: u64,
}

impl Stay {
    /// Of a call; `None`: no worker had it.
    pub fn of(record: &TraceRecord) -> Option<Self> {
        let last = record.attempts.last()?;
        // Of several prompts, and of several tries at one worker, all of the time.
        let same = record.attempts.iter().filter(|attempt| attempt.worker == last.worker);
        let from = same.clone().map(|attempt| attempt.start_ns).min().unwrap_or(last.start_ns);
        let until = same.map(|attempt| attempt.start_ns.saturating_add(attempt.duration_ns)).max();
        let at = |nanos| record.started.get().saturating_add(nanos);
        Some(Self { worker: last.worker.to_string(), from: at(from), until: at(until.unwrap_or(from)) })
    }
}

/// What of the other calls was with the same worker at the same time: what overlaps longest comes first, and at most so many.
pub fn beside(
    asked: &TraceRecord,
    others: impl IntoIterator<Item = TraceRecord>,
    limit: usize,
) -> Vec<Beside> {
    let Some(stay) = Stay::of(asked) else { return Vec::new() };
    let overlap = |other: TraceRecord| {
        let theirs = Stay::of(&other).filter(|theirs| theirs.worker == stay.worker)?;
        let overlap_ns = stay.until.min(theirs.until).saturating_sub(stay.from.max(theirs.from));
        let from_ns = i64::try_from(i128::from(theirs.from) - i128::from(stay.from)).ok()?;
        let is_other = other.request_id != asked.request_id;
        (is_other && overlap_ns > 0).then(|| Beside { call: CallRow::of(&other), from_ns, overlap_ns })
    };
    let mut found: Vec<Beside> = others.into_iter().filter_map(overlap).collect();
    found.sort_by(|a, b| b.overlap_ns.cmp(&a.overlap_ns).then(a.call.id.cmp(&b.call.id)));
    found.truncate(limit.min(MAX_BESIDE));
    found
}
