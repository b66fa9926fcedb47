//! The bytes that look-ups would read, and the histories that calls continue. SQLite gets the size of a text without
//! reading it (`octet_length`). Knows no locks.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    HistoryOf, ItemRecord, MOST_ITEMS, ObjectError, ObjectLimits, PageAsk, StoredLookup, list_of,
};
use sqlx::sqlite::SqliteConnection;

use super::rows::{self, fits, integer};
use crate::statement_error::StatementError;

/// The bytes that a look-up would read. `None` if the object is missing.
pub(super) async fn size(
    connection: &mut SqliteConnection,
    limits: &ObjectLimits,
    project: &ProjectId,
    what: StoredLookup<'_>,
    now: UnixNanos,
) -> Result<Option<u64>, StatementError> {
    match what {
        StoredLookup::Response(id) => of_response(connection, project, id, now).await,
        StoredLookup::History(HistoryOf::Response(id)) => {
            Ok(chain(connection, limits, project, id, now).await?.map(|(_, bytes)| bytes))
        }
        StoredLookup::History(HistoryOf::Conversation(id)) => {
            if rows::conversation(connection, project, id, now).await?.is_none() {
                return Ok(None);
            }
            of_conversation(connection, limits, id).await.map(Some)
        }
        StoredLookup::Page(id, ask) => {
            if rows::conversation(connection, project, id, now).await?.is_none() {
                return Ok(None);
            }
            of_page(connection, id, ask).await.map(Some)
        }
        StoredLookup::Item(of, id) => {
            if rows::conversation(connection, project, of, now).await?.is_none() {
                return Ok(None);
            }
            of_item(connection, of, id).await
        }
    }
}

