//! The file of objects, and how much of it may be filled: what both those who wait and those who do not write by. Knows no thread.

use headrace_domain::UnixNanos;
use headrace_objects::{ItemRecord, ObjectError, ObjectLimits, ResponseRecord};
use sqlx::sqlite::SqliteConnection;

use super::rows;
use crate::pair::Pair;

/// See the top of the file.
pub(super) struct Kept {
    pub(super) pair: Pair,
    pub(super) limits: ObjectLimits,
}

impl Kept {
    pub(super) fn put(&self, response: &ResponseRecord, items: &[ItemRecord]) -> Result<(), ObjectError> {
        let limits = &self.limits;
        self.fits(response)?;
        let later = self.later(response.created);
        self.pair.write(async |connection| {
            if let Some(id) = response.conversation.as_deref().filter(|_| !items.is_empty()) {
                let whose = (&response.project, id);
                rows::add_items(connection, limits, whose, items, response.created, later).await?;
            }
            rows::put(connection, limits, response, false).await
        })
    }

    /// # Errors
    /// [`ObjectError::Full`] for one that is longer than any may be.
    pub(super) fn fits(&self, response: &ResponseRecord) -> Result<(), ObjectError> {
        rows::fits("max_object_bytes", self.limits.max_object_bytes, response.bytes())
    }

    /// Responses that fit and add to no conversation, each as by [`Self::put`]; what becomes of each.
    pub(super) fn put_each(&self, responses: &[&ResponseRecord]) -> Vec<Result<(), ObjectError>> {
        let limits = &self.limits;
        let put = |response| {
            async move |connection: &mut SqliteConnection| rows::put(connection, limits, response, true).await
        };
        self.pair.write_each(responses.iter().copied().map(put))
    }

    pub(super) fn later(&self, now: UnixNanos) -> UnixNanos {
        UnixNanos::new(now.get().saturating_add(self.limits.retention_seconds.saturating_mul(1_000_000_000)))
    }
}
