//! Removes files, uploads and batches that have the name of a user. Works on the store beside its server.

use std::collections::BTreeMap;
use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};

use super::segments::SegmentFolder;
use super::{FORMAT, rows};
use crate::disk::DiskGuard;
use crate::sqlite::{CommitDurability, SqliteFile};
use crate::statement_error::StatementError;

/// Requests of batches that are read at once.
const LINES_AT_ONCE: i64 = 64;

/// What was found in the files.
pub(crate) struct ForgottenFiles {
    /// Files, uploads and batches that were removed.
    pub(crate) removed: u64,
    /// Batches that have the name and still run. They are left as they are.
    pub(crate) running: u64,
}

/// Removes what has the name, and writes the database anew, so that no byte of it is left.
///
/// # Errors
/// An error if the store cannot be read or written, or not be written anew.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
    guard: &DiskGuard,
) -> Result<ForgottenFiles, StatementError> {
    let database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let project = project.map(ProjectId::as_str);
    let mut search = FileSearch { database, segments: SegmentFolder::beside(path), user, project };
    // Batches before files, because a batch that ends meanwhile writes files of results.
    let (mut removed, mut running) = (0, 0);
    for (id, has_ended) in search.batches()? {
        if !has_ended {
            running += 1;
            continue;
        }
        while search.database.write(async |connection| rows::remove_batch_step(connection, &id).await)? {}
        removed += 1;
    }
    removed += search.forget_files()?;
    removed += search.forget_uploads()?;
    search.database.rewrite(Some(guard))?;
    Ok(ForgottenFiles { removed, running })
}

/// The search for a name in one store.
struct FileSearch<'a> {
    database: SqliteFile,
    segments: SegmentFolder,
    user: &'a ForgottenName,
    /// `None` for all projects.
    project: Option<&'a str>,
}

impl FileSearch<'_> {
    /// Removes files, and parts of uploads. Returns their number.
    fn forget_files(&mut self) -> Result<u64, StatementError> {
        let project = self.project;
        let files: Vec<(String, String)> = self.database.read(async |connection| {
            let query = "SELECT id, name FROM file WHERE (?1 IS NULL OR project = ?1) AND state IN (1, 2)";
            Ok::<_, StatementError>(sqlx::query_as(query).bind(project).fetch_all(connection).await?)
        })?;
        let mut removed = 0;
        for (id, name) in files {
            if !self.user.is_in_text(&name) && !self.holds(&id)? {
                continue;
            }
            self.database.write(async |connection| {
                let hide = sqlx::query("UPDATE file SET state = 3 WHERE id = ?").bind(&id);
                hide.execute(connection).await?;
                Ok::<_, StatementError>(())
            })?;
            self.remove_hidden(&id)?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes uploads that have the name in that of their file, with their parts. Returns their number.
    fn forget_uploads(&mut self) -> Result<u64, StatementError> {
        let project = self.project;
        let uploads: Vec<(String, String, String)> = self.database.read(async |connection| {
            let query = "SELECT id, name, mime FROM upload WHERE ?1 IS NULL OR project = ?1";
            Ok::<_, StatementError>(sqlx::query_as(query).bind(project).fetch_all(connection).await?)
        })?;
        let mut removed = 0;
        for (id, name, mime) in uploads {
            if !self.user.is_in_text(&name) && !self.user.is_in_text(&mime) {
                continue;
            }
            let parts = self.database.write(async |connection| {
                let gone = sqlx::query("DELETE FROM upload WHERE id = ?").bind(&id);
                gone.execute(&mut *connection).await?;
                rows::hide_parts(connection, &id).await
            })?;
            for part in parts {
                self.remove_hidden(&part)?;
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// The batches that have the name, each with whether it has ended.
    fn batches(&mut self) -> Result<BTreeMap<String, bool>, StatementError> {
        let (project, user) = (self.project, self.user);
        let states: Vec<(String, bool, String)> = self.database.read(async |connection| {
            let query = "SELECT id, gone IS NOT NULL, state FROM batch WHERE ?1 IS NULL OR project = ?1";
            Ok::<_, StatementError>(sqlx::query_as(query).bind(project).fetch_all(connection).await?)
        })?;
        let named = states.into_iter().filter(|(_, _, state)| user.is_in(state.as_bytes()));
        let mut found: BTreeMap<String, bool> = named.map(|(id, has_ended, _)| (id, has_ended)).collect();
        let mut after = i64::MIN;
        loop {
            let lines: Vec<(i64, String, bool, String, String, String)> =
                self.database.read(async |connection| {
                    let query = sqlx::query_as(
                        "SELECT line.rowid, batch.id, gone IS NOT NULL, custom_id, body, answer FROM line \
                         JOIN batch ON batch.id = line.batch WHERE line.rowid > ?1 AND (?2 IS NULL OR project = ?2) \
                         ORDER BY line.rowid LIMIT ?3",
                    );
                    let query = query.bind(after).bind(project).bind(LINES_AT_ONCE);
                    Ok::<_, StatementError>(query.fetch_all(connection).await?)
                })?;
            let Some((last, ..)) = lines.last() else { return Ok(found) };
            after = *last;
            for (_, batch, has_ended, custom_id, body, answer) in lines {
                let is_named = user.is_in_text(&custom_id)
                    || user.is_in(body.as_bytes())
                    || user.is_in(answer.as_bytes());
                if is_named {
                    found.insert(batch, has_ended);
                }
            }
        }
    }

    /// Whether the bytes of a file contain the name. Reads it in pieces that overlap.
    fn holds(&mut self, id: &str) -> Result<bool, StatementError> {
        let (mut at, mut piece) = (0_u64, Vec::new());
        loop {
            let some = self.database.read(async |connection| rows::segment_at(connection, id, at).await)?;
            let mut read = match some {
                Some((from, name)) => {
                    let from = at.saturating_sub(from);
                    self.segments.read(&name, from, rows::CHUNK_BYTES).map_err(of_disk)?
                }
                None => Vec::new(),
            };
            if read.is_empty() {
                read = self.database.read(async |connection| rows::bytes(connection, id, at).await)?;
            }
            if read.is_empty() {
                return Ok(false);
            }
            at = at.saturating_add(read.len() as u64);
            piece.extend_from_slice(&read);
            if self.user.is_in(&piece) {
                return Ok(true);
            }
            let kept = piece.len().saturating_sub(self.user.overlap_bytes());
            piece.drain(..kept);
        }
    }

    /// Removes a hidden file with its bytes.
    fn remove_hidden(&mut self, id: &str) -> Result<(), StatementError> {
        let names = self.database.read(async |connection| rows::segments(connection, id).await)?;
        for name in names {
            self.segments.remove(&name).map_err(of_disk)?;
        }
        while self.database.write(async |connection| rows::remove_some(connection, id).await)? {}
        Ok(())
    }
}

fn of_disk(error: std::io::Error) -> StatementError {
    StatementError::from(sqlx::Error::Io(error))
}
