//! A few connections that many threads use in turn, and how a store of clients' objects reads and writes through them.
//! Must not know what is stored.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use headrace_objects::ObjectError;
use tokio_postgres::{Client, Error};

use crate::session::{DatabaseSession, SessionFault, locked};
use crate::url::PostgresUrl;

/// Connections of one store.
const MAX_SESSIONS: usize = 6;
/// How long a caller waits for a connection that another one uses.
const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// How long opening a connection may take. Clients wait for it.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How long the statements of one call may take, if they carry few bytes.
const STATEMENT_LIMIT: Duration = Duration::from_secs(2);
/// Bytes that the slowest supported network carries in a second.
const BYTES_PER_SECOND: u64 = 4 << 20;
/// A connection that breaks sooner than this had been broken before.
const BROKEN_BEFORE: Duration = Duration::from_millis(500);
/// The SQLSTATE of a full disk.
const DISK_FULL: &str = "53100";

/// Begins a change. The settings end with the transaction, as a pooler requires. A gateway that stops while it has locks
/// loses its connection after a second.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; \
    SET LOCAL idle_in_transaction_session_timeout = '1s'; SET LOCAL synchronous_commit = 'on'";

/// Why a statement or a check between statements failed.
pub(crate) enum StatementFailure {
    /// The database could not be reached, or refused a statement.
    Database(Error),
    /// A limit would be exceeded, or a row cannot be read.
    Object(ObjectError),
}

impl From<Error> for StatementFailure {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}

impl From<ObjectError> for StatementFailure {
    fn from(error: ObjectError) -> Self {
        Self::Object(error)
    }
}

/// The connections of one store. See the top of the file.
pub(crate) struct SessionPool {
    url: Arc<PostgresUrl>,
    state: Mutex<PoolState>,
    returned: Condvar,
    /// The last fault. `None` after a success.
    failing: Mutex<Option<String>>,
}

#[derive(Default)]
struct PoolState {
    idle: Vec<DatabaseSession>,
    /// Connections that exist, idle ones among them.
    sessions: usize,
}

/// The time limit of statements that carry `bytes` bytes.
pub(crate) fn limit_for(bytes: u64) -> Duration {
    STATEMENT_LIMIT.saturating_add(Duration::from_secs(bytes / BYTES_PER_SECOND))
}

impl SessionPool {
    /// Prepares the connections. None is opened yet.
    pub(crate) fn new(url: Arc<PostgresUrl>) -> Self {
        Self { url, state: Mutex::default(), returned: Condvar::new(), failing: Mutex::default() }
    }

    /// Runs statements that change nothing. They run a second time if the connection had been broken before.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the database does not answer within `limit`, or an error of `query`.
    pub(crate) fn read<T: Send>(
        &self,
        limit: Duration,
        query: impl AsyncFn(&Client) -> Result<T, StatementFailure> + Send + Sync,
    ) -> Result<T, ObjectError> {
        let mut session = self.take()?;
        let (was_open, started) = (session.get().is_open(), Instant::now());
        let mut done = session.get().run(limit, async |client| split(query(client).await));
        if was_open && matches!(done, Err(SessionFault::Lost { .. })) && started.elapsed() < BROKEN_BEFORE {
            done = session.get().run(limit, async |client| split(query(client).await));
        }
        self.note(done)
    }

    /// Runs a change as one transaction. An error of `change` undoes it.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the database does not answer within `limit`: the change may have been made.
    /// [`ObjectError::DiskFull`] if the database's disk is full. Otherwise an error of `change`.
    pub(crate) fn write<T: Send>(
        &self,
        limit: Duration,
        change: impl AsyncFnOnce(&Client) -> Result<T, StatementFailure> + Send,
    ) -> Result<T, ObjectError> {
        self.write_changed(limit, async |_| Ok(()), |()| Ok(()), async |client, ()| change(client).await)
    }

