//! Opens and writes SQLite files, for every store in this crate: WAL, the chosen durability, a busy timeout, a check of
//! the format version before anything is read, and recovery after a failure. Knows no table.

use std::fmt;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

mod rewriting;

/// What a commit guarantees if the power fails right after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitDurability {
    /// The commit is on the disk (`synchronous=FULL`: one fsync of the write-ahead log per commit).
    Full,
    /// The file is intact, but the last commits may be lost (`synchronous=NORMAL`).
    Normal,
    /// Nothing (`synchronous=OFF`). For tests that prove that a lost write is noticed.
    Off,
}

/// How long a statement waits for another process's lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Page size of a new file with [`CommitDurability::Normal`], in bytes. Such files get many rows of some kilobytes at a time.
/// Compared with SQLite's default of 4 KiB, a quarter of the pages go to the log and from there to the file. An
/// existing file keeps its page size.
const BULK_PAGE_BYTES: u32 = 16 << 10;
/// Length of such a file's log before it is folded into the file, in bytes. Folding runs in one go and occupies a core.
/// With SQLite's default of 4 MB it took 15 ms, and calls on the same core had to wait.
const BULK_LOG_BYTES: u32 = 1 << 20;
/// A longer write-ahead log is truncated to this length after it is folded into its file, in bytes. SQLite folds it
/// every thousand pages, so it is longer only after a large transaction, or while a reader prevents folding.
const LOG_KEPT_BYTES: u32 = 8 << 20;
/// Length at which a write-ahead log is folded in by force if readers prevent folding, in bytes. The writer then waits
/// until each reader has finished, and no reader starts meanwhile.
const MOST_LOG_BYTES: u64 = 32 << 20;

/// Opens a file, and creates it unless `read_only`. Uses write-ahead logging, so that readers never block the writer.
pub(crate) async fn open(
    path: &Path,
    durability: CommitDurability,
    read_only: bool,
) -> Result<SqliteConnection, sqlx::Error> {
    open_as(path, durability, read_only, false).await
}

/// Like [`open`]. If `shrinks`, a new file can return pages to the disk with [`SqliteFile::shrink`].
async fn open_as(
    path: &Path,
    durability: CommitDurability,
    read_only: bool,
    shrinks: bool,
) -> Result<SqliteConnection, sqlx::Error> {
    let options =
        SqliteConnectOptions::new().filename(path).busy_timeout(BUSY_TIMEOUT).disable_statement_logging();
    if !read_only {
        create_private(path)?;
    }
    let options = if read_only {
        options.read_only(true)
    } else {
        options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal).synchronous(match durability {
            CommitDurability::Full => SqliteSynchronous::Full,
            CommitDurability::Normal => SqliteSynchronous::Normal,
            CommitDurability::Off => SqliteSynchronous::Off,
        })
    };
    let is_bulk = durability == CommitDurability::Normal && !read_only;
    let options = if is_bulk { options.page_size(BULK_PAGE_BYTES) } else { options };
    // Applies only to new files. An existing file keeps its setting.
    let options = if shrinks { options.auto_vacuum(SqliteAutoVacuum::Incremental) } else { options };
    let mut connection = options.connect().await?;
    if !read_only {
        // The number is a constant of this program.
        let cut = AssertSqlSafe(format!("PRAGMA journal_size_limit = {LOG_KEPT_BYTES}"));
        sqlx::raw_sql(cut).execute(&mut connection).await?;
    }
    if is_bulk {
        let (page_bytes,): (u32,) = sqlx::query_as("PRAGMA page_size").fetch_one(&mut connection).await?;
        let pages = BULK_LOG_BYTES / page_bytes.max(1);
        // The number comes from this program.
        let fold = AssertSqlSafe(format!("PRAGMA wal_autocheckpoint = {pages}"));
        sqlx::raw_sql(fold).execute(&mut connection).await?;
    }
    Ok(connection)
}

