//! Batches and their requests: the SQL statements, and the implementation of [`BatchStore`]. Knows no dialect.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    BatchCounts, BatchKind, BatchRecord, BatchState, BatchStatus, BatchStore, FileLimits, LineEnd,
    LineRecord, LineResult, ObjectError, PageAsk,
};
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;

use crate::objects::rows::{end, fits, integer, walk};
use crate::statement_error::StatementError;

use super::SqliteFiles;
use super::rows::{clear, has_room, owner};

/// Overhead that counts for each request's row, in bytes.
const LINE_BYTES: u64 = 256;
/// Maximum requests that one query examines.
const LINES_AT_ONCE: i64 = 256;

impl BatchStore for SqliteFiles {
    fn create_batch(&self, batch: &BatchRecord) -> Result<(), ObjectError> {
        self.check(0)?;
        self.pair.write(async |connection| {
            let (open,): (i64,) = sqlx::query_as("SELECT count(*) FROM batch WHERE project = ? AND gone IS NULL")
                .bind(batch.project.as_str())
                .fetch_one(&mut *connection)
                .await?;
            let most = self.limits.max_open_batches_per_project;
            fits("max_open_batches_per_project", most, open.unsigned_abs() + 1)?;
            // The batch's requests are copied from its file.
            let copied: Option<(i64,)> = sqlx::query_as("SELECT bytes FROM file WHERE id = ? AND project = ?")
                .bind(&batch.state.input)
                .bind(batch.project.as_str())
                .fetch_optional(&mut *connection)
                .await?;
            let copied = copied.map_or(0, |(bytes,)| bytes.unsigned_abs());
            has_room(connection, &self.limits, batch.project.as_str(), copied).await?;
            sqlx::query(
                "INSERT INTO batch (id, project, messages, total, completed, failed, cancelled, expired, state, reserved) \
                 VALUES (?, ?, ?, 0, 0, 0, 0, 0, ?, ?)",
            )
            .bind(&batch.id)
            .bind(batch.project.as_str())
            .bind(kind(BatchKind::of(batch.state.endpoint)))
            .bind(written(&batch.state)?)
            .bind(integer(copied))
            .execute(&mut *connection)
            .await?;
            Ok(())
        })
    }

    fn batch(&self, project: &ProjectId, id: &str) -> Result<Option<BatchRecord>, ObjectError> {
        self.pair.read(async |connection| {
            let found = batch(connection, id).await?;
            Ok(found.filter(|found| found.project == *project))
        })
    }

    fn batches(
        &self,
        project: &ProjectId,
        of: BatchKind,
        ask: &PageAsk,
    ) -> Result<(Vec<BatchRecord>, bool), ObjectError> {
        self.pair.read(async |connection| {
            let from = match ask.cursor() {
                None => end(ask),
                Some(cursor) => {
                    let found: Option<(i64,)> =
                        sqlx::query_as("SELECT seq FROM batch WHERE id = ? AND project = ?")
                            .bind(cursor)
                            .bind(project.as_str())
                            .fetch_optional(&mut *connection)
                            .await?;
                    let Some((seq,)) = found else { return Ok((Vec::new(), false)) };
                    seq
                }
            };
            let query = format!("SELECT {COLUMNS} WHERE project = ? AND messages = ? AND {}", walk(ask));
            let rows: Vec<BatchRow> = sqlx::query_as(AssertSqlSafe(query))
                .bind(project.as_str())
                .bind(kind(of))
                .bind(from)
                .bind(integer(ask.rows() as u64))
                .fetch_all(&mut *connection)
                .await?;
            let (rows, has_more) = ask.cut(rows);
            Ok((rows.into_iter().map(record).collect::<Result<_, _>>()?, has_more))
        })
    }

    fn open_batches(&self) -> Result<Vec<BatchRecord>, ObjectError> {
        self.pair.read(async |connection| {
            let query = format!("SELECT {COLUMNS} WHERE gone IS NULL ORDER BY seq");
            let rows: Vec<BatchRow> =
                sqlx::query_as(AssertSqlSafe(query)).fetch_all(&mut *connection).await?;
            rows.into_iter().map(record).collect()
        })
    }

