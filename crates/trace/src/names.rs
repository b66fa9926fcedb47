//! The names by which a call is found besides its request id. Must not know where records are kept.

use headrace_domain::TraceRecord;

/// Most calls that are returned for one name.
pub const MAX_NAMED: usize = 100;
/// A longer id of an answer is not stored as a name, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// The id that an upstream gave the answer, and the W3C trace id that the caller sent.
pub fn other_names(record: &TraceRecord) -> impl Iterator<Item = &str> {
    let names = [record.upstream_id.as_deref(), record.trace_id.as_deref()];
    names.into_iter().flatten().filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES)
}
