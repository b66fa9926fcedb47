//! The table of records: its columns and indexes, and how many rows of each kind it has. Knows nothing of who reads or writes it.

use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnection;

use crate::sqlite::Format;

/// The file's format. The columns are what queries select and sort by; the record itself is JSON with a version of
/// its own, so that a new field needs no new table.
pub(super) const FORMAT: Format = Format {
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

/// How many records of each kind the file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) all: u64,
    /// Refusals of callers who are known.
    pub(super) refused: u64,
    /// Refusals of callers who are not.
    pub(super) strangers: u64,
}

/// Which rows are refusals of callers who are known, as the indexes say it.
pub(super) const REFUSED: &str = "outcome = 'refused' AND org IS NOT NULL";
/// Which rows are refusals of callers who are not.
pub(super) const STRANGERS: &str = "outcome = 'refused' AND org IS NULL";
/// The newest copies of calls, by the key that they are traced under.
pub(super) const SHADOWS: &str =
    "SELECT record FROM trace WHERE key = 'shadow' AND started >= ? ORDER BY started DESC LIMIT ?";
/// The indexes that find the oldest of either, and copies of calls. Made where they are missing: no part of the format. One of durations,
/// which former programs made, costs each call a page of its own on the disk: they are in no order.
pub(super) const INDEXES: &str = "
    DROP INDEX IF EXISTS trace_duration;
    CREATE INDEX IF NOT EXISTS trace_shadows ON trace (started) WHERE key = 'shadow';
    CREATE INDEX IF NOT EXISTS trace_refused ON trace (seq) WHERE outcome = 'refused' AND org IS NOT NULL;
    CREATE INDEX IF NOT EXISTS trace_strangers ON trace (seq) WHERE outcome = 'refused' AND org IS NULL;
";

pub(super) async fn count(connection: &mut SqliteConnection) -> Result<Counts, sqlx::Error> {
    let mut counted = [0; 3];
    for (kind, count) in ["TRUE", REFUSED, STRANGERS].into_iter().zip(&mut counted) {
        // No part of the statement comes from outside.
        let query = format!("SELECT count(*) FROM trace WHERE {kind}");
        let (rows,): (i64,) = sqlx::query_as(AssertSqlSafe(query)).fetch_one(&mut *connection).await?;
        *count = u64::try_from(rows).unwrap_or(0);
    }
    let [all, refused, strangers] = counted;
    Ok(Counts { all, refused, strangers })
}

impl Counts {
    /// Counts rows that were removed: whether each was a refusal, and of a caller who is not known.
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

/// SQLite's integers have 63 bits; what is larger (a time after the year 2262) is the largest.
pub(crate) fn integer(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}
