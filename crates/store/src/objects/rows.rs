//! The SQL statements of the store of objects. Each runs within the caller's transaction. Knows no locks.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    ConversationRecord, ItemPage, ItemRecord, ListOrder, ObjectError, ObjectLimits, PageAsk, ResponseRecord,
    ResponseStatus,
};
use sqlx::sqlite::SqliteConnection;

use crate::statement_error::StatementError;

/// Converts to SQLite's signed integers. Times and sizes stay far below the limit.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn nanos(number: i64) -> UnixNanos {
    UnixNanos::new(number.unsigned_abs())
}

/// Checks a limit.
///
/// # Errors
/// [`ObjectError::Full`]
pub(crate) fn fits(rule: &'static str, limit: u64, observed: u64) -> Result<(), ObjectError> {
    if observed > limit { Err(ObjectError::Full { rule, limit, observed }) } else { Ok(()) }
}

type Row =
    (String, String, i64, i64, i64, Option<String>, Option<String>, String, String, String, Option<String>);

const COLUMNS: &str =
    "id, project, created, expires, ended, previous, conversation, input, output, body, events FROM response";

pub(crate) fn project_id(project: &str) -> Result<ProjectId, ObjectError> {
    ProjectId::new(project).map_err(|error| ObjectError::Unavailable {
        why: format!("a row names a project that is none: {error}"),
    })
}

fn record(row: Row) -> Result<ResponseRecord, StatementError> {
    let (id, project, created, expires, ended, previous, conversation, input, output, body, events) = row;
    let project = project_id(&project)?;
    let status = if ended == 0 { ResponseStatus::InProgress } else { ResponseStatus::Ended };
    let (created, expires) = (nanos(created), nanos(expires));
    Ok(ResponseRecord {
        id,
        project,
        created,
        expires,
        status,
        previous,
        conversation,
        input,
        output,
        body,
        events,
    })
}

/// Statements that store a response. They update the project's totals, write the response, and return the new totals.
macro_rules! put {
    ($before:literal, $behind:literal) => {
        concat!(
            $before,
            "INSERT INTO held (project, responses, bytes) SELECT ?1, NOT EXISTS (SELECT 1 FROM response WHERE id = ?2), \
             ?3 - coalesce((SELECT bytes FROM response WHERE id = ?2), 0) WHERE true ON CONFLICT (project) DO UPDATE SET \
             responses = responses + excluded.responses, bytes = bytes + excluded.bytes;
             INSERT INTO response (id, project, created, expires, ended, previous, conversation, bytes, input, output, body, \
             events) VALUES (?2, ?1, ?4, ?5, ?6, ?7, ?8, ?3, ?9, ?10, ?11, ?12)
             ON CONFLICT (id) DO UPDATE SET ended = excluded.ended, bytes = excluded.bytes, input = excluded.input, \
             output = excluded.output, body = excluded.body, events = excluded.events;",
            $behind,
            "SELECT responses, bytes FROM held WHERE project = ?1"
        )
    };
}

/// Stores a response and makes room for it. If no room must be made, this takes one trip to SQLite's thread.
/// `saves_itself` is explained at [`Database::share`](crate::sqlite::Database::share).
pub(super) async fn put(
    connection: &mut SqliteConnection,
    limits: &ObjectLimits,
    response: &ResponseRecord,
    saves_itself: bool,
) -> Result<(), StatementError> {
    let ResponseRecord { id, project, created, expires, status, previous, conversation, .. } = response;
    let plain = put!("", "");
    let saved = put!("SAVEPOINT change; ", " RELEASE change; ");
    let held: (i64, i64) = sqlx::query_as(if saves_itself { saved } else { plain })
        .bind(project.as_str())
        .bind(id)
        .bind(integer(response.bytes()))
        .bind(integer(created.get()))
        .bind(integer(expires.get()))
        .bind(i64::from(*status == ResponseStatus::Ended))
        .bind(previous)
        .bind(conversation)
        .bind(&response.input)
        .bind(&response.output)
        .bind(&response.body)
        .bind(&response.events)
        .fetch_one(&mut *connection)
        .await?;
    make_room(connection, limits, response, held).await
}

/// Adds to the totals of a project's responses.
async fn count(
    connection: &mut SqliteConnection,
    project: &str,
    responses: i64,
    bytes: i64,
) -> Result<(), StatementError> {
    sqlx::query(
        "INSERT INTO held (project, responses, bytes) VALUES (?, ?, ?) ON CONFLICT (project) DO UPDATE SET \
         responses = responses + excluded.responses, bytes = bytes + excluded.bytes",
    )
    .bind(project)
    .bind(responses)
    .bind(bytes)
    .execute(&mut *connection)
    .await?;
    Ok(())
}

