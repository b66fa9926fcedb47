//! The SQL statements for files and uploads. Each runs within the caller's transaction. Knows no locks.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    FileDraft, FileLimits, FileRecord, OUTPUT_PURPOSE, ObjectError, PageAsk, UploadFault, UploadRecord,
    UploadStatus,
};
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;

use crate::objects::rows::{end, fits, integer, nanos, walk};
use crate::statement_error::StatementError;

/// Maximum bytes per read.
pub(super) const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a file that one transaction removes.
const REMOVED_AT_ONCE: i64 = 16 << 20;
/// Requests of a batch that one transaction removes.
const LINES_REMOVED_AT_ONCE: i64 = 1_000;
/// How long an ended upload is remembered.
const REMEMBERED_NANOS: i64 = 24 * 3600 * 1_000_000_000;

/// Values of `file.state`.
const DRAFT: i64 = 0;
const FILE: i64 = 1;
const PART: i64 = 2;
const GOING: i64 = 3;

/// Ids of files that an earlier process was writing or removing.
pub(super) async fn unfinished(connection: &mut SqliteConnection) -> Result<Vec<String>, StatementError> {
    let ids: Vec<(String,)> = sqlx::query_as("SELECT id FROM file WHERE state IN (?, ?)")
        .bind(DRAFT)
        .bind(GOING)
        .fetch_all(connection)
        .await?;
    Ok(ids.into_iter().map(|(id,)| id).collect())
}

pub(super) async fn begin(
    connection: &mut SqliteConnection,
    draft: &FileDraft,
) -> Result<(), StatementError> {
    let (created, expires, name, purpose, upload) = match draft {
        FileDraft::File(FileRecord { created, expires, name, purpose, .. }) => {
            (created, *expires, name.as_str(), purpose.as_str(), None)
        }
        FileDraft::Part { part, .. } => (&part.created, None, "", "", Some(part.upload.as_str())),
    };
    sqlx::query(
        "INSERT INTO file (id, project, created, expires, bytes, name, purpose, upload, state) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?)",
    )
    .bind(draft.id())
    .bind(draft.project().as_str())
    .bind(integer(created.get()))
    .bind(expires.map(|expires| integer(expires.get())))
    .bind(name)
    .bind(purpose)
    .bind(upload)
    .bind(DRAFT)
    .execute(connection)
    .await?;
    Ok(())
}

/// Adds to the totals of a project. Checks the limits if `is_bounded`.
pub(super) async fn count(
    connection: &mut SqliteConnection,
    limits: &FileLimits,
    project: &str,
    is_bounded: bool,
    files: i64,
    bytes: i64,
) -> Result<(), StatementError> {
    let (files, bytes): (i64, i64) = sqlx::query_as(
        "INSERT INTO held (project, files, bytes) VALUES (?, ?, ?) ON CONFLICT (project) DO UPDATE SET \
         files = files + excluded.files, bytes = bytes + excluded.bytes RETURNING files, bytes",
    )
    .bind(project)
    .bind(files)
    .bind(bytes)
    .fetch_one(&mut *connection)
    .await?;
    if is_bounded {
        fits("max_files_per_project", limits.max_files_per_project, files.unsigned_abs())?;
        fits("max_file_bytes_per_project", limits.max_file_bytes_per_project, bytes.unsigned_abs())?;
        let (all,): (i64,) =
            sqlx::query_as("SELECT coalesce(sum(bytes), 0) FROM held").fetch_one(connection).await?;
        fits("max_total", limits.max_total_bytes, all.unsigned_abs())?;
    }
    Ok(())
}

/// Checks that the limits allow `more` bytes in addition to the project's files and batches.
pub(super) async fn has_room(
    connection: &mut SqliteConnection,
    limits: &FileLimits,
    project: &str,
    more: u64,
) -> Result<(), StatementError> {
    let (own, all): (i64, i64) = sqlx::query_as(
        "SELECT coalesce(sum(bytes) FILTER (WHERE project = ?), 0), coalesce(sum(bytes), 0) FROM held",
    )
    .bind(project)
    .fetch_one(connection)
    .await?;
    let then = |held: i64| held.unsigned_abs().saturating_add(more);
    fits("max_file_bytes_per_project", limits.max_file_bytes_per_project, then(own))?;
    fits("max_total", limits.max_total_bytes, then(all))?;
    Ok(())
}

