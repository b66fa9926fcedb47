//! Directory queries after authentication: when a key stops being valid, and whether there is more than one
//! organisation.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use headrace_domain::{KeyId, UnixNanos};

use super::Directory;

/// When a key stops being valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEnd {
    /// Only when it is revoked.
    Open,
    /// At this time, or earlier if it is revoked.
    At(UnixNanos),
    /// The key was already revoked.
    Revoked,
}

impl Directory {
    /// When a key stops being valid. `None` if no key has this id, as for a caller inside this process.
    pub fn key_end(&self, id: &KeyId) -> Option<KeyEnd> {
        let records = self.records.read();
        let record = &records.keys.get(id)?.record;
        Some(match (record.revoked, record.expires) {
            (Some(_), _) => KeyEnd::Revoked,
            (None, Some(end)) => KeyEnd::At(end),
            (None, None) => KeyEnd::Open,
        })
    }

    /// Number of revocations in force that are not yet written to their keys.
    pub fn revocations_waiting(&self) -> usize {
        self.waiting_count.load(Relaxed)
    }

    /// Number of revocations in this process so far. While it does not change, the results of [`Directory::key_end`]
    /// for existing keys do not change either.
    pub fn revocations(&self) -> u64 {
        self.revocations.load(Acquire)
    }

    /// Returns `true` if there is more than one organisation.
    pub fn has_several_orgs(&self) -> bool {
        self.records.read().orgs.len() > 1
    }
}
