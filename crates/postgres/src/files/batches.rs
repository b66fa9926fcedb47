//! Batches and their requests: the statements, and the implementation of [`BatchStore`]. A batch belongs to the gateway
//! that runs it. Another one takes it over once that gateway has ended. Each change locks the batch, then its project.
//! Knows no dialect.

use std::time::Duration;

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    BatchCounts, BatchKind, BatchRecord, BatchState, BatchStatus, BatchStore, FileLimits, LineEnd,
    LineRecord, LineResult, ObjectError, PageAsk,
};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::PostgresFiles;
use super::batch_rows::{LINES_LIMIT, ROW_BYTES, clear, remove};
use super::rows::{count, has_room, input_bytes};
use crate::objects::owner_value;
use crate::pool::{StatementFailure, limit_for};
use crate::values::{end, fits, id_text, integer, project_at, text_at, unreadable, walk};

/// Maximum requests that one query examines.
const LINES_AT_ONCE: i64 = 256;

const COLUMNS: &str = "id, project, total, completed, failed, cancelled, expired, state FROM headrace.batch";
/// One gateway takes batches over at a time. Otherwise PostgreSQL would check a batch that another one has just taken against
/// the gateways as they were before.
const LOCK_TAKE_OVER: &str = "SELECT pg_advisory_xact_lock(1213358689)";
/// Takes the batches of gateways that have ended.
const TAKE_OVER: &str = "UPDATE headrace.batch SET gateway = $1 WHERE gone IS NULL AND gateway IS DISTINCT FROM $1 \
    AND NOT EXISTS (SELECT FROM headrace.gateway WHERE owner = batch.gateway AND gateway.state = 'live') \
    AND EXISTS (SELECT FROM headrace.gateway WHERE owner = $1 AND gateway.state = 'live')";
const LOCK: &str = "SELECT project, messages, octet_length(state) + bytes + reserved, \
    $2::bytea IS NULL OR gateway IS NOT DISTINCT FROM $2, state FROM headrace.batch WHERE id = $1 FOR UPDATE";

/// A batch that this transaction has locked.
pub(super) struct LockedBatch {
    project: String,
    /// How often an answer counts. Those of a batch from a file are stored in rows, then in the result files.
    pub(super) answer_copies: i64,
    /// The bytes that count for it, without its requests' share that a change may alter.
    counted: i64,
    state: Vec<u8>,
}

/// Locks a batch. Returns `None` if it does not exist.
///
/// # Errors
/// [`ObjectError::Unavailable`] if a gateway other than `owner` runs it. An `owner` of `None` may change any batch.
async fn lock(
    client: &Client,
    id: &str,
    owner: Option<&[u8]>,
) -> Result<Option<LockedBatch>, StatementFailure> {
    let id = id_text(id);
    let values = [(&id as _, Type::TEXT), (&owner as _, Type::BYTEA)];
    let Some(row) = client.query_typed_opt(LOCK, &values).await? else { return Ok(None) };
    if !row.get::<_, bool>(3) {
        return Err(unreadable("another gateway runs this batch").into());
    }
    Ok(Some(LockedBatch {
        project: row.get(0),
        answer_copies: 2 - i64::from(row.get::<_, i32>(1)),
        counted: row.get(2),
        state: row.get(4),
    }))
}

impl LockedBatch {
    /// Counts the difference since the batch was locked.
    async fn recount(&self, client: &Client, id: &str) -> Result<(), StatementFailure> {
        let query = "SELECT octet_length(state) + bytes + reserved FROM headrace.batch WHERE id = $1";
        let now: i64 = client.query_typed_one(query, &[(&id_text(id), Type::TEXT)]).await?.get(0);
        let more = now.saturating_sub(self.counted);
        if more != 0 {
            count(client, &FileLimits::default(), &self.project, false, (0, more)).await?;
        }
        Ok(())
    }
}

