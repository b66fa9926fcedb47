//! Removes the contents, items of datasets and scores of a user. Decides on unescaped texts, row by row.

use std::collections::BTreeSet;

use headrace_domain::{ForgottenName, ProjectId};
use headrace_trace::TraceError;
use sqlx::AssertSqlSafe;

use super::content_file::SqliteContents;

/// Rows that are read at once.
const READ_AT_ONCE: i64 = 32;
/// Rows that one transaction removes, so that the recorder can write in between.
const REMOVED_AT_ONCE: usize = 256;

/// The row of a content, an item or a score, and its call.
type NamedRow = (i64, Vec<u8>);
/// A content or an item: its row, its call, its user, and its texts.
type ContentTexts = (i64, Vec<u8>, Option<String>, String, String);
/// A score: its row, its call, its comment, and who gave it.
type ScoreTexts = (i64, Vec<u8>, String, String);

/// Removes contents and items of datasets that have the name, with all scores of their calls, and scores that have the
/// name themselves. With a project, a score counts for it if a content or an item of its call does. Then empties the
/// write-ahead log. Deleted bytes of the file are overwritten, so that no byte of the name is left.
pub(super) fn forget(
    store: &SqliteContents,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<u64, TraceError> {
    let project = project.map(ProjectId::as_str);
    // Before the contents are removed, which assign a score to a project.
    let scores = named_scores(store, user, project)?;
    let mut removed = remove(store, "score", &scores)?;
    let mut calls = BTreeSet::new();
    for table in ["content", "item"] {
        let rows = named_contents(store, table, user, project)?;
        removed += remove(store, table, &rows)?;
        calls.extend(rows.into_iter().map(|(_, call)| call));
    }
    let calls: Vec<Vec<u8>> = calls.into_iter().collect();
    for some in calls.chunks(REMOVED_AT_ONCE) {
        removed += store.write("forget a user in", async |connection| {
            let mut gone = 0;
            for call in some {
                let scores = sqlx::query("DELETE FROM score WHERE id = ?").bind(call.as_slice());
                gone += scores.execute(&mut *connection).await?.rows_affected();
            }
            Ok(gone)
        })?;
    }
    store.empty_log()?;
    Ok(removed)
}

/// The rows of `content` or `item` that have the name.
fn named_contents(
    store: &SqliteContents,
    table: &str,
    user: &ForgottenName,
    project: Option<&str>,
) -> Result<Vec<NamedRow>, TraceError> {
    // No part of the statement comes from outside.
    let page = format!(
        "SELECT rowid, id, user, request, answer FROM {table} WHERE rowid > ?1 AND (?2 IS NULL OR project = ?2) \
         ORDER BY rowid LIMIT ?3"
    );
    let (mut found, mut after) = (Vec::new(), i64::MIN);
    loop {
        let rows: Vec<ContentTexts> = store.read(async |connection| {
            let rows = sqlx::query_as(AssertSqlSafe(page.as_str()));
            let rows = rows.bind(after).bind(project).bind(READ_AT_ONCE);
            Ok(rows.fetch_all(connection).await?)
        })?;
        let Some((last, ..)) = rows.last() else { return Ok(found) };
        after = *last;
        for (row, call, label, request, answer) in rows {
            let is_named = label.is_some_and(|label| user.is_in_text(&label))
                || user.is_in(request.as_bytes())
                || user.is_in(answer.as_bytes());
            if is_named {
                found.push((row, call));
            }
        }
    }
}

/// The rows of scores that have the name.
fn named_scores(
    store: &SqliteContents,
    user: &ForgottenName,
    project: Option<&str>,
) -> Result<Vec<NamedRow>, TraceError> {
    let page = "SELECT rowid, id, comment, actor FROM score WHERE rowid > ?1 AND (?2 IS NULL \
                OR EXISTS (SELECT 1 FROM content WHERE content.id = score.id AND project = ?2) \
                OR EXISTS (SELECT 1 FROM item WHERE item.id = score.id AND project = ?2)) ORDER BY rowid LIMIT ?3";
    let (mut found, mut after) = (Vec::new(), i64::MIN);
    loop {
        let rows: Vec<ScoreTexts> = store.read(async |connection| {
            let rows = sqlx::query_as(page).bind(after).bind(project).bind(READ_AT_ONCE);
            Ok(rows.fetch_all(connection).await?)
        })?;
        let Some((last, ..)) = rows.last() else { return Ok(found) };
        after = *last;
        let named = rows
            .into_iter()
            .filter(|(_, _, comment, actor)| user.is_in_text(comment) || user.is_in_text(actor));
        found.extend(named.map(|(row, call, ..)| (row, call)));
    }
}

/// Removes rows of a table. Returns their number. A row that has another call now stays.
fn remove(store: &SqliteContents, table: &str, rows: &[NamedRow]) -> Result<u64, TraceError> {
    // No part of the statement comes from outside.
    let statement = format!("DELETE FROM {table} WHERE rowid = ? AND id = ?");
    let mut removed = 0;
    for some in rows.chunks(REMOVED_AT_ONCE) {
        removed += store.write("forget a user in", async |connection| {
            let mut gone = 0;
            for (row, call) in some {
                let row = sqlx::query(AssertSqlSafe(statement.as_str())).bind(*row).bind(call.as_slice());
                gone += row.execute(&mut *connection).await?.rows_affected();
            }
            Ok(gone)
        })?;
    }
    Ok(removed)
}