/// Names of a file's segments.
pub(super) async fn segments(
    connection: &mut SqliteConnection,
    id: &str,
) -> Result<Vec<String>, StatementError> {
    let names: Vec<(String,)> =
        sqlx::query_as("SELECT name FROM segment WHERE file = ?").bind(id).fetch_all(connection).await?;
    Ok(names.into_iter().map(|(name,)| name).collect())
}

/// Names of the segments of all files.
pub(super) async fn all_segments(connection: &mut SqliteConnection) -> Result<Vec<String>, StatementError> {
    let names: Vec<(String,)> = sqlx::query_as("SELECT name FROM segment").fetch_all(connection).await?;
    Ok(names.into_iter().map(|(name,)| name).collect())
}

/// Returns the segment that contains position `at` of a file: the segment's start and its name. `None` if there is
/// none.
pub(super) async fn segment_at(
    connection: &mut SqliteConnection,
    id: &str,
    at: u64,
) -> Result<Option<(u64, String)>, StatementError> {
    let row: Option<(i64, String)> =
        sqlx::query_as("SELECT at, name FROM segment WHERE file = ? AND at <= ? ORDER BY at DESC LIMIT 1")
            .bind(id)
            .bind(integer(at))
            .fetch_optional(connection)
            .await?;
    Ok(row.map(|(from, name)| (from.unsigned_abs(), name)))
}

pub(super) async fn append(
    connection: &mut SqliteConnection,
    limits: &FileLimits,
    id: &str,
    at: u64,
    bytes: &[u8],
) -> Result<(), StatementError> {
    let more = integer(bytes.len() as u64);
    let row: Option<(String, String)> = sqlx::query_as(
        "UPDATE file SET bytes = bytes + ? WHERE id = ? AND state = ? AND bytes = ? RETURNING project, purpose",
    )
    .bind(more)
    .bind(id)
    .bind(DRAFT)
    .bind(integer(at))
    .fetch_optional(&mut *connection)
    .await?;
    let Some((project, purpose)) = row else {
        return Err(
            ObjectError::Unavailable { why: "a file was written that is being removed".to_owned() }.into()
        );
    };
    fits("max_file_bytes", limits.max_file_bytes, at.saturating_add(bytes.len() as u64))?;
    count(connection, limits, &project, purpose != OUTPUT_PURPOSE, 0, more).await?;
    if at == 0 {
        sqlx::query("INSERT INTO segment (file, at, name) VALUES (?, 0, ?)")
            .bind(id)
            .bind(id)
            .execute(connection)
            .await?;
    }
    Ok(())
}

