//! The statements for conversations and their items. Each change runs within the caller's transaction, after the
//! project's objects were locked. Knows no connections.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{ConversationRecord, ItemPage, ItemRecord, ObjectLimits, PageAsk};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::responses::{SWEPT_AT_ONCE, TOTAL};
use crate::pool::StatementFailure;
use crate::values::{end, fits, id_text, integer, nanos, project_at, text_at, walk};

pub(super) async fn create(
    client: &Client,
    limits: &ObjectLimits,
    conversation: &ConversationRecord,
    items: &[ItemRecord],
) -> Result<(), StatementFailure> {
    let ConversationRecord { id, project, created, expires, metadata } = conversation;
    let owner = project.as_str();
    let own = "SELECT count(*) FROM headrace.conversation WHERE project = $1";
    let own: i64 = client.query_typed_one(own, &[(&owner, Type::TEXT)]).await?.get(0);
    fits(
        "max_conversations_per_project",
        limits.max_conversations_per_project,
        own.unsigned_abs().saturating_add(1),
    )?;
    let (text, from, until) = (id_text(id), integer(created.get()), integer(expires.get()));
    let metadata = metadata.as_bytes();
    let values = [
        (&text as _, Type::TEXT),
        (&owner as _, Type::TEXT),
        (&from as _, Type::INT8),
        (&until as _, Type::INT8),
        (&metadata as _, Type::BYTEA),
    ];
    client.execute_typed("INSERT INTO headrace.conversation VALUES ($1, $2, $3, $4, 0, $5)", &values).await?;
    add_items(client, limits, (project, id), items, (*created, *expires)).await?;
    Ok(())
}

pub(super) async fn conversation(
    client: &Client,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<ConversationRecord>, StatementFailure> {
    let query = "SELECT created, expires, metadata FROM headrace.conversation WHERE id = $1 AND project = $2 AND expires > $3";
    let (text, owner, now) = (id_text(id), project.as_str(), integer(now.get()));
    let values = [(&text as _, Type::TEXT), (&owner as _, Type::TEXT), (&now as _, Type::INT8)];
    let Some(row) = client.query_typed_opt(query, &values).await? else { return Ok(None) };
    Ok(Some(ConversationRecord {
        id: id.to_owned(),
        project: project.clone(),
        created: nanos(row.get(0)),
        expires: nanos(row.get(1)),
        metadata: text_at(&row, 2)?,
    }))
}

pub(super) async fn label(
    client: &Client,
    project: &ProjectId,
    id: &str,
    metadata: &str,
    now: UnixNanos,
) -> Result<Option<ConversationRecord>, StatementFailure> {
    let set =
        "UPDATE headrace.conversation SET metadata = $1 WHERE id = $2 AND project = $3 AND expires > $4";
    let (bytes, text, owner, at) = (metadata.as_bytes(), id_text(id), project.as_str(), integer(now.get()));
    let values = [
        (&bytes as _, Type::BYTEA),
        (&text as _, Type::TEXT),
        (&owner as _, Type::TEXT),
        (&at as _, Type::INT8),
    ];
    client.execute_typed(set, &values).await?;
    conversation(client, project, id, now).await
}

/// Adds items to a conversation that has not expired at the first time, and keeps it until the second one. Returns
/// whether it exists.
pub(super) async fn add_items(
    client: &Client,
    limits: &ObjectLimits,
    (project, id): (&ProjectId, &str),
    items: &[ItemRecord],
    (now, later): (UnixNanos, UnixNanos),
) -> Result<bool, StatementFailure> {
    let bytes = items.iter().map(|item| item.json.len() as u64).sum();
    fits("max_object_bytes", limits.max_object_bytes, bytes)?;
    let grow = "UPDATE headrace.conversation SET items = items + $1, expires = greatest(expires, $2) \
        WHERE id = $3 AND project = $4 AND expires > $5 RETURNING items";
    let (id, project) = (id_text(id), project.as_str());
    let (count, later, now) = (integer(items.len() as u64), integer(later.get()), integer(now.get()));
    let values = [
        (&count as _, Type::INT8),
        (&later as _, Type::INT8),
        (&id as _, Type::TEXT),
        (&project as _, Type::TEXT),
        (&now as _, Type::INT8),
    ];
    let Some(row) = client.query_typed_opt(grow, &values).await? else { return Ok(false) };
    let has: i64 = row.get(0);
    fits("max_items_per_conversation", limits.max_items_per_conversation, has.unsigned_abs())?;
    let insert = "INSERT INTO headrace.item (conversation, id, json) SELECT $1, id, json FROM \
        unnest($2::bytea[], $3::bytea[]) WITH ORDINALITY AS new (id, json, at) ORDER BY at";
    let ids: Vec<&[u8]> = items.iter().map(|item| item.id.as_bytes()).collect();
    let texts: Vec<&[u8]> = items.iter().map(|item| item.json.as_bytes()).collect();
    let values = [(&id as _, Type::TEXT), (&ids as _, Type::BYTEA_ARRAY), (&texts as _, Type::BYTEA_ARRAY)];
    client.execute_typed(insert, &values).await?;
    let held = count_items(client, project, integer(bytes)).await?;
    fits("max_conversation_bytes_per_project", limits.max_conversation_bytes_per_project, held)?;
    let total: i64 = client.query_typed_one(TOTAL, &[]).await?.get(0);
    fits("max_total", limits.max_total_bytes, total.unsigned_abs())?;
    Ok(true)
}

/// Adds to the bytes of the items in a project's conversations. Returns the new total.
async fn count_items(client: &Client, project: &str, bytes: i64) -> Result<u64, StatementFailure> {
    let add = "UPDATE headrace.held_objects SET item_bytes = item_bytes + $2 WHERE project = $1 RETURNING item_bytes";
    let values = [(&project as _, Type::TEXT), (&bytes as _, Type::INT8)];
    let held = client.query_typed_opt(add, &values).await?;
    Ok(held.map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()))
}

