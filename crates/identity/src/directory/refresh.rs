//! What a directory does when several processes share its store: it loads the records that another one changed, and keeps
//! others from finishing the same act. Must not know which process, or when to look.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::records::{Entries, Records};
use super::{Directory, IdentityError};
use crate::ActLock;

impl Directory {
    /// Waits until no other process carries out an act that it announced, and keeps others from it until the lock is
    /// dropped. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails, or another process keeps the lock too long.
    pub fn lock_acts(&self) -> Result<ActLock, IdentityError> {
        Ok(self.store.lock_acts()?)
    }

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
