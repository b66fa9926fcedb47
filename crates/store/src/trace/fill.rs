//! Fills the search table with the traces that an older program wrote. Works in small steps, newest first, beside the
//! recorder and readers. Knows no search.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use headrace_trace::{CallRow, WritePace, decode_record};
use sqlx::sqlite::SqliteConnection;

use super::calls;
use super::names;
use super::table::{FORMAT, INDEXES, count};
use crate::sqlite::{CommitDurability, FormatError, SqliteFile};

/// Traces per step, so that no step blocks the recorder for long.
const TRACES_PER_STEP: i64 = 500;
/// Pause between two steps, for other writers.
const PAUSE: Duration = Duration::from_millis(5);
/// Delay before a step that the disk refused is retried.
const RETRY: Duration = Duration::from_secs(1);

/// A thread that fills the table until nothing is left, or until it is dropped.
pub(super) struct TableFiller {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TableFiller {
    /// Starts the thread. Returns `None` if the system cannot start one. The rest is then filled after the next start.
    pub(super) fn start(path: &Path, traces: u64) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (path, asked) = (path.to_owned(), Arc::clone(&stop));
        let work = move || work(&path, traces, &asked);
        let thread = std::thread::Builder::new().name("headrace-fill".to_owned()).spawn(work).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }
}

impl Drop for TableFiller {
    /// Waits for the step in progress, so that the file is closed intact.
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread. The table is filled after the next start.
            let _ = thread.join();
        }
    }
}

fn work(path: &Path, traces: u64, stop: &AtomicBool) {
    tracing::info!(traces, "indexing the traces that an older program wrote: searches find the newest first");
    let mut database = None;
    while !stop.load(Relaxed) {
        match turn(path, &mut database) {
            Ok(true) => std::thread::sleep(PAUSE),
            Ok(false) => return tracing::info!(traces, "every trace can be found"),
            Err(error) => {
                tracing::warn!(%error, "traces cannot be indexed; trying again");
                database = None;
                std::thread::sleep(RETRY);
            }
        }
    }
}

/// Runs one step. Returns whether there are more.
fn turn(path: &Path, database: &mut Option<SqliteFile>) -> Result<bool, FormatError> {
    let open = match database {
        Some(open) => open,
        none => none.insert(SqliteFile::open(path, CommitDurability::Normal, FORMAT)?),
    };
    open.write(async |connection| Ok(step(connection).await?))
}

/// Fills the whole table at once.
pub(super) fn fill(path: &Path) -> Result<(), FormatError> {
    let mut database = SqliteFile::open(path, CommitDurability::Normal, FORMAT)?;
    database.write(async |connection| {
        sqlx::raw_sql(INDEXES).execute(&mut *connection).await?;
        let stored = count(&mut *connection).await?;
        prepare(connection, stored.all).await?;
        Ok::<_, FormatError>(())
    })?;
    while database.write(async |connection| Ok::<_, FormatError>(step(connection).await?))? {}
    Ok(())
}

/// Creates the table if it is missing, and returns how many of the `stored` traces are not in it. Starts over if an
/// older program has written to the file since.
pub(super) async fn prepare(connection: &mut SqliteConnection, stored: u64) -> Result<u64, sqlx::Error> {
    sqlx::raw_sql(calls::SCHEMA).execute(&mut *connection).await?;
    sqlx::raw_sql(names::SCHEMA).execute(&mut *connection).await?;
    let state: Option<(i64,)> =
        sqlx::query_as("SELECT traces FROM unfilled").fetch_optional(&mut *connection).await?;
    let (filled,): (i64,) = sqlx::query_as("SELECT count(*) FROM call").fetch_one(&mut *connection).await?;
    let stored = i64::try_from(stored).unwrap_or(i64::MAX);
    if let Some((left,)) = state
        && filled.saturating_add(left) == stored
    {
        return Ok(u64::try_from(left).unwrap_or(0));
    }
    sqlx::raw_sql("DELETE FROM call; DELETE FROM unfilled;").execute(&mut *connection).await?;
    sqlx::query("INSERT INTO unfilled SELECT coalesce(max(seq), 0) + 1, ? FROM trace")
        .bind(stored)
        .execute(&mut *connection)
        .await?;
    Ok(u64::try_from(stored).unwrap_or(0))
}

/// Fills in the newest of the remaining traces. Returns whether there are more.
async fn step(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    let page =
        "SELECT seq, record FROM trace WHERE seq < (SELECT before FROM unfilled) ORDER BY seq DESC LIMIT ?";
    let page: Vec<(i64, String)> =
        sqlx::query_as(page).bind(TRACES_PER_STEP).fetch_all(&mut *connection).await?;
    let Some((lowest, _)) = page.last() else {
        sqlx::query("UPDATE unfilled SET before = 0, traces = 0").execute(&mut *connection).await?;
        return Ok(false);
    };
    // A record that cannot be decoded cannot be shown, so it gets no row. The table is then rebuilt after the next
    // start.
    let rows: Vec<(i64, CallRow)> = page
        .iter()
        .filter_map(|(number, record)| Some((*number, CallRow::of(&decode_record(record).ok()?))))
        .collect();
    let rows: Vec<(i64, &CallRow)> = rows.iter().map(|(number, row)| (*number, row)).collect();
    calls::insert(connection, &rows, WritePace::GivesWay).await?;
    sqlx::query("UPDATE unfilled SET before = ?, traces = max(traces - ?, 0)")
        .bind(*lowest)
        .bind(i64::try_from(page.len()).unwrap_or(i64::MAX))
        .execute(&mut *connection)
        .await?;
    Ok(true)
}