    /// Like [`Self::write`], with `change` on this thread between the statements of `read` and of `write`.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn write_changed<A: Send, B: Send, T: Send>(
        &self,
        limit: Duration,
        read: impl AsyncFnOnce(&Client) -> Result<A, StatementFailure> + Send,
        change: impl FnOnce(A) -> Result<B, ObjectError>,
        write: impl AsyncFnOnce(&Client, B) -> Result<T, StatementFailure> + Send,
    ) -> Result<T, ObjectError> {
        let mut session = self.take()?;
        let session = session.get();
        let (was_open, started) = (session.is_open(), Instant::now());
        let mut begun = session.run(limit, async |client| client.batch_execute(BEGIN).await);
        if was_open && matches!(begun, Err(SessionFault::Lost { .. })) && started.elapsed() < BROKEN_BEFORE {
            begun = session.run(limit, async |client| client.batch_execute(BEGIN).await);
        }
        let found = begun.and_then(|()| session.run_open(limit, async |client| split(read(client).await)));
        let done = match found.map(|found| found.and_then(change)) {
            Ok(Ok(changed)) => session.run_open(limit, async |client| {
                let written = split(write(client, changed).await)?;
                client.batch_execute(if written.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
                Ok(written)
            }),
            Ok(Err(error)) => {
                let ended = session.run_open(limit, async |client| client.batch_execute("ROLLBACK").await);
                ended.map(|()| Err(error))
            }
            Err(fault) => Err(fault),
        };
        if let Err(SessionFault::Refused { .. }) = &done {
            // The transaction failed, and is still open.
            let ended = session.run_open(limit, async |client| client.batch_execute("ROLLBACK").await);
            if ended.is_err() {
                session.close();
            }
        }
        self.note(done)
    }

    /// Returns the last fault, if the database cannot be used now either.
    pub(crate) fn failing(&self) -> Option<String> {
        locked(&self.failing).as_ref()?;
        let _ = self.read(STATEMENT_LIMIT, async |client| Ok(client.batch_execute("SELECT 1").await?));
        locked(&self.failing).clone()
    }

    fn note<T>(&self, done: Result<Result<T, ObjectError>, SessionFault>) -> Result<T, ObjectError> {
        let (done, failing) = match done {
            Ok(done) => (done, None),
            Err(SessionFault::Refused { code, why }) if code == DISK_FULL => {
                (Err(ObjectError::DiskFull { why: why.clone() }), Some(why))
            }
            Err(fault) => {
                let why = fault.why();
                (Err(ObjectError::Unavailable { why: why.clone() }), Some(why))
            }
        };
        *locked(&self.failing) = failing;
        done
    }

    fn take(&self) -> Result<PooledSession<'_>, ObjectError> {
        let until = Instant::now() + WAIT_LIMIT;
        let mut state = locked(&self.state);
        loop {
            let found = state.idle.pop().or_else(|| {
                (state.sessions < MAX_SESSIONS).then(|| {
                    state.sessions += 1;
                    DatabaseSession::within(Arc::clone(&self.url), CONNECT_LIMIT)
                })
            });
            if found.is_some() {
                return Ok(PooledSession { pool: self, session: found });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("{}: all {MAX_SESSIONS} connections are in use", self.url);
                return Err(ObjectError::Unavailable { why });
            }
            let waited = self.returned.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

/// A connection that one caller has. Dropping it returns it.
struct PooledSession<'a> {
    pool: &'a SessionPool,
    /// `None` only while it is dropped.
    session: Option<DatabaseSession>,
}

impl PooledSession<'_> {
    fn get(&mut self) -> &mut DatabaseSession {
        let url = &self.pool.url;
        self.session.get_or_insert_with(|| DatabaseSession::within(Arc::clone(url), CONNECT_LIMIT))
    }
}

impl Drop for PooledSession<'_> {
    fn drop(&mut self) {
        let Some(mut session) = self.session.take() else { return };
        if std::thread::panicking() {
            // Its transaction may be open.
            session.close();
        }
        locked(&self.pool.state).idle.push(session);
        self.pool.returned.notify_one();
    }
}

/// Separates errors of the database, which end a transaction, from the store's own.
fn split<T>(done: Result<T, StatementFailure>) -> Result<Result<T, ObjectError>, Error> {
    match done {
        Ok(value) => Ok(Ok(value)),
        Err(StatementFailure::Object(error)) => Ok(Err(error)),
        Err(StatementFailure::Database(error)) => Err(error),
    }
}
