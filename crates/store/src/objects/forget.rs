//! Removes stored responses and conversations that have the name of a user. Works on the file beside its server.

use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};
use sqlx::sqlite::SqliteConnection;

use super::FORMAT;
use super::rows::{remove, remove_conversation};
use crate::sqlite::{CommitDurability, SqliteFile};
use crate::statement_error::StatementError;

/// Removes what has the name, and writes the file anew, so that no byte of it is left. Returns the number of responses and
/// conversations that were removed.
///
/// # Errors
/// An error if the file cannot be read or written.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<u64, StatementError> {
    let mut database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let removed = database.write(async |connection| {
        let mut removed = 0;
        for term in user.terms() {
            removed += forget_term(connection, term, project).await?;
        }
        Ok::<_, StatementError>(removed)
    })?;
    database.rewrite()?;
    Ok(removed)
}

async fn forget_term(
    connection: &mut SqliteConnection,
    term: &str,
    project: Option<&ProjectId>,
) -> Result<u64, StatementError> {
    let responses: Vec<(i64,)> = sqlx::query_as(
        "SELECT seq FROM response WHERE (?2 IS NULL OR project = ?2) AND (instr(input, ?1) OR instr(output, ?1) \
         OR instr(body, ?1) OR instr(coalesce(events, ''), ?1))",
    )
    .bind(term)
    .bind(project.map(ProjectId::as_str))
    .fetch_all(&mut *connection)
    .await?;
    for (seq,) in &responses {
        remove(connection, *seq).await?;
    }
    let conversations: Vec<(String,)> = sqlx::query_as(
        "SELECT id FROM conversation WHERE (?2 IS NULL OR project = ?2) AND (instr(metadata, ?1) OR EXISTS \
         (SELECT 1 FROM item WHERE conversation = conversation.id AND instr(json, ?1)))",
    )
    .bind(term)
    .bind(project.map(ProjectId::as_str))
    .fetch_all(&mut *connection)
    .await?;
    for (id,) in &conversations {
        remove_conversation(connection, id).await?;
    }
    Ok((responses.len() + conversations.len()) as u64)
}
