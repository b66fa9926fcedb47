//! The statements for files and uploads. Each change runs within the caller's transaction, and locks the row of a file or
//! an upload before that of its project. Knows no connections.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    FileDraft, FileLimits, FileRecord, OUTPUT_PURPOSE, PageAsk, UploadFault, UploadRecord, UploadStatus,
};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::pool::StatementFailure;
use crate::values::{end, fits, id_text, integer, nanos, project_at, text_at, unreadable, walk};

/// Bytes of a chunk, which one read returns at most.
const CHUNK_BYTES: usize = 256 << 10;
/// Bytes of a file that one transaction removes.
const REMOVED_AT_ONCE: i64 = 16 << 20;
/// How long an ended upload is remembered.
const REMEMBERED_NANOS: i64 = 24 * 3600 * 1_000_000_000;

/// Values of `file.state`. A file that is being written has 0.
const FILE: i32 = 1;
const PART: i32 = 2;
const GOING: i32 = 3;

const COLUMNS: &str = "id, project, created, expires, bytes, name, purpose FROM headrace.file";
/// Whether a file can be seen.
const VISIBLE: &str = "state = 1 AND (expires IS NULL OR expires > ";

/// Whether a gateway has begun the same object and has not finished it.
pub(super) async fn is_unfinished(client: &Client, draft: &FileDraft) -> Result<bool, StatementFailure> {
    let query = "SELECT FROM headrace.file WHERE id = $1 AND project = $2 AND state IN (0, 3)";
    let (id, project) = (draft.id(), draft.project().as_str());
    let found = client.query_typed_opt(query, &[(&id, Type::TEXT), (&project, Type::TEXT)]).await?;
    Ok(found.is_some())
}

pub(super) async fn begin(client: &Client, draft: &FileDraft) -> Result<(), StatementFailure> {
    let (created, expires, name, purpose, upload) = match draft {
        FileDraft::File(FileRecord { created, expires, name, purpose, .. }) => {
            (created, *expires, name.as_bytes(), purpose.as_bytes(), None)
        }
        FileDraft::Part { part, .. } => {
            (&part.created, None, [].as_slice(), [].as_slice(), Some(id_text(&part.upload)))
        }
    };
    let insert = "INSERT INTO headrace.file (id, project, created, expires, bytes, name, purpose, upload, state) \
        VALUES ($1, $2, $3, $4, 0, $5, $6, $7, 0)";
    let (id, project) = (draft.id(), draft.project().as_str());
    let (created, expires) = (integer(created.get()), expires.map(|expires| integer(expires.get())));
    let values = [
        (&id as _, Type::TEXT),
        (&project as _, Type::TEXT),
        (&created as _, Type::INT8),
        (&expires as _, Type::INT8),
        (&name as _, Type::BYTEA),
        (&purpose as _, Type::BYTEA),
        (&upload as _, Type::TEXT),
    ];
    client.execute_typed(insert, &values).await?;
    Ok(())
}

/// Adds files and bytes to the totals of a project. Checks the limits if `is_bounded`.
pub(super) async fn count(
    client: &Client,
    limits: &FileLimits,
    project: &str,
    is_bounded: bool,
    (files, bytes): (i64, i64),
) -> Result<(), StatementFailure> {
    let add = "INSERT INTO headrace.held_files VALUES ($1, $2, $3) ON CONFLICT (project) DO UPDATE SET \
        files = held_files.files + excluded.files, bytes = held_files.bytes + excluded.bytes RETURNING files, bytes";
    let values = [(&project as _, Type::TEXT), (&files as _, Type::INT8), (&bytes as _, Type::INT8)];
    let held = client.query_typed_one(add, &values).await?;
    if is_bounded {
        let [files, bytes] = [0, 1].map(|column| held.get::<_, i64>(column).unsigned_abs());
        fits("max_files_per_project", limits.max_files_per_project, files)?;
        fits("max_file_bytes_per_project", limits.max_file_bytes_per_project, bytes)?;
        let all = "SELECT coalesce(sum(bytes), 0)::bigint FROM headrace.held_files";
        let all: i64 = client.query_typed_one(all, &[]).await?.get(0);
        fits("max_total", limits.max_total_bytes, all.unsigned_abs())?;
    }
    Ok(())
}