/// Creates the file if there is none, readable only by its owner. If an existing file is readable by others, its mode
/// is restricted, and so are the modes of SQLite's companion files. An existing file is not opened, because closing it
/// would release the locks that other connections of this process hold on it.
pub(crate) fn create_private(path: &Path) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    #[cfg(unix)]
    for suffix in ["", "-wal", "-shm"] {
        use std::os::unix::fs::PermissionsExt;
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        match std::fs::metadata(&file) {
            Ok(found) if found.permissions().mode() & 0o077 != 0 => {
                std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Starts a change that shares its transaction. A rollback returns to this point.
pub(crate) const SAVE: &str = "SAVEPOINT change";
/// Ends a change that shares its transaction.
pub(crate) const RELEASE: &str = "RELEASE change";

/// A file and the one connection that writes it.
///
/// A full disk can end a transaction in SQLite while the driver still counts it as open, and the driver then refuses
/// every further one. Therefore a connection that did not end its transaction cleanly is closed, and the next call
/// reopens the file. A failure affects only the call that met it.
#[derive(Debug)]
pub(crate) struct SqliteFile {
    path: PathBuf,
    durability: CommitDurability,
    format: FileFormat,
    /// `None` after a failure, until the next call.
    connection: Option<SqliteConnection>,
    /// Maximum size of the file in bytes. `None` for SQLite's own limit.
    most_bytes: Option<u64>,
    /// Length of the write-ahead log at which it is folded in by force.
    fold_at: u64,
}

impl SqliteFile {
    /// Opens the file, and creates it for its owner only if it is missing.
    pub(crate) fn open(
        path: &Path,
        durability: CommitDurability,
        format: FileFormat,
    ) -> Result<Self, FormatError> {
        let mut database = Self::closed(path, durability, format, None);
        block_on(database.connected())?;
        Ok(database)
    }

    /// Describes a file that the first call opens, like each call after a failure. The file gets at most `most_bytes`.
    pub(crate) fn closed(
        path: &Path,
        durability: CommitDurability,
        format: FileFormat,
        most_bytes: Option<u64>,
    ) -> Self {
        let path = path.to_owned();
        Self { path, durability, format, connection: None, most_bytes, fold_at: MOST_LOG_BYTES }
    }

    /// Opens the file now.
    pub(crate) fn connect(&mut self) -> Result<(), FormatError> {
        block_on(self.connected()).map(drop)
    }

    async fn connected(&mut self) -> Result<&mut SqliteConnection, FormatError> {
        let open = match self.connection.take() {
            Some(open) => open,
            None => {
                let mut fresh = open_as(&self.path, self.durability, false, self.format.shrinks).await?;
                ensure_format(&mut fresh, self.format, false).await?;
                if let Some(most) = self.most_bytes {
                    let (page,): (u32,) = sqlx::query_as("PRAGMA page_size").fetch_one(&mut fresh).await?;
                    let pages = (most / u64::from(page.max(1))).clamp(1, u64::from(u32::MAX - 1));
                    // The number comes from this program.
                    let bound = AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
                    sqlx::raw_sql(bound).execute(&mut fresh).await?;
                }
                fresh
            }
        };
        Ok(self.connection.insert(open))
    }

    /// Runs `change` in a transaction and commits it, so that all of it is kept, or none.
    pub(crate) fn write<T, E, F>(&mut self, change: F) -> Result<T, E>
    where
        E: From<sqlx::Error> + From<FormatError>,
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, E>,
    {
        let (done, clean) = block_on(async {
            let connection = match self.connected().await {
                Ok(connection) => connection,
                Err(error) => return (Err(error.into()), false),
            };
            // Starts as a write transaction, because a read that becomes a write can fail midway.
            let mut transaction = match connection.begin_with("BEGIN IMMEDIATE").await {
                Ok(transaction) => transaction,
                Err(error) => return (Err(error.into()), false),
            };
            match change(&mut transaction).await {
                Ok(value) => {
                    let committed = transaction.commit().await;
                    let clean = committed.is_ok();
                    (committed.map(|()| value).map_err(E::from), clean)
                }
                Err(error) => (Err(error), transaction.rollback().await.is_ok()),
            }
        });
        if clean {
            self.bound_log();
        } else {
            self.close();
        }
        done
    }

    /// Begins a transaction that several changes share through [`Self::share`], until [`Self::commit`] or
    /// [`Self::abandon`].
    pub(crate) fn begin(&mut self) -> Result<(), FormatError> {
        let begun = block_on(async {
            let connection = self.connected().await?;
            // Starts as a write transaction, because a read that becomes a write can fail midway.
            sqlx::query("BEGIN IMMEDIATE").execute(connection).await?;
            Ok(())
        });
        if begun.is_err() {
            self.close();
        }
        begun
    }

    /// Runs `change` in the open transaction, and undoes it alone if it fails. Also returns whether the transaction is
    /// still intact. A change that saves itself runs [`SAVE`] first and [`RELEASE`] last, which saves two trips to
    /// SQLite's thread.
    pub(crate) fn share<T, E, F>(&mut self, saves_itself: bool, change: F) -> (Result<T, E>, bool)
    where
        E: From<sqlx::Error> + From<FormatError>,
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, E>,
    {
        let Some(connection) = self.connection.as_mut() else {
            return (Err(sqlx::Error::PoolClosed.into()), false);
        };
        block_on(async {
            if !saves_itself && let Err(error) = sqlx::query(SAVE).execute(&mut *connection).await {
                return (Err(error.into()), false);
            }
            match change(connection).await {
                Ok(value) if saves_itself => (Ok(value), true),
                Ok(value) => match sqlx::query(RELEASE).execute(&mut *connection).await {
                    Ok(_) => (Ok(value), true),
                    Err(error) => (Err(error.into()), false),
                },
                Err(error) => {
                    // A full disk may have undone more than the change, and then the savepoint no longer exists.
                    let undone = sqlx::query("ROLLBACK TO change").execute(&mut *connection).await.is_ok();
                    let released = undone && sqlx::query(RELEASE).execute(connection).await.is_ok();
                    (Err(error), released)
                }
            }
        })
    }

    /// Commits the shared changes, so that all of them are kept, or none.
    pub(crate) fn commit(&mut self) -> Result<(), sqlx::Error> {
        let committed = match self.connection.as_mut() {
            Some(connection) => block_on(sqlx::query("COMMIT").execute(connection)).map(drop),
            None => Err(sqlx::Error::PoolClosed),
        };
        if committed.is_err() {
            self.close();
        } else {
            self.bound_log();
        }
        committed
    }

    /// Folds the write-ahead log in by force if readers have prevented that for too long.
    fn bound_log(&mut self) {
        let length = log_bytes(&self.path);
        if length < self.fold_at {
            return;
        }
        let Some(connection) = self.connection.as_mut() else { return };
        // If a reader does not finish within the busy timeout, the log stays. The next attempt follows when the log has
        // doubled.
        let folded = block_on(sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection)).is_ok();
        let length = log_bytes(&self.path);
        self.fold_at = if folded && length < MOST_LOG_BYTES { MOST_LOG_BYTES } else { length * 2 };
    }

    /// Returns at most `most` free pages to the disk. The result says whether there may be more. Only files of a format
    /// that shrinks have pages to return.
    pub(crate) fn shrink(&mut self, most: u32) -> Result<bool, FormatError> {
        let left = self.write(async |connection| {
            let free = "PRAGMA freelist_count";
            let (before,): (i64,) = sqlx::query_as(free).fetch_one(&mut *connection).await?;
            if before == 0 {
                return Ok::<_, FormatError>(false);
            }
            // The number comes from this program.
            let give = AssertSqlSafe(format!("PRAGMA incremental_vacuum({most})"));
            sqlx::raw_sql(give).execute(&mut *connection).await?;
            let (after,): (i64,) = sqlx::query_as(free).fetch_one(&mut *connection).await?;
            Ok(after > 0 && after < before)
        })?;
        if !left && let Some(connection) = self.connection.as_mut() {
            // The file itself gets shorter when the log is folded in.
            block_on(sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(connection))?;
        }
        Ok(left)
    }

    /// Undoes the shared changes.
    pub(crate) fn abandon(&mut self) {
        // Closing undoes uncommitted changes in any state of the connection.
        self.close();
    }

    /// Runs `query` on the file as of one moment.
    pub(crate) fn read<T, E, F>(&mut self, query: F) -> Result<T, E>
    where
        E: From<sqlx::Error> + From<FormatError>,
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, E>,
    {
        let (found, clean) = block_on(async {
            let connection = match self.connected().await {
                Ok(connection) => connection,
                Err(error) => return (Err(error.into()), false),
            };
            let mut moment = match connection.begin().await {
                Ok(moment) => moment,
                Err(error) => return (Err(error.into()), false),
            };
            let found = query(&mut moment).await;
            (found, moment.rollback().await.is_ok())
        });
        if !clean {
            self.close();
        }
        found
    }

    /// Makes a dummy write, to check whether the disk accepts it.
    pub(crate) fn probe(&mut self) -> Result<(), FormatError> {
        self.write(async move |connection| {
            // Writes the version that the file already has.
            let (found,): (i32,) = sqlx::query_as("PRAGMA user_version").fetch_one(&mut *connection).await?;
            Ok(stamp(connection, found).await?)
        })
    }

    fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Even if closing fails, commits stay committed, and the next opening reads the rest.
            let _ = block_on(connection.close());
        }
    }
}