/// Removes the oldest responses of the project until it is within its limits. `held` is the number and bytes of its
/// responses.
async fn make_room(
    connection: &mut SqliteConnection,
    limits: &ObjectLimits,
    newest: &ResponseRecord,
    mut held: (i64, i64),
) -> Result<(), StatementError> {
    let most = (integer(limits.max_responses_per_project), integer(limits.max_response_bytes_per_project));
    while held.0 > most.0 || held.1 > most.1 {
        let oldest: Option<(i64, i64)> = sqlx::query_as(
            "SELECT seq, bytes FROM response WHERE project = ? AND id <> ? ORDER BY seq LIMIT 1",
        )
        .bind(newest.project.as_str())
        .bind(&newest.id)
        .fetch_optional(&mut *connection)
        .await?;
        let Some((seq, bytes)) = oldest else { return Ok(()) };
        remove(connection, seq).await?;
        held = (held.0 - 1, held.1 - bytes);
    }
    Ok(())
}

pub(super) async fn remove(connection: &mut SqliteConnection, seq: i64) -> Result<(), StatementError> {
    let gone: Option<(String, i64)> =
        sqlx::query_as("DELETE FROM response WHERE seq = ? RETURNING project, bytes")
            .bind(seq)
            .fetch_optional(&mut *connection)
            .await?;
    match gone {
        Some((project, bytes)) => count(connection, &project, -1, -bytes).await,
        None => Ok(()),
    }
}

