//! Trace records in one SQLite file: written by the recorder's thread, and read at the same time by the API and the
//! command line. CommitDurability is `NORMAL`: a power cut may lose the last traces, but never the file. Knows nothing of a
//! record's meaning.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use headrace_domain::{RequestId, TraceRecord, UnixNanos};
use headrace_trace::{
    CallCursor, CallEndKind, CallPage, CallQuery, CallRow, ConcurrentCall, SharedRecord, TraceError,
    TraceReader, TraceStore, WritePace, decode_record, encode_record,
};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection};

mod calls;
mod fill;
pub(crate) mod forget;
mod inserts;
mod names;
mod search;
mod table;

use self::fill::TableFiller;
use self::inserts::{InsertBatch, ROWS_IN_TURN, give_way};
pub(crate) use self::table::integer;
use self::table::{FORMAT, INDEXES, REFUSED, RecordCounts, SHADOWS, STRANGERS, count};
use crate::sqlite::{CommitDurability, FormatError, SqliteFile, block_on, ensure_format, open};

/// Rows that one write may remove beyond those it added, so that a lowered limit is reached step by step and no write
/// takes long.
const PRUNED_PER_WRITE: u64 = 512;

/// The file's size is checked once in this number of writes.
const WRITES_PER_LOOK: u64 = 16;

/// Maximum records in memory at once when all are shown.
const RECORDS_AT_ONCE: i64 = 1000;

/// Refusals of unknown callers may take one part in this many of the file.
const STRANGERS_PART: u64 = 16;
/// Refusals of known callers may take one part in this many.
const REFUSED_PART: u64 = 4;

/// How many traces are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRetention {
    /// Maximum records, at least 1. The first written are removed first. Refusals of known callers get at most a
    /// quarter of it, and those of unknown callers a sixteenth. So a flood of refusals never displaces the traces of
    /// calls that ran.
    pub max_records: u64,
    /// Maximum age. Records that started earlier than this before the newest one are removed.
    pub max_age: Option<Duration>,
}

impl Default for TraceRetention {
    /// A million records (about 2 GB), 30 days.
    fn default() -> Self {
        Self { max_records: 1_000_000, max_age: Some(Duration::from_secs(30 * 24 * 3600)) }
    }
}

/// The writing side. A file has only one writer.
pub struct SqliteTraceStore {
    path: PathBuf,
    database: SqliteFile,
    retention: TraceRetention,
    stored: RecordCounts,
    /// Size of the file in bytes beyond which the oldest records are removed.
    max_bytes: u64,
    /// Whether the file exceeded the size at the last check.
    is_long: bool,
    /// Number of writes since the store was opened.
    writes: u64,
    /// Indexes the records that an older program wrote. It stops when it is dropped.
    _filler: Option<TableFiller>,
}

impl SqliteTraceStore {
    /// Opens the file, and creates it if it is missing.
    ///
    /// # Errors
    /// `Config` for a retention that keeps nothing, and `NewerFormat` for a file of a newer program. `Store` if the
    /// file cannot be opened or is not a trace store.
    pub fn open(path: &Path, retention: TraceRetention) -> Result<Self, TraceError> {
        if retention.max_records == 0 {
            return Err(TraceError::Config { field: "max_records", why: "must be at least 1" });
        }
        let database = SqliteFile::open(path, CommitDurability::Normal, FORMAT);
        let mut database = database.map_err(|error| refused("open", path, &error))?;
        // If the disk has no room for the indexes, only removals get slower.
        let _ = database.write(async |connection| {
            sqlx::raw_sql(INDEXES).execute(connection).await?;
            Ok::<_, FormatError>(())
        });
        let counted = database.read(async |connection| Ok::<_, FormatError>(count(connection).await?));
        let stored = counted.map_err(|error| refused("count the records of", path, &error))?;
        let unfilled = database
            .write(async |connection| Ok::<_, FormatError>(fill::prepare(connection, stored.all).await?));
        let unfilled = unfilled.map_err(|error| refused("index the records of", path, &error))?;
        let filler = if unfilled == 0 { None } else { TableFiller::start(path, unfilled) };
        let (path, max_bytes) = (path.to_owned(), u64::MAX);
        let (is_long, writes) = (false, 0);
        Ok(Self { path, database, retention, stored, max_bytes, is_long, writes, _filler: filler })
    }

