//! Calls to explain: the stored examples of the crate `trace`, and one of them with a delay added to a stage.
#![allow(dead_code, reason = "each test file uses a part of it")]

use headrace_domain::{RequestId, Stage, StageSpan, TraceRecord};
use headrace_trace::decode_record;

/// Nanoseconds per millisecond.
pub(crate) const MS: u64 = 1_000_000;

macro_rules! stored {
    ($($name:literal $path:literal;)*) => {
        /// Every stored example with its name, of this version and of the first.
        pub(crate) fn stored() -> Vec<(&'static str, &'static str)> {
            vec![$(($name, include_str!(concat!("../../../trace/tests/data/", $path)).trim_end()),)*]
        }
    };
}

stored! {
    "completed" "completed.json";
    "cancelled" "cancelled.json";
    "failed" "failed.json";
    "moved-on" "moved-on.json";
    "fell-back" "fell-back.json";
    "refused" "refused.json";
    "refused-early" "refused-early.json";
    "slow-upload" "slow-upload.json";
    "completed of version 1" "v1/completed.json";
    "cancelled of version 1" "v1/cancelled.json";
    "failed of version 1" "v1/failed.json";
    "refused of version 1" "v1/refused.json";
    "refused-early of version 1" "v1/refused-early.json";
    "slow-upload of version 1" "v1/slow-upload.json";
}

/// A streamed chat of 412 prompt tokens and 48 generated ones.
pub(crate) fn completed() -> TraceRecord {
    decode_record(stored()[0].1).unwrap()
}

/// The same call under another id.
pub(crate) fn numbered(record: TraceRecord, n: u64) -> TraceRecord {
    TraceRecord { request_id: RequestId::from_bits(record.request_id.bits() + u128::from(n)), ..record }
}

/// The call with `stage` taking `nanos` longer.
pub(crate) fn delayed(stage: Stage, nanos: u64) -> TraceRecord {
    let mut record = completed();
    record.duration_ns += nanos;
    let first = record.first_token_ns.unwrap();
    // A stage that runs beside generation makes it longer too.
    let whole = record.stages.iter().any(|span| span.stage == stage && span.inside.is_none());
    let share = record.stages.iter_mut().find(|span| span.stage == stage && span.inside.is_some() && !whole);
    let longer = match share {
        Some(share) => {
            share.duration_ns += nanos;
            Stage::Decode
        }
        None => stage,
    };
    let at = record.stages.iter().position(|span| span.stage == longer && span.inside.is_none());
    let at = at.unwrap_or_else(|| {
        let at = record.stages.iter().position(|span| span.stage == Stage::Settle).unwrap();
        let start_ns = record.stages[at].start_ns;
        record.stages.insert(at, StageSpan { stage: longer, start_ns, duration_ns: 0, inside: None });
        at
    });
    record.stages[at].duration_ns += nanos;
    if record.stages[at].start_ns < first && longer != Stage::Decode {
        record.first_token_ns = Some(first + nanos);
    }
    for span in record.stages.iter_mut().skip(at + 1).filter(|span| span.inside.is_none()) {
        span.start_ns += nanos;
    }
    assert!(headrace_domain::is_partition(&record.stages, record.duration_ns));
    record
}