pub(super) async fn response(
    connection: &mut SqliteConnection,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<ResponseRecord>, StatementError> {
    let query = format!("SELECT {COLUMNS} WHERE id = ? AND project = ? AND expires > ?");
    let row: Option<Row> = sqlx::query_as(sqlx::AssertSqlSafe(query))
        .bind(id)
        .bind(project.as_str())
        .bind(integer(now.get()))
        .fetch_optional(&mut *connection)
        .await?;
    row.map(record).transpose()
}

/// Responses of all projects after row `after`, each with its row.
pub(super) async fn responses_after(
    connection: &mut SqliteConnection,
    after: i64,
    most: i64,
) -> Result<Vec<(i64, ResponseRecord)>, StatementError> {
    let places: Vec<(i64,)> = sqlx::query_as("SELECT seq FROM response WHERE seq > ? ORDER BY seq LIMIT ?")
        .bind(after)
        .bind(most)
        .fetch_all(&mut *connection)
        .await?;
    let query = format!("SELECT {COLUMNS} WHERE seq > ? ORDER BY seq LIMIT ?");
    let rows: Vec<Row> =
        sqlx::query_as(sqlx::AssertSqlSafe(query)).bind(after).bind(most).fetch_all(&mut *connection).await?;
    places.into_iter().zip(rows).map(|((seq,), row)| Ok((seq, record(row)?))).collect()
}

/// Conversations of all projects after the id `after`, by id.
pub(super) async fn conversations_after(
    connection: &mut SqliteConnection,
    after: &str,
    most: i64,
) -> Result<Vec<ConversationRecord>, StatementError> {
    let rows: Vec<(String, String, i64, i64, String)> = sqlx::query_as(
        "SELECT id, project, created, expires, metadata FROM conversation WHERE id > ? ORDER BY id LIMIT ?",
    )
    .bind(after)
    .bind(most)
    .fetch_all(&mut *connection)
    .await?;
    let conversation = |(id, project, created, expires, metadata): (String, String, i64, i64, String)| {
        let (project, created, expires) = (project_id(&project)?, nanos(created), nanos(expires));
        Ok(ConversationRecord { id, project, created, expires, metadata })
    };
    rows.into_iter().map(conversation).collect()
}

pub(super) async fn unfinished(
    connection: &mut SqliteConnection,
    now: UnixNanos,
) -> Result<Vec<(ProjectId, String)>, StatementError> {
    let rows: Vec<(String, String)> =
        sqlx::query_as("SELECT project, id FROM response WHERE ended = 0 AND expires > ? ORDER BY seq")
            .bind(integer(now.get()))
            .fetch_all(&mut *connection)
            .await?;
    rows.into_iter().map(|(project, id)| Ok((project_id(&project)?, id))).collect()
}

pub(super) async fn conversation(
    connection: &mut SqliteConnection,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<ConversationRecord>, StatementError> {
    let row: Option<(i64, i64, String)> = sqlx::query_as(
        "SELECT created, expires, metadata FROM conversation WHERE id = ? AND project = ? AND expires > ?",
    )
    .bind(id)
    .bind(project.as_str())
    .bind(integer(now.get()))
    .fetch_optional(&mut *connection)
    .await?;
    Ok(row.map(|(created, expires, metadata)| ConversationRecord {
        id: id.to_owned(),
        project: project.clone(),
        created: nanos(created),
        expires: nanos(expires),
        metadata,
    }))
}

pub(super) async fn add_items(
    connection: &mut SqliteConnection,
    limits: &ObjectLimits,
    (project, id): (&ProjectId, &str),
    items: &[ItemRecord],
    now: UnixNanos,
    later: UnixNanos,
) -> Result<bool, StatementError> {
    let bytes: usize = items.iter().map(|item| item.json.len()).sum();
    fits("max_object_bytes", limits.max_object_bytes, bytes as u64)?;
    let row: Option<(i64,)> = sqlx::query_as(
        "UPDATE conversation SET items = items + ?, expires = max(expires, ?) WHERE id = ? AND project = ? AND expires > ? \
         RETURNING items",
    )
    .bind(integer(items.len() as u64))
    .bind(integer(later.get()))
    .bind(id)
    .bind(project.as_str())
    .bind(integer(now.get()))
    .fetch_optional(&mut *connection)
    .await?;
    let Some((has,)) = row else { return Ok(false) };
    fits("max_items_per_conversation", limits.max_items_per_conversation, has.unsigned_abs())?;
    for item in items {
        sqlx::query("INSERT INTO item (conversation, id, json) VALUES (?, ?, ?)")
            .bind(id)
            .bind(&item.id)
            .bind(&item.json)
            .execute(&mut *connection)
            .await?;
    }
    let held: Option<(i64,)> = sqlx::query_as("SELECT bytes FROM held_items WHERE project = ?")
        .bind(project.as_str())
        .fetch_optional(connection)
        .await?;
    let held = held.map_or(0, |(bytes,)| bytes.unsigned_abs());
    fits("max_conversation_bytes_per_project", limits.max_conversation_bytes_per_project, held)?;
    Ok(true)
}

pub(super) async fn items(
    connection: &mut SqliteConnection,
    conversation: &str,
    ask: &PageAsk,
) -> Result<ItemPage, StatementError> {
    let Some(from) = begin(connection, conversation, ask).await? else { return Ok(ItemPage::default()) };
    let query = format!("SELECT id, json FROM item WHERE conversation = ? AND {}", walk(ask));
    let rows: Vec<(String, String)> = sqlx::query_as(sqlx::AssertSqlSafe(query))
        .bind(conversation)
        .bind(from)
        .bind(integer(ask.rows() as u64))
        .fetch_all(&mut *connection)
        .await?;
    let items = rows.into_iter().map(|(id, json)| ItemRecord { id, json }).collect();
    let (items, has_more) = ask.cut(items);
    Ok(ItemPage { items, has_more })
}

/// The row from which a page of items is read. `None` if its cursor names no item.
pub(super) async fn begin(
    connection: &mut SqliteConnection,
    conversation: &str,
    ask: &PageAsk,
) -> Result<Option<i64>, StatementError> {
    let Some(cursor) = ask.cursor() else { return Ok(Some(end(ask))) };
    let found: Option<(i64,)> =
        sqlx::query_as("SELECT seq FROM item WHERE conversation = ? AND id = ? ORDER BY seq LIMIT 1")
            .bind(conversation)
            .bind(cursor)
            .fetch_optional(&mut *connection)
            .await?;
    Ok(found.map(|(seq,)| seq))
}

/// The end of a query that reads a page of rows in order of `seq`. Binds the start row and the number of rows.
pub(crate) fn walk(ask: &PageAsk) -> &'static str {
    match ask.reads() {
        ListOrder::Descending => "seq < ? ORDER BY seq DESC LIMIT ?",
        ListOrder::Ascending => "seq > ? ORDER BY seq ASC LIMIT ?",
    }
}

/// The start of a walk without a cursor.
pub(crate) fn end(ask: &PageAsk) -> i64 {
    if ask.reads() == ListOrder::Descending { i64::MAX } else { i64::MIN }
}

pub(super) async fn remove_item(
    connection: &mut SqliteConnection,
    conversation: &str,
    id: &str,
) -> Result<bool, StatementError> {
    let gone = sqlx::query(
        "DELETE FROM item WHERE seq = (SELECT seq FROM item WHERE conversation = ? AND id = ? ORDER BY seq LIMIT 1)",
    )
    .bind(conversation)
    .bind(id)
    .execute(&mut *connection)
    .await?
    .rows_affected();
    if gone > 0 {
        sqlx::query("UPDATE conversation SET items = items - 1 WHERE id = ?")
            .bind(conversation)
            .execute(&mut *connection)
            .await?;
    }
    Ok(gone > 0)
}

pub(super) async fn remove_conversation(
    connection: &mut SqliteConnection,
    id: &str,
) -> Result<(), StatementError> {
    for statement in ["DELETE FROM item WHERE conversation = ?", "DELETE FROM conversation WHERE id = ?"] {
        sqlx::query(statement).bind(id).execute(&mut *connection).await?;
    }
    Ok(())
}
