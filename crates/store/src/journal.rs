//! The ledger's journal in a SQLite file. Each group commit is a row, which is on the disk when `append` returns.
//! `verify_file` reads the same file beside a running server. Knows the shape of rows, not the meaning of their
//! payloads.

mod history;

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_domain::UnixNanos;
use headrace_ledger::verify::{JournalVerifier, VerifyReport};
use headrace_ledger::{Journal, JournalError, JournalRow, LoadedJournal, StateSnapshot};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Connection, Row};

pub use self::history::SqliteJournalHistory;
use crate::disk::DiskBallast;
use crate::sqlite::{self, CommitDurability, FileFormat, FormatError, block_on};

/// Number of snapshots kept. One is enough to start from, and the others let `verify_file` compare more often.
const SNAPSHOTS_KEPT: i64 = 3;
/// Rows read at a time.
pub(crate) const PAGE_ROWS: i64 = 256;

const FORMAT: FileFormat = FileFormat {
    what: "ledger journal",
    application_id: 0x4852_6c67,
    version: 1,
    newest: 1,
    schema: SCHEMA,
    upgrade: "",
    shrinks: false,
};

/// Format 1. The triggers keep the journal append-only for other programs, too.
const SCHEMA: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO meta VALUES ('recoveries', 0);
CREATE TABLE journal (
    sequence       INTEGER PRIMARY KEY,
    format_version INTEGER NOT NULL,
    time           INTEGER NOT NULL,
    previous       BLOB    NOT NULL,
    checksum       BLOB    NOT NULL,
    payload        BLOB    NOT NULL
) STRICT;
CREATE TRIGGER journal_never_updated BEFORE UPDATE ON journal
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_never_deleted BEFORE DELETE ON journal
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TABLE snapshot (
    sequence       INTEGER PRIMARY KEY,
    format_version INTEGER NOT NULL,
    row_checksum   BLOB    NOT NULL,
    checksum       BLOB    NOT NULL,
    payload        BLOB    NOT NULL
) STRICT;
";

/// A journal in a SQLite file. Only one process at a time may write to it, because a second one's rows collide and are
/// refused.
pub struct SqliteJournal {
    path: PathBuf,
    durability: CommitDurability,
    /// Identity of the opened file, even if its name later points to another file.
    file: Option<FileId>,
    /// `None` after a failure, until `recover` reopens the file.
    connection: Option<SqliteConnection>,
    /// Receives the duration of each append that became durable.
    timed: Option<CommitTimes>,
    /// Releases space if the disk is full.
    ballast: Option<Arc<DiskBallast>>,
}

/// Receives the duration of each commit, on the thread that made it.
pub type CommitTimes = Box<dyn Fn(Duration) + Send>;

impl SqliteJournal {
    /// Opens or creates the file. Every commit is on the disk when `append` returns. May be called on any thread,
    /// inside an asynchronous runtime or not. It blocks.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, is not a ledger's journal, or has a newer format.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        Self::open_with(path, CommitDurability::Full)
    }

    /// Like [`SqliteJournal::open`], with another durability of commits. A ledger needs [`CommitDurability::Full`].
    ///
    /// # Errors
    /// Same as [`SqliteJournal::open`].
    pub fn open_with(path: &Path, durability: CommitDurability) -> Result<Self, JournalError> {
        let mut journal = Self {
            path: path.to_owned(),
            durability,
            file: None,
            connection: None,
            timed: None,
            ballast: None,
        };
        journal.reopen()?;
        journal.file = Some(file_id(path).map_err(|error| gone(path, &error))?);
        Ok(journal)
    }

    /// Returns the journal with a callback that receives the duration of each commit.
    #[must_use]
    pub fn timed(mut self, times: CommitTimes) -> Self {
        self.timed = Some(times);
        self
    }

    /// Returns the journal with a ballast, whose space it uses if the disk is full.
    #[must_use]
    pub fn backed_by(mut self, ballast: Arc<DiskBallast>) -> Self {
        self.ballast = Some(ballast);
        self
    }

    /// Writes all rows or none.
    fn insert_all(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
        self.with(|connection| async move {
            // A single statement is its own transaction, and needs one trip to SQLite's thread instead of three.
            if let [row] = rows {
                return insert(connection, row).await;
            }
            let mut transaction = connection.begin().await?;
            for row in rows {
                insert(&mut transaction, row).await?;
            }
            transaction.commit().await
        })
    }

    /// Checks that the file's name still points to the opened file. Data written to a removed file can never be read
    /// again, and reopening the name would begin an empty journal.
    fn still_there(&self) -> Result<(), JournalError> {
        match (file_id(&self.path), self.file) {
            (Ok(found), Some(opened)) if found != opened => {
                Err(gone(&self.path, &"another file is in its place"))
            }
            (Err(error), Some(_)) => Err(gone(&self.path, &error)),
            _ => Ok(()),
        }
    }

    fn reopen(&mut self) -> Result<(), JournalError> {
        self.close();
        self.still_there()?;
        let (path, durability) = (&self.path, self.durability);
        let opened = block_on(async {
            let mut connection = sqlite::open(path, durability, false).await?;
            sqlite::ensure_format(&mut connection, FORMAT, false).await?;
            Ok(connection)
        });
        self.connection = Some(opened.map_err(|error| format_error(&self.path, error))?);
        Ok(())
    }

    fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Commits stay committed, even if closing fails.
            let _ = block_on(connection.close());
        }
    }

    fn with<'a, T, F>(
        &'a mut self,
        query: impl FnOnce(&'a mut SqliteConnection) -> F,
    ) -> Result<T, JournalError>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        let path = &self.path;
        let connection = self.connection.as_mut().ok_or_else(|| {
            JournalError::Io(format!("{}: it failed and is not open again", path.display()))
        })?;
        block_on(query(connection)).map_err(|error| sql_error(path, &error))
    }
}

