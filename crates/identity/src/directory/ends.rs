//! What calls ask of a directory after they are authenticated: when their keys stop being good, and whether there are several
//! organisations.

use std::sync::atomic::Ordering::Acquire;

use headrace_domain::{KeyId, UnixNanos};

use super::Directory;

/// When a key stops being good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEnd {
    /// When it is revoked.
    Open,
    /// At this time, or when it is revoked before.
    At(UnixNanos),
    /// It was revoked.
    Revoked,
}

impl Directory {
    /// When a key stops being good. `None` for an id that no key has, such as that of a caller inside this process.
    pub fn key_end(&self, id: &KeyId) -> Option<KeyEnd> {
        let records = self.records.read();
        let record = &records.keys.get(id)?.record;
        Some(match (record.revoked, record.expires) {
            (Some(_), _) => KeyEnd::Revoked,
            (None, Some(end)) => KeyEnd::At(end),
            (None, None) => KeyEnd::Open,
        })
    }

    /// How many revocations have come into force in this process. While it stays the same, [`Directory::key_end`] does, too.
    pub fn revocations(&self) -> u64 {
        self.revocations.load(Acquire)
    }

    /// Whether there is more than one organisation.
    pub fn has_several_orgs(&self) -> bool {
        self.records.read().orgs.len() > 1
    }
}
