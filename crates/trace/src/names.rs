//! The names by which a call is found, apart from its request id. Must not know where records are kept.

use headrace_domain::TraceRecord;

/// Maximum number of calls that are returned for one name.
pub const MAX_NAMED: usize = 100;
/// Maximum bytes of an answer's id that is stored as a name.
const MAX_NAME_BYTES: usize = 256;

/// The id that an upstream gave the answer, and the W3C trace id that the caller sent, as far as they exist.
pub fn other_names(record: &TraceRecord) -> impl Iterator<Item = &str> {
    let names = [record.upstream_id.as_deref(), record.trace_id.as_deref()];
    names.into_iter().flatten().filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES)
}
