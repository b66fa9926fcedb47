//! Removes the bytes of deleted rows from a SQLite file and from its write-ahead log. Knows no table.

use std::time::{Duration, Instant};

use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;

use super::{BUSY_TIMEOUT, FormatError, SqliteFile, block_on};
use crate::disk::DiskGuard;

/// How long readers may keep a write-ahead log from being emptied.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one attempt to empty the log waits for readers. Writers wait meanwhile, for less than [`BUSY_TIMEOUT`].
const ATTEMPT: Duration = Duration::from_millis(250);

impl SqliteFile {
    /// Writes the file anew and empties its log, so that no byte of deleted rows is left in either. Takes space for a
    /// copy of the file, and time in proportion to its size.
    ///
    /// # Errors
    /// [`FormatError::DiskFull`] if the guard's reserve would not stay free, and [`FormatError::ReaderOpen`] if a reader
    /// stays open. Deleted bytes are still in the file or its log then.
    pub(crate) fn rewrite(&mut self, guard: Option<&DiskGuard>) -> Result<(), FormatError> {
        self.rewrite_within(guard, PATIENCE)
    }

    /// Empties the write-ahead log. This is enough for a file whose deleted bytes are overwritten.
    ///
    /// # Errors
    /// [`FormatError::ReaderOpen`] if a reader stays open.
    pub(crate) fn empty_log(&mut self) -> Result<(), FormatError> {
        self.empty_log_within(PATIENCE)
    }

    fn rewrite_within(&mut self, guard: Option<&DiskGuard>, patience: Duration) -> Result<(), FormatError> {
        if let Some(guard) = guard {
            let bytes = std::fs::metadata(&self.path).map_or(0, |found| found.len());
            guard.check(bytes).map_err(|full| FormatError::DiskFull { why: full.to_string() })?;
        }
        self.empty_log_within(patience)?;
        let rewritten: Result<(), FormatError> = block_on(async {
            sqlx::query("VACUUM").execute(self.connected().await?).await?;
            Ok(())
        });
        if rewritten.is_err() {
            self.close();
        }
        rewritten?;
        self.empty_log_within(patience)
    }

    fn empty_log_within(&mut self, patience: Duration) -> Result<(), FormatError> {
        let emptied = block_on(async { empty(self.connected().await?, patience).await });
        if emptied.is_err() {
            self.close();
        }
        emptied
    }
}

async fn empty(connection: &mut SqliteConnection, patience: Duration) -> Result<(), FormatError> {
    set_busy_timeout(connection, ATTEMPT).await?;
    let began = Instant::now();
    let is_empty = loop {
        // A checkpoint that a reader prevents is no error of the statement: it is in the first column.
        let checkpoint = sqlx::query_as("PRAGMA wal_checkpoint(TRUNCATE)");
        let (is_busy, _, _): (i64, i64, i64) = checkpoint.fetch_one(&mut *connection).await?;
        if is_busy == 0 || began.elapsed() >= patience {
            break is_busy == 0;
        }
        // Writers that waited for the checkpoint continue.
        std::thread::sleep(ATTEMPT);
    };
    set_busy_timeout(connection, BUSY_TIMEOUT).await?;
    if is_empty { Ok(()) } else { Err(FormatError::ReaderOpen) }
}

async fn set_busy_timeout(connection: &mut SqliteConnection, timeout: Duration) -> Result<(), sqlx::Error> {
    // PRAGMA takes no bound parameters. The value is a number of this program.
    let set = AssertSqlSafe(format!("PRAGMA busy_timeout = {}", timeout.as_millis()));
    sqlx::raw_sql(set).execute(connection).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use sqlx::Connection;

    use super::*;
    use crate::disk::DiskSpace;
    use crate::sqlite::{CommitDurability, FileFormat, open};

    const FORMAT: FileFormat = FileFormat {
        what: "test",
        application_id: 7,
        version: 1,
        newest: 1,
        schema: "CREATE TABLE row (text TEXT NOT NULL) STRICT;",
        upgrade: "",
        shrinks: false,
    };
    const NAME: &str = "canary-2b7e@example.com";

    /// Whether a file of the directory has the name.
    fn is_left(dir: &Path) -> bool {
        std::fs::read_dir(dir).unwrap().any(|entry| {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            bytes.windows(NAME.len()).any(|window| window == NAME.as_bytes())
        })
    }

    fn execute(file: &mut SqliteFile, statement: &'static str) {
        let done = file.write(async |connection| {
            sqlx::query(statement).bind(NAME).execute(connection).await?;
            Ok::<_, FormatError>(())
        });
        done.unwrap();
    }

    #[test]
    fn an_open_reader_makes_a_rewrite_fail_while_deleted_bytes_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.sqlite");
        let mut file = SqliteFile::open(&path, CommitDurability::Full, FORMAT).unwrap();
        execute(&mut file, "INSERT INTO row VALUES (?)");
        let mut reader = block_on(async {
            let mut reader = open(&path, CommitDurability::Full, true).await.unwrap();
            sqlx::query("BEGIN").execute(&mut reader).await.unwrap();
            let (rows,): (i64,) =
                sqlx::query_as("SELECT count(*) FROM row").fetch_one(&mut reader).await.unwrap();
            assert_eq!(rows, 1);
            reader
        });
        execute(&mut file, "DELETE FROM row WHERE text = ?");
        let failed = file.rewrite_within(None, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(failed, FormatError::ReaderOpen), "{failed}");
        assert!(is_left(dir.path()));
        assert!(matches!(file.empty_log_within(Duration::ZERO), Err(FormatError::ReaderOpen)));

        // The reader ends while the rewrite waits for it.
        let ends = std::thread::spawn(move || {
            std::thread::sleep(ATTEMPT);
            block_on(async {
                sqlx::query("COMMIT").execute(&mut reader).await.unwrap();
                reader.close().await.unwrap();
            });
        });
        file.rewrite(None).unwrap();
        assert!(!is_left(dir.path()));
        ends.join().unwrap();
    }

    #[test]
    fn a_rewrite_leaves_the_reserve_of_the_disk_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.sqlite");
        let mut file = SqliteFile::open(&path, CommitDurability::Full, FORMAT).unwrap();
        file.empty_log().unwrap();
        let bytes = std::fs::metadata(&path).unwrap().len();
        for (free, fits) in [(bytes - 1, false), (bytes, true)] {
            let guard = DiskGuard::probed(Arc::new(move || Ok(DiskSpace { free, total: 1 << 40 })), Some(0));
            let done = file.rewrite(Some(&guard));
            assert_eq!(done.is_ok(), fits, "{done:?}");
            assert_eq!(matches!(done, Err(FormatError::DiskFull { .. })), !fits);
        }
    }
}
