//! Reads and restores everything in the store of files, for copies. Knows no other store.

use headrace_domain::UnixNanos;
use headrace_objects::{
    ArchivedLine, BatchCounts, BatchKind, BatchRecord, FileArchive, FileDraft, FileLimits, FileRecord,
    ObjectError, PartRecord, UploadRecord, UploadStatus,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresFiles;
use super::batch_rows::{LINES_LIMIT, ROW_BYTES, clear};
use super::batches::{kind, record, written};
use super::rows::count;
use crate::pool::StatementFailure;
use crate::values::{id_text, integer, nanos, project_at, text_at};

/// Rows that are read at a time. A request may have many bytes.
const ROWS: i64 = 64;
const LINES: i64 = 16;

fn draft(row: &Row) -> Result<(i64, FileDraft), StatementFailure> {
    let (id, project, created) = (row.get(1), project_at(row, 2)?, nanos(row.get(3)));
    let bytes = row.get::<_, i64>(5).unsigned_abs();
    let draft = match row.get(8) {
        Some(upload) => FileDraft::Part { project, part: PartRecord { id, upload, created, bytes } },
        None => FileDraft::File(FileRecord {
            id,
            project,
            created,
            expires: row.get::<_, Option<i64>>(4).map(nanos),
            bytes,
            name: text_at(row, 6)?,
            purpose: text_at(row, 7)?,
        }),
    };
    Ok((row.get(0), draft))
}

fn upload(row: &Row) -> Result<UploadRecord, StatementFailure> {
    Ok(UploadRecord {
        id: row.get(0),
        project: project_at(row, 1)?,
        created: nanos(row.get(2)),
        expires: nanos(row.get(3)),
        status: UploadStatus::Pending,
        bytes: row.get::<_, i64>(4).unsigned_abs(),
        name: text_at(row, 5)?,
        purpose: text_at(row, 6)?,
        mime: text_at(row, 7)?,
        kept_seconds: row.get::<_, Option<i64>>(8).map(i64::unsigned_abs),
        file: None,
    })
}

fn line(row: &Row) -> Result<ArchivedLine, StatementFailure> {
    Ok(ArchivedLine {
        at: row.get::<_, i64>(0).unsigned_abs(),
        custom_id: text_at(row, 1)?,
        body: text_at(row, 2)?,
        request: row.get(3),
        answer: text_at(row, 4)?,
        status: u16::try_from(row.get::<_, i32>(5)).unwrap_or_default(),
        ended: u8::try_from(row.get::<_, i32>(6)).unwrap_or_default(),
    })
}

impl FileArchive for PostgresFiles {
    fn archived_files(&self, after: i64) -> Result<Vec<(i64, FileDraft)>, ObjectError> {
        self.pull(async |client| {
            let query = "SELECT seq, id, project, created, expires, bytes, name, purpose, upload FROM headrace.file \
                WHERE seq > $1 AND state IN (1, 2) ORDER BY seq LIMIT $2";
            let values = [(&after as _, Type::INT8), (&ROWS as _, Type::INT8)];
            client.query_typed(query, &values).await?.iter().map(draft).collect()
        })
    }

    fn archived_uploads(&self, after: &str) -> Result<Vec<UploadRecord>, ObjectError> {
        self.pull(async |client| {
            let query = "SELECT id, project, created, expires, bytes, name, purpose, mime, kept_seconds FROM headrace.upload \
                WHERE id > $1 AND status = 0 ORDER BY id LIMIT $2";
            let values = [(&after as _, Type::TEXT), (&ROWS as _, Type::INT8)];
            client.query_typed(query, &values).await?.iter().map(upload).collect()
        })
    }

    fn archived_batches(
        &self,
        after: i64,
    ) -> Result<Vec<(i64, BatchRecord, Option<UnixNanos>)>, ObjectError> {
        self.pull(async |client| {
            let query = "SELECT id, project, total, completed, failed, cancelled, expired, state, seq, gone FROM headrace.batch \
                WHERE seq > $1 ORDER BY seq LIMIT $2";
            let values = [(&after as _, Type::INT8), (&ROWS as _, Type::INT8)];
            let batch =
                |row: &Row| Ok((row.get(8), record(row)?, row.get::<_, Option<i64>>(9).map(nanos)));
            client.query_typed(query, &values).await?.iter().map(batch).collect()
        })
    }

    fn archived_lines(&self, batch: &str, from: u64) -> Result<Vec<ArchivedLine>, ObjectError> {
        self.pool.read(LINES_LIMIT, async |client| {
            let query = "SELECT at, custom_id, body, request, answer, status, ended FROM headrace.line \
                WHERE batch = $1 AND at >= $2 ORDER BY at LIMIT $3";
            let (batch, from) = (id_text(batch), integer(from));
            let values = [(&batch as _, Type::TEXT), (&from as _, Type::INT8), (&LINES as _, Type::INT8)];
            client.query_typed(query, &values).await?.iter().map(line).collect()
        })
    }

    fn restore_batch(&self, batch: &BatchRecord, gone: Option<UnixNanos>) -> Result<(), ObjectError> {
        let state = written(&batch.state)?;
        self.pool.write(LINES_LIMIT, async |client| {
            let (id, project) = (id_text(&batch.id), batch.project.as_str());
            let remove = "DELETE FROM headrace.batch WHERE id = $1 RETURNING octet_length(state) + bytes + reserved";
            let mut bytes = integer(ROW_BYTES) + integer(state.len() as u64);
            if let Some(row) = client.query_typed_opt(remove, &[(&id, Type::TEXT)]).await? {
                clear(client, &batch.id).await?;
                bytes -= row.get::<_, i64>(0) + integer(ROW_BYTES);
            }
            let insert = "INSERT INTO headrace.batch (id, project, messages, gone, total, completed, failed, cancelled, expired, \
                state, bytes, reserved) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, 0)";
            let kind = kind(BatchKind::of(batch.state.endpoint));
            let gone = gone.map(|gone| integer(gone.get()));
            let counts = &batch.counts;
            let values = [
                (&id as _, Type::TEXT),
                (&project as _, Type::TEXT),
                (&kind as _, Type::INT4),
                (&gone as _, Type::INT8),
                (&integer(counts.total) as _, Type::INT8),
                (&integer(counts.completed) as _, Type::INT8),
                (&integer(counts.failed) as _, Type::INT8),
                (&integer(counts.cancelled) as _, Type::INT8),
                (&integer(counts.expired) as _, Type::INT8),
                (&state as _, Type::BYTEA),
            ];
            client.execute_typed(insert, &values).await?;
            count(client, &FileLimits::default(), project, false, (0, bytes)).await
        })
    }

    fn restore_counts(&self, batch: &str, counts: &BatchCounts) -> Result<(), ObjectError> {
        self.change_lines(batch, (LINES_LIMIT, false), async |client, _| {
            let set = "UPDATE headrace.batch SET completed = $2, failed = $3, cancelled = $4, expired = $5 WHERE id = $1";
            let values = [
                (&id_text(batch) as _, Type::TEXT),
                (&integer(counts.completed) as _, Type::INT8),
                (&integer(counts.failed) as _, Type::INT8),
                (&integer(counts.cancelled) as _, Type::INT8),
                (&integer(counts.expired) as _, Type::INT8),
            ];
            client.execute_typed(set, &values).await?;
            Ok(())
        })
    }

    fn restore_lines(&self, batch: &str, lines: &[ArchivedLine]) -> Result<(), ObjectError> {
        self.change_lines(batch, (LINES_LIMIT, false), async |client, locked| {
            let insert = "INSERT INTO headrace.line VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
            let mut bytes = 0_i64;
            for line in lines {
                let (custom_id, body) = (line.custom_id.as_bytes(), line.body.as_bytes());
                let answer = line.answer.as_bytes();
                let values = [
                    (&id_text(batch) as _, Type::TEXT),
                    (&integer(line.at) as _, Type::INT8),
                    (&custom_id as _, Type::BYTEA),
                    (&body as _, Type::BYTEA),
                    (&id_text(&line.request) as _, Type::TEXT),
                    (&answer as _, Type::BYTEA),
                    (&i32::from(line.status) as _, Type::INT4),
                    (&i32::from(line.ended) as _, Type::INT4),
                ];
                client.execute_typed(insert, &values).await?;
                let own = ROW_BYTES + (custom_id.len() + body.len()) as u64;
                bytes += integer(own) + integer(answer.len() as u64) * locked.answer_copies;
            }
            let add = "UPDATE headrace.batch SET bytes = bytes + $1 WHERE id = $2";
            client.execute_typed(add, &[(&bytes, Type::INT8), (&id_text(batch), Type::TEXT)]).await?;
            Ok(())
        })
    }
}