    /// Returns the store with a size limit. The oldest records are removed if the file exceeds `max_bytes`.
    #[must_use]
    pub fn within(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Number of records in the file.
    pub fn stored(&self) -> u64 {
        self.stored.all
    }
}

impl SqliteTraceStore {
    fn write<'a>(
        &mut self,
        batch: impl Iterator<Item = &'a TraceRecord>,
        pace: WritePace,
    ) -> Result<(), TraceError> {
        let mut rows = Vec::new();
        for record in batch {
            rows.push(TraceRow::of(record)?);
            if rows.len().is_multiple_of(ROWS_IN_TURN) {
                give_way(pace);
            }
        }
        let newest = rows.iter().map(|row| row.started).max().unwrap_or(0);
        let (mut retention, stored, max_bytes) = (self.retention, self.stored, self.max_bytes);
        let (looks, mut is_long) = (self.writes.is_multiple_of(WRITES_PER_LOOK), self.is_long);
        self.writes = self.writes.wrapping_add(1);
        let written = self.database.write(async |connection| {
            let mut now = stored;
            let added = insert(connection, &mut rows, &mut now, pace).await?;
            if looks || is_long {
                is_long = used_bytes(connection).await? > max_bytes;
            }
            if is_long {
                // More records are removed than were added, until the rest fits.
                let fewer = now.all.saturating_sub(added.saturating_add(PRUNED_PER_WRITE));
                retention.max_records = retention.max_records.min(fewer).max(1);
            }
            Ok::<_, FormatError>(prune(connection, retention, now, newest, added).await?)
        });
        self.is_long = is_long;
        self.stored = written.map_err(|error| refused("write to", &self.path, &error))?;
        Ok(())
    }
}

impl TraceStore for SqliteTraceStore {
    fn append(&mut self, batch: &[TraceRecord]) -> Result<(), TraceError> {
        self.write(batch.iter(), WritePace::Hurries)
    }

    fn append_shared(&mut self, batch: &[SharedRecord], pace: WritePace) -> Result<(), TraceError> {
        self.write(batch.iter().map(|record| &**record), pace)
    }
}

/// The reading side. It never writes, and may be open beside the writer, in the same process or another.
pub struct SqliteTraceReader {
    path: PathBuf,
    /// `None` until the first read of a reader that opens late.
    connection: Mutex<Option<SqliteConnection>>,
}

impl SqliteTraceReader {
    /// Creates a reader that opens the file on the first read, and retries while that fails.
    pub fn late(path: &Path) -> Self {
        Self { path: path.to_owned(), connection: Mutex::default() }
    }

    /// Opens an existing file for reading.
    ///
    /// # Errors
    /// Same as [`SqliteTraceStore::open`]. A missing file is `Store`.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let connection = block_on(connect(path))?;
        Ok(Self { path: path.to_owned(), connection: Mutex::new(Some(connection)) })
    }

    fn read<F>(&self, query: F) -> Result<Vec<TraceRecord>, TraceError>
    where
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<Vec<(String,)>, sqlx::Error>,
    {
        self.rows(query)?.iter().map(|(record,)| decode_record(record)).collect()
    }

    pub(crate) fn rows<T, F>(&self, query: F) -> Result<Vec<T>, TraceError>
    where
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<Vec<T>, sqlx::Error>,
    {
        self.ask(query)
    }

    fn ask<T, F>(&self, query: F) -> Result<T, TraceError>
    where
        F: AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
    {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match connection.take() {
            Some(open) => open,
            None => block_on(connect(&self.path))?,
        };
        block_on(query(connection.insert(open))).map_err(|error| failed("read", &self.path, &error))
    }
}

impl Drop for SqliteTraceReader {
    /// Closes before returning, because an open reader would keep the writer from folding in the write-ahead log.
    fn drop(&mut self) {
        let connection = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connection.take() {
            // The connection wrote nothing, so a failed close loses nothing.
            let _ = block_on(connection.close());
        }
    }
}

