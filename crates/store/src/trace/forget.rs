//! Removes the name of a user from stored traces. The rest of a trace stays. Works on the file beside its writer, whose
//! numbers of records do not change.

use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};
use headrace_trace::{CallRow, decode_record, encode_record};
use sqlx::sqlite::SqliteConnection;

use super::table::FORMAT;
use crate::disk::DiskGuard;
use crate::sqlite::{CommitDurability, FormatError, SqliteFile};

/// Traces that are read at once, and changed in one transaction, so that others can write in between.
const TRACES_AT_ONCE: i64 = 256;

/// Removes the name, and writes the file anew, so that no byte of it is left. Returns the number of changed traces.
///
/// # Errors
/// An error if the file cannot be read or written, or not be written anew.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
    guard: &DiskGuard,
) -> Result<u64, FormatError> {
    let mut database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let (mut changed, mut after) = (0, i64::MIN);
    loop {
        let rows: Vec<(i64, i64, String)> = database.read(async |connection| {
            let rows = sqlx::query_as(
                "SELECT seq, started, record FROM trace WHERE seq > ?1 AND (?2 IS NULL OR project = ?2) ORDER BY seq LIMIT ?3",
            )
            .bind(after)
            .bind(project.map(ProjectId::as_str))
            .bind(TRACES_AT_ONCE);
            Ok::<_, FormatError>(rows.fetch_all(connection).await?)
        })?;
        let Some((last, ..)) = rows.last() else { break };
        after = *last;
        let found: Vec<ForgottenTrace> =
            rows.iter().filter_map(|row| ForgottenTrace::of(user, row)).collect();
        if !found.is_empty() {
            database.write(async |connection| {
                for trace in &found {
                    trace.store(connection).await?;
                }
                Ok::<_, FormatError>(())
            })?;
            changed += found.len() as u64;
        }
    }
    database.rewrite(Some(guard))?;
    Ok(changed)
}

/// A trace that has the name.
struct ForgottenTrace {
    seq: i64,
    started: i64,
    /// The trace without the name, and its row for searches. `None` if it cannot be read, so that it is removed.
    rest: Option<(String, CallRow)>,
}

impl ForgottenTrace {
    /// `None` if a trace does not have the name.
    fn of(user: &ForgottenName, (seq, started, text): &(i64, i64, String)) -> Option<Self> {
        if !user.is_in(text.as_bytes()) {
            return None;
        }
        let rest = match decode_record(text) {
            Ok(mut record) => {
                // An id or the name of a model may be the same word.
                if !record.forget(user) {
                    return None;
                }
                let row = CallRow::of(&record);
                encode_record(&record).ok().map(|text| (text, row))
            }
            Err(_) => None,
        };
        Some(Self { seq: *seq, started: *started, rest })
    }

    async fn store(&self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let Some((record, row)) = &self.rest else {
            // A trigger removes the row for searches.
            let gone = sqlx::query("DELETE FROM trace WHERE seq = ? AND started = ?");
            let gone = gone.bind(self.seq).bind(self.started);
            gone.execute(connection).await?;
            return Ok(());
        };
        let set = sqlx::query("UPDATE trace SET record = ? WHERE seq = ? AND started = ?");
        let set = set.bind(record).bind(self.seq).bind(self.started);
        set.execute(&mut *connection).await?;
        let set = sqlx::query("UPDATE call SET said = ?, model = ? WHERE started = ? AND seq = ?");
        let set = set.bind(row.said()).bind(row.model()).bind(self.started).bind(self.seq);
        set.execute(connection).await?;
        Ok(())
    }
}
