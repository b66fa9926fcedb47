//! Trace records as stored text: JSON that includes a version. Older versions stay readable; newer ones are refused.
//! Does not know where the text is kept.

use headrace_domain::{TRACE_VERSION, TraceRecord};
use serde_json::Value;

use crate::TraceError;

/// Initial buffer size, enough for most records.
const RECORD_BYTES: usize = 2_048;

/// Encodes a record as one line of JSON.
pub fn encode_record(record: &TraceRecord) -> Result<String, TraceError> {
    let mut text = Vec::with_capacity(RECORD_BYTES);
    let written = serde_json::to_writer(&mut text, record).map_err(|error| error.to_string());
    let text = written.and_then(|()| String::from_utf8(text).map_err(|error| error.to_string()));
    text.map_err(|why| TraceError::Corrupt { what: record.request_id.to_string(), why })
}

/// Decodes text that [`encode_record`] of this or an older version wrote, and upgrades the record to the current
/// version.
///
/// # Errors
/// [`TraceError::NewerFormat`] if a newer program wrote the text, [`TraceError::Corrupt`] if it is not a record.
pub fn decode_record(text: &str) -> Result<TraceRecord, TraceError> {
    // The common case parses once. The version is read separately only if the text does not parse or claims another
    // version, since a newer record may have any shape.
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
