//! Answers that repeated requests get again, as tables that all gateways share. Knows neither keys nor calls.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_domain::{HoldId, ProjectId, UnixNanos};
use headrace_objects::{AnswerArchive, AnswerRecord, AnswerStore, ObjectError, fair_share};
use tokio_postgres::types::{ToSql, Type};

use crate::object_schema;
use crate::pool::{SessionPool, StatementFailure, limit_for};
use crate::session::DatabaseSession;
use crate::url::PostgresUrl;
use crate::values::{integer, project_at, unreadable};

/// Answers that are removed in one transaction, so that it is short.
const SWEPT_AT_ONCE: i64 = 256;
/// Bytes of rows and indexes around one answer.
const ROW_BYTES: u64 = 512;
/// One gateway sweeps at a time.
const SWEEP_LOCK: i64 = 0x4852_616e;

/// Stores an answer with its first part.
const PUT: &str = "WITH put AS (INSERT INTO headrace.answer (hold, project, expires, bytes) \
    VALUES ($1, $2, $3, $4) RETURNING hold) \
    INSERT INTO headrace.answer_part (hold, at, data) SELECT hold, 0, $5 FROM put";
/// Stores a further part.
const PUT_PART: &str = "INSERT INTO headrace.answer_part (hold, at, data) VALUES ($1, $2, $3)";
/// Reads the parts of an answer.
const BODY: &str = "SELECT data FROM headrace.answer_part JOIN headrace.answer USING (hold) \
    WHERE hold = $1 AND project = $2 AND expires > $3 ORDER BY at";
/// Reads the parts of the first answer after a row.
const NEXT: &str = "SELECT seq, hold, project, expires, data FROM headrace.answer JOIN headrace.answer_part USING (hold) \
    WHERE seq = (SELECT min(seq) FROM headrace.answer WHERE seq > $1) ORDER BY at";
/// Removes answers that have expired.
const REMOVE_EXPIRED: &str = "DELETE FROM headrace.answer WHERE seq IN \
    (SELECT seq FROM headrace.answer WHERE expires <= $1 LIMIT $2)";
/// Removes the oldest answers of a project, except the newest ones that have at most the given bytes together.
const REMOVE_OLDEST: &str = "DELETE FROM headrace.answer WHERE seq IN (SELECT seq FROM \
    (SELECT seq, sum(bytes) OVER (ORDER BY seq DESC) AS newer FROM headrace.answer WHERE project = $3) of_project \
    WHERE newer > $1 ORDER BY seq LIMIT $2)";

/// The store of answers. See the top of the file.
pub struct PostgresAnswers {
    pool: SessionPool,
    max_total_bytes: u64,
    /// Bytes that this gateway has stored since its last sweep.
    unswept_bytes: AtomicU64,
}

impl PostgresAnswers {
    /// Opens the store, and makes its tables if they are missing. After each sweep it has at most `max_total_bytes`.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] if the database cannot be reached, or a newer program made the tables.
    pub fn open(url: Arc<PostgresUrl>, max_total_bytes: u64) -> Result<Self, ObjectError> {
        object_schema::ensure(&mut DatabaseSession::new(Arc::clone(&url)))?;
        Ok(Self { pool: SessionPool::new(url), max_total_bytes, unswept_bytes: AtomicU64::new(0) })
    }

    /// Removes answers in steps of [`SWEPT_AT_ONCE`], while no other gateway does. Returns their number.
    fn remove_all(&self, number: i64, project: Option<&str>) -> Result<u64, ObjectError> {
        let mut removed = 0;
        loop {
            let some = self.pool.write(limit_for(0), async |client| {
                let lock = "SELECT pg_try_advisory_xact_lock($1)";
                let locked = client.query_typed_one(lock, &[(&SWEEP_LOCK, Type::INT8)]).await?;
                if !locked.get::<_, bool>(0) {
                    return Ok::<_, StatementFailure>(0);
                }
                let mut values: Vec<(&(dyn ToSql + Sync), Type)> =
                    vec![(&number, Type::INT8), (&SWEPT_AT_ONCE, Type::INT8)];
                let statement = match &project {
                    Some(project) => {
                        values.push((project, Type::TEXT));
                        REMOVE_OLDEST
                    }
                    None => REMOVE_EXPIRED,
                };
                Ok(client.execute_typed(statement, &values).await?)
            })?;
            removed += some;
            if some < SWEPT_AT_ONCE.unsigned_abs() {
                return Ok(removed);
            }
        }
    }
}

