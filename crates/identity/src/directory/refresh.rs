//! What a directory does when several processes share its store: it loads the records that another one changed, and keeps
//! others from finishing the same act. Must not know which process, or when to look.

use std::sync::atomic::Ordering::{Acquire, Release};

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

    /// Loads the records that other processes changed in the store. Returns whether there were any. Call it regularly if
    /// several processes share the store. Blocks.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails, or a changed record is corrupt. The next call reads them again.
    pub fn refresh(&self) -> Result<bool, IdentityError> {
        let Some(changes) = self.store.changes()? else { return Ok(false) };
        if changes == self.changes_seen.load(Acquire) {
            return Ok(false);
        }
        // Changes of this process wait, so that an older record does not replace a newer one.
        let waiting = self.waiting.lock();
        let seen = self.changes_seen.load(Acquire);
        // A store with fewer changes than before was restored from a backup.
        let changed = self.store.changed_since(if changes < seen { 0 } else { seen })?;
        let mut stored = changed.records;
        stored.noted.clone_from(&waiting);
        let mut records = self.records.write();
        let (entries, gone) = records.replace(stored)?;
        self.entries.put(entries);
        self.entries.remove(&gone);
        drop(records);
        // Calls in flight check their keys again.
        self.revocations.fetch_add(1, Release);
        self.changes_seen.store(changed.changes, Release);
        Ok(true)
    }

    /// Returns the number of changes of the store that are loaded. 0 if only this process changes the store.
    pub fn changes_loaded(&self) -> u64 {
        self.changes_seen.load(Acquire)
    }
}
