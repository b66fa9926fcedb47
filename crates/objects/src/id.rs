//! Ids of objects: a prefix for the kind, and a part that cannot be guessed. Knows no objects.

use headrace_domain::{RequestId, UnixNanos};

/// Returns a new id like `conv_…`. Ids ascend in time.
pub fn fresh_id(prefix: &str, now: UnixNanos) -> String {
    format!("{prefix}_{:032x}", RequestId::fresh(now).bits())
}
