//! The table of records: its columns and indexes, and the number of rows of each kind. Knows neither readers nor
//! writers.

use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;

use crate::sqlite::FileFormat;

/// The file's format. Queries select and sort by the columns. The record itself is JSON with its own version, so that a
/// new field needs no new table.
pub(super) const FORMAT: FileFormat = FileFormat {
    what: "trace store",
    application_id: i32::from_be_bytes(*b"HRtr"),
    version: 1,
    newest: 1,
    schema: "
        CREATE TABLE trace (
            seq INTEGER PRIMARY KEY,
            id BLOB NOT NULL UNIQUE,
            started INTEGER NOT NULL,  -- nanoseconds since 1970, UTC
            duration INTEGER NOT NULL, -- nanoseconds that it took the server
            org TEXT,
            project TEXT,
            key TEXT,
            outcome TEXT NOT NULL,
            record TEXT NOT NULL       -- JSON
        ) STRICT;
        CREATE INDEX trace_started ON trace (started);
    ",
    upgrade: "",
    shrinks: false,
};

/// Number of records of each kind in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RecordCounts {
    pub(super) all: u64,
    /// Refusals of known callers.
    pub(super) refused: u64,
    /// Refusals of unknown callers.
    pub(super) strangers: u64,
}

/// Condition for refusals of known callers, in the words of the index.
pub(super) const REFUSED: &str = "outcome = 'refused' AND org IS NOT NULL";
/// Condition for refusals of unknown callers.
pub(super) const STRANGERS: &str = "outcome = 'refused' AND org IS NULL";
/// The newest copies of calls, by the key under which they are traced.
pub(super) const SHADOWS: &str =
    "SELECT record FROM trace WHERE key = 'shadow' AND started >= ? ORDER BY started DESC LIMIT ?";
/// Indexes that find the oldest refusals of each kind, and copies of calls. They are created if they are missing, and
/// are not part of the format. Earlier programs also made an index of durations. It is dropped, because durations come
/// in no order and each call touched a separate page on the disk.
pub(super) const INDEXES: &str = "
    DROP INDEX IF EXISTS trace_duration;
    CREATE INDEX IF NOT EXISTS trace_shadows ON trace (started) WHERE key = 'shadow';
    CREATE INDEX IF NOT EXISTS trace_refused ON trace (seq) WHERE outcome = 'refused' AND org IS NOT NULL;
    CREATE INDEX IF NOT EXISTS trace_strangers ON trace (seq) WHERE outcome = 'refused' AND org IS NULL;
";

pub(super) async fn count(connection: &mut SqliteConnection) -> Result<RecordCounts, sqlx::Error> {
    let mut counted = [0; 3];
    for (kind, count) in ["TRUE", REFUSED, STRANGERS].into_iter().zip(&mut counted) {
        // No part of the statement comes from outside.
        let query = format!("SELECT count(*) FROM trace WHERE {kind}");
        let (rows,): (i64,) = sqlx::query_as(AssertSqlSafe(query)).fetch_one(&mut *connection).await?;
        *count = u64::try_from(rows).unwrap_or(0);
    }
    let [all, refused, strangers] = counted;
    Ok(RecordCounts { all, refused, strangers })
}

impl RecordCounts {
    /// Subtracts removed rows. Each entry says whether the row was a refusal, and whether its caller was unknown.
    pub(super) fn forget(&mut self, gone: &[(bool, bool)]) {
        for kind in gone {
            self.all = self.all.saturating_sub(1);
            match kind {
                (true, true) => self.strangers = self.strangers.saturating_sub(1),
                (true, false) => self.refused = self.refused.saturating_sub(1),
                (false, _) => {}
            }
        }
    }
}

/// Converts to SQLite's signed integers. A larger value, such as a time after the year 2262, becomes the largest.
pub(crate) fn integer(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}