impl PostgresFiles {
    /// Changes the requests of a batch that this gateway runs. Does nothing if there is no such batch. Checks the limits of
    /// its project if `is_bounded`.
    pub(super) fn change_lines<T: Default + Send>(
        &self,
        batch: &str,
        (limit, is_bounded): (Duration, bool),
        change: impl AsyncFnOnce(&Client, &LockedBatch) -> Result<T, StatementFailure> + Send,
    ) -> Result<T, ObjectError> {
        let owner = owner_value(&self.owner);
        self.pool.write(limit, async |client| {
            let Some(locked) = lock(client, batch, owner.as_deref()).await? else { return Ok(T::default()) };
            let changed = change(client, &locked).await?;
            locked.recount(client, batch).await?;
            if is_bounded {
                has_room(client, &self.limits, &locked.project, 0).await?;
            }
            Ok(changed)
        })
    }
}

impl BatchStore for PostgresFiles {
    fn create_batch(&self, batch: &BatchRecord) -> Result<(), ObjectError> {
        let (owner, state) = (owner_value(&self.owner), written(&batch.state)?);
        self.write(async |client| {
            let project = batch.project.as_str();
            // Locks the project's totals, so that no two gateways count on the same place.
            count(client, &self.limits, project, false, (0, 0)).await?;
            let open = "SELECT count(*) FROM headrace.batch WHERE project = $1 AND gone IS NULL";
            let open: i64 = client.query_typed_one(open, &[(&project, Type::TEXT)]).await?.get(0);
            let most = self.limits.max_open_batches_per_project;
            fits("max_open_batches_per_project", most, open.unsigned_abs().saturating_add(1))?;
            // The batch's requests are copied from its file.
            let copied = input_bytes(client, project, batch.state.input.as_deref()).await?;
            has_room(client, &self.limits, project, copied).await?;
            let insert = "INSERT INTO headrace.batch (id, project, messages, gateway, total, completed, failed, cancelled, \
                expired, state, bytes, reserved) VALUES ($1, $2, $3, $4, 0, 0, 0, 0, 0, $5, 0, $6)";
            let kind = kind(BatchKind::of(batch.state.endpoint));
            let values = [
                (&batch.id as _, Type::TEXT),
                (&project as _, Type::TEXT),
                (&kind as _, Type::INT4),
                (&owner as _, Type::BYTEA),
                (&state as _, Type::BYTEA),
                (&integer(copied) as _, Type::INT8),
            ];
            client.execute_typed(insert, &values).await?;
            let bytes = ROW_BYTES.saturating_add(state.len() as u64).saturating_add(copied);
            count(client, &self.limits, project, false, (0, integer(bytes))).await
        })
    }

    fn batch(&self, project: &ProjectId, id: &str) -> Result<Option<BatchRecord>, ObjectError> {
        let found = self.pull(async |client| batch(client, id).await)?;
        Ok(found.filter(|found| found.project == *project))
    }

    fn batches(
        &self,
        project: &ProjectId,
        of: BatchKind,
        ask: &PageAsk,
    ) -> Result<(Vec<BatchRecord>, bool), ObjectError> {
        let (project, kind) = (project.as_str(), kind(of));
        self.pull(async |client| {
            let from = match ask.cursor() {
                None => end(ask),
                Some(cursor) => {
                    let query = "SELECT seq FROM headrace.batch WHERE id = $1 AND project = $2";
                    let values = [(&id_text(cursor) as _, Type::TEXT), (&project as _, Type::TEXT)];
                    let Some(row) = client.query_typed_opt(query, &values).await? else {
                        return Ok((Vec::new(), false));
                    };
                    row.get(0)
                }
            };
            let query = format!("SELECT {COLUMNS} WHERE project = $1 AND messages = $2 AND {}", walk(ask, 3));
            let limit = integer(ask.rows() as u64);
            let values = [
                (&project as _, Type::TEXT),
                (&kind as _, Type::INT4),
                (&from as _, Type::INT8),
                (&limit as _, Type::INT8),
            ];
            let (rows, has_more) = ask.cut(client.query_typed(&query, &values).await?);
            Ok((rows.iter().map(record).collect::<Result<_, _>>()?, has_more))
        })
    }

    fn open_batches(&self) -> Result<Vec<BatchRecord>, ObjectError> {
        self.pull(async |client| {
            let query = format!("SELECT {COLUMNS} WHERE gone IS NULL ORDER BY seq");
            client.query_typed(&query, &[]).await?.iter().map(record).collect()
        })
    }

