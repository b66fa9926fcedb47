//! One connection to the database, used by one thread that waits for each answer. A statement has a deadline; a
//! connection that missed it is closed, because what it still does is not known.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio_postgres::error::Severity;
use tokio_postgres::{Client, Error, NoTls};

use crate::tls;
use crate::url::{PostgresUrl, TlsMode};

/// How long opening a connection may take, with its handshakes.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

/// How long a connection may take to say goodbye.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// A connection, which is opened when it is needed. Dropping it ends its transaction and closes it.
pub(crate) struct DatabaseSession {
    url: Arc<PostgresUrl>,
    /// How long opening a connection may take.
    connect_limit: Duration,
    open: Option<OpenConnection>,
}

struct OpenConnection {
    client: Client,
    /// Sends and receives while this thread waits on the runtime. Ends when the client is dropped.
    transport: JoinHandle<()>,
    runtime: Runtime,
}

/// The reason why statements failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionFault {
    /// The server answered with an error. The transaction was rolled back.
    Refused {
        /// The SQLSTATE.
        code: String,
        /// What happened and where.
        why: String,
    },
    /// The server did not answer, or the connection broke. What was sent may have been done.
    Lost {
        /// What happened and where.
        why: String,
    },
}

impl SessionFault {
    pub(crate) fn why(self) -> String {
        match self {
            Self::Refused { why, .. } | Self::Lost { why } => why,
        }
    }
}

impl DatabaseSession {
    /// Prepares a connection. It is not opened yet.
    pub(crate) const fn new(url: Arc<PostgresUrl>) -> Self {
        Self { url, connect_limit: CONNECT_LIMIT, open: None }
    }

    /// Prepares a connection that must open within `connect_limit`.
    pub(crate) const fn within(url: Arc<PostgresUrl>, connect_limit: Duration) -> Self {
        Self { url, connect_limit, open: None }
    }

    /// Returns whether a connection is open, as far as this client has noticed.
    pub(crate) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(crate) fn url(&self) -> &PostgresUrl {
        &self.url
    }

    pub(crate) fn shared_url(&self) -> Arc<PostgresUrl> {
        Arc::clone(&self.url)
    }

    /// Cuts the connection. The next statement opens another one.
    pub(crate) fn close(&mut self) {
        if let Some(OpenConnection { client, transport, runtime }) = self.open.take() {
            drop((client, transport));
            // Waits for nothing, so that this works in asynchronous code, too.
            runtime.shutdown_background();
        }
    }

    /// Runs statements within `limit`, on an open connection or a new one.
    pub(crate) fn run<T: Send>(
        &mut self,
        limit: Duration,
        statements: impl AsyncFnOnce(&Client) -> Result<T, Error> + Send,
    ) -> Result<T, SessionFault> {
        self.open()?;
        self.run_open(limit, statements)
    }

    /// Like [`DatabaseSession::run`], but never opens a connection: for statements that continue a transaction.
    pub(crate) fn run_open<T: Send>(
        &mut self,
        limit: Duration,
        statements: impl AsyncFnOnce(&Client) -> Result<T, Error> + Send,
    ) -> Result<T, SessionFault> {
        let Some(OpenConnection { client, runtime, .. }) = &self.open else {
            return Err(SessionFault::Lost { why: format!("{}: the connection is closed", self.url) });
        };
        let mut done = None;
        let result = &mut done;
        // One type for all statements, so that the code that waits for them is compiled once.
        run_statements(
            runtime,
            client,
            limit,
            Box::new(move |client| Box::pin(async move { *result = Some(statements(client).await) })),
        );
        let error = match done {
            Some(Ok(value)) => return Ok(value),
            Some(Err(error)) => error,
            None => {
                self.close();
                let why = format!("{}: no answer within {} ms", self.url, limit.as_millis());
                return Err(SessionFault::Lost { why });
            }
        };
        // A fatal error ends the connection, which this client may not have noticed yet.
        let is_fatal = error.as_db_error().is_some_and(|refused| {
            matches!(refused.parsed_severity(), Some(Severity::Fatal | Severity::Panic) | None)
        });
        let is_closed = client.is_closed() || is_fatal;
        if is_closed {
            self.close();
        }
        Err(fault(&self.url, &error, is_closed))
    }

    fn open(&mut self) -> Result<(), SessionFault> {
        if self.open.as_ref().is_some_and(|open| !open.client.is_closed()) {
            return Ok(());
        }
        self.close();
        let lost = |why: String| SessionFault::Lost { why: format!("{}: {why}", self.url) };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| lost(error.to_string()))?;
        let (url, limit) = (Arc::clone(&self.url), self.connect_limit);
        let connector = match &url.tls {
            TlsMode::Disabled => None,
            TlsMode::Verified { roots } => Some(tls::connector(roots.as_deref()).map_err(lost)?),
        };
        let opened = block_on(&runtime, || async {
            let connecting = async {
                Ok(match connector {
                    None => {
                        let (client, connection) = url.config.connect(NoTls).await?;
                        (client, tokio::spawn(async move { drop(connection.await) }))
                    }
                    Some(connector) => {
                        let (client, connection) = url.config.connect(connector).await?;
                        (client, tokio::spawn(async move { drop(connection.await) }))
                    }
                })
            };
            tokio::time::timeout(limit, connecting).await
        });
        match opened {
            Ok(Ok((client, transport))) => {
                self.open = Some(OpenConnection { client, transport, runtime });
                Ok(())
            }
            Ok(Err(error)) => Err(fault(&self.url, &error, true)),
            Err(_) => Err(lost(format!("no connection within {} s", limit.as_secs()))),
        }
    }
}

impl Drop for DatabaseSession {
    fn drop(&mut self) {
        if let Some(OpenConnection { client, transport, runtime }) = self.open.take() {
            // With this goodbye, the server neither waits nor logs a broken connection.
            drop(client);
            block_on(&runtime, || async { drop(tokio::time::timeout(CLOSE_LIMIT, transport).await) });
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for DatabaseSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseSession").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Locks a session or a value beside it. Poisoning is ignored, because a panic leaves no half-done state behind: a
/// transaction that was not committed is rolled back.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fault(url: &PostgresUrl, error: &Error, is_closed: bool) -> SessionFault {
    match error.as_db_error() {
        Some(refused) if !is_closed => SessionFault::Refused {
            code: refused.code().code().to_owned(),
            why: format!("{url}: {}", refused.message()),
        },
        Some(refused) => SessionFault::Lost { why: format!("{url}: {}", refused.message()) },
        None => {
            let mut why = format!("{url}: {error}");
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                why = format!("{why}: {cause}");
                source = cause.source();
            }
            SessionFault::Lost { why }
        }
    }
}

/// Statements that keep their result themselves.
type AnyStatements<'c> = Box<dyn FnOnce(&'c Client) -> Pin<Box<dyn Future<Output = ()> + 'c>> + Send + 'c>;

/// Runs statements to their end, or until `limit` is over.
fn run_statements<'c>(runtime: &Runtime, client: &'c Client, limit: Duration, statements: AnyStatements<'c>) {
    block_on(runtime, || async { drop(tokio::time::timeout(limit, statements(client)).await) });
}

/// Runs a future to its end on this thread's own runtime. A thread that already runs another runtime lends the work to a
/// thread of its own.
fn block_on<T: Send, F: Future<Output = T>>(runtime: &Runtime, work: impl FnOnce() -> F + Send) -> T {
    if Handle::try_current().is_err() {
        return runtime.block_on(work());
    }
    std::thread::scope(|scope| match scope.spawn(|| runtime.block_on(work())).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