impl TraceReader for SqliteTraceReader {
    fn get(&self, id: RequestId) -> Result<Option<TraceRecord>, TraceError> {
        let found = self.read(async |connection| {
            sqlx::query_as("SELECT record FROM trace WHERE id = ?").bind(key(id)).fetch_all(connection).await
        })?;
        Ok(found.into_iter().next())
    }

    fn named(&self, name: &str) -> Result<Vec<TraceRecord>, TraceError> {
        self.read(async |connection| names::find(connection, name).await)
    }

    fn last(&self, n: usize) -> Result<Vec<TraceRecord>, TraceError> {
        self.read(async |connection| {
            sqlx::query_as("SELECT record FROM trace WHERE key IS NOT 'worker-job' ORDER BY started DESC, seq DESC LIMIT ?")
                .bind(integer(n))
                .fetch_all(connection)
                .await
        })
    }

    fn slowest(&self, n: usize, since: UnixNanos) -> Result<Vec<TraceRecord>, TraceError> {
        self.read(async |connection| search::slowest(connection, integer(since.get()), integer(n)).await)
    }

    fn each(
        &self,
        since: UnixNanos,
        until: UnixNanos,
        show: &mut dyn FnMut(&TraceRecord),
    ) -> Result<(), TraceError> {
        let mut after = i64::MIN;
        loop {
            let page: Vec<(i64, String)> = self.rows(async |connection| {
                sqlx::query_as(
                    "SELECT seq, record FROM trace WHERE seq > ? AND started >= ? AND started < ? \
                     AND key IS NOT 'worker-job' ORDER BY seq LIMIT ?",
                )
                .bind(after)
                .bind(integer(since.get()))
                .bind(integer(until.get()))
                .bind(RECORDS_AT_ONCE)
                .fetch_all(connection)
                .await
            })?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = *last;
            for (_, record) in &page {
                show(&decode_record(record)?);
            }
        }
    }

    fn shadows(&self, n: usize, since: UnixNanos) -> Result<Vec<TraceRecord>, TraceError> {
        self.read(async |connection| {
            sqlx::query_as(SHADOWS).bind(integer(since.get())).bind(integer(n)).fetch_all(connection).await
        })
    }

    fn search(
        &self,
        query: &CallQuery,
        after: Option<CallCursor>,
        limit: usize,
    ) -> Result<CallPage, TraceError> {
        let found = self.ask(async |connection| search::search(connection, query, after, limit).await)?;
        found.page()
    }

    fn newest(
        &self,
        since: UnixNanos,
        until: UnixNanos,
        most: usize,
        show: &mut dyn FnMut(&TraceRecord),
    ) -> Result<bool, TraceError> {
        let (mut before, mut left) = ((integer(until.get()), i64::MIN), most);
        loop {
            // One extra record shows whether there are more.
            let count = integer(left.saturating_add(1)).min(RECORDS_AT_ONCE);
            let page: Vec<(i64, i64, String)> = self.rows(async |connection| {
                sqlx::query_as(
                    "SELECT started, seq, record FROM trace WHERE (started, seq) < (?, ?) AND started >= ? \
                     AND key IS NOT 'worker-job' ORDER BY started DESC, seq DESC LIMIT ?",
                )
                .bind(before.0)
                .bind(before.1)
                .bind(integer(since.get()))
                .bind(count)
                .fetch_all(connection)
                .await
            })?;
            for (started, number, record) in &page {
                if left == 0 {
                    return Ok(true);
                }
                show(&decode_record(record)?);
                (before, left) = ((*started, *number), left - 1);
            }
            if integer(page.len()) < count {
                return Ok(false);
            }
        }
    }

    fn beside(&self, id: RequestId, limit: usize) -> Result<Option<Vec<ConcurrentCall>>, TraceError> {
        let Some(asked) = self.get(id)? else { return Ok(None) };
        let others = match headrace_trace::WorkerStay::of(&asked) {
            None => Vec::new(),
            Some(stay) => self.read(async |connection| search::beside(connection, &stay).await)?,
        };
        Ok(Some(headrace_trace::beside(&asked, others, limit)))
    }
}