impl fmt::Debug for SqliteJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteJournal").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for SqliteJournal {
    fn drop(&mut self) {
        self.close();
    }
}

impl Journal for SqliteJournal {
    fn snapshot_before(&mut self, sequence: u64) -> Result<Option<StateSnapshot>, JournalError> {
        let before = i64::try_from(sequence).unwrap_or(i64::MAX);
        let found = self.with(|connection| async move {
            let newest = "SELECT * FROM snapshot WHERE sequence < ? ORDER BY sequence DESC LIMIT 1";
            sqlx::query(newest).bind(before).fetch_optional(connection).await
        })?;
        found.as_ref().map(snapshot_of).transpose()
    }

    fn rows_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        let (after, limit) = (signed(sequence)?, i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.with(|connection| async move {
            let newer = "SELECT * FROM journal WHERE sequence > ? ORDER BY sequence LIMIT ?";
            sqlx::query(newer).bind(after).bind(limit).fetch_all(connection).await
        })?;
        rows.iter().map(row_of).collect()
    }

    fn append(&mut self, rows: &[JournalRow]) -> Result<(), JournalError> {
        for row in rows {
            // Checked before anything is written.
            signed(row.sequence)?;
            signed(row.time.get())?;
        }
        self.still_there()?;
        let started = Instant::now();
        let mut written = self.insert_all(rows);
        // A full disk undoes the whole write. It is retried in space that the ballast releases.
        while matches!(written, Err(JournalError::Full(_)))
            && self.ballast.as_ref().is_some_and(|ballast| ballast.give())
        {
            written = self.reopen().and_then(|()| self.insert_all(rows));
        }
        written?;
        if let Some(times) = &self.timed {
            times(started.elapsed());
        }
        Ok(())
    }

    fn write_snapshot(&mut self, snapshot: &StateSnapshot) -> Result<(), JournalError> {
        let sequence = signed(snapshot.sequence)?;
        self.with(|connection| async move {
            let mut transaction = connection.begin().await?;
            sqlx::query("INSERT OR REPLACE INTO snapshot VALUES (?, ?, ?, ?, ?)")
                .bind(sequence)
                .bind(i64::from(snapshot.format_version))
                .bind(snapshot.row_checksum.as_slice())
                .bind(snapshot.checksum.as_slice())
                .bind(snapshot.payload.as_slice())
                .execute(&mut *transaction)
                .await?;
            let outdated = "DELETE FROM snapshot WHERE sequence NOT IN \
                            (SELECT sequence FROM snapshot ORDER BY sequence DESC LIMIT ?)";
            sqlx::query(outdated).bind(SNAPSHOTS_KEPT).execute(&mut *transaction).await?;
            transaction.commit().await
        })
    }

    fn check(&mut self) -> Result<(), JournalError> {
        self.still_there()
    }

    /// Reopens the file and commits a dummy write, to check that the disk accepts writes.
    fn recover(&mut self) -> Result<(), JournalError> {
        self.reopen()?;
        let tried = self.with(|connection| async {
            let probe = "UPDATE meta SET value = value + 1 WHERE key = 'recoveries'";
            sqlx::query(probe).execute(connection).await.map(|_| ())
        });
        if tried.is_err() {
            self.close();
        }
        tried
    }
}

/// Device and inode.
type FileId = (u64, u64);

fn file_id(path: &Path) -> std::io::Result<FileId> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn gone(path: &Path, why: &dyn fmt::Display) -> JournalError {
    let path = path.display();
    JournalError::Io(format!(
        "{path} was removed or replaced ({why}): put the file back where it was, or stop the server and restore it"
    ))
}

