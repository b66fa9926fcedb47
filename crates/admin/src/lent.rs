//! What is remembered of keys that were lent, so that the same asker gets the same one again. Decides nothing.

use std::collections::HashMap;

use headrace_domain::{KeyId, ProjectId, UnixNanos};
use parking_lot::Mutex;

use crate::command::SecretText;

/// Keys lent by this process, by asker and project. Their secrets are in memory alone.
#[derive(Default)]
pub(crate) struct Lent(pub(crate) Mutex<HashMap<(String, ProjectId), LentKey>>);

/// One of them.
pub(crate) struct LentKey {
    pub(crate) id: KeyId,
    pub(crate) secret: SecretText,
    pub(crate) ends: UnixNanos,
}