/// Checks that the limits allow `more` bytes in addition to the project's files and batches.
pub(super) async fn has_room(
    client: &Client,
    limits: &FileLimits,
    project: &str,
    more: u64,
) -> Result<(), StatementFailure> {
    let query = "SELECT coalesce(sum(bytes) FILTER (WHERE project = $1), 0)::bigint, coalesce(sum(bytes), 0)::bigint \
        FROM headrace.held_files";
    let held = client.query_typed_one(query, &[(&project, Type::TEXT)]).await?;
    let then = |column| held.get::<_, i64>(column).unsigned_abs().saturating_add(more);
    fits("max_file_bytes_per_project", limits.max_file_bytes_per_project, then(0))?;
    fits("max_total", limits.max_total_bytes, then(1))?;
    Ok(())
}

pub(super) async fn append(
    client: &Client,
    limits: &FileLimits,
    id: &str,
    at: u64,
    bytes: &[u8],
) -> Result<(), StatementFailure> {
    let grow = "UPDATE headrace.file SET bytes = bytes + $1, touched = clock_timestamp() \
        WHERE id = $2 AND state = 0 AND bytes = $3 RETURNING project, purpose";
    let (more, from) = (integer(bytes.len() as u64), integer(at));
    let values = [(&more as _, Type::INT8), (&id as _, Type::TEXT), (&from as _, Type::INT8)];
    let Some(row) = client.query_typed_opt(grow, &values).await? else {
        return Err(unreadable("a file was written that is being removed").into());
    };
    fits("max_file_bytes", limits.max_file_bytes, at.saturating_add(bytes.len() as u64))?;
    let chunks: Vec<&[u8]> = bytes.chunks(CHUNK_BYTES).collect();
    let places: Vec<i64> = (0..chunks.len()).map(|chunk| from + (chunk * CHUNK_BYTES) as i64).collect();
    let insert = "INSERT INTO headrace.file_chunk SELECT $1, at, data FROM unnest($2::bigint[], $3::bytea[]) AS new (at, data)";
    let values =
        [(&id as _, Type::TEXT), (&places as _, Type::INT8_ARRAY), (&chunks as _, Type::BYTEA_ARRAY)];
    client.execute_typed(insert, &values).await?;
    let is_bounded = row.get::<_, &[u8]>(1) != OUTPUT_PURPOSE.as_bytes();
    count(client, limits, row.get(0), is_bounded, (0, more)).await
}

pub(super) async fn finish(
    client: &Client,
    draft: &FileDraft,
    now: UnixNanos,
) -> Result<bool, StatementFailure> {
    let (state, expires, name, purpose) = match draft {
        FileDraft::File(FileRecord { expires, name, purpose, .. }) => {
            (FILE, *expires, name.as_bytes(), purpose.as_bytes())
        }
        FileDraft::Part { project, part } => {
            let found = upload(client, project, &part.upload, "FOR SHARE").await?;
            if found.is_none_or(|upload| upload.status != UploadStatus::Pending || upload.expires <= now) {
                return Ok(false);
            }
            (PART, None, [].as_slice(), [].as_slice())
        }
    };
    let finish = "UPDATE headrace.file SET state = $1, expires = $2, name = $3, purpose = $4 WHERE id = $5 AND state = 0";
    let (id, expires) = (draft.id(), expires.map(|expires| integer(expires.get())));
    let values = [
        (&state as _, Type::INT4),
        (&expires as _, Type::INT8),
        (&name as _, Type::BYTEA),
        (&purpose as _, Type::BYTEA),
        (&id as _, Type::TEXT),
    ];
    Ok(client.execute_typed(finish, &values).await? == 1)
}

fn record(row: &Row) -> Result<FileRecord, StatementFailure> {
    Ok(FileRecord {
        id: row.get(0),
        project: project_at(row, 1)?,
        created: nanos(row.get(2)),
        expires: row.get::<_, Option<i64>>(3).map(nanos),
        bytes: row.get::<_, i64>(4).unsigned_abs(),
        name: text_at(row, 5)?,
        purpose: text_at(row, 6)?,
    })
}