async fn insert(connection: &mut SqliteConnection, row: &JournalRow) -> Result<(), sqlx::Error> {
    // `append` has checked that both fit. SQLite's integers are signed.
    let (sequence, time) = (row.sequence.cast_signed(), row.time.get().cast_signed());
    sqlx::query("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)")
        .bind(sequence)
        .bind(i64::from(row.format_version))
        .bind(time)
        .bind(row.previous.as_slice())
        .bind(row.checksum.as_slice())
        .bind(row.payload.as_slice())
        .execute(connection)
        .await
        .map(|_| ())
}

/// Verifies a file: every invariant of the ledger, from its first row, and the file itself. Only reads, as of one
/// moment. A server may be running.
///
/// # Errors
/// Fails if the file cannot be read, is not a ledger's journal, or has a newer format. Faults *in* the journal are in
/// the report.
pub fn verify_file(path: &Path) -> Result<VerifyReport, JournalError> {
    let mut connection = open_to_read(path)?;
    let report = block_on(async {
        let mut transaction = connection.begin().await?;
        let kept =
            sqlx::query("SELECT * FROM snapshot ORDER BY sequence").fetch_all(&mut *transaction).await?;
        let mut unreadable = Vec::new();
        let mut snapshots = Vec::new();
        for row in &kept {
            match snapshot_of(row) {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(error) => unreadable.push(error),
            }
        }
        let mut verifier = JournalVerifier::new(&snapshots);
        let mut after = 0i64;
        loop {
            let page = "SELECT * FROM journal WHERE sequence > ? ORDER BY sequence LIMIT ?";
            let rows = sqlx::query(page).bind(after).bind(PAGE_ROWS).fetch_all(&mut *transaction).await?;
            let Some(last) = rows.last() else { break };
            after = last.try_get("sequence")?;
            for row in &rows {
                match row_of(row) {
                    Ok(row) => verifier.row(&row),
                    Err(error) => unreadable.push(error),
                }
            }
        }
        let whole: Vec<String> =
            sqlx::query_scalar("PRAGMA quick_check").fetch_all(&mut *transaction).await?;
        transaction.rollback().await?;
        for error in unreadable {
            verifier.find(after.cast_unsigned(), error.to_string());
        }
        for problem in whole.iter().filter(|line| *line != "ok") {
            verifier.find(after.cast_unsigned(), format!("the file itself: {problem}"));
        }
        Ok(verifier.finish())
    });
    let _ = block_on(connection.close());
    report.map_err(|error: sqlx::Error| sql_error(path, &error))
}

/// Reads a file's rows in order. A writer may have the file open.
pub(crate) struct JournalReader {
    path: PathBuf,
    /// `None` only during drop.
    connection: Option<SqliteConnection>,
}

impl JournalReader {
    /// Opens an existing file.
    pub(crate) fn open(path: &Path) -> Result<Self, JournalError> {
        Ok(Self { path: path.to_owned(), connection: Some(open_to_read(path)?) })
    }

    /// Returns at most `limit` rows after row `sequence`.
    pub(crate) fn after(&mut self, sequence: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError> {
        let Some(connection) = &mut self.connection else { return Ok(Vec::new()) };
        let page = "SELECT * FROM journal WHERE sequence > ? ORDER BY sequence LIMIT ?";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let page = sqlx::query(page).bind(signed(sequence)?).bind(limit);
        let rows = block_on(page.fetch_all(connection)).map_err(|error| sql_error(&self.path, &error))?;
        rows.iter().map(row_of).collect()
    }
}

impl Drop for JournalReader {
    /// Closes before returning, because an open reader would keep the writer from folding in the write-ahead log.
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // The connection wrote nothing, so a failed close loses nothing.
            let _ = block_on(connection.close());
        }
    }
}

/// Reads a whole file. For tests and small ledgers.
///
/// # Errors
/// Same as [`verify_file`]. Also fails if a row cannot be read.
pub fn load_file(path: &Path) -> Result<LoadedJournal, JournalError> {
    let mut connection = open_to_read(path)?;
    let read = block_on(async {
        let mut transaction = connection.begin().await?;
        let snapshots =
            sqlx::query("SELECT * FROM snapshot ORDER BY sequence").fetch_all(&mut *transaction).await?;
        let rows =
            sqlx::query("SELECT * FROM journal ORDER BY sequence").fetch_all(&mut *transaction).await?;
        transaction.rollback().await?;
        Ok((snapshots, rows))
    });
    let _ = block_on(connection.close());
    let (snapshots, rows) = read.map_err(|error: sqlx::Error| sql_error(path, &error))?;
    Ok(LoadedJournal {
        snapshots: snapshots.iter().map(snapshot_of).collect::<Result<_, _>>()?,
        rows: rows.iter().map(row_of).collect::<Result<_, _>>()?,
    })
}

