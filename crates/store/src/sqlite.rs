//! How a SQLite file is opened, once for every store in this crate: WAL, the durability asked for, a busy timeout,
//! and a format version that is checked before anything else is read. Knows no table of any store but `meta`.

use std::fmt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

/// What a commit promises when the power fails right after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It is on the disk (`synchronous=FULL`: one fsync of the write-ahead log per commit).
    Full,
    /// The file is whole, but the last commits may be gone (`synchronous=NORMAL`).
    Normal,
    /// Nothing at all (`synchronous=OFF`). For tests that prove that a lost write is noticed.
    Off,
}

/// How long a statement waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens a file, creating it unless `read_only`. Write-ahead logging, so that readers never block the writer.
pub(crate) async fn open(
    path: &Path,
    durability: Durability,
    read_only: bool,
) -> Result<SqliteConnection, sqlx::Error> {
    let options =
        SqliteConnectOptions::new().filename(path).busy_timeout(BUSY_TIMEOUT).disable_statement_logging();
    let options = if read_only {
        options.read_only(true)
    } else {
        options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal).synchronous(match durability {
            Durability::Full => SqliteSynchronous::Full,
            Durability::Normal => SqliteSynchronous::Normal,
            Durability::Off => SqliteSynchronous::Off,
        })
    };
    options.connect().await
}

/// Which format a file holds: its `application_id` says what it is and its `user_version` which version of that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// What the file holds, for messages: `ledger journal`.
    pub(crate) what: &'static str,
    /// Four bytes of SQLite's header.
    pub(crate) application_id: i32,
    /// The version that this program writes.
    pub(crate) version: i32,
    /// The statements that make an empty file one of this version.
    pub(crate) schema: &'static str,
}

/// Why a file was not taken.
#[derive(Debug)]
pub(crate) enum FormatError {
    /// SQLite could not read or write it.
    Sqlite(sqlx::Error),
    /// It is some other program's or store's file.
    Foreign {
        /// What was expected.
        what: &'static str,
        /// The application id found.
        found: i32,
    },
    /// A newer Headrace wrote it.
    Newer {
        /// What it holds.
        what: &'static str,
        /// Its version.
        found: i32,
        /// The newest that this program reads.
        known: i32,
    },
    /// It was opened to read and holds nothing yet.
    Empty {
        /// What was expected.
        what: &'static str,
    },
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(error) => error.fmt(f),
            Self::Foreign { what, found } => {
                write!(f, "the file is not a Headrace {what} (application id {found:#010x})")
            }
            Self::Newer { what, found, known } => write!(
                f,
                "the {what} has format {found}, and this program knows formats up to {known}: use a newer Headrace"
            ),
            Self::Empty { what } => write!(f, "the file holds no {what} yet"),
        }
    }
}

impl std::error::Error for FormatError {}

impl From<sqlx::Error> for FormatError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Checks that the file is of this format, and makes it so if it is empty and may be written.
pub(crate) async fn ensure_format(
    connection: &mut SqliteConnection,
    format: Format,
    read_only: bool,
) -> Result<(), FormatError> {
    let Format { what, application_id, version, schema } = format;
    // One transaction, so that two processes that start at once do not both create the tables.
    let begin = if read_only { "BEGIN" } else { "BEGIN IMMEDIATE" };
    let mut transaction = connection.begin_with(begin).await?;
    let (found_id,): (i32,) = sqlx::query_as("PRAGMA application_id").fetch_one(&mut *transaction).await?;
    let (found,): (i32,) = sqlx::query_as("PRAGMA user_version").fetch_one(&mut *transaction).await?;
    let (tables,): (i64,) =
        sqlx::query_as("SELECT count(*) FROM sqlite_schema").fetch_one(&mut *transaction).await?;
    if tables == 0 && found_id == 0 {
        if read_only {
            return Err(FormatError::Empty { what });
        }
        sqlx::raw_sql(schema).execute(&mut *transaction).await?;
        // PRAGMA takes no bound parameters; both values are this program's own integers.
        let stamp = format!("PRAGMA application_id = {application_id}; PRAGMA user_version = {version};");
        sqlx::raw_sql(AssertSqlSafe(stamp)).execute(&mut *transaction).await?;
        transaction.commit().await?;
        return Ok(());
    }
    if found_id != application_id {
        return Err(FormatError::Foreign { what, found: found_id });
    }
    if found > version {
        return Err(FormatError::Newer { what, found, known: version });
    }
    transaction.rollback().await?;
    Ok(())
}

/// Waits for a future on this thread. SQLite's driver works on a thread of its own per connection and needs no
/// runtime, and with none the stores can be called from anywhere, from inside an async runtime too.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            // A wake-up before this point is remembered, and a spurious one only polls again.
            Poll::Pending => std::thread::park(),
        }
    }
}
