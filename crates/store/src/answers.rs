//! Answers that repeated requests get again, in one SQLite file. Opens with the first answer, so that a server without
//! idempotency keys has no such file. Knows neither keys nor calls.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use headrace_domain::{HoldId, ProjectId, UnixNanos};
use headrace_objects::{AnswerArchive, AnswerRecord, AnswerStore, ObjectError, fair_share};

use crate::disk::DiskGuard;
use crate::objects::rows::{integer, nanos, project_id};
use crate::pair::ReadWritePair;
use crate::sqlite::FileFormat;

pub(crate) mod forget;

/// The database format.
const FORMAT: FileFormat = FileFormat {
    what: "store of answers",
    application_id: i32::from_be_bytes(*b"HRan"),
    version: 1,
    newest: 1,
    schema: "
        CREATE TABLE answer (
            seq INTEGER PRIMARY KEY,
            hold BLOB NOT NULL UNIQUE,
            project TEXT NOT NULL,
            expires INTEGER NOT NULL,   -- nanoseconds since 1970, UTC
            bytes INTEGER NOT NULL
        ) STRICT;
        CREATE INDEX answer_project ON answer (project, seq, bytes);
        CREATE INDEX answer_expires ON answer (expires);
        CREATE TABLE part (
            answer INTEGER NOT NULL,
            at INTEGER NOT NULL,
            data BLOB NOT NULL
        ) STRICT;
        CREATE UNIQUE INDEX part_answer ON part (answer, at);
        CREATE TRIGGER answer_removed AFTER DELETE ON answer BEGIN
            DELETE FROM part WHERE answer = old.seq;
        END;
    ",
    upgrade: "",
    shrinks: true,
};

/// Answers that are removed in one transaction, so that others can write in between.
const SWEPT_AT_ONCE: i64 = 256;
/// Bytes of rows and indexes around one answer.
const ROW_BYTES: u64 = 512;
/// Bytes that the file may have beyond the answers, for its log and free pages.
const SPARE_BYTES: u64 = 64 << 20;

/// The store of answers. See the top of the file.
pub struct SqliteAnswers {
    path: PathBuf,
    max_total_bytes: u64,
    guard: Option<DiskGuard>,
    /// `None` until the first answer.
    pair: Mutex<Option<Arc<ReadWritePair>>>,
    /// Bytes that were stored since the last sweep.
    unswept_bytes: AtomicU64,
}

impl SqliteAnswers {
    /// Describes a store that keeps at most `max_total_bytes` after each sweep. With a guard, the disk's reserve stays
    /// free.
    pub fn new(path: &Path, max_total_bytes: u64, guard: Option<DiskGuard>) -> Self {
        let (path, pair, unswept_bytes) = (path.to_owned(), Mutex::new(None), AtomicU64::new(0));
        Self { path, max_total_bytes, guard, pair, unswept_bytes }
    }

    /// Whether an answer was ever stored.
    fn exists(&self) -> bool {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner).is_some() || self.path.exists()
    }

    /// The open database.
    fn pair(&self) -> Result<Arc<ReadWritePair>, ObjectError> {
        let mut pair = self.pair.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = &*pair {
            return Ok(Arc::clone(pair));
        }
        let most = self.max_total_bytes.saturating_add(self.max_total_bytes / 4).saturating_add(SPARE_BYTES);
        Ok(Arc::clone(pair.insert(Arc::new(ReadWritePair::open(&self.path, FORMAT, Some(most))?))))
    }

    /// Removes at most [`SWEPT_AT_ONCE`] answers that `condition` selects, and returns their number.
    fn remove_some(
        &self,
        pair: &ReadWritePair,
        condition: &'static str,
        (project, number): (&str, i64),
    ) -> Result<u64, ObjectError> {
        pair.write(async |connection| {
            let removed = sqlx::query(condition)
                .bind(number)
                .bind(SWEPT_AT_ONCE)
                .bind(project)
                .execute(&mut *connection)
                .await?;
            Ok(removed.rows_affected())
        })
    }

    fn remove_all(
        &self,
        pair: &ReadWritePair,
        condition: &'static str,
        what: (&str, i64),
    ) -> Result<u64, ObjectError> {
        let mut removed = 0;
        loop {
            let some = self.remove_some(pair, condition, what)?;
            removed += some;
            if some < SWEPT_AT_ONCE.unsigned_abs() {
                return Ok(removed);
            }
        }
    }
}

/// Removes answers that have expired.
const REMOVE_EXPIRED: &str =
    "DELETE FROM answer WHERE seq IN (SELECT seq FROM answer WHERE expires <= ?1 LIMIT ?2) AND ?3 = ''";
