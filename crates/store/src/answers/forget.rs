//! Removes stored answers that have the name of a user. Works on the file beside its server. A repeated request whose answer
//! was removed gets the error `idempotency_answer_gone`.

use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};

use super::FORMAT;
use crate::disk::DiskGuard;
use crate::sqlite::{CommitDurability, SqliteFile};
use crate::statement_error::StatementError;

/// Removes what has the name, and writes the file anew, so that no byte of it is left. Returns the number of answers that
/// were removed.
///
/// # Errors
/// An error if the file cannot be read or written, or not be written anew.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
    guard: &DiskGuard,
) -> Result<u64, StatementError> {
    let mut database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let answers: Vec<(i64, Vec<u8>)> = database.read(async |connection| {
        let query = sqlx::query_as("SELECT seq, hold FROM answer WHERE ?1 IS NULL OR project = ?1");
        Ok::<_, StatementError>(query.bind(project.map(ProjectId::as_str)).fetch_all(connection).await?)
    })?;
    let mut removed = 0;
    for (seq, hold) in answers {
        let parts: Vec<(Vec<u8>,)> = database.read(async |connection| {
            let query = sqlx::query_as("SELECT data FROM part WHERE answer = ? ORDER BY at").bind(seq);
            Ok::<_, StatementError>(query.fetch_all(connection).await?)
        })?;
        let body: Vec<u8> = parts.into_iter().flat_map(|(part,)| part).collect();
        // A streamed answer carries its texts in pieces.
        if user.is_in(&body) || user.is_in_events(&body) {
            removed += database.write(async |connection| {
                let gone = sqlx::query("DELETE FROM answer WHERE seq = ? AND hold = ?").bind(seq).bind(hold);
                Ok::<_, StatementError>(gone.execute(connection).await?.rows_affected())
            })?;
        }
    }
    database.rewrite(Some(guard))?;
    Ok(removed)
}