pub(super) async fn finish(
    connection: &mut SqliteConnection,
    draft: &FileDraft,
    now: UnixNanos,
) -> Result<bool, StatementError> {
    let state = match draft {
        FileDraft::File(_) => FILE,
        FileDraft::Part { project, part } => {
            let found = upload(connection, project, &part.upload).await?;
            if found.is_none_or(|upload| upload.status != UploadStatus::Pending || upload.expires <= now) {
                return Ok(false);
            }
            PART
        }
    };
    let (expires, name, purpose) = match draft {
        FileDraft::File(FileRecord { expires, name, purpose, .. }) => {
            (*expires, name.as_str(), purpose.as_str())
        }
        FileDraft::Part { .. } => (None, "", ""),
    };
    let expires = expires.map(|expires| integer(expires.get()));
    let done = sqlx::query(
        "UPDATE file SET state = ?, expires = ?, name = ?, purpose = ? WHERE id = ? AND state = ?",
    )
    .bind(state)
    .bind(expires)
    .bind(name)
    .bind(purpose)
    .bind(draft.id())
    .bind(DRAFT)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

type Row = (String, String, i64, Option<i64>, i64, String, String);

const COLUMNS: &str = "id, project, created, expires, bytes, name, purpose FROM file";

fn record((id, project, created, expires, bytes, name, purpose): Row) -> Result<FileRecord, StatementError> {
    let (project, created, expires) = (owner(&project)?, nanos(created), expires.map(nanos));
    Ok(FileRecord { id, project, created, expires, bytes: bytes.unsigned_abs(), name, purpose })
}

/// Parses a project id.
///
/// # Errors
/// Fails if the row's project is not a valid id.
pub(super) fn owner(project: &str) -> Result<ProjectId, StatementError> {
    let bad =
        |error| ObjectError::Unavailable { why: format!("a row names a project that is none: {error}") };
    Ok(ProjectId::new(project).map_err(bad)?)
}

pub(super) async fn file(
    connection: &mut SqliteConnection,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<FileRecord>, StatementError> {
    let query = format!(
        "SELECT {COLUMNS} WHERE id = ? AND project = ? AND state = ? AND (expires IS NULL OR expires > ?)"
    );
    let row: Option<Row> = sqlx::query_as(AssertSqlSafe(query))
        .bind(id)
        .bind(project.as_str())
        .bind(FILE)
        .bind(integer(now.get()))
        .fetch_optional(connection)
        .await?;
    row.map(record).transpose()
}

pub(super) async fn files(
    connection: &mut SqliteConnection,
    project: &ProjectId,
    purpose: Option<&str>,
    ask: &PageAsk,
    now: UnixNanos,
) -> Result<(Vec<FileRecord>, bool), StatementError> {
    let from = match ask.cursor() {
        None => end(ask),
        Some(cursor) => {
            let found: Option<(i64,)> =
                sqlx::query_as("SELECT seq FROM file WHERE id = ? AND project = ? AND state = ?")
                    .bind(cursor)
                    .bind(project.as_str())
                    .bind(FILE)
                    .fetch_optional(&mut *connection)
                    .await?;
            let Some((seq,)) = found else { return Ok((Vec::new(), false)) };
            seq
        }
    };
    let query = format!(
        "SELECT {COLUMNS} WHERE project = ? AND state = ? AND (expires IS NULL OR expires > ?) AND (? IS NULL OR purpose = ?) AND {}",
        walk(ask)
    );
    let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(query))
        .bind(project.as_str())
        .bind(FILE)
        .bind(integer(now.get()))
        .bind(purpose)
        .bind(purpose)
        .bind(from)
        .bind(integer(ask.rows() as u64))
        .fetch_all(connection)
        .await?;
    let (rows, has_more) = ask.cut(rows);
    Ok((rows.into_iter().map(record).collect::<Result<_, _>>()?, has_more))
}

/// Bytes of a file of format 1: the row that contains position `from`, from that position on.
pub(super) async fn bytes(
    connection: &mut SqliteConnection,
    id: &str,
    from: u64,
) -> Result<Vec<u8>, StatementError> {
    let row: Option<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT at, data FROM chunk WHERE file = ? AND at <= ? ORDER BY at DESC LIMIT 1")
            .bind(id)
            .bind(integer(from))
            .fetch_optional(connection)
            .await?;
    let Some((at, mut data)) = row else { return Ok(Vec::new()) };
    let skipped = usize::try_from(integer(from).saturating_sub(at)).unwrap_or(usize::MAX).min(data.len());
    data.drain(..skipped);
    Ok(data)
}

/// Hides a file from clients. Returns whether it was visible.
pub(super) async fn hide(
    connection: &mut SqliteConnection,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<bool, StatementError> {
    let hidden = sqlx::query(
        "UPDATE file SET state = ? WHERE id = ? AND project = ? AND state = ? AND (expires IS NULL OR expires > ?)",
    )
    .bind(GOING)
    .bind(id)
    .bind(project.as_str())
    .bind(FILE)
    .bind(integer(now.get()))
    .execute(connection)
    .await?;
    Ok(hidden.rows_affected() > 0)
}

/// Removes a part of a hidden file. Returns whether more of it is left.
pub(super) async fn remove_some(connection: &mut SqliteConnection, id: &str) -> Result<bool, StatementError> {
    let first: Option<(i64,)> = sqlx::query_as("SELECT at FROM chunk WHERE file = ? ORDER BY at LIMIT 1")
        .bind(id)
        .fetch_optional(&mut *connection)
        .await?;
    if let Some((at,)) = first {
        sqlx::query("DELETE FROM chunk WHERE file = ? AND at < ?")
            .bind(id)
            .bind(at + REMOVED_AT_ONCE)
            .execute(connection)
            .await?;
        return Ok(true);
    }
    sqlx::query("DELETE FROM segment WHERE file = ?").bind(id).execute(&mut *connection).await?;
    let gone: Option<(String, i64)> =
        sqlx::query_as("DELETE FROM file WHERE id = ? AND state IN (0, 3) RETURNING project, bytes")
            .bind(id)
            .fetch_optional(&mut *connection)
            .await?;
    if let Some((project, bytes)) = gone {
        count(connection, &FileLimits::default(), &project, false, -1, -bytes).await?;
    }
    Ok(false)
}

/// Hides expired files and returns their ids.
pub(super) async fn expired(
    connection: &mut SqliteConnection,
    now: UnixNanos,
    most: i64,
) -> Result<Vec<String>, StatementError> {
    let ids: Vec<(String,)> = sqlx::query_as(
        "UPDATE file SET state = ? WHERE seq IN (SELECT seq FROM file WHERE expires <= ? AND state = ? LIMIT ?) RETURNING id",
    )
    .bind(GOING)
    .bind(integer(now.get()))
    .bind(FILE)
    .bind(most)
    .fetch_all(connection)
    .await?;
    Ok(ids.into_iter().map(|(id,)| id).collect())
}

pub(super) async fn create_upload(
    connection: &mut SqliteConnection,
    limits: &FileLimits,
    upload: &UploadRecord,
) -> Result<(), StatementError> {
    fits("max_file_bytes", limits.max_file_bytes, upload.bytes)?;
    let (own,): (i64,) = sqlx::query_as("SELECT count(*) FROM upload WHERE project = ?")
        .bind(upload.project.as_str())
        .fetch_one(&mut *connection)
        .await?;
    fits("max_files_per_project", limits.max_files_per_project, own.unsigned_abs() + 1)?;
    sqlx::query(
        "INSERT INTO upload (id, project, created, expires, status, bytes, name, purpose, mime, kept_seconds) \
         VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?)",
    )
    .bind(&upload.id)
    .bind(upload.project.as_str())
    .bind(integer(upload.created.get()))
    .bind(integer(upload.expires.get()))
    .bind(integer(upload.bytes))
    .bind(&upload.name)
    .bind(&upload.purpose)
    .bind(&upload.mime)
    .bind(upload.kept_seconds.map(integer))
    .execute(connection)
    .await?;
    Ok(())
}

type UploadRow = (i64, i64, i64, i64, String, String, String, Option<i64>, Option<String>);

pub(super) async fn upload(
    connection: &mut SqliteConnection,
    project: &ProjectId,
    id: &str,
) -> Result<Option<UploadRecord>, StatementError> {
    let row: Option<UploadRow> = sqlx::query_as(
        "SELECT created, expires, status, bytes, name, purpose, mime, kept_seconds, file FROM upload WHERE id = ? AND project = ?",
    )
    .bind(id)
    .bind(project.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|(created, expires, status, bytes, name, purpose, mime, kept_seconds, file)| UploadRecord {
        id: id.to_owned(),
        project: project.clone(),
        created: nanos(created),
        expires: nanos(expires),
        status: match status {
            0 => UploadStatus::Pending,
            1 => UploadStatus::Completed,
            _ => UploadStatus::Cancelled,
        },
        bytes: bytes.unsigned_abs(),
        name,
        purpose,
        mime,
        kept_seconds: kept_seconds.map(i64::unsigned_abs),
        file,
    }))
}

/// Records how an upload ended and hides the remaining parts. Returns the ids of those parts.
pub(super) async fn end_upload(
    connection: &mut SqliteConnection,
    upload: &UploadRecord,
) -> Result<Vec<String>, StatementError> {
    let status = match upload.status {
        UploadStatus::Pending => 0,
        UploadStatus::Completed => 1,
        UploadStatus::Cancelled => 2,
    };
    sqlx::query("UPDATE upload SET status = ?, file = ? WHERE id = ?")
        .bind(status)
        .bind(&upload.file)
        .bind(&upload.id)
        .execute(&mut *connection)
        .await?;
    hide_parts(connection, &upload.id).await
}

/// Hides the parts of an upload. Returns their ids.
pub(super) async fn hide_parts(
    connection: &mut SqliteConnection,
    upload: &str,
) -> Result<Vec<String>, StatementError> {
    let ids: Vec<(String,)> =
        sqlx::query_as("UPDATE file SET state = ? WHERE upload = ? AND state = ? RETURNING id")
            .bind(GOING)
            .bind(upload)
            .bind(PART)
            .fetch_all(connection)
            .await?;
    Ok(ids.into_iter().map(|(id,)| id).collect())
}

/// Size of an upload's part in bytes. `None` if there is no such part.
pub(super) async fn part_bytes(
    connection: &mut SqliteConnection,
    upload: &str,
    part: &str,
) -> Result<Option<u64>, StatementError> {
    let row: Option<(i64,)> =
        sqlx::query_as("SELECT bytes FROM file WHERE id = ? AND upload = ? AND state = ?")
            .bind(part)
            .bind(upload)
            .bind(PART)
            .fetch_optional(connection)
            .await?;
    Ok(row.map(|(bytes,)| bytes.unsigned_abs()))
}

/// Joins parts to one file, which takes over their rows.
pub(super) async fn join(
    connection: &mut SqliteConnection,
    upload: &UploadRecord,
    parts: &[String],
    file: &str,
    now: UnixNanos,
) -> Result<Result<FileRecord, UploadFault>, StatementError> {
    let mut places = Vec::with_capacity(parts.len());
    let mut bytes = 0_u64;
    for (at, part) in parts.iter().enumerate() {
        let found = part_bytes(connection, &upload.id, part).await?;
        let twice = parts.iter().take(at).any(|before| before == part);
        let Some(more) = found.filter(|_| !twice) else { return Ok(Err(UploadFault::Part(part.clone()))) };
        places.push((part, bytes));
        bytes = bytes.saturating_add(more);
    }
    if bytes != upload.bytes {
        return Ok(Err(UploadFault::Bytes(bytes)));
    }
    let record = upload.joined(file, now);
    begin(connection, &FileDraft::File(record.clone())).await?;
    for (part, at) in places {
        for table in ["UPDATE chunk", "UPDATE segment"] {
            // No part of the statement comes from outside.
            sqlx::query(AssertSqlSafe(format!("{table} SET file = ?, at = at + ? WHERE file = ?")))
                .bind(file)
                .bind(integer(at))
                .bind(part)
                .execute(&mut *connection)
                .await?;
        }
        // The part's bytes now belong to the file.
        sqlx::query("UPDATE file SET bytes = 0 WHERE id = ?").bind(part).execute(&mut *connection).await?;
    }
    sqlx::query("UPDATE file SET bytes = ?, state = ? WHERE id = ?")
        .bind(integer(bytes))
        .bind(FILE)
        .bind(file)
        .execute(&mut *connection)
        .await?;
    // The parts' bytes are already counted. Only the new file is added.
    count(connection, &FileLimits::default(), upload.project.as_str(), false, 1, 0).await?;
    Ok(Ok(record))
}

/// Hides the parts of expired uploads, and deletes uploads that ended long ago. Returns the parts' ids and the number
/// of deleted uploads.
pub(super) async fn expired_uploads(
    connection: &mut SqliteConnection,
    now: UnixNanos,
    most: i64,
) -> Result<(Vec<String>, u64), StatementError> {
    let now = integer(now.get());
    let parts: Vec<(String,)> = sqlx::query_as(
        "UPDATE file SET state = ? WHERE state = ? AND upload IN (SELECT id FROM upload WHERE expires <= ? LIMIT ?) RETURNING id",
    )
    .bind(GOING)
    .bind(PART)
    .bind(now)
    .bind(most)
    .fetch_all(&mut *connection)
    .await?;
    let gone =
        sqlx::query("DELETE FROM upload WHERE id IN (SELECT id FROM upload WHERE expires <= ? LIMIT ?)")
            .bind(now.saturating_sub(REMEMBERED_NANOS))
            .bind(most)
            .execute(connection)
            .await?;
    Ok((parts.into_iter().map(|(id,)| id).collect(), gone.rows_affected()))
}

/// Deletes batches whose retention is over, with their requests. Returns how many.
pub(super) async fn sweep_batches(
    connection: &mut SqliteConnection,
    now: UnixNanos,
    most: i64,
) -> Result<u64, StatementError> {
    let gone: Vec<(String,)> = sqlx::query_as(
        "DELETE FROM batch WHERE seq IN (SELECT seq FROM batch WHERE gone <= ? LIMIT ?) RETURNING id",
    )
    .bind(integer(now.get()))
    .bind(most)
    .fetch_all(&mut *connection)
    .await?;
    for (id,) in &gone {
        clear(connection, id).await?;
    }
    Ok(gone.len() as u64)
}

/// Deletes a batch that has ended: some of its requests, or the batch itself if there are none left. Returns whether
/// there is more to delete.
pub(super) async fn remove_batch_step(
    connection: &mut SqliteConnection,
    batch: &str,
) -> Result<bool, StatementError> {
    let some = "DELETE FROM line WHERE batch = ?1 AND at IN (SELECT at FROM line WHERE batch = ?1 LIMIT ?2)";
    let gone = sqlx::query(some).bind(batch).bind(LINES_REMOVED_AT_ONCE).execute(&mut *connection).await?;
    if gone.rows_affected() > 0 {
        return Ok(true);
    }
    sqlx::query("DELETE FROM batch WHERE id = ?").bind(batch).execute(connection).await?;
    Ok(false)
}

/// Deletes all requests of a batch.
pub(super) async fn clear(connection: &mut SqliteConnection, batch: &str) -> Result<(), StatementError> {
    sqlx::query("DELETE FROM line WHERE batch = ?").bind(batch).execute(connection).await?;
    Ok(())
}