async fn of_response(
    connection: &mut SqliteConnection,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<u64>, StatementError> {
    let found: Option<(i64,)> =
        sqlx::query_as("SELECT bytes FROM response WHERE id = ? AND project = ? AND expires > ?")
            .bind(id)
            .bind(project.as_str())
            .bind(integer(now.get()))
            .fetch_optional(&mut *connection)
            .await?;
    Ok(found.map(|(bytes,)| bytes.unsigned_abs()))
}

/// Ids of a response and its predecessors, newest first, and the bytes of their items.
async fn chain(
    connection: &mut SqliteConnection,
    limits: &ObjectLimits,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<(Vec<String>, u64)>, StatementError> {
    let (mut ids, mut bytes) = (Vec::new(), 0_u64);
    let mut next = Some(id.to_owned());
    while let Some(id) = next {
        let row: Option<(i64, Option<String>, i64)> = sqlx::query_as(
            "SELECT ended, previous, octet_length(input) + octet_length(output) FROM response WHERE id = ? AND project = ? \
             AND expires > ?",
        )
        .bind(&id)
        .bind(project.as_str())
        .bind(integer(now.get()))
        .fetch_optional(&mut *connection)
        .await?;
        let Some((_, previous, own)) = row.filter(|(ended, ..)| *ended != 0) else { return Ok(None) };
        bytes = bytes.saturating_add(own.unsigned_abs());
        ids.push(id);
        fits("max_turns", limits.max_turns as u64, ids.len() as u64)?;
        fits("max_history_bytes", limits.max_history_bytes, bytes)?;
        next = previous;
    }
    Ok(Some((ids, bytes)))
}

/// The bytes of a conversation's items, as lists of [`MOST_ITEMS`].
async fn of_conversation(
    connection: &mut SqliteConnection,
    limits: &ObjectLimits,
    id: &str,
) -> Result<u64, StatementError> {
    let (items, bytes): (i64, i64) = sqlx::query_as(
        "SELECT count(*), coalesce(sum(octet_length(json)), 0) FROM item WHERE conversation = ?",
    )
    .bind(id)
    .fetch_one(&mut *connection)
    .await?;
    let items = items.unsigned_abs();
    // Each item is followed by a comma or a bracket, and each list starts with a bracket.
    let bytes = bytes.unsigned_abs().saturating_add(items).saturating_add(items.div_ceil(MOST_ITEMS as u64));
    fits("max_history_bytes", limits.max_history_bytes, bytes)?;
    Ok(bytes)
}

/// The bytes of a page, with the extra row that shows whether more follow.
async fn of_page(
    connection: &mut SqliteConnection,
    conversation: &str,
    ask: &PageAsk,
) -> Result<u64, StatementError> {
    let Some(from) = rows::begin(connection, conversation, ask).await? else { return Ok(0) };
    let query = format!(
        "SELECT coalesce(sum(bytes), 0) FROM (SELECT octet_length(id) + octet_length(json) AS bytes FROM item WHERE \
         conversation = ? AND {})",
        rows::walk(ask)
    );
    let (bytes,): (i64,) = sqlx::query_as(sqlx::AssertSqlSafe(query))
        .bind(conversation)
        .bind(from)
        .bind(integer(ask.rows() as u64))
        .fetch_one(&mut *connection)
        .await?;
    Ok(bytes.unsigned_abs())
}

async fn of_item(
    connection: &mut SqliteConnection,
    conversation: &str,
    id: &str,
) -> Result<Option<u64>, StatementError> {
    let found: Option<(i64,)> = sqlx::query_as(
        "SELECT octet_length(id) + octet_length(json) FROM item WHERE conversation = ? AND id = ? ORDER BY seq LIMIT 1",
    )
    .bind(conversation)
    .bind(id)
    .fetch_optional(&mut *connection)
    .await?;
    Ok(found.map(|(bytes,)| bytes.unsigned_abs()))
}

/// The items that a call continues, if they fit into `most_bytes`. `None` if they are missing.
pub(super) async fn history(
    connection: &mut SqliteConnection,
    limits: &ObjectLimits,
    project: &ProjectId,
    (of, most_bytes): (HistoryOf<'_>, u64),
    now: UnixNanos,
) -> Result<Option<Vec<String>>, StatementError> {
    let ids = match of {
        HistoryOf::Response(id) => {
            let Some((ids, bytes)) = chain(connection, limits, project, id, now).await? else {
                return Ok(None);
            };
            within(bytes, most_bytes)?;
            ids
        }
        HistoryOf::Conversation(id) => {
            let size = size(connection, limits, project, StoredLookup::History(of), now).await?;
            let Some(bytes) = size else { return Ok(None) };
            within(bytes, most_bytes)?;
            return said(connection, id).await.map(Some);
        }
    };
    let mut lists = Vec::with_capacity(ids.len().saturating_mul(2));
    for id in ids.iter().rev() {
        let (input, output): (String, String) =
            sqlx::query_as("SELECT input, output FROM response WHERE id = ?")
                .bind(id)
                .fetch_one(&mut *connection)
                .await?;
        lists.extend([input, output]);
    }
    Ok(Some(lists))
}

fn within(bytes: u64, most_bytes: u64) -> Result<(), ObjectError> {
    if bytes > most_bytes { Err(ObjectError::Grew) } else { Ok(()) }
}

/// The items of a conversation as lists of [`MOST_ITEMS`], oldest first.
async fn said(connection: &mut SqliteConnection, conversation: &str) -> Result<Vec<String>, StatementError> {
    let (mut lists, mut from) = (Vec::new(), i64::MIN);
    loop {
        let rows: Vec<(i64, String)> = sqlx::query_as(
            "SELECT seq, json FROM item WHERE conversation = ? AND seq > ? ORDER BY seq LIMIT ?",
        )
        .bind(conversation)
        .bind(from)
        .bind(integer(MOST_ITEMS as u64))
        .fetch_all(&mut *connection)
        .await?;
        let Some((last, _)) = rows.last() else { return Ok(lists) };
        from = *last;
        let items: Vec<ItemRecord> =
            rows.into_iter().map(|(_, json)| ItemRecord { id: String::new(), json }).collect();
        lists.push(list_of(&items));
    }
}
