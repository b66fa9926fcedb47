//! The bytes that look-ups would read, and the histories that calls continue. The database gets the size of a value
//! without reading it. Knows no connections.

use std::collections::HashMap;

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    HistoryOf, ItemRecord, MOST_ITEMS, ObjectError, ObjectLimits, PageAsk, StoredLookup, list_of,
};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::conversations;
use crate::pool::StatementFailure;
use crate::values::{fits, id_text, integer, text_at, walk};

/// A response and its predecessors, newest first. Reads one more than may be continued.
const CHAIN: &str = "
    WITH RECURSIVE chain AS (
        SELECT id, previous, state, octet_length(input)::bigint + octet_length(output) AS bytes, 1::bigint AS turn
        FROM headrace.response WHERE id = $1 AND project = $2 AND expires > $3 AND state <> 2
        UNION ALL
        SELECT next.id, next.previous, next.state, octet_length(next.input)::bigint + octet_length(next.output), turn + 1
        FROM chain JOIN headrace.response AS next ON next.id = chain.previous
        WHERE next.project = $2 AND next.expires > $3 AND next.state <> 2 AND chain.state = 1 AND turn <= $4
    ) SELECT id, previous, state = 1, bytes FROM chain ORDER BY turn";

/// The bytes that a look-up would read. `None` if the object is missing.
pub(super) async fn size(
    client: &Client,
    limits: &ObjectLimits,
    project: &ProjectId,
    what: StoredLookup<'_>,
    now: UnixNanos,
) -> Result<Option<u64>, StatementFailure> {
    let conversation = match what {
        StoredLookup::Response(id) => return of_response(client, project, id, now).await,
        StoredLookup::History(HistoryOf::Response(id)) => {
            return Ok(chain(client, limits, project, id, now).await?.map(|(_, bytes)| bytes));
        }
        StoredLookup::History(HistoryOf::Conversation(id))
        | StoredLookup::Page(id, _)
        | StoredLookup::Item(id, _) => id,
    };
    if conversations::conversation(client, project, conversation, now).await?.is_none() {
        return Ok(None);
    }
    match what {
        StoredLookup::Page(_, ask) => of_page(client, conversation, ask).await.map(Some),
        StoredLookup::Item(_, id) => of_item(client, conversation, id).await,
        StoredLookup::Response(_) | StoredLookup::History(_) => {
            of_conversation(client, limits, conversation).await.map(Some)
        }
    }
}

