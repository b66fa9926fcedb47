//! Copies the outbox of webhooks from one store to another. Must not know what an event says.

use std::sync::Arc;

use headrace_ledger::OutboxError;
use headrace_postgres::{OutboxContents, PostgresOutbox};

use crate::outbox::SqliteOutbox;
use crate::storage::{Storage, StoreName};

impl Storage {
    /// Copies the outbox of webhooks to `to`, in place of the one there: its position in the journal, events, deliveries,
    /// and the endpoints that want no more events. Returns the number of events. The source may be in use. An interrupted
    /// copy can be repeated.
    ///
    /// The journal must be copied later than an outbox in use, or at least to the position of the outbox. Otherwise a
    /// server on the copy never reads the rows between the end of its journal and the position.
    ///
    /// # Errors
    /// Returns an error if a store cannot be read or written.
    pub fn transfer_outbox_to(&self, to: &Self) -> Result<u64, OutboxError> {
        let (from_file, to_file) = (self.path(StoreName::Outbox), to.path(StoreName::Outbox));
        let contents = match self.url().database() {
            Some(database) => PostgresOutbox::new(Arc::clone(database)).contents()?,
            None if from_file.exists() => SqliteOutbox::new(&from_file).contents()?,
            // A server without webhooks has no such file.
            None => OutboxContents::default(),
        };
        match to.url().database() {
            Some(database) => PostgresOutbox::new(Arc::clone(database)).restore(&contents)?,
            None if to_file.exists() || contents != OutboxContents::default() => {
                SqliteOutbox::new(&to_file).restore(&contents)?;
            }
            None => {}
        }
        Ok(contents.events.len() as u64)
    }
}
