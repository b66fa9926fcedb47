//! Recorded requests and answers in one SQLite file. One connection writes and reads, because neither is on the path of a
//! call. Deleted bytes are overwritten. Knows nothing of what a request means.

use headrace_domain::{ForgottenName, ProjectId, RequestId, UnixNanos};
use headrace_trace::{
    CallCursor, CallDataset, CallScore, ContentArchive, ContentPage, ContentQuery, ContentStore, RecordName,
    StoredContent, TraceError,
};
use sqlx::sqlite::SqliteConnection;

use crate::trace::integer;

mod content_file;
mod datasets;
mod forget;
mod rows;
mod scores;
mod search;

pub use content_file::SqliteContents;
use rows::{COLUMNS, ContentRow, insert};

/// Contents that one transaction of a sweep removes, so that others can write in between.
const SWEPT_AT_ONCE: i64 = 256;
/// Transactions of one sweep. The next sweep continues.
const MOST_STEPS: usize = 400;

/// Removes the oldest contents whose sizes together are at least a number of bytes, or as many as one step may.
const OLDEST: &str = "
    DELETE FROM content WHERE seq IN (
        SELECT seq FROM (
            SELECT seq, sum(size) OVER (ORDER BY started, seq) - size AS removed FROM (
                SELECT seq, started, length(CAST(request AS BLOB)) + length(CAST(answer AS BLOB)) + length(facts) AS size
                FROM content ORDER BY started, seq LIMIT ?))
        WHERE removed < ?)";

impl SqliteContents {
    /// Removes at most [`SWEPT_AT_ONCE`] contents: those that have expired, or the oldest ones if the file is too long.
    fn sweep_some(&self, now: UnixNanos) -> Result<u64, TraceError> {
        let most = self.max_bytes;
        self.write("remove contents from", async |connection| {
            let expired = sqlx::query(
                "DELETE FROM content WHERE seq IN (SELECT seq FROM content WHERE expires <= ? LIMIT ?)",
            );
            let expired =
                expired.bind(integer(now.get())).bind(SWEPT_AT_ONCE).execute(&mut *connection).await?;
            let beyond = used_bytes(connection).await?.saturating_sub(most);
            if expired.rows_affected() > 0 || beyond == 0 {
                return Ok(expired.rows_affected());
            }
            let oldest = sqlx::query(OLDEST).bind(SWEPT_AT_ONCE).bind(integer(beyond));
            Ok(oldest.execute(&mut *connection).await?.rows_affected())
        })
    }
}

/// Bytes of the file that are in use.
async fn used_bytes(connection: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let pages = "SELECT (page_count - freelist_count) * page_size \
                 FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
    let (bytes,): (i64,) = sqlx::query_as(pages).fetch_one(connection).await?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

impl ContentStore for SqliteContents {
    fn append(&self, contents: &[StoredContent]) -> Result<(), TraceError> {
        let bytes: usize = contents.iter().map(StoredContent::stored_bytes).sum();
        if let Some(guard) = &self.guard {
            // First in the log, then in the file.
            guard.check((bytes as u64).saturating_mul(2)).map_err(|full| TraceError::Store {
                doing: format!("cannot write to {}", self.path.display()),
                why: full.to_string(),
            })?;
        }
        self.write("write to", async |connection| {
            for content in contents {
                insert(&mut *connection, content).await?;
            }
            Ok(())
        })
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, TraceError> {
        let mut removed = 0;
        if !self.exists() {
            return Ok(0);
        }
        for _ in 0..MOST_STEPS {
            let some = self.sweep_some(now)?;
            removed += some;
            if some == 0 {
                break;
            }
        }
        Ok(removed)
    }

    fn get(&self, id: RequestId) -> Result<Option<StoredContent>, TraceError> {
        if !self.exists() {
            return Ok(None);
        }
        self.read(async |connection| {
            // No part of the statement comes from outside.
            let query = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM content WHERE id = ?"));
            let query = sqlx::query(query).bind(&id.bits().to_be_bytes()[..]);
            let found = query.fetch_optional(connection).await?;
            Ok(found.as_ref().map(ContentRow::of).transpose()?)
        })?
        .map(ContentRow::content)
        .transpose()
    }

    fn search(
        &self,
        query: &ContentQuery,
        after: Option<CallCursor>,
        limit: usize,
    ) -> Result<ContentPage, TraceError> {
        if !self.exists() {
            return Ok(ContentPage::default());
        }
        search::search(self, query, after, limit)
    }

    fn forget(&self, user: &ForgottenName, project: Option<&ProjectId>) -> Result<u64, TraceError> {
        if !self.exists() {
            return Ok(0);
        }
        forget::forget(self, user, project)
    }
}

impl ContentArchive for SqliteContents {
    fn put_score(&self, score: &CallScore) -> Result<(), TraceError> {
        scores::put(self, score)
    }

    fn scores(&self, id: RequestId) -> Result<Vec<CallScore>, TraceError> {
        if self.exists() { scores::of(self, id) } else { Ok(Vec::new()) }
    }

    fn create_dataset(&self, dataset: &CallDataset, calls: &[RequestId]) -> Result<Option<u64>, TraceError> {
        datasets::create(self, dataset, calls)
    }

    fn datasets(&self) -> Result<Vec<CallDataset>, TraceError> {
        if self.exists() { datasets::list(self) } else { Ok(Vec::new()) }
    }

    fn dataset_items(
        &self,
        name: &RecordName,
        after: u64,
        limit: usize,
    ) -> Result<Option<Vec<(u64, StoredContent)>>, TraceError> {
        if self.exists() { datasets::items(self, name, after, limit) } else { Ok(None) }
    }

    fn remove_dataset(&self, name: &RecordName) -> Result<bool, TraceError> {
        if self.exists() { datasets::remove(self, name) } else { Ok(false) }
    }
}