impl AnswerStore for PostgresAnswers {
    fn put(&self, answer: &AnswerRecord) -> Result<(), ObjectError> {
        let bytes = (answer.body.len() as u64).saturating_add(ROW_BYTES);
        if self.unswept_bytes.fetch_add(bytes, Ordering::Relaxed) > self.max_total_bytes / 8 {
            self.sweep(answer.created)?;
        }
        let hold = &answer.hold.bits().to_be_bytes()[..];
        self.pool.write(limit_for(bytes), async |client| {
            for (at, part) in (0_i64..).zip(answer.parts()) {
                if at == 0 {
                    let values: [(&(dyn ToSql + Sync), Type); 5] = [
                        (&hold, Type::BYTEA),
                        (&answer.project.as_str(), Type::TEXT),
                        (&integer(answer.expires.get()), Type::INT8),
                        (&integer(bytes), Type::INT8),
                        (&part, Type::BYTEA),
                    ];
                    client.execute_typed(PUT, &values).await?;
                } else {
                    let values: [(&(dyn ToSql + Sync), Type); 3] =
                        [(&hold, Type::BYTEA), (&at, Type::INT8), (&part, Type::BYTEA)];
                    client.execute_typed(PUT_PART, &values).await?;
                }
            }
            Ok(())
        })
    }

    fn body(
        &self,
        project: &ProjectId,
        hold: HoldId,
        now: UnixNanos,
    ) -> Result<Option<Vec<u8>>, ObjectError> {
        let hold = &hold.bits().to_be_bytes()[..];
        self.pool.read(limit_for(64 << 20), async |client| {
            let values: [(&(dyn ToSql + Sync), Type); 3] =
                [(&hold, Type::BYTEA), (&project.as_str(), Type::TEXT), (&integer(now.get()), Type::INT8)];
            let rows = client.query_typed(BODY, &values).await?;
            let mut body = Vec::new();
            rows.iter().for_each(|row| body.extend_from_slice(row.get(0)));
            Ok((!rows.is_empty()).then_some(body))
        })
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        self.unswept_bytes.store(0, Ordering::Relaxed);
        let mut removed = self.remove_all(integer(now.get()), None)?;
        let held = self.pool.read(limit_for(0), async |client| {
            let sums = "SELECT project, sum(bytes)::bigint FROM headrace.answer GROUP BY project";
            let rows = client.query_typed(sums, &[]).await?;
            let sum = |row: &tokio_postgres::Row| (row.get::<_, String>(0), row.get::<_, i64>(1));
            Ok(rows.iter().map(sum).collect::<Vec<_>>())
        })?;
        let sizes: Vec<u64> = held.iter().map(|(_, bytes)| bytes.unsigned_abs()).collect();
        if let Some(share) = fair_share(&sizes, self.max_total_bytes) {
            for (project, bytes) in &held {
                if bytes.unsigned_abs() > share {
                    removed += self.remove_all(integer(share), Some(project))?;
                }
            }
        }
        Ok(removed)
    }
}

impl AnswerArchive for PostgresAnswers {
    fn next_answer(&self, after: i64) -> Result<Option<(i64, AnswerRecord)>, ObjectError> {
        self.pool.read(limit_for(64 << 20), async |client| {
            let rows = client.query_typed(NEXT, &[(&after, Type::INT8)]).await?;
            let Some(first) = rows.first() else { return Ok::<_, StatementFailure>(None) };
            let hold = first.get::<_, &[u8]>(1).try_into();
            let hold: [u8; 16] = hold.map_err(|_| unreadable("the hold of an answer has not 16 bytes"))?;
            let mut body = Vec::new();
            rows.iter().for_each(|row| body.extend_from_slice(row.get(4)));
            let answer = AnswerRecord {
                hold: HoldId::from_bits(u128::from_be_bytes(hold)),
                project: project_at(first, 2)?,
                created: UnixNanos::new(0),
                expires: UnixNanos::new(first.get::<_, i64>(3).unsigned_abs()),
                body: body.into(),
            };
            Ok(Some((first.get(0), answer)))
        })
    }
}

impl fmt::Debug for PostgresAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresAnswers")
            .field("max_total_bytes", &self.max_total_bytes)
            .finish_non_exhaustive()
    }
}