    fn own_batches(&self) -> Result<Vec<BatchRecord>, ObjectError> {
        let Some(owner) = owner_value(&self.owner) else { return self.open_batches() };
        let ended = "SELECT EXISTS (SELECT FROM headrace.batch WHERE gone IS NULL AND gateway IS DISTINCT FROM $1 \
            AND NOT EXISTS (SELECT FROM headrace.gateway WHERE owner = batch.gateway AND gateway.state = 'live'))";
        let values = [(&owner as _, Type::BYTEA)];
        // Most of the time there is nothing to take over, and nothing is written.
        if self.pull(async |client| Ok(client.query_typed_one(ended, &values).await?.get(0)))? {
            self.write(async |client| {
                client.batch_execute(LOCK_TAKE_OVER).await?;
                Ok(client.execute_typed(TAKE_OVER, &values).await?)
            })?;
        }
        self.pull(async |client| {
            let query = format!("SELECT {COLUMNS} WHERE gone IS NULL AND gateway = $1 ORDER BY seq");
            client.query_typed(&query, &values).await?.iter().map(record).collect()
        })
    }

    fn change_batch(
        &self,
        id: &str,
        gone: UnixNanos,
        change: &mut dyn FnMut(&mut BatchState),
    ) -> Result<Option<BatchRecord>, ObjectError> {
        let find = async |client: &Client| {
            let Some(locked) = lock(client, id, None).await? else { return Ok(None) };
            let found = batch(client, id).await?;
            Ok(found.map(|batch| (locked, batch)))
        };
        let change = |found: Option<(LockedBatch, BatchRecord)>| {
            let Some((locked, mut batch)) = found else { return Ok(None) };
            change(&mut batch.state);
            Ok(Some((locked, written(&batch.state)?, batch)))
        };
        self.pool.write_changed(limit_for(0), find, change, async |client, changed| {
            let Some((locked, state, batch)) = changed else { return Ok(None) };
            let gone = batch.state.status.is_over().then(|| integer(gone.get()));
            // Once its file is read, a batch needs no room for further requests.
            let keeps = i64::from(batch.state.status == BatchStatus::Validating);
            let set =
                "UPDATE headrace.batch SET state = $1, gone = $2, reserved = reserved * $3 WHERE id = $4";
            let values = [
                (&state as _, Type::BYTEA),
                (&gone as _, Type::INT8),
                (&keeps as _, Type::INT8),
                (&id_text(id) as _, Type::TEXT),
            ];
            client.execute_typed(set, &values).await?;
            locked.recount(client, id).await?;
            Ok(Some(batch))
        })
    }

    fn delete_batch(&self, project: &ProjectId, id: &str) -> Result<bool, ObjectError> {
        let ever = UnixNanos::new(u64::MAX);
        self.pool.write(LINES_LIMIT, async |client| remove(client, id, Some(project), ever).await)
    }

    fn add_lines(&self, batch: &str, lines: &[LineRecord]) -> Result<Option<String>, ObjectError> {
        let mut own = std::collections::HashSet::new();
        let twice = lines.iter().find(|line| !own.insert(line.custom_id.as_str()));
        let bytes = lines.iter().map(|line| (line.body.len() + line.custom_id.len()) as u64).sum::<u64>();
        let counted = integer(bytes.saturating_add(ROW_BYTES.saturating_mul(lines.len() as u64)));
        let places: Vec<i64> = lines.iter().map(|line| integer(line.at)).collect();
        let ids: Vec<&[u8]> = lines.iter().map(|line| line.custom_id.as_bytes()).collect();
        let bodies: Vec<&[u8]> = lines.iter().map(|line| line.body.as_bytes()).collect();
        self.change_lines(batch, (limit_for(bytes), true), async |client, _| {
            let id = id_text(batch);
            let taken = "SELECT new.id FROM unnest($2::bytea[]) WITH ORDINALITY AS new (id, at) JOIN headrace.line \
                ON batch = $1 AND sha256(custom_id) = sha256(new.id) AND custom_id = new.id ORDER BY new.at LIMIT 1";
            let values = [(&id as _, Type::TEXT), (&ids as _, Type::BYTEA_ARRAY)];
            if let Some(row) = client.query_typed_opt(taken, &values).await? {
                return Ok(Some(text_at(&row, 0)?));
            }
            if let Some(line) = twice {
                return Ok(Some(line.custom_id.clone()));
            }
            let insert = "INSERT INTO headrace.line SELECT $1, at, custom_id, body, '', '', 0, 0 \
                FROM unnest($2::bigint[], $3::bytea[], $4::bytea[]) AS new (at, custom_id, body)";
            let values = [
                (&id as _, Type::TEXT),
                (&places as _, Type::INT8_ARRAY),
                (&ids as _, Type::BYTEA_ARRAY),
                (&bodies as _, Type::BYTEA_ARRAY),
            ];
            client.execute_typed(insert, &values).await?;
            let add = "UPDATE headrace.batch SET total = total + $1, bytes = bytes + $2, \
                reserved = greatest(0, reserved - $2) WHERE id = $3";
            let values =
                [(&integer(lines.len() as u64) as _, Type::INT8), (&counted as _, Type::INT8), (&id as _, Type::TEXT)];
            client.execute_typed(add, &values).await?;
            Ok(None)
        })
    }

