//! Removes stored answers that have the name of a user. Works on the file beside its server. A repeated request whose answer
//! was removed gets the error `idempotency_answer_gone`.

use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};

use super::FORMAT;
use crate::sqlite::{CommitDurability, SqliteFile};
use crate::statement_error::StatementError;

/// Removes what has the name, and writes the file anew, so that no byte of it is left. Returns the number of answers that
/// were removed.
///
/// # Errors
/// An error if the file cannot be read or written.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<u64, StatementError> {
    let mut database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let answers: Vec<(i64,)> = database.read(async |connection| {
        let query = sqlx::query_as("SELECT seq FROM answer WHERE ?1 IS NULL OR project = ?1");
        Ok::<_, StatementError>(query.bind(project.map(ProjectId::as_str)).fetch_all(connection).await?)
    })?;
    let mut removed = 0;
    for (seq,) in answers {
        let parts: Vec<(Vec<u8>,)> = database.read(async |connection| {
            let query = sqlx::query_as("SELECT data FROM part WHERE answer = ? ORDER BY at").bind(seq);
            Ok::<_, StatementError>(query.fetch_all(connection).await?)
        })?;
        let body: Vec<u8> = parts.into_iter().flat_map(|(part,)| part).collect();
        if user.is_in(&body) {
            database.write(async |connection| {
                sqlx::query("DELETE FROM answer WHERE seq = ?").bind(seq).execute(connection).await?;
                Ok::<_, StatementError>(())
            })?;
            removed += 1;
        }
    }
    database.rewrite()?;
    Ok(removed)
}
