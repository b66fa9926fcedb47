//! Reads and restores everything in the store of files, for copies. Knows no other store.

use headrace_domain::UnixNanos;
use headrace_objects::{
    ArchivedLine, BatchCounts, BatchKind, BatchRecord, FileArchive, FileDraft, FileRecord, ObjectError,
    PartRecord, UploadRecord, UploadStatus,
};

use super::SqliteFiles;
use super::batches::{BatchRow, kind, record, written};
use super::rows::{clear, owner};
use crate::objects::rows::{integer, nanos};

/// Rows that are read at a time. A request may have many bytes.
const ROWS: i64 = 64;
const LINES: i64 = 16;

type FileRow = (i64, String, String, i64, Option<i64>, i64, String, String, Option<String>);
type UploadRow = (String, String, i64, i64, i64, String, String, String, Option<i64>);

impl FileArchive for SqliteFiles {
    fn archived_files(&self, after: i64) -> Result<Vec<(i64, FileDraft)>, ObjectError> {
        self.pair.read(async |connection| {
            let rows: Vec<FileRow> = sqlx::query_as(
                "SELECT seq, id, project, created, expires, bytes, name, purpose, upload FROM file \
                 WHERE seq > ? AND state IN (1, 2) ORDER BY seq LIMIT ?",
            )
            .bind(after)
            .bind(ROWS)
            .fetch_all(&mut *connection)
            .await?;
            let draft = |(seq, id, project, created, expires, bytes, name, purpose, upload): FileRow| {
                let (project, created, bytes) = (owner(&project)?, nanos(created), bytes.unsigned_abs());
                let draft = match upload {
                    Some(upload) => {
                        FileDraft::Part { project, part: PartRecord { id, upload, created, bytes } }
                    }
                    None => {
                        let expires = expires.map(nanos);
                        FileDraft::File(FileRecord { id, project, created, expires, bytes, name, purpose })
                    }
                };
                Ok((seq, draft))
            };
            rows.into_iter().map(draft).collect()
        })
    }

    fn archived_uploads(&self, after: &str) -> Result<Vec<UploadRecord>, ObjectError> {
        self.pair.read(async |connection| {
            let rows: Vec<UploadRow> = sqlx::query_as(
                "SELECT id, project, created, expires, bytes, name, purpose, mime, kept_seconds FROM upload \
                 WHERE id > ? AND status = 0 ORDER BY id LIMIT ?",
            )
            .bind(after)
            .bind(ROWS)
            .fetch_all(&mut *connection)
            .await?;
            let upload = |row: UploadRow| {
                let (id, project, created, expires, bytes, name, purpose, mime, kept_seconds) = row;
                Ok(UploadRecord {
                    id,
                    project: owner(&project)?,
                    created: nanos(created),
                    expires: nanos(expires),
                    status: UploadStatus::Pending,
                    bytes: bytes.unsigned_abs(),
                    name,
                    purpose,
                    mime,
                    kept_seconds: kept_seconds.map(i64::unsigned_abs),
                    file: None,
                })
            };
            rows.into_iter().map(upload).collect()
        })
    }

    fn archived_batches(
        &self,
        after: i64,
    ) -> Result<Vec<(i64, BatchRecord, Option<UnixNanos>)>, ObjectError> {
        self.pair.read(async |connection| {
            let places: Vec<(i64, Option<i64>)> =
                sqlx::query_as("SELECT seq, gone FROM batch WHERE seq > ? ORDER BY seq LIMIT ?")
                    .bind(after)
                    .bind(ROWS)
                    .fetch_all(&mut *connection)
                    .await?;
            let rows: Vec<BatchRow> = sqlx::query_as(
                "SELECT id, project, total, completed, failed, cancelled, expired, state FROM batch \
                 WHERE seq > ? ORDER BY seq LIMIT ?",
            )
            .bind(after)
            .bind(ROWS)
            .fetch_all(&mut *connection)
            .await?;
            let batch =
                |((seq, gone), row): ((i64, Option<i64>), BatchRow)| Ok((seq, record(row)?, gone.map(nanos)));
            places.into_iter().zip(rows).map(batch).collect()
        })
    }

    fn archived_lines(&self, batch: &str, from: u64) -> Result<Vec<ArchivedLine>, ObjectError> {
        self.pair.read(async |connection| {
            let rows: Vec<(i64, String, String, String, String, i64, i64)> = sqlx::query_as(
                "SELECT at, custom_id, body, request, answer, status, ended FROM line \
                 WHERE batch = ? AND at >= ? ORDER BY at LIMIT ?",
            )
            .bind(batch)
            .bind(integer(from))
            .bind(LINES)
            .fetch_all(&mut *connection)
            .await?;
            let line = |(at, custom_id, body, request, answer, status, ended)| ArchivedLine {
                at: i64::unsigned_abs(at),
                custom_id,
                body,
                request,
                answer,
                status: u16::try_from(status).unwrap_or_default(),
                ended: u8::try_from(ended).unwrap_or_default(),
            };
            Ok(rows.into_iter().map(line).collect())
        })
    }

    fn restore_batch(&self, batch: &BatchRecord, gone: Option<UnixNanos>) -> Result<(), ObjectError> {
        self.pair.write(async |connection| {
            clear(connection, &batch.id).await?;
            sqlx::query("DELETE FROM batch WHERE id = ?").bind(&batch.id).execute(&mut *connection).await?;
            let counts = &batch.counts;
            sqlx::query(
                "INSERT INTO batch (id, project, messages, gone, total, completed, failed, cancelled, expired, state) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(&batch.id)
            .bind(batch.project.as_str())
            .bind(kind(BatchKind::of(batch.state.endpoint)))
            .bind(gone.map(|gone| integer(gone.get())))
            .bind(integer(counts.total))
            .bind(integer(counts.completed))
            .bind(integer(counts.failed))
            .bind(integer(counts.cancelled))
            .bind(integer(counts.expired))
            .bind(written(&batch.state)?)
            .execute(&mut *connection)
            .await?;
            Ok(())
        })
    }

    fn restore_counts(&self, batch: &str, counts: &BatchCounts) -> Result<(), ObjectError> {
        self.pair.write(async |connection| {
            sqlx::query(
                "UPDATE batch SET completed = ?, failed = ?, cancelled = ?, expired = ? WHERE id = ?",
            )
            .bind(integer(counts.completed))
            .bind(integer(counts.failed))
            .bind(integer(counts.cancelled))
            .bind(integer(counts.expired))
            .bind(batch)
            .execute(&mut *connection)
            .await?;
            Ok(())
        })
    }

    fn restore_lines(&self, batch: &str, lines: &[ArchivedLine]) -> Result<(), ObjectError> {
        self.pair.write(async |connection| {
            for line in lines {
                // A new row counts its body, a changed one its answer.
                sqlx::query(
                    "INSERT INTO line (batch, at, custom_id, body, request, answer, status, ended) \
                     VALUES (?, ?, ?, ?, ?, '', ?, ?)",
                )
                .bind(batch)
                .bind(integer(line.at))
                .bind(&line.custom_id)
                .bind(&line.body)
                .bind(&line.request)
                .bind(i64::from(line.status))
                .bind(i64::from(line.ended))
                .execute(&mut *connection)
                .await?;
                sqlx::query("UPDATE line SET answer = ? WHERE batch = ? AND at = ?")
                    .bind(&line.answer)
                    .bind(batch)
                    .bind(integer(line.at))
                    .execute(&mut *connection)
                    .await?;
            }
            Ok(())
        })
    }
}