impl Drop for SqliteFile {
    /// Closes before returning, so that the next opener finds the write-ahead log folded in.
    fn drop(&mut self) {
        self.close();
    }
}

/// The format of a file. `application_id` says which kind of file it is, and `user_version` which version of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileFormat {
    /// The file's content, for messages, such as `ledger journal`.
    pub(crate) what: &'static str,
    /// Four bytes of SQLite's header.
    pub(crate) application_id: i32,
    /// The version that this program writes, unless the content needs a newer one.
    pub(crate) version: i32,
    /// The newest version that this program knows.
    pub(crate) newest: i32,
    /// The statements that create this version in an empty file.
    pub(crate) schema: &'static str,
    /// The statements that upgrade a file of version 1 to this version. Empty if there are none.
    pub(crate) upgrade: &'static str,
    /// Whether a file returns free pages to the disk.
    pub(crate) shrinks: bool,
}

/// The length of a file's write-ahead log.
fn log_bytes(path: &Path) -> u64 {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    std::fs::metadata(log).map_or(0, |found| found.len())
}

/// Why a file was refused.
#[derive(Debug)]
pub(crate) enum FormatError {
    /// SQLite could not read or write the file.
    Sqlite(sqlx::Error),
    /// The file belongs to another program or another store.
    Foreign {
        /// The expected content.
        what: &'static str,
        /// The application id found.
        found: i32,
    },
    /// A newer Headrace wrote the file.
    Newer {
        /// The file's content.
        what: &'static str,
        /// The file's version.
        found: i32,
        /// The newest version that this program reads.
        known: i32,
    },
    /// The file was opened for reading and is still empty.
    Empty {
        /// The expected content.
        what: &'static str,
    },
    /// The disk has no room for a copy of the file.
    DiskFull {
        /// What was to be written, and what is free.
        why: String,
    },
    /// A reader stays open, so that deleted bytes are still in the write-ahead log.
    ReaderOpen,
}

