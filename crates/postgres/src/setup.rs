//! Locks that one program of a database has at a time: while it makes the first keys, or carries out an act on money.
//! Knows nothing of keys or money.

use std::sync::Arc;
use std::time::Duration;

use headrace_identity::StoreError;

use crate::session::DatabaseSession;
use crate::url::PostgresUrl;

/// How long another program may take to make the first keys.
const LIMIT: Duration = Duration::from_secs(30);
/// The names of the locks.
const SETUP: i64 = 0x4852_7375;
const ACTS: i64 = 0x4852_6163;

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
        locked(url, SETUP, "waiting for the first setup").map(|session| Self { _session: session })
    }
}

/// Waits until no other program carries out an act on money, and returns the session that has the lock.
pub(crate) fn lock_acts(url: Arc<PostgresUrl>) -> Result<DatabaseSession, StoreError> {
    locked(url, ACTS, "waiting for acts on money")
}

fn locked(url: Arc<PostgresUrl>, name: i64, doing: &'static str) -> Result<DatabaseSession, StoreError> {
    let mut session = DatabaseSession::new(url);
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({name})");
    let taken = session.run(LIMIT, async |client| client.batch_execute(&lock).await);
    taken.map_err(|fault| StoreError::Unavailable { doing, why: fault.why() })?;
    Ok(session)
}