async fn of_response(
    client: &Client,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<u64>, StatementFailure> {
    let query =
        "SELECT bytes FROM headrace.response WHERE id = $1 AND project = $2 AND expires > $3 AND state <> 2";
    let (id, project, now) = (id_text(id), project.as_str(), integer(now.get()));
    let values = [(&id as _, Type::TEXT), (&project as _, Type::TEXT), (&now as _, Type::INT8)];
    let found = client.query_typed_opt(query, &values).await?;
    Ok(found.map(|row| row.get::<_, i64>(0).unsigned_abs()))
}

/// Ids of a response and its predecessors, newest first, and the bytes of their items.
async fn chain(
    client: &Client,
    limits: &ObjectLimits,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<(Vec<String>, u64)>, StatementFailure> {
    let (id, project, now) = (id_text(id), project.as_str(), integer(now.get()));
    let most = integer(limits.max_turns as u64);
    let values = [
        (&id as _, Type::TEXT),
        (&project as _, Type::TEXT),
        (&now as _, Type::INT8),
        (&most as _, Type::INT8),
    ];
    let rows = client.query_typed(CHAIN, &values).await?;
    let (mut ids, mut bytes, mut next) = (Vec::with_capacity(rows.len()), 0_u64, Some(id.to_owned()));
    for row in &rows {
        if !row.get::<_, bool>(2) {
            return Ok(None);
        }
        bytes = bytes.saturating_add(row.get::<_, i64>(3).unsigned_abs());
        ids.push(row.get(0));
        fits("max_turns", limits.max_turns as u64, ids.len() as u64)?;
        fits("max_history_bytes", limits.max_history_bytes, bytes)?;
        next = row.get(1);
    }
    // The last one has no predecessor, or a missing one.
    Ok(next.is_none().then_some((ids, bytes)))
}

/// The bytes of a conversation's items, as lists of [`MOST_ITEMS`].
async fn of_conversation(client: &Client, limits: &ObjectLimits, id: &str) -> Result<u64, StatementFailure> {
    let query = "SELECT count(*), coalesce(sum(octet_length(json)), 0)::bigint FROM headrace.item WHERE conversation = $1";
    let row = client.query_typed_one(query, &[(&id_text(id), Type::TEXT)]).await?;
    let [items, bytes] = [0, 1].map(|column| row.get::<_, i64>(column).unsigned_abs());
    // Each item is followed by a comma or a bracket, and each list starts with a bracket.
    let bytes = bytes.saturating_add(items).saturating_add(items.div_ceil(MOST_ITEMS as u64));
    fits("max_history_bytes", limits.max_history_bytes, bytes)?;
    Ok(bytes)
}

/// The bytes of a page, with the extra row that shows whether more follow.
async fn of_page(client: &Client, conversation: &str, ask: &PageAsk) -> Result<u64, StatementFailure> {
    let Some(from) = conversations::begin(client, conversation, ask).await? else { return Ok(0) };
    let query = format!(
        "SELECT coalesce(sum(bytes), 0)::bigint FROM (SELECT octet_length(id)::bigint + octet_length(json) AS bytes \
         FROM headrace.item WHERE conversation = $1 AND {}) AS page",
        walk(ask, 2)
    );
    let (conversation, limit) = (id_text(conversation), integer(ask.rows() as u64));
    let values = [(&conversation as _, Type::TEXT), (&from as _, Type::INT8), (&limit as _, Type::INT8)];
    Ok(client.query_typed_one(&query, &values).await?.get::<_, i64>(0).unsigned_abs())
}

async fn of_item(client: &Client, conversation: &str, id: &str) -> Result<Option<u64>, StatementFailure> {
    let Some(seq) = conversations::seq_of(client, conversation, id).await? else { return Ok(None) };
    let query = "SELECT octet_length(id)::bigint + octet_length(json) FROM headrace.item WHERE seq = $1";
    let found = client.query_typed_opt(query, &[(&seq, Type::INT8)]).await?;
    Ok(found.map(|row| row.get::<_, i64>(0).unsigned_abs()))
}

/// The items that a call continues, if they fit into `most_bytes`. `None` if they are missing.
pub(super) async fn history(
    client: &Client,
    limits: &ObjectLimits,
    project: &ProjectId,
    (of, most_bytes): (HistoryOf<'_>, u64),
    now: UnixNanos,
) -> Result<Option<Vec<String>>, StatementFailure> {
    let ids = match of {
        HistoryOf::Response(id) => {
            let Some((ids, bytes)) = chain(client, limits, project, id, now).await? else { return Ok(None) };
            within(bytes, most_bytes)?;
            ids
        }
        HistoryOf::Conversation(id) => {
            let Some(bytes) = size(client, limits, project, StoredLookup::History(of), now).await? else {
                return Ok(None);
            };
            within(bytes, most_bytes)?;
            return lists_of(client, id).await.map(Some);
        }
    };
    let query = "SELECT id, input, output FROM headrace.response WHERE id = ANY($1) AND state = 1";
    let rows = client.query_typed(query, &[(&ids, Type::TEXT_ARRAY)]).await?;
    let found: HashMap<&str, _> = rows.iter().map(|row| (row.get(0), row)).collect();
    let mut lists = Vec::with_capacity(ids.len().saturating_mul(2));
    for id in ids.iter().rev() {
        // One that was deleted meanwhile.
        let Some(row) = found.get(id.as_str()) else { return Ok(None) };
        lists.extend([text_at(row, 1)?, text_at(row, 2)?]);
    }
    Ok(Some(lists))
}

fn within(bytes: u64, most_bytes: u64) -> Result<(), ObjectError> {
    if bytes > most_bytes { Err(ObjectError::Grew) } else { Ok(()) }
}

/// The items of a conversation as lists of [`MOST_ITEMS`], oldest first.
async fn lists_of(client: &Client, conversation: &str) -> Result<Vec<String>, StatementFailure> {
    let query =
        "SELECT seq, json FROM headrace.item WHERE conversation = $1 AND seq > $2 ORDER BY seq LIMIT $3";
    let (conversation, limit) = (id_text(conversation), integer(MOST_ITEMS as u64));
    let (mut lists, mut from) = (Vec::new(), i64::MIN);
    loop {
        let values = [(&conversation as _, Type::TEXT), (&from as _, Type::INT8), (&limit as _, Type::INT8)];
        let rows = client.query_typed(query, &values).await?;
        let Some(last) = rows.last() else { return Ok(lists) };
        let item = |row| Ok(ItemRecord { id: String::new(), json: text_at(row, 1)? });
        let items = rows.iter().map(item).collect::<Result<Vec<_>, StatementFailure>>()?;
        lists.push(list_of(&items));
        from = last.get(0);
    }
}