impl fmt::Debug for SqliteTraceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTraceStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl fmt::Debug for SqliteTraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTraceReader").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A record with the values that are bound to the insert.
struct TraceRow<'a> {
    record: &'a TraceRecord,
    /// Sequence number in the order in which records were stored.
    number: i64,
    started: i64,
    json: String,
    call: CallRow,
}

impl<'a> TraceRow<'a> {
    fn of(record: &'a TraceRecord) -> Result<Self, TraceError> {
        let json = encode_record(record)?;
        let started = integer(record.started.get());
        Ok(Self { record, number: 0, started, json, call: CallRow::of(record) })
    }
}

/// Indexes the records that an older program wrote, so that searches find them. For a file that no server has open. A
/// server that opens a file does this itself, in the background.
///
/// # Errors
/// Same as [`SqliteTraceStore::open`].
pub fn index(path: &Path) -> Result<(), TraceError> {
    fill::fill(path).map_err(|error| refused("index the records of", path, &error))
}

/// Inserts records. If two have the same id, the first stays.
const INSERTS: InsertBatch = InsertBatch {
    head: "INSERT OR IGNORE INTO trace (seq, id, started, duration, org, project, key, outcome, record) ",
    columns: 9,
};

/// Inserts the rows whose id is new, and returns their number. Sequence numbers continue after the highest one, which
/// the file's only writer knows.
async fn insert(
    connection: &mut SqliteConnection,
    rows: &mut [TraceRow<'_>],
    stored: &mut RecordCounts,
    pace: WritePace,
) -> Result<u64, sqlx::Error> {
    let (highest,): (i64,) =
        sqlx::query_as("SELECT coalesce(max(seq), 0) FROM trace").fetch_one(&mut *connection).await?;
    for (row, number) in rows.iter_mut().zip(highest.saturating_add(1)..) {
        row.number = number;
    }
    let mut all_new = true;
    for chunk in InsertBatch::chunks(rows, pace) {
        let mut query = INSERTS.query(chunk.len());
        for TraceRow { record, number, started, json, call } in chunk {
            query = query
                .bind(*number)
                .bind(key(record.request_id))
                .bind(*started)
                .bind(integer(record.server_ns()))
                .bind(record.org.as_ref().map(|id| id.as_str()))
                .bind(record.project.as_ref().map(|id| id.as_str()))
                .bind(record.key.as_ref().map(|id| id.as_str()))
                .bind(call.ended.name())
                .bind(json.as_str());
        }
        let added = query.execute(&mut *connection).await?.rows_affected();
        give_way(pace);
        all_new &= added == chunk.len() as u64;
    }
    let known = if all_new { None } else { Some(numbers_after(connection, highest).await?) };
    let is_new = |row: &&TraceRow<'_>| known.as_ref().is_none_or(|known| known.contains(&row.number));
    let mut new = Vec::with_capacity(rows.len());
    for row in rows.iter().filter(is_new) {
        let is_refused = row.call.ended == CallEndKind::Refused;
        stored.all += 1;
        stored.refused += u64::from(is_refused && row.record.org.is_some());
        stored.strangers += u64::from(is_refused && row.record.org.is_none());
        new.push(row);
    }
    let calls: Vec<_> = new.iter().map(|row| (row.number, &row.call)).collect();
    calls::insert(connection, &calls, pace).await?;
    let records: Vec<_> = new.iter().map(|row| (row.number, row.record)).collect();
    names::insert(connection, &records, pace).await?;
    Ok(new.len() as u64)
}

/// Returns the sequence numbers in use above `number`.
async fn numbers_after(connection: &mut SqliteConnection, number: i64) -> Result<HashSet<i64>, sqlx::Error> {
    let found = sqlx::query_as("SELECT seq FROM trace WHERE seq > ?").bind(number);
    let found: Vec<(i64,)> = found.fetch_all(connection).await?;
    Ok(found.into_iter().map(|(number,)| number).collect())
}

/// Removes records beyond the retention, a bounded number at a time. Refusals beyond their part of the file are removed
/// first. Age is measured from the newest record of this write, not from the current time. So it needs no clock, and a
/// machine that was off for a month loses nothing.
async fn prune(
    connection: &mut SqliteConnection,
    retention: TraceRetention,
    mut stored: RecordCounts,
    newest: i64,
    added: u64,
) -> Result<RecordCounts, sqlx::Error> {
    let mut left = PRUNED_PER_WRITE.saturating_add(added);
    let excess = |rows: u64, part: u64| rows.saturating_sub((retention.max_records / part).max(1));
    let strangers = excess(stored.strangers, STRANGERS_PART);
    remove(connection, &mut stored, &mut left, STRANGERS, strangers).await?;
    let refused = excess(stored.refused, REFUSED_PART);
    remove(connection, &mut stored, &mut left, REFUSED, refused).await?;
    let all = excess(stored.all, 1);
    remove(connection, &mut stored, &mut left, "TRUE", all).await?;
    if let Some(age) = retention.max_age {
        let oldest = newest.saturating_sub(integer(age.as_nanos()));
        // Usually no record is too old. This check costs a fraction of what SQLite needs to plan a deletion.
        let look = "SELECT count(*) FROM (SELECT 1 FROM trace WHERE started < ? LIMIT 1)";
        let (old,): (i64,) = sqlx::query_as(look).bind(oldest).fetch_one(&mut *connection).await?;
        if old == 0 {
            return Ok(stored);
        }
        let query = "DELETE FROM trace WHERE seq IN (SELECT seq FROM trace WHERE started < ? ORDER BY started LIMIT ?) \
                     RETURNING outcome = 'refused', org IS NULL";
        let query = sqlx::query_as(query).bind(oldest).bind(integer(left));
        stored.forget(&query.fetch_all(&mut *connection).await?);
    }
    Ok(stored)
}

/// Removes the oldest `excess` rows of a kind, but no more than `left`.
async fn remove(
    connection: &mut SqliteConnection,
    stored: &mut RecordCounts,
    left: &mut u64,
    kind: &str,
    excess: u64,
) -> Result<(), sqlx::Error> {
    let rows = excess.min(*left);
    if rows == 0 {
        return Ok(());
    }
    // No part of the statement comes from outside.
    let query = format!(
        "DELETE FROM trace WHERE seq IN (SELECT seq FROM trace WHERE {kind} ORDER BY seq LIMIT ?) \
         RETURNING outcome = 'refused', org IS NULL"
    );
    let gone = sqlx::query_as(AssertSqlSafe(query)).bind(integer(rows)).fetch_all(&mut *connection).await?;
    stored.forget(&gone);
    *left = left.saturating_sub(u64::try_from(gone.len()).unwrap_or(u64::MAX));
    Ok(())
}

/// Bytes of the file's pages in use.
async fn used_bytes(connection: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let (pages, free, page): (i64, i64, i64) = sqlx::query_as(
        "SELECT page_count, freelist_count, page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size",
    )
    .fetch_one(connection)
    .await?;
    Ok(pages.saturating_sub(free).saturating_mul(page).unsigned_abs())
}

/// Opens an existing file for reading.
async fn connect(path: &Path) -> Result<SqliteConnection, TraceError> {
    let opened = async {
        let mut connection = open(path, CommitDurability::Normal, true).await?;
        ensure_format(&mut connection, FORMAT, true).await?;
        Ok(connection)
    };
    opened.await.map_err(|error| refused("open", path, &error))
}

fn refused(doing: &str, path: &Path, error: &FormatError) -> TraceError {
    match error {
        FormatError::Newer { found, known, .. } => TraceError::NewerFormat {
            what: path.display().to_string(),
            found: u64::try_from(*found).unwrap_or(0),
            known: u64::try_from(*known).unwrap_or(0),
        },
        error => failed(doing, path, error),
    }
}

fn failed(doing: &str, path: &Path, error: &dyn fmt::Display) -> TraceError {
    TraceError::Store { doing: format!("cannot {doing} {}", path.display()), why: error.to_string() }
}

/// An id as stored in the file: 16 bytes that sort by time.
fn key(id: RequestId) -> Vec<u8> {
    id.bits().to_be_bytes().to_vec()
}