    fn clear_lines(&self, batch: &str) -> Result<(), ObjectError> {
        self.change_lines(batch, (LINES_LIMIT, false), async |client, locked| {
            clear(client, batch).await?;
            let reserved = input_bytes(client, &locked.project, read(&locked.state)?.input.as_deref()).await?;
            let reset = "UPDATE headrace.batch SET total = 0, completed = 0, failed = 0, cancelled = 0, expired = 0, \
                bytes = 0, reserved = $1 WHERE id = $2";
            let values = [(&integer(reserved) as _, Type::INT8), (&id_text(batch) as _, Type::TEXT)];
            client.execute_typed(reset, &values).await?;
            Ok(())
        })
    }

    fn forget_lines(&self, batch: &str) -> Result<(), ObjectError> {
        self.change_lines(batch, (LINES_LIMIT, false), async |client, _| {
            clear(client, batch).await?;
            let reset = "UPDATE headrace.batch SET bytes = 0 WHERE id = $1";
            client.execute_typed(reset, &[(&id_text(batch), Type::TEXT)]).await?;
            Ok(())
        })
    }

    fn lines(&self, batch: &str, from: u64, most_bytes: u64) -> Result<Vec<LineRecord>, ObjectError> {
        self.pool.read(limit_for(most_bytes), async |client| {
            let (id, from) = (id_text(batch), integer(from));
            let sizes = "SELECT at, octet_length(body)::bigint FROM headrace.line \
                WHERE batch = $1 AND at >= $2 AND ended = 0 ORDER BY at LIMIT $3";
            let Some(last) = within(client, sizes, (id, from), most_bytes).await? else {
                return Ok(Vec::new());
            };
            let query = "SELECT at, custom_id, body, request FROM headrace.line \
                WHERE batch = $1 AND at >= $2 AND at <= $3 AND ended = 0 ORDER BY at";
            let values = [(&id as _, Type::TEXT), (&from as _, Type::INT8), (&last as _, Type::INT8)];
            client.query_typed(query, &values).await?.iter().map(waiting).collect()
        })
    }

    fn begun_lines(&self, batch: &str) -> Result<Vec<LineRecord>, ObjectError> {
        self.pool.read(LINES_LIMIT, async |client| {
            let query = "SELECT at, custom_id, body, request FROM headrace.line \
                WHERE batch = $1 AND ended = 0 AND request <> '' ORDER BY at";
            client.query_typed(query, &[(&id_text(batch), Type::TEXT)]).await?.iter().map(waiting).collect()
        })
    }

    fn check_room(&self, project: &ProjectId) -> Result<(), ObjectError> {
        self.pull(async |client| has_room(client, &self.limits, project.as_str(), 0).await)
    }