    fn change_batch(
        &self,
        id: &str,
        gone: UnixNanos,
        change: &mut dyn FnMut(&mut BatchState),
    ) -> Result<Option<BatchRecord>, ObjectError> {
        self.pair.write(async |connection| {
            let Some(mut found) = batch(connection, id).await? else { return Ok(None) };
            change(&mut found.state);
            let gone = found.state.status.is_over().then(|| integer(gone.get()));
            // Once its file is read, a batch needs no room for further requests.
            let is_read = found.state.status != BatchStatus::Validating;
            sqlx::query("UPDATE batch SET state = ?, gone = ?, reserved = reserved * ? WHERE id = ?")
                .bind(written(&found.state)?)
                .bind(gone)
                .bind(i64::from(!is_read))
                .bind(id)
                .execute(&mut *connection)
                .await?;
            Ok(Some(found))
        })
    }

    fn delete_batch(&self, project: &ProjectId, id: &str) -> Result<bool, ObjectError> {
        self.pair.write(async |connection| {
            let gone = sqlx::query("DELETE FROM batch WHERE id = ? AND project = ? AND gone IS NOT NULL")
                .bind(id)
                .bind(project.as_str())
                .execute(&mut *connection)
                .await?;
            let was_there = gone.rows_affected() > 0;
            if was_there {
                clear(connection, id).await?;
            }
            Ok(was_there)
        })
    }

    fn add_lines(&self, batch: &str, lines: &[LineRecord]) -> Result<Option<String>, ObjectError> {
        self.check(lines.iter().map(|line| line.body.len() as u64).sum::<u64>().saturating_mul(2))?;
        self.pair.write(async |connection| {
            for (at, LineRecord { custom_id, .. }) in lines.iter().enumerate() {
                let taken: Option<(i64,)> =
                    sqlx::query_as("SELECT at FROM line WHERE batch = ? AND custom_id = ?")
                        .bind(batch)
                        .bind(custom_id)
                        .fetch_optional(&mut *connection)
                        .await?;
                if taken.is_some() || lines.iter().take(at).any(|before| before.custom_id == *custom_id) {
                    return Ok(Some(custom_id.clone()));
                }
            }
            for LineRecord { at, custom_id, body, .. } in lines {
                sqlx::query(
                    "INSERT INTO line (batch, at, custom_id, body, request, answer, status, ended) VALUES (?, ?, ?, ?, '', '', 0, 0)",
                )
                .bind(batch)
                .bind(integer(*at))
                .bind(custom_id)
                .bind(body)
                .execute(&mut *connection)
                .await?;
            }
            let copied: usize = lines.iter().map(|line| line.body.len() + line.custom_id.len()).sum();
            let copied = (copied as u64).saturating_add(LINE_BYTES.saturating_mul(lines.len() as u64));
            let counted = "UPDATE batch SET total = total + ?, reserved = max(0, reserved - ?) WHERE id = ?";
            sqlx::query(counted)
                .bind(integer(lines.len() as u64))
                .bind(integer(copied))
                .bind(batch)
                .execute(&mut *connection)
                .await?;
            has_room_for(connection, &self.limits, batch).await?;
            Ok(None)
        })
    }

    fn clear_lines(&self, batch: &str) -> Result<(), ObjectError> {
        self.pair.write(async |connection| {
            clear(connection, batch).await?;
            sqlx::query(
                "UPDATE batch SET total = 0, completed = 0, failed = 0, cancelled = 0, expired = 0, \
                 reserved = coalesce((SELECT file.bytes FROM file WHERE file.id = batch.state ->> '$.input'), 0) WHERE id = ?",
            )
                .bind(batch)
                .execute(&mut *connection)
                .await?;
            Ok(())
        })
    }

    fn forget_lines(&self, batch: &str) -> Result<(), ObjectError> {
        self.pair.write(async |connection| clear(connection, batch).await)
    }

    fn lines(&self, batch: &str, from: u64, most_bytes: u64) -> Result<Vec<LineRecord>, ObjectError> {
        self.pair.read(async |connection| {
            let sizes = "SELECT at, length(body) FROM line WHERE batch = ? AND at >= ? AND ended = 0 ORDER BY at LIMIT ?";
            let Some(last) = within(connection, sizes, (batch, from), most_bytes).await? else {
                return Ok(Vec::new());
            };
            let rows: Vec<LineRow> = sqlx::query_as(
                "SELECT at, custom_id, body, request FROM line WHERE batch = ? AND at >= ? AND at <= ? AND ended = 0 ORDER BY at",
            )
            .bind(batch)
            .bind(integer(from))
            .bind(last)
            .fetch_all(&mut *connection)
            .await?;
            Ok(rows.into_iter().map(waiting).collect())
        })
    }

