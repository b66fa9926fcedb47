//! Loads records that another process changed. Must not know which process, or when to look.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::records::{Entries, Records};
use super::{Directory, IdentityError};

impl Directory {
    /// Loads all records again if another process changed the store. Returns whether it did. Call it regularly if
    /// several processes share the store. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails. The records stay as they were.
    pub fn refresh(&self) -> Result<bool, IdentityError> {
        let Some(changes) = self.store.changes()? else { return Ok(false) };
        if changes == self.changes_seen.load(Relaxed) {
            return Ok(false);
        }
        let waiting = self.waiting.lock();
        let mut stored = self.store.load_all()?;
        stored.noted.extend(waiting.iter().cloned());
        let fresh = Records::of(stored)?;
        let entries = Entries::of(&fresh)?;
        let mut records = self.records.write();
        *records = fresh;
        self.entries.replace(&entries);
        drop(records);
        // Calls in flight check their keys again.
        self.revocations.fetch_add(1, Release);
        self.changes_seen.store(changes, Relaxed);
        Ok(true)
    }
}
