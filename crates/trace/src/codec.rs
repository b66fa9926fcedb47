//! Trace records as stored text: JSON with a version in it. Older versions stay readable, newer ones are refused.
//! Knows nothing of where the text is kept.

use headrace_domain::{TRACE_VERSION, TraceRecord};
use serde_json::Value;

use crate::TraceError;

/// Room for most records.
const RECORD_BYTES: usize = 2_048;

/// A record as one line of JSON.
pub fn encode_record(record: &TraceRecord) -> Result<String, TraceError> {
    let mut text = Vec::with_capacity(RECORD_BYTES);
    let written = serde_json::to_writer(&mut text, record).map_err(|error| error.to_string());
    let text = written.and_then(|()| String::from_utf8(text).map_err(|error| error.to_string()));
    text.map_err(|why| TraceError::Corrupt { what: record.request_id.to_string(), why })
}

/// A record from what [`encode_record`] of this or an older version wrote, in today's terms.
///
/// # Errors
/// `NewerFormat` where a newer program wrote it, `Corrupt` where it is no record.
pub fn decode_record(text: &str) -> Result<TraceRecord, TraceError> {
    // The common case parses once. Only what does not parse as today's record, or claims another version,
    // is looked at for its version, because a newer record may have any shape.
    let parsed = serde_json::from_str::<TraceRecord>(text);
    match parsed {
        Ok(record) if record.version <= TRACE_VERSION => Ok(record.upgraded()),
        Ok(record) => Err(TraceError::NewerFormat {
            what: record.request_id.to_string(),
            found: record.version.into(),
            known: TRACE_VERSION.into(),
        }),
        Err(error) => Err(explain(text, &error)),
    }
}

fn explain(text: &str, error: &serde_json::Error) -> TraceError {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let what = value.get("request_id").and_then(Value::as_str).unwrap_or("a stored record").to_owned();
    match value.get("version").and_then(Value::as_u64) {
        Some(found) if found > TRACE_VERSION.into() => {
            TraceError::NewerFormat { what, found, known: TRACE_VERSION.into() }
        }
        _ => TraceError::Corrupt { what, why: error.to_string() },
    }
}
