//! Removes stored responses and conversations that have the name of a user. Works on the file beside its server.

use std::collections::BTreeSet;
use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};

use super::FORMAT;
use super::rows::{remove, remove_conversation};
use crate::disk::DiskGuard;
use crate::sqlite::{CommitDurability, SqliteFile};
use crate::statement_error::StatementError;

/// Rows that are read at once.
const READ_AT_ONCE: i64 = 16;
/// Objects that one transaction removes, so that others can write in between.
const REMOVED_AT_ONCE: usize = 64;

/// The texts of a response: its row, its id, and its columns.
type ResponseTexts = (i64, String, String, String, String, Option<String>);

/// Removes what has the name, and writes the file anew, so that no byte of it is left. Returns the number of responses and
/// conversations that were removed.
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
    let project = project.map(ProjectId::as_str);
    let responses = responses(&mut database, user, project)?;
    for some in responses.chunks(REMOVED_AT_ONCE) {
        database.write(async |connection| {
            for id in some {
                let row = sqlx::query_as("SELECT seq FROM response WHERE id = ?").bind(id);
                let row: Option<(i64,)> = row.fetch_optional(&mut *connection).await?;
                if let Some((seq,)) = row {
                    remove(connection, seq).await?;
                }
            }
            Ok::<_, StatementError>(())
        })?;
    }
    let conversations: Vec<String> = conversations(&mut database, user, project)?.into_iter().collect();
    for some in conversations.chunks(REMOVED_AT_ONCE) {
        database.write(async |connection| {
            for id in some {
                remove_conversation(connection, id).await?;
            }
            Ok::<_, StatementError>(())
        })?;
    }
    database.rewrite(Some(guard))?;
    Ok((responses.len() + conversations.len()) as u64)
}

/// The ids of responses that have the name.
fn responses(
    database: &mut SqliteFile,
    user: &ForgottenName,
    project: Option<&str>,
) -> Result<Vec<String>, StatementError> {
    let (mut found, mut after) = (Vec::new(), i64::MIN);
    loop {
        let rows: Vec<ResponseTexts> = database.read(async |connection| {
            let rows = sqlx::query_as(
                "SELECT seq, id, input, output, body, events FROM response WHERE seq > ?1 \
                 AND (?2 IS NULL OR project = ?2) ORDER BY seq LIMIT ?3",
            );
            let rows = rows.bind(after).bind(project).bind(READ_AT_ONCE);
            Ok::<_, StatementError>(rows.fetch_all(connection).await?)
        })?;
        let Some((last, ..)) = rows.last() else { return Ok(found) };
        after = *last;
        for (_, id, input, output, body, events) in rows {
            let texts = [Some(&input), Some(&output), Some(&body), events.as_ref()];
            let is_whole = texts.into_iter().flatten().any(|text| user.is_in(text.as_bytes()));
            if is_whole || events.is_some_and(|events| user.is_in_events(events.as_bytes())) {
                found.push(id);
            }
        }
    }
}

/// The ids of conversations that have the name, in their metadata or in an item.
fn conversations(
    database: &mut SqliteFile,
    user: &ForgottenName,
    project: Option<&str>,
) -> Result<BTreeSet<String>, StatementError> {
    let (mut found, mut after) = (BTreeSet::new(), String::new());
    loop {
        let rows: Vec<(String, String)> = database.read(async |connection| {
            let rows = sqlx::query_as(
                "SELECT id, metadata FROM conversation WHERE id > ?1 AND (?2 IS NULL OR project = ?2) ORDER BY id LIMIT ?3",
            );
            let rows = rows.bind(after.as_str()).bind(project).bind(READ_AT_ONCE);
            Ok::<_, StatementError>(rows.fetch_all(connection).await?)
        })?;
        let Some((last, _)) = rows.last() else { break };
        after.clone_from(last);
        let named = rows.into_iter().filter(|(_, metadata)| user.is_in(metadata.as_bytes()));
        found.extend(named.map(|(id, _)| id));
    }
    let mut after = i64::MIN;
    loop {
        let rows: Vec<(i64, String, String)> = database.read(async |connection| {
            let rows = sqlx::query_as(
                "SELECT item.seq, conversation.id, json FROM item JOIN conversation ON conversation.id = item.conversation \
                 WHERE item.seq > ?1 AND (?2 IS NULL OR project = ?2) ORDER BY item.seq LIMIT ?3",
            );
            let rows = rows.bind(after).bind(project).bind(READ_AT_ONCE);
            Ok::<_, StatementError>(rows.fetch_all(connection).await?)
        })?;
        let Some((last, ..)) = rows.last() else { return Ok(found) };
        after = *last;
        let named = rows.into_iter().filter(|(_, _, json)| user.is_in(json.as_bytes()));
        found.extend(named.map(|(_, id, _)| id));
    }
}