    fn begun_lines(&self, batch: &str) -> Result<Vec<LineRecord>, ObjectError> {
        self.pair.read(async |connection| {
            let rows: Vec<LineRow> = sqlx::query_as(
                "SELECT at, custom_id, body, request FROM line WHERE batch = ? AND ended = 0 AND request <> '' ORDER BY at",
            )
            .bind(batch)
            .fetch_all(&mut *connection)
            .await?;
            Ok(rows.into_iter().map(waiting).collect())
        })
    }

    fn check_room(&self, project: &ProjectId) -> Result<(), ObjectError> {
        self.check(0)?;
        self.pair.read(async |connection| has_room(connection, &self.limits, project.as_str(), 0).await)
    }

    fn note_answer(&self, batch: &str, at: u64, request: &str, answer: &str) -> Result<(), ObjectError> {
        self.check((answer.len() as u64).saturating_mul(2))?;
        self.pair.write(async |connection| {
            sqlx::query("UPDATE line SET request = ?, answer = ? WHERE batch = ? AND at = ? AND ended = 0")
                .bind(request)
                .bind(answer)
                .bind(batch)
                .bind(integer(at))
                .execute(&mut *connection)
                .await?;
            has_room_for(connection, &self.limits, batch).await
        })
    }

    fn end_line(
        &self,
        batch: &str,
        at: u64,
        end: LineEnd,
        status: u16,
        texts: Option<(&str, &str)>,
    ) -> Result<(), ObjectError> {
        self.pair.write(async |connection| {
            let (request, answer) = texts.unzip();
            let done = sqlx::query(
                "UPDATE line SET ended = ?, status = ?, body = '', request = coalesce(?, request), answer = coalesce(?, answer) \
                 WHERE batch = ? AND at = ? AND ended = 0",
            )
            .bind(number(end))
            .bind(i64::from(status))
            .bind(request)
            .bind(answer)
            .bind(batch)
            .bind(integer(at))
            .execute(&mut *connection)
            .await?;
            count(connection, batch, end, done.rows_affected()).await
        })
    }

    fn end_rest(&self, batch: &str, end: LineEnd) -> Result<(), ObjectError> {
        self.pair.write(async |connection| {
            let done = sqlx::query("UPDATE line SET ended = ?, body = '', request = '', answer = '' WHERE batch = ? AND ended = 0")
                .bind(number(end))
                .bind(batch)
                .execute(&mut *connection)
                .await?;
            count(connection, batch, end, done.rows_affected()).await
        })
    }

    fn results(&self, batch: &str, from: u64, most_bytes: u64) -> Result<Vec<LineResult>, ObjectError> {
        self.pair.read(async |connection| {
            let sizes = "SELECT at, length(answer) FROM line WHERE batch = ? AND at >= ? AND ended <> 0 ORDER BY at LIMIT ?";
            let Some(last) = within(connection, sizes, (batch, from), most_bytes).await? else {
                return Ok(Vec::new());
            };
            let rows: Vec<(i64, String, i64, i64, String, String)> = sqlx::query_as(
                "SELECT at, custom_id, ended, status, request, answer FROM line \
                 WHERE batch = ? AND at >= ? AND at <= ? AND ended <> 0 ORDER BY at",
            )
            .bind(batch)
            .bind(integer(from))
            .bind(last)
            .fetch_all(&mut *connection)
            .await?;
            Ok(rows.into_iter().map(result).collect())
        })
    }
}

/// Finds the longest run of rows that fits into `most_bytes`, with at least one row, and returns the position of its
/// last row. `None` if there is no row. `sizes` is a query for positions and bytes.
async fn within(
    connection: &mut SqliteConnection,
    sizes: &'static str,
    (batch, from): (&str, u64),
    most_bytes: u64,
) -> Result<Option<i64>, StatementError> {
    let sizes: Vec<(i64, i64)> = sqlx::query_as(sizes)
        .bind(batch)
        .bind(integer(from))
        .bind(LINES_AT_ONCE)
        .fetch_all(connection)
        .await?;
    let mut bytes = 0_i64;
    let fits = |(at, (place, size)): (usize, &(i64, i64))| {
        bytes = bytes.saturating_add(*size);
        (at == 0 || bytes <= integer(most_bytes)).then_some(*place)
    };
    Ok(sizes.iter().enumerate().map_while(fits).last())
}