pub(super) async fn items(
    client: &Client,
    conversation: &str,
    ask: &PageAsk,
) -> Result<ItemPage, StatementFailure> {
    let Some(from) = begin(client, conversation, ask).await? else { return Ok(ItemPage::default()) };
    let query = format!("SELECT id, json FROM headrace.item WHERE conversation = $1 AND {}", walk(ask, 2));
    let (conversation, limit) = (id_text(conversation), integer(ask.rows() as u64));
    let values = [(&conversation as _, Type::TEXT), (&from as _, Type::INT8), (&limit as _, Type::INT8)];
    let rows = client.query_typed(&query, &values).await?;
    let item = |row| Ok(ItemRecord { id: text_at(row, 0)?, json: text_at(row, 1)? });
    let items = rows.iter().map(item).collect::<Result<_, StatementFailure>>()?;
    let (items, has_more) = ask.cut(items);
    Ok(ItemPage { items, has_more })
}

/// The row from which a page of items is read. `None` if its cursor names no item.
pub(super) async fn begin(
    client: &Client,
    conversation: &str,
    ask: &PageAsk,
) -> Result<Option<i64>, StatementFailure> {
    match ask.cursor() {
        None => Ok(Some(end(ask))),
        Some(cursor) => seq_of(client, conversation, cursor).await,
    }
}

/// The oldest row of an item with this id.
pub(super) async fn seq_of(
    client: &Client,
    conversation: &str,
    id: &str,
) -> Result<Option<i64>, StatementFailure> {
    let query = "SELECT seq FROM headrace.item WHERE conversation = $1 AND sha256(id) = sha256($2) AND id = $2 \
        ORDER BY seq LIMIT 1";
    let (conversation, id) = (id_text(conversation), id.as_bytes());
    let values = [(&conversation as _, Type::TEXT), (&id as _, Type::BYTEA)];
    Ok(client.query_typed_opt(query, &values).await?.map(|row| row.get(0)))
}

pub(super) async fn item(
    client: &Client,
    conversation: &str,
    id: &str,
) -> Result<Option<ItemRecord>, StatementFailure> {
    let Some(seq) = seq_of(client, conversation, id).await? else { return Ok(None) };
    let query = "SELECT json FROM headrace.item WHERE seq = $1";
    let Some(row) = client.query_typed_opt(query, &[(&seq, Type::INT8)]).await? else { return Ok(None) };
    Ok(Some(ItemRecord { id: id.to_owned(), json: text_at(&row, 0)? }))
}

pub(super) async fn remove_item(
    client: &Client,
    project: &ProjectId,
    conversation: &str,
    id: &str,
) -> Result<bool, StatementFailure> {
    let Some(seq) = seq_of(client, conversation, id).await? else { return Ok(false) };
    let remove = "DELETE FROM headrace.item WHERE seq = $1 RETURNING octet_length(json)::bigint";
    let Some(gone) = client.query_typed_opt(remove, &[(&seq, Type::INT8)]).await? else { return Ok(false) };
    let fewer = "UPDATE headrace.conversation SET items = items - 1 WHERE id = $1";
    client.execute_typed(fewer, &[(&id_text(conversation), Type::TEXT)]).await?;
    count_items(client, project.as_str(), -gone.get::<_, i64>(0)).await?;
    Ok(true)
}

/// Removes a conversation with its items, if `is_due` for the time when it expires. Returns whether it was removed.
pub(super) async fn remove(
    client: &Client,
    project: &ProjectId,
    id: &str,
    is_due: impl Fn(UnixNanos) -> bool,
) -> Result<bool, StatementFailure> {
    let find = "SELECT expires FROM headrace.conversation WHERE id = $1 AND project = $2 FOR UPDATE";
    let (id, owner) = (id_text(id), project.as_str());
    let values = [(&id as _, Type::TEXT), (&owner as _, Type::TEXT)];
    let found = client.query_typed_opt(find, &values).await?;
    if !found.is_some_and(|row| is_due(nanos(row.get(0)))) {
        return Ok(false);
    }
    let items = "WITH gone AS (DELETE FROM headrace.item WHERE conversation = $1 RETURNING octet_length(json) AS bytes) \
        SELECT coalesce(sum(bytes), 0)::bigint FROM gone";
    let bytes: i64 = client.query_typed_one(items, &[(&id, Type::TEXT)]).await?.get(0);
    client.execute_typed("DELETE FROM headrace.conversation WHERE id = $1", &[(&id, Type::TEXT)]).await?;
    count_items(client, owner, -bytes).await?;
    Ok(true)
}

/// Some of the expired conversations.
pub(super) async fn expired(
    client: &Client,
    now: UnixNanos,
) -> Result<Vec<(ProjectId, String)>, StatementFailure> {
    let query = "SELECT project, id FROM headrace.conversation WHERE expires <= $1 ORDER BY project LIMIT $2";
    let values = [(&integer(now.get()) as _, Type::INT8), (&SWEPT_AT_ONCE as _, Type::INT8)];
    let rows = client.query_typed(query, &values).await?;
    rows.iter().map(|row| Ok((project_at(row, 0)?, row.get(1)))).collect()
}
