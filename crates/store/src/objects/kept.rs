//! The database of objects and its limits. Both kinds of callers write through it: those that wait, and those that do
//! not. Knows no threads.

use headrace_objects::{
    ItemRecord, MAX_RESPONSE_GROUP, ObjectError, ObjectLimits, ResponseRecord, ResponseSink,
};
use sqlx::sqlite::SqliteConnection;

use super::rows;
use crate::disk::DiskGuard;
use crate::grouped::MOST_IN_GROUP;
use crate::pair::ReadWritePair;

// The writer passes at most as many responses as one group takes.
const _: () = assert!(MAX_RESPONSE_GROUP <= MOST_IN_GROUP as usize);

/// If the disk has this many bytes free in addition to the reserve, a refused write has another cause.
const LEAST_ROOM: u64 = 1 << 20;

/// The database of objects and its limits. See the top of the file.
pub(super) struct ObjectDatabase {
    pub(super) pair: ReadWritePair,
    pub(super) limits: ObjectLimits,
    pub(super) guard: Option<DiskGuard>,
}

impl ObjectDatabase {
    /// Reports the exceeded limit if the database has reached its maximum size, which SQLite reports as a full disk.
    pub(super) fn name_limit<T>(&self, done: Result<T, ObjectError>) -> Result<T, ObjectError> {
        match done {
            Err(ObjectError::DiskFull { .. }) if self.guard.is_some() && self.check(LEAST_ROOM).is_ok() => {
                let limit = self.limits.max_total_bytes;
                Err(ObjectError::Full { rule: "max_total", limit, observed: limit.saturating_add(1) })
            }
            done => done,
        }
    }

    /// Checks that the disk has room for `more` bytes, which are written to the log and then to the file.
    pub(super) fn check(&self, more: u64) -> Result<(), ObjectError> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard.check(more.saturating_mul(2)))
    }
}

impl ResponseSink for ObjectDatabase {
    fn check_size(&self, response: &ResponseRecord) -> Result<(), ObjectError> {
        rows::fits("max_object_bytes", self.limits.max_object_bytes, response.bytes())
    }

    fn put(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError> {
        let limits = &self.limits;
        self.check_size(response)?;
        self.check(response.bytes())?;
        let later = limits.expiry(response.created);
        let done = self.pair.write(async |connection| {
            if let Some(id) = response.conversation.as_deref().filter(|_| !items.is_empty()) {
                let whose = (&response.project, id);
                rows::add_items(connection, limits, whose, items, response.created, later).await?;
            }
            rows::put(connection, limits, response, false).await
        });
        self.name_limit(done)
    }

    fn put_each(&self, responses: &[&ResponseRecord]) -> Vec<Result<(), ObjectError>> {
        let limits = &self.limits;
        if let Err(full) = self.check(responses.iter().map(|response| response.bytes()).sum()) {
            return responses.iter().map(|_| Err(full.clone())).collect();
        }
        let put = |response| {
            async move |connection: &mut SqliteConnection| rows::put(connection, limits, response, true).await
        };
        let done = self.pair.write_each(responses.iter().copied().map(put));
        done.into_iter().map(|done| self.name_limit(done)).collect()
    }
}
