//! The names by which a call is found, apart from its request id. Must not know where records are kept.

use std::borrow::Cow;

use headrace_domain::{RequestId, TraceRecord};

/// Maximum number of calls that are returned for one name.
pub const MAX_NAMED: usize = 100;
/// Maximum bytes of an answer's id that is stored as a name.
const MAX_NAME_BYTES: usize = 256;

/// The id that an upstream gave the answer, and the W3C trace id that the caller sent, as far as they exist. A worker
/// job also has the gateway's call, in the form of [`trace_name`].
pub fn other_names(record: &TraceRecord) -> impl Iterator<Item = Cow<'_, str>> {
    let call = record.worker_job.as_ref().map(|job| Cow::Owned(trace_name(job.call)));
    let names =
        [record.upstream_id.as_deref(), record.trace_id.as_deref()].map(|name| name.map(Cow::Borrowed));
    let names = names.into_iter().chain([call]).flatten();
    names.filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES)
}

/// The W3C trace id of a call whose caller sent none: the bits of its request id in hexadecimal.
pub fn trace_name(request: RequestId) -> String {
    format!("{:032x}", request.bits())
}