/// SQLite's primary result code for a full disk.
const SQLITE_FULL: &str = "13";

/// Whether an error means that the disk is full.
pub(crate) fn is_full(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => error.kind() == ErrorKind::StorageFull,
        other => other.as_database_error().and_then(|error| error.code()).as_deref() == Some(SQLITE_FULL),
    }
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
            Self::DiskFull { why } => f.write_str(why),
            Self::ReaderOpen => f.write_str(
                "a reader of the file stays open, so that deleted bytes are still in its log: try again when it has ended",
            ),
        }
    }
}

impl std::error::Error for FormatError {}

impl From<sqlx::Error> for FormatError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Checks that the file has this format. Creates the format if the file is empty and writable.
pub(crate) async fn ensure_format(
    connection: &mut SqliteConnection,
    format: FileFormat,
    read_only: bool,
) -> Result<(), FormatError> {
    let FileFormat { what, application_id, version, newest, schema, upgrade, shrinks: _ } = format;
    // One transaction, so that two processes that start together do not both create the tables.
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
        // PRAGMA takes no bound parameters. Both values are integers of this program.
        let stamp = format!("PRAGMA application_id = {application_id}; PRAGMA user_version = {version};");
        sqlx::raw_sql(AssertSqlSafe(stamp)).execute(&mut *transaction).await?;
        transaction.commit().await?;
        return Ok(());
    }
    if found_id != application_id {
        return Err(FormatError::Foreign { what, found: found_id });
    }
    if found > newest {
        return Err(FormatError::Newer { what, found, known: newest });
    }
    if !read_only && !upgrade.is_empty() && found < version {
        sqlx::raw_sql(upgrade).execute(&mut *transaction).await?;
        stamp(&mut transaction, version).await?;
        transaction.commit().await?;
        return Ok(());
    }
    transaction.rollback().await?;
    Ok(())
}

/// Sets the version of the file's format.
pub(crate) async fn stamp(connection: &mut SqliteConnection, version: i32) -> Result<(), sqlx::Error> {
    // PRAGMA takes no bound parameters. The value is a number.
    let stamp = format!("PRAGMA user_version = {version}");
    sqlx::raw_sql(AssertSqlSafe(stamp)).execute(connection).await?;
    Ok(())
}

/// Waits for a future on this thread. SQLite's driver has its own thread per connection and needs no runtime. Without a
/// runtime the stores can be called from anywhere, even from inside an async runtime.
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