/// Removes the oldest answers of a project, except the newest ones that have at most the given bytes together.
const REMOVE_OLDEST: &str = "DELETE FROM answer WHERE seq IN (SELECT seq FROM \
    (SELECT seq, sum(bytes) OVER (ORDER BY seq DESC) AS newer FROM answer WHERE project = ?3) \
    WHERE newer > ?1 ORDER BY seq LIMIT ?2)";

impl AnswerStore for SqliteAnswers {
    fn put(&self, answer: &AnswerRecord) -> Result<(), ObjectError> {
        let bytes = (answer.body.len() as u64).saturating_add(ROW_BYTES);
        if let Some(guard) = &self.guard {
            guard.check(bytes.saturating_mul(2))?;
        }
        if self.unswept_bytes.fetch_add(bytes, Ordering::Relaxed) > self.max_total_bytes / 8 {
            self.sweep(answer.created)?;
        }
        self.pair()?.write(async |connection| {
            let insert = "INSERT INTO answer (hold, project, expires, bytes) VALUES (?, ?, ?, ?)";
            let row = sqlx::query(insert)
                .bind(&answer.hold.bits().to_be_bytes()[..])
                .bind(answer.project.as_str())
                .bind(integer(answer.expires.get()))
                .bind(integer(bytes))
                .execute(&mut *connection)
                .await?
                .last_insert_rowid();
            for (at, part) in (0_i64..).zip(answer.parts()) {
                sqlx::query("INSERT INTO part (answer, at, data) VALUES (?, ?, ?)")
                    .bind(row)
                    .bind(at)
                    .bind(part)
                    .execute(&mut *connection)
                    .await?;
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
        self.pair()?.read(async |connection| {
            let parts: Vec<(Vec<u8>,)> = sqlx::query_as(
                "SELECT data FROM part JOIN answer ON part.answer = answer.seq \
                 WHERE hold = ? AND project = ? AND expires > ? ORDER BY at",
            )
            .bind(&hold.bits().to_be_bytes()[..])
            .bind(project.as_str())
            .bind(integer(now.get()))
            .fetch_all(&mut *connection)
            .await?;
            Ok((!parts.is_empty()).then(|| parts.into_iter().flat_map(|(part,)| part).collect()))
        })
    }

    fn sweep(&self, now: UnixNanos) -> Result<u64, ObjectError> {
        if !self.exists() {
            return Ok(0);
        }
        self.unswept_bytes.store(0, Ordering::Relaxed);
        let pair = self.pair()?;
        let mut removed = self.remove_all(&pair, REMOVE_EXPIRED, ("", integer(now.get())))?;
        let held: Vec<(String, i64)> = pair.read(async |connection| {
            let sums = "SELECT project, sum(bytes) FROM answer GROUP BY project";
            Ok(sqlx::query_as(sums).fetch_all(&mut *connection).await?)
        })?;
        let sizes: Vec<u64> = held.iter().map(|(_, bytes)| bytes.unsigned_abs()).collect();
        if let Some(share) = fair_share(&sizes, self.max_total_bytes) {
            for (project, bytes) in &held {
                if bytes.unsigned_abs() > share {
                    removed += self.remove_all(&pair, REMOVE_OLDEST, (project, integer(share)))?;
                }
            }
        }
        if removed > 0 {
            pair.shrink(false)?;
        }
        Ok(removed)
    }
}

impl AnswerArchive for SqliteAnswers {
    fn next_answer(&self, after: i64) -> Result<Option<(i64, AnswerRecord)>, ObjectError> {
        if !self.exists() {
            return Ok(None);
        }
        self.pair()?.read(async |connection| {
            let next = "SELECT seq, hold, project, expires FROM answer WHERE seq > ? ORDER BY seq LIMIT 1";
            let next: Option<(i64, Vec<u8>, String, i64)> =
                sqlx::query_as(next).bind(after).fetch_optional(&mut *connection).await?;
            let Some((row, hold, project, expires)) = next else { return Ok(None) };
            let parts: Vec<(Vec<u8>,)> = sqlx::query_as("SELECT data FROM part WHERE answer = ? ORDER BY at")
                .bind(row)
                .fetch_all(&mut *connection)
                .await?;
            let body: Vec<u8> = parts.into_iter().flat_map(|(part,)| part).collect();
            let hold: [u8; 16] = hold.try_into().map_err(|_| ObjectError::Unavailable {
                why: format!("the hold of answer {row} has not 16 bytes"),
            })?;
            let answer = AnswerRecord {
                hold: HoldId::from_bits(u128::from_be_bytes(hold)),
                project: project_id(&project)?,
                created: UnixNanos::new(0),
                expires: nanos(expires),
                body: body.into(),
            };
            Ok(Some((row, answer)))
        })
    }
}

impl fmt::Debug for SqliteAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteAnswers").field("path", &self.path).finish_non_exhaustive()
    }
}
