//! Removes files and batches that have the name of a user. Works on the store beside its server.

use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};

use super::segments::SegmentFolder;
use super::{FORMAT, rows};
use crate::sqlite::{CommitDurability, SqliteFile};
use crate::statement_error::StatementError;

/// What was found in the files.
pub(crate) struct ForgottenFiles {
    /// Files and batches that were removed.
    pub(crate) removed: u64,
    /// Batches that have the name and still run. They are left as they are.
    pub(crate) running: u64,
}

/// Removes what has the name, and writes the database anew, so that no byte of it is left.
///
/// # Errors
/// An error if the store cannot be read or written.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<ForgottenFiles, StatementError> {
    let mut database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let segments = SegmentFolder::beside(path);
    let project = project.map(ProjectId::as_str);
    let files: Vec<(String, String)> = database.read(async |connection| {
        let query = "SELECT id, name FROM file WHERE (?1 IS NULL OR project = ?1) AND state IN (1, 2)";
        Ok::<_, StatementError>(sqlx::query_as(query).bind(project).fetch_all(connection).await?)
    })?;
    let mut removed = 0;
    for (id, name) in files {
        if !user.is_in(name.as_bytes()) && !holds(&mut database, &segments, &id, user)? {
            continue;
        }
        database.write(async |connection| {
            let hide = sqlx::query("UPDATE file SET state = 3 WHERE id = ?").bind(&id);
            hide.execute(connection).await?;
            Ok::<_, StatementError>(())
        })?;
        let names = database.read(async |connection| rows::segments(connection, &id).await)?;
        for name in names {
            segments.remove(&name).map_err(of_disk)?;
        }
        while database.write(async |connection| rows::remove_some(connection, &id).await)? {}
        removed += 1;
    }
    let (ended, running) = database.write(async |connection| {
        let (mut ended, mut running) = (0, 0);
        for term in user.terms() {
            let batches: Vec<(String, bool)> = sqlx::query_as(
                "SELECT id, gone IS NOT NULL FROM batch WHERE (?2 IS NULL OR project = ?2) AND (instr(state, ?1) OR \
                 EXISTS (SELECT 1 FROM line WHERE batch = batch.id AND (instr(custom_id, ?1) OR instr(body, ?1) \
                 OR instr(answer, ?1))))",
            )
            .bind(term.as_str())
            .bind(project)
            .fetch_all(&mut *connection)
            .await?;
            for (id, has_ended) in batches {
                if !has_ended {
                    running += 1;
                    continue;
                }
                sqlx::query("DELETE FROM batch WHERE id = ?").bind(&id).execute(&mut *connection).await?;
                rows::clear(connection, &id).await?;
                ended += 1;
            }
        }
        Ok::<_, StatementError>((ended, running))
    })?;
    database.rewrite()?;
    Ok(ForgottenFiles { removed: removed + ended, running })
}

/// Whether the bytes of a file contain the name. Reads it in pieces that overlap.
fn holds(
    database: &mut SqliteFile,
    segments: &SegmentFolder,
    id: &str,
    user: &ForgottenName,
) -> Result<bool, StatementError> {
    let (mut at, mut piece) = (0_u64, Vec::new());
    loop {
        let some = database.read(async |connection| rows::segment_at(connection, id, at).await)?;
        let mut read = match some {
            Some((from, name)) => {
                segments.read(&name, at.saturating_sub(from), rows::CHUNK_BYTES).map_err(of_disk)?
            }
            None => Vec::new(),
        };
        if read.is_empty() {
            read = database.read(async |connection| rows::bytes(connection, id, at).await)?;
        }
        if read.is_empty() {
            return Ok(false);
        }
        at = at.saturating_add(read.len() as u64);
        piece.extend_from_slice(&read);
        if user.is_in(&piece) {
            return Ok(true);
        }
        let kept = piece.len().saturating_sub(user.longest());
        piece.drain(..kept);
    }
}

fn of_disk(error: std::io::Error) -> StatementError {
    StatementError::from(sqlx::Error::Io(error))
}