pub(super) async fn file(
    client: &Client,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<FileRecord>, StatementFailure> {
    let query = format!("SELECT {COLUMNS} WHERE id = $1 AND project = $2 AND {VISIBLE} $3)");
    let (id, project, now) = (id_text(id), project.as_str(), integer(now.get()));
    let values = [(&id as _, Type::TEXT), (&project as _, Type::TEXT), (&now as _, Type::INT8)];
    client.query_typed_opt(&query, &values).await?.as_ref().map(record).transpose()
}

pub(super) async fn files(
    client: &Client,
    project: &ProjectId,
    purpose: Option<&str>,
    ask: &PageAsk,
    now: UnixNanos,
) -> Result<(Vec<FileRecord>, bool), StatementFailure> {
    let project = project.as_str();
    let from = match ask.cursor() {
        None => end(ask),
        Some(cursor) => {
            let query = "SELECT seq FROM headrace.file WHERE id = $1 AND project = $2 AND state = 1";
            let values = [(&id_text(cursor) as _, Type::TEXT), (&project as _, Type::TEXT)];
            let Some(row) = client.query_typed_opt(query, &values).await? else {
                return Ok((Vec::new(), false));
            };
            row.get(0)
        }
    };
    let query = format!(
        "SELECT {COLUMNS} WHERE project = $1 AND {VISIBLE} $2) AND ($3::bytea IS NULL OR purpose = $3) AND {}",
        walk(ask, 4)
    );
    let (now, purpose, limit) = (integer(now.get()), purpose.map(str::as_bytes), integer(ask.rows() as u64));
    let values = [
        (&project as _, Type::TEXT),
        (&now as _, Type::INT8),
        (&purpose as _, Type::BYTEA),
        (&from as _, Type::INT8),
        (&limit as _, Type::INT8),
    ];
    let (rows, has_more) = ask.cut(client.query_typed(&query, &values).await?);
    Ok((rows.iter().map(record).collect::<Result<_, _>>()?, has_more))
}

/// Bytes of a file from position `from` on: the rest of the chunk there. Empty after the end.
pub(super) async fn bytes(client: &Client, id: &str, from: u64) -> Result<Vec<u8>, StatementFailure> {
    let query =
        "SELECT at, data FROM headrace.file_chunk WHERE file = $1 AND at <= $2 ORDER BY at DESC LIMIT 1";
    let (id, from) = (id_text(id), integer(from));
    let values = [(&id as _, Type::TEXT), (&from as _, Type::INT8)];
    let Some(row) = client.query_typed_opt(query, &values).await? else { return Ok(Vec::new()) };
    let skipped = usize::try_from(from.saturating_sub(row.get::<_, i64>(0))).unwrap_or(usize::MAX);
    Ok(row.get::<_, &[u8]>(1).get(skipped..).unwrap_or_default().to_vec())
}

/// Hides a file from clients. Returns whether it was visible.
pub(super) async fn hide(
    client: &Client,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<bool, StatementFailure> {
    let hide = format!(
        "UPDATE headrace.file SET state = {GOING}, touched = clock_timestamp() WHERE id = $1 AND project = $2 AND {VISIBLE} $3)"
    );
    let (id, project, now) = (id_text(id), project.as_str(), integer(now.get()));
    let values = [(&id as _, Type::TEXT), (&project as _, Type::TEXT), (&now as _, Type::INT8)];
    Ok(client.execute_typed(&hide, &values).await? > 0)
}

/// Removes a part of a file that is hidden or was not finished. Returns whether more of it may be left.
pub(super) async fn remove_some(client: &Client, id: &str) -> Result<bool, StatementFailure> {
    let id = id_text(id);
    let hidden = "SELECT FROM headrace.file WHERE id = $1 AND state IN (0, 3) FOR UPDATE";
    if client.query_typed_opt(hidden, &[(&id, Type::TEXT)]).await?.is_none() {
        return Ok(false);
    }
    let chunks = "DELETE FROM headrace.file_chunk WHERE file = $1 AND at < \
        (SELECT at FROM headrace.file_chunk WHERE file = $1 ORDER BY at LIMIT 1) + $2";
    let values = [(&id as _, Type::TEXT), (&REMOVED_AT_ONCE as _, Type::INT8)];
    if client.execute_typed(chunks, &values).await? > 0 {
        return Ok(true);
    }
    let row = "DELETE FROM headrace.file WHERE id = $1 RETURNING project, bytes";
    if let Some(gone) = client.query_typed_opt(row, &[(&id, Type::TEXT)]).await? {
        let bytes: i64 = gone.get(1);
        count(client, &FileLimits::default(), gone.get(0), false, (-1, -bytes)).await?;
    }
    Ok(false)
}

/// Ids of files whose removal did not end, or that no gateway has written for an hour.
pub(super) async fn left(client: &Client, most: i64) -> Result<Vec<String>, StatementFailure> {
    let query = "SELECT id FROM headrace.file WHERE state IN (0, 3) AND touched < clock_timestamp() - \
        CASE state WHEN 0 THEN interval '1 hour' ELSE interval '1 minute' END LIMIT $1";
    let rows = client.query_typed(query, &[(&most, Type::INT8)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Hides expired files and returns their ids.
pub(super) async fn expired(
    client: &Client,
    now: UnixNanos,
    most: i64,
) -> Result<Vec<String>, StatementFailure> {
    // Two gateways that sweep at the same time take different files.
    let hide = format!(
        "UPDATE headrace.file SET state = {GOING}, touched = clock_timestamp() WHERE seq IN (SELECT seq FROM headrace.file \
         WHERE expires <= $1 AND state = {FILE} LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING id"
    );
    let values = [(&integer(now.get()) as _, Type::INT8), (&most as _, Type::INT8)];
    let rows = client.query_typed(&hide, &values).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub(super) async fn create_upload(
    client: &Client,
    limits: &FileLimits,
    upload: &UploadRecord,
) -> Result<(), StatementFailure> {
    fits("max_file_bytes", limits.max_file_bytes, upload.bytes)?;
    let project = upload.project.as_str();
    // Locks the project's totals, so that no two gateways count on the same place.
    count(client, limits, project, false, (0, 0)).await?;
    let own = "SELECT count(*) FROM headrace.upload WHERE project = $1";
    let own: i64 = client.query_typed_one(own, &[(&project, Type::TEXT)]).await?.get(0);
    fits("max_files_per_project", limits.max_files_per_project, own.unsigned_abs().saturating_add(1))?;
    let insert = "INSERT INTO headrace.upload VALUES ($1, $2, $3, $4, 0, $5, $6, $7, $8, $9, NULL)";
    let [created, expires] = [upload.created, upload.expires].map(|time| integer(time.get()));
    let [name, purpose, mime] = [&upload.name, &upload.purpose, &upload.mime].map(|text| text.as_bytes());
    let values = [
        (&upload.id as _, Type::TEXT),
        (&project as _, Type::TEXT),
        (&created as _, Type::INT8),
        (&expires as _, Type::INT8),
        (&integer(upload.bytes) as _, Type::INT8),
        (&name as _, Type::BYTEA),
        (&purpose as _, Type::BYTEA),
        (&mime as _, Type::BYTEA),
        (&upload.kept_seconds.map(integer) as _, Type::INT8),
    ];
    client.execute_typed(insert, &values).await?;
    Ok(())
}

/// Reads an upload. `lock` is a clause that locks it, or empty.
pub(super) async fn upload(
    client: &Client,
    project: &ProjectId,
    id: &str,
    lock: &str,
) -> Result<Option<UploadRecord>, StatementFailure> {
    let query = format!(
        "SELECT created, expires, status, bytes, name, purpose, mime, kept_seconds, file FROM headrace.upload \
         WHERE id = $1 AND project = $2 {lock}"
    );
    let (text, owner) = (id_text(id), project.as_str());
    let values = [(&text as _, Type::TEXT), (&owner as _, Type::TEXT)];
    let Some(row) = client.query_typed_opt(&query, &values).await? else { return Ok(None) };
    Ok(Some(UploadRecord {
        id: id.to_owned(),
        project: project.clone(),
        created: nanos(row.get(0)),
        expires: nanos(row.get(1)),
        status: match row.get::<_, i32>(2) {
            0 => UploadStatus::Pending,
            1 => UploadStatus::Completed,
            _ => UploadStatus::Cancelled,
        },
        bytes: row.get::<_, i64>(3).unsigned_abs(),
        name: text_at(&row, 4)?,
        purpose: text_at(&row, 5)?,
        mime: text_at(&row, 6)?,
        kept_seconds: row.get::<_, Option<i64>>(7).map(i64::unsigned_abs),
        file: row.get(8),
    }))
}

/// Records how an upload ended and hides the remaining parts. Returns the ids of those parts.
pub(super) async fn end_upload(
    client: &Client,
    upload: &UploadRecord,
) -> Result<Vec<String>, StatementFailure> {
    let status = match upload.status {
        UploadStatus::Pending => 0_i32,
        UploadStatus::Completed => 1,
        UploadStatus::Cancelled => 2,
    };
    let set = "UPDATE headrace.upload SET status = $1, file = $2 WHERE id = $3";
    let values = [(&status as _, Type::INT4), (&upload.file as _, Type::TEXT), (&upload.id as _, Type::TEXT)];
    client.execute_typed(set, &values).await?;
    let hide = format!(
        "UPDATE headrace.file SET state = {GOING}, touched = clock_timestamp() WHERE upload = $1 AND state = {PART} RETURNING id"
    );
    let rows = client.query_typed(&hide, &[(&upload.id, Type::TEXT)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Size of an upload's part in bytes. `None` if there is no such part.
pub(super) async fn part_bytes(
    client: &Client,
    upload: &str,
    part: &str,
) -> Result<Option<u64>, StatementFailure> {
    let query = "SELECT bytes FROM headrace.file WHERE id = $1 AND upload = $2 AND state = 2";
    let (part, upload) = (id_text(part), id_text(upload));
    let found = client.query_typed_opt(query, &[(&part, Type::TEXT), (&upload, Type::TEXT)]).await?;
    Ok(found.map(|row| row.get::<_, i64>(0).unsigned_abs()))
}

/// Joins parts to one file, which takes over their chunks.
pub(super) async fn join(
    client: &Client,
    upload: &UploadRecord,
    parts: &[String],
    file: &str,
    now: UnixNanos,
) -> Result<Result<FileRecord, UploadFault>, StatementFailure> {
    let mut places = Vec::with_capacity(parts.len());
    let mut bytes = 0_u64;
    for (at, part) in parts.iter().enumerate() {
        let found = part_bytes(client, &upload.id, part).await?;
        let is_twice = parts.iter().take(at).any(|before| before == part);
        let Some(more) = found.filter(|_| !is_twice) else { return Ok(Err(UploadFault::Part(part.clone()))) };
        places.push((part, bytes));
        bytes = bytes.saturating_add(more);
    }
    if bytes != upload.bytes {
        return Ok(Err(UploadFault::Bytes(bytes)));
    }
    let record = upload.joined(file, now);
    begin(client, &FileDraft::File(record.clone())).await?;
    for (part, at) in places {
        let take = "UPDATE headrace.file_chunk SET file = $1, at = at + $2 WHERE file = $3";
        let values = [(&file as _, Type::TEXT), (&integer(at) as _, Type::INT8), (part as _, Type::TEXT)];
        client.execute_typed(take, &values).await?;
        // The part's bytes now belong to the file.
        let empty = "UPDATE headrace.file SET bytes = 0 WHERE id = $1";
        client.execute_typed(empty, &[(part, Type::TEXT)]).await?;
    }
    let finish = "UPDATE headrace.file SET bytes = $1, state = 1 WHERE id = $2";
    client.execute_typed(finish, &[(&integer(bytes), Type::INT8), (&file, Type::TEXT)]).await?;
    // The parts' bytes are already counted. Only the new file is added.
    count(client, &FileLimits::default(), upload.project.as_str(), false, (1, 0)).await?;
    Ok(Ok(record))
}

/// Hides the parts of expired uploads, and deletes uploads that ended long ago. Returns the parts' ids and the number of
/// deleted uploads.
pub(super) async fn expired_uploads(
    client: &Client,
    now: UnixNanos,
    most: i64,
) -> Result<(Vec<String>, u64), StatementFailure> {
    let now = integer(now.get());
    let hide = format!(
        "UPDATE headrace.file SET state = {GOING}, touched = clock_timestamp() WHERE seq IN (SELECT file.seq FROM headrace.file \
         JOIN headrace.upload ON upload.id = file.upload WHERE file.state = {PART} AND upload.expires <= $1 LIMIT $2 \
         FOR UPDATE OF file SKIP LOCKED) RETURNING id"
    );
    let parts = client.query_typed(&hide, &[(&now, Type::INT8), (&most, Type::INT8)]).await?;
    let forget = "DELETE FROM headrace.upload WHERE id IN (SELECT id FROM headrace.upload WHERE expires <= $1 LIMIT $2 \
        FOR UPDATE SKIP LOCKED)";
    let long_ago = now.saturating_sub(REMEMBERED_NANOS);
    let gone = client.execute_typed(forget, &[(&long_ago, Type::INT8), (&most, Type::INT8)]).await?;
    Ok((parts.iter().map(|row| row.get(0)).collect(), gone))
}

/// Bytes of a batch's file. Zero if there is none.
pub(super) async fn input_bytes(
    client: &Client,
    project: &str,
    input: Option<&str>,
) -> Result<u64, StatementFailure> {
    let query = "SELECT bytes FROM headrace.file WHERE id = $1 AND project = $2";
    let input = input.map_or("", id_text);
    let found = client.query_typed_opt(query, &[(&input, Type::TEXT), (&project, Type::TEXT)]).await?;
    Ok(found.map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}
