//! Ids of objects: a prefix that says what it is, and what nobody can guess. Knows no objects.

use headrace_domain::{RequestId, UnixNanos};

/// An id like `conv_…`, ascending in time.
pub fn fresh_id(prefix: &str, now: UnixNanos) -> String {
    format!("{prefix}_{:032x}", RequestId::fresh(now).bits())
}
