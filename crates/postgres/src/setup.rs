//! A lock that one program of a database has at a time, while it makes the first keys. Knows nothing of keys.

use std::sync::Arc;
use std::time::Duration;

use headrace_identity::StoreError;

use crate::schema;
use crate::session::DatabaseSession;
use crate::url::PostgresUrl;

/// How long another program may take to make the first keys.
const LIMIT: Duration = Duration::from_secs(30);
/// The name of the lock.
const LOCK: i64 = 0x4852_7375;

/// A lock on the first setup of a database. Dropping it ends its connection, and with it the lock.
pub struct SetupLock {
    _session: DatabaseSession,
}

impl std::fmt::Debug for SetupLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetupLock").finish_non_exhaustive()
    }
}

impl SetupLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached, or another program keeps the lock.
    pub fn acquire(url: Arc<PostgresUrl>) -> Result<Self, StoreError> {
        let unavailable = |why: String| StoreError::Unavailable { doing: "waiting for the first setup", why };
        let mut session = DatabaseSession::new(url).map_err(|fault| unavailable(fault.why()))?;
        schema::ensure(&mut session).map_err(|error| unavailable(error.to_string()))?;
        let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})");
        let taken = session.run(LIMIT, async |client| client.batch_execute(&lock).await);
        taken.map_err(|fault| unavailable(fault.why()))?;
        Ok(Self { _session: session })
    }
}