    fn note_answer(&self, batch: &str, at: u64, request: &str, answer: &str) -> Result<(), ObjectError> {
        self.change_lines(batch, (limit_for(answer.len() as u64), true), async |client, locked| {
            let note = "WITH old AS (SELECT octet_length(answer)::bigint AS bytes FROM headrace.line \
                    WHERE batch = $1 AND at = $2 AND ended = 0),
                noted AS (UPDATE headrace.line SET request = $3, answer = $4 WHERE batch = $1 AND at = $2 AND ended = 0)
                SELECT octet_length($4)::bigint - bytes FROM old";
            let (id, request, answer) = (id_text(batch), id_text(request), answer.as_bytes());
            let values = [
                (&id as _, Type::TEXT),
                (&integer(at) as _, Type::INT8),
                (&request as _, Type::TEXT),
                (&answer as _, Type::BYTEA),
            ];
            if let Some(row) = client.query_typed_opt(note, &values).await? {
                grow(client, batch, row.get::<_, i64>(0).saturating_mul(locked.answer_copies)).await?;
            }
            Ok(())
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
        let bytes = texts.map_or(0, |(_, answer)| answer.len() as u64);
        self.change_lines(batch, (limit_for(bytes), false), async |client, locked| {
            // The second part sees the line as it was before.
            let done = "WITH old AS (SELECT octet_length(body)::bigint AS body, octet_length(answer)::bigint AS answer \
                    FROM headrace.line WHERE batch = $1 AND at = $2 AND ended = 0),
                done AS (UPDATE headrace.line SET ended = $3, status = $4, body = '', request = coalesce($5, request), \
                    answer = coalesce($6, answer) WHERE batch = $1 AND at = $2 AND ended = 0)
                SELECT body, coalesce(octet_length($6)::bigint, answer) - answer FROM old";
            let (request, answer) = texts.map(|(request, answer)| (id_text(request), answer.as_bytes())).unzip();
            let values = [
                (&id_text(batch) as _, Type::TEXT),
                (&integer(at) as _, Type::INT8),
                (&number(end) as _, Type::INT4),
                (&i32::from(status) as _, Type::INT4),
                (&request as _, Type::TEXT),
                (&answer as _, Type::BYTEA),
            ];
            let Some(row) = client.query_typed_opt(done, &values).await? else { return Ok(()) };
            let (body, more): (i64, i64) = (row.get(0), row.get(1));
            grow(client, batch, more.saturating_mul(locked.answer_copies).saturating_sub(body)).await?;
            count_ended(client, batch, end, 1).await
        })
    }

    fn end_rest(&self, batch: &str, end: LineEnd) -> Result<(), ObjectError> {
        self.change_lines(batch, (LINES_LIMIT, false), async |client, locked| {
            let done = "WITH old AS (SELECT octet_length(body)::bigint AS body, octet_length(answer)::bigint AS answer \
                    FROM headrace.line WHERE batch = $1 AND ended = 0),
                done AS (UPDATE headrace.line SET ended = $2, body = '', request = '', answer = '' WHERE batch = $1 AND ended = 0)
                SELECT count(*), coalesce(sum(body), 0)::bigint, coalesce(sum(answer), 0)::bigint FROM old";
            let values = [(&id_text(batch) as _, Type::TEXT), (&number(end) as _, Type::INT4)];
            let row = client.query_typed_one(done, &values).await?;
            let (lines, bodies, answers): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
            grow(client, batch, -bodies.saturating_add(answers.saturating_mul(locked.answer_copies))).await?;
            count_ended(client, batch, end, lines).await
        })
    }

    fn results(&self, batch: &str, from: u64, most_bytes: u64) -> Result<Vec<LineResult>, ObjectError> {
        self.pool.read(limit_for(most_bytes), async |client| {
            let (id, from) = (id_text(batch), integer(from));
            let sizes = "SELECT at, octet_length(answer)::bigint FROM headrace.line \
                WHERE batch = $1 AND at >= $2 AND ended <> 0 ORDER BY at LIMIT $3";
            let Some(last) = within(client, sizes, (id, from), most_bytes).await? else {
                return Ok(Vec::new());
            };
            let query = "SELECT at, custom_id, ended, status, request, answer FROM headrace.line \
                WHERE batch = $1 AND at >= $2 AND at <= $3 AND ended <> 0 ORDER BY at";
            let values = [(&id as _, Type::TEXT), (&from as _, Type::INT8), (&last as _, Type::INT8)];
            client.query_typed(query, &values).await?.iter().map(result).collect()
        })
    }
}

/// Finds the longest run of rows that fits into `most_bytes`, with at least one row, and returns the position of its
/// last row. `None` if there is no row. `sizes` is a query for positions and bytes.
async fn within(
    client: &Client,
    sizes: &str,
    (batch, from): (&str, i64),
    most_bytes: u64,
) -> Result<Option<i64>, StatementFailure> {
    let values = [(&batch as _, Type::TEXT), (&from as _, Type::INT8), (&LINES_AT_ONCE as _, Type::INT8)];
    let rows = client.query_typed(sizes, &values).await?;
    let mut bytes = 0_i64;
    let fits = |(at, row): (usize, &Row)| {
        bytes = bytes.saturating_add(row.get(1));
        (at == 0 || bytes <= integer(most_bytes)).then(|| row.get(0))
    };
    Ok(rows.iter().enumerate().map_while(fits).last())
}

/// Adds to the bytes that a batch's requests and answers are counted as.
async fn grow(client: &Client, batch: &str, bytes: i64) -> Result<(), StatementFailure> {
    let add = "UPDATE headrace.batch SET bytes = bytes + $1 WHERE id = $2";
    client.execute_typed(add, &[(&bytes, Type::INT8), (&id_text(batch), Type::TEXT)]).await?;
    Ok(())
}

async fn count_ended(client: &Client, batch: &str, end: LineEnd, lines: i64) -> Result<(), StatementFailure> {
    let column = match end {
        LineEnd::Completed => "completed",
        LineEnd::Failed => "failed",
        LineEnd::Cancelled => "cancelled",
        LineEnd::Expired => "expired",
    };
    let add = format!("UPDATE headrace.batch SET {column} = {column} + $1 WHERE id = $2");
    client.execute_typed(&add, &[(&lines, Type::INT8), (&id_text(batch), Type::TEXT)]).await?;
    Ok(())
}

pub(super) const fn kind(kind: BatchKind) -> i32 {
    match kind {
        BatchKind::OfFiles => 0,
        BatchKind::OfMessages => 1,
    }
}

const fn number(end: LineEnd) -> i32 {
    match end {
        LineEnd::Completed => 1,
        LineEnd::Failed => 2,
        LineEnd::Cancelled => 3,
        LineEnd::Expired => 4,
    }
}

fn waiting(row: &Row) -> Result<LineRecord, StatementFailure> {
    let noted = Some(row.get::<_, String>(3)).filter(|request| !request.is_empty());
    let at = row.get::<_, i64>(0).unsigned_abs();
    Ok(LineRecord { at, custom_id: text_at(row, 1)?, body: text_at(row, 2)?, noted })
}

fn result(row: &Row) -> Result<LineResult, StatementFailure> {
    let end = match row.get::<_, i32>(2) {
        1 => LineEnd::Completed,
        2 => LineEnd::Failed,
        3 => LineEnd::Cancelled,
        _ => LineEnd::Expired,
    };
    Ok(LineResult {
        at: row.get::<_, i64>(0).unsigned_abs(),
        custom_id: text_at(row, 1)?,
        end,
        status: u16::try_from(row.get::<_, i32>(3)).unwrap_or_default(),
        request: row.get(4),
        answer: text_at(row, 5)?,
    })
}

async fn batch(client: &Client, id: &str) -> Result<Option<BatchRecord>, StatementFailure> {
    let query = format!("SELECT {COLUMNS} WHERE id = $1");
    let row = client.query_typed_opt(&query, &[(&id_text(id), Type::TEXT)]).await?;
    row.as_ref().map(record).transpose()
}

pub(super) fn record(row: &Row) -> Result<BatchRecord, StatementFailure> {
    let [total, completed, failed, cancelled, expired] =
        [2, 3, 4, 5, 6].map(|column| row.get::<_, i64>(column).unsigned_abs());
    let counts = BatchCounts { total, completed, failed, cancelled, expired };
    Ok(BatchRecord { id: row.get(0), project: project_at(row, 1)?, counts, state: read(row.get(7))? })
}

fn read(state: &[u8]) -> Result<BatchState, ObjectError> {
    serde_json::from_slice(state).map_err(|error| unreadable(&format!("a batch cannot be read: {error}")))
}

pub(super) fn written(state: &BatchState) -> Result<Vec<u8>, ObjectError> {
    serde_json::to_vec(state).map_err(|error| unreadable(&format!("a batch cannot be written: {error}")))
}
