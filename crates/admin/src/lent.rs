//! The lent keys of this process, so that the same user gets the same key again. Contains no decisions.

use std::collections::HashMap;

use headrace_domain::{KeyId, ProjectId, UnixNanos};
use parking_lot::Mutex;

use crate::secret_text::SecretText;

/// Lent keys, by user and project. Their secrets are in memory only.
#[derive(Default)]
pub(crate) struct Lent(pub(crate) Mutex<HashMap<(String, ProjectId), LentKey>>);

/// One lent key.
pub(crate) struct LentKey {
    pub(crate) id: KeyId,
    pub(crate) secret: SecretText,
    pub(crate) ends: UnixNanos,
}