/// Checks the limits of the project that owns the batch.
async fn has_room_for(
    connection: &mut SqliteConnection,
    limits: &FileLimits,
    batch: &str,
) -> Result<(), StatementError> {
    let of: Option<(String,)> = sqlx::query_as("SELECT project FROM batch WHERE id = ?")
        .bind(batch)
        .fetch_optional(&mut *connection)
        .await?;
    match of {
        Some((project,)) => has_room(connection, limits, &project, 0).await,
        None => Ok(()),
    }
}

async fn count(
    connection: &mut SqliteConnection,
    batch: &str,
    end: LineEnd,
    lines: u64,
) -> Result<(), StatementError> {
    let statement = match end {
        LineEnd::Completed => "UPDATE batch SET completed = completed + ? WHERE id = ?",
        LineEnd::Failed => "UPDATE batch SET failed = failed + ? WHERE id = ?",
        LineEnd::Cancelled => "UPDATE batch SET cancelled = cancelled + ? WHERE id = ?",
        LineEnd::Expired => "UPDATE batch SET expired = expired + ? WHERE id = ?",
    };
    sqlx::query(statement).bind(integer(lines)).bind(batch).execute(connection).await?;
    Ok(())
}

pub(super) const fn kind(kind: BatchKind) -> i64 {
    match kind {
        BatchKind::OfFiles => 0,
        BatchKind::OfMessages => 1,
    }
}

const fn number(end: LineEnd) -> i64 {
    match end {
        LineEnd::Completed => 1,
        LineEnd::Failed => 2,
        LineEnd::Cancelled => 3,
        LineEnd::Expired => 4,
    }
}

type LineRow = (i64, String, String, String);

fn waiting((at, custom_id, body, request): LineRow) -> LineRecord {
    let noted = Some(request).filter(|request| !request.is_empty());
    LineRecord { at: at.unsigned_abs(), custom_id, body, noted }
}

fn result(row: (i64, String, i64, i64, String, String)) -> LineResult {
    let (at, custom_id, ended, status, request, answer) = row;
    let end = match ended {
        1 => LineEnd::Completed,
        2 => LineEnd::Failed,
        3 => LineEnd::Cancelled,
        _ => LineEnd::Expired,
    };
    let status = u16::try_from(status).unwrap_or_default();
    LineResult { at: at.unsigned_abs(), custom_id, end, status, request, answer }
}

/// The columns of [`COLUMNS`].
pub(super) type BatchRow = (String, String, i64, i64, i64, i64, i64, String);

const COLUMNS: &str = "id, project, total, completed, failed, cancelled, expired, state FROM batch";

async fn batch(connection: &mut SqliteConnection, id: &str) -> Result<Option<BatchRecord>, StatementError> {
    let query = format!("SELECT {COLUMNS} WHERE id = ?");
    let row: Option<BatchRow> =
        sqlx::query_as(AssertSqlSafe(query)).bind(id).fetch_optional(connection).await?;
    row.map(record).transpose()
}

pub(super) fn record(
    (id, project, total, completed, failed, cancelled, expired, state): BatchRow,
) -> Result<BatchRecord, StatementError> {
    let unread = |error: serde_json::Error| ObjectError::Unavailable {
        why: format!("a batch cannot be read: {error}"),
    };
    let state = serde_json::from_str(&state).map_err(unread)?;
    let counts = BatchCounts {
        total: total.unsigned_abs(),
        completed: completed.unsigned_abs(),
        failed: failed.unsigned_abs(),
        cancelled: cancelled.unsigned_abs(),
        expired: expired.unsigned_abs(),
    };
    Ok(BatchRecord { id, project: owner(&project)?, counts, state })
}

pub(super) fn written(state: &BatchState) -> Result<String, StatementError> {
    let unwritten = |error: serde_json::Error| ObjectError::Unavailable {
        why: format!("a batch cannot be written: {error}"),
    };
    Ok(serde_json::to_string(state).map_err(unwritten)?)
}