fn open_to_read(path: &Path) -> Result<SqliteConnection, JournalError> {
    let opened = block_on(async {
        let mut connection = sqlite::open(path, CommitDurability::Full, true).await?;
        sqlite::ensure_format(&mut connection, FORMAT, true).await?;
        Ok(connection)
    });
    opened.map_err(|error| format_error(path, error))
}

fn row_of(row: &SqliteRow) -> Result<JournalRow, JournalError> {
    let read = || -> Result<JournalRow, sqlx::Error> {
        Ok(JournalRow {
            sequence: unsigned(row.try_get("sequence")?)?,
            format_version: unsigned(row.try_get("format_version")?)?,
            time: UnixNanos::new(unsigned(row.try_get("time")?)?),
            payload: row.try_get("payload")?,
            previous: hash(row.try_get("previous")?)?,
            checksum: hash(row.try_get("checksum")?)?,
        })
    };
    read().map_err(|error| corrupt(row, &error))
}

fn snapshot_of(row: &SqliteRow) -> Result<StateSnapshot, JournalError> {
    let read = || -> Result<StateSnapshot, sqlx::Error> {
        Ok(StateSnapshot {
            sequence: unsigned(row.try_get("sequence")?)?,
            format_version: unsigned(row.try_get("format_version")?)?,
            row_checksum: hash(row.try_get("row_checksum")?)?,
            payload: row.try_get("payload")?,
            checksum: hash(row.try_get("checksum")?)?,
        })
    };
    read().map_err(|error| corrupt(row, &error))
}

fn corrupt(row: &SqliteRow, error: &sqlx::Error) -> JournalError {
    let sequence = row.try_get("sequence").ok().and_then(|n: i64| u64::try_from(n).ok()).unwrap_or(0);
    JournalError::Corrupt { sequence, why: error.to_string() }
}

fn unsigned<T: TryFrom<i64>>(value: i64) -> Result<T, sqlx::Error> {
    T::try_from(value).map_err(|_| sqlx::Error::Decode(format!("{value} is out of range").into()))
}

fn hash(bytes: &[u8]) -> Result<[u8; 32], sqlx::Error> {
    bytes.try_into().map_err(|_| sqlx::Error::Decode("a checksum is not 32 bytes long".into()))
}

fn signed(value: u64) -> Result<i64, JournalError> {
    i64::try_from(value).map_err(|_| JournalError::Io(format!("{value} does not fit SQLite's integers")))
}

fn sql_error(path: &Path, error: &sqlx::Error) -> JournalError {
    let why = format!("{}: {error}", path.display());
    if sqlite::is_full(error) { JournalError::Full(why) } else { JournalError::Io(why) }
}

fn format_error(path: &Path, error: FormatError) -> JournalError {
    match error {
        FormatError::Sqlite(error) => sql_error(path, &error),
        FormatError::Newer { what, found, known } => {
            let number = |n: i32| u32::try_from(n).unwrap_or(u32::MAX);
            JournalError::NewerFormat { what, found: number(found), known: number(known) }
        }
        FormatError::DiskFull { why } => JournalError::Full(format!("{}: {why}", path.display())),
        FormatError::Foreign { .. } | FormatError::Empty { .. } | FormatError::ReaderOpen => {
            JournalError::Io(format!("{}: {error}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(sequence: u64) -> JournalRow {
        let (previous, checksum) = ([0; 32], [1; 32]);
        let time = UnixNanos::new(1);
        JournalRow { sequence, format_version: 1, time, previous, checksum, payload: vec![7; 20_000] }
    }

    /// Keeps the open connection from writing another page, like a full disk. A reopened connection may write.
    fn fill(journal: &mut SqliteJournal) {
        let full = "PRAGMA max_page_count = 1";
        journal
            .with(|connection| async move { sqlx::raw_sql(full).execute(connection).await.map(drop) })
            .unwrap();
    }

    #[test]
    fn a_row_that_a_full_disk_refused_is_written_into_the_space_of_the_ballast() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = SqliteJournal::open(&dir.path().join("ledger.sqlite")).unwrap();
        journal.append(&[row(1)]).unwrap();
        fill(&mut journal);
        assert!(matches!(journal.append(&[row(2)]), Err(JournalError::Full(_))), "without a ballast");
        let ballast = Arc::new(DiskBallast::open(dir.path()));
        let before = std::fs::metadata(dir.path().join("ballast")).unwrap().len();
        let mut journal = journal.backed_by(ballast);
        journal.append(&[row(2), row(3)]).unwrap();
        assert!(std::fs::metadata(dir.path().join("ballast")).unwrap().len() < before);
        assert_eq!(journal.rows_after(0, 10).unwrap().len(), 3, "each row is there once");
    }
}
