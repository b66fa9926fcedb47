//! The statements for responses. Each change runs within the caller's transaction, after [`lock`]. Knows no connections.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{ObjectLimits, ResponseRecord, ResponseStatus};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::pool::StatementFailure;
use crate::values::{fits, id_text, integer, nanos, project_at, text_at};

/// Objects that one sweep removes at most.
pub(super) const SWEPT_AT_ONCE: i64 = 256;

/// Values of `response.state`.
const IN_PROGRESS: i32 = 0;
const ENDED: i32 = 1;
const DELETED: i32 = 2;

const MAKE_HELD: &str =
    "INSERT INTO headrace.held_objects VALUES ($1, 0, 0, 0) ON CONFLICT (project) DO NOTHING";
const LOCK_HELD: &str = "SELECT FROM headrace.held_objects WHERE project = $1 FOR UPDATE";
/// Stores a response, and counts the difference to its former state. A response that was deleted before its end stays
/// deleted. An update keeps the times, the predecessor and the conversation.
const PUT: &str = "
    WITH old AS (SELECT bytes FROM headrace.response WHERE id = $2),
    put AS (
        INSERT INTO headrace.response (project, id, bytes, created, expires, state, previous, conversation, input, output, \
            body, events, gateway) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
        ON CONFLICT (id) DO UPDATE SET state = excluded.state, bytes = excluded.bytes, input = excluded.input, \
            output = excluded.output, body = excluded.body, events = excluded.events, gateway = excluded.gateway \
            WHERE response.state <> 2 AND response.project = excluded.project
        RETURNING bytes
    )
    UPDATE headrace.held_objects SET \
        responses = responses + (SELECT count(*) FROM put) - (SELECT count(*) FROM put, old), \
        bytes = bytes + coalesce((SELECT put.bytes - coalesce((SELECT bytes FROM old), 0) FROM put), 0) \
    WHERE project = $1 RETURNING responses, bytes";
pub(super) const TOTAL: &str =
    "SELECT coalesce(sum(bytes + item_bytes), 0)::bigint FROM headrace.held_objects";
pub(super) const COLUMNS: &str =
    "id, project, created, expires, state, previous, conversation, input, output, body, events";

/// Locks a project's objects until the end of the transaction.
pub(super) async fn lock(client: &Client, project: &ProjectId) -> Result<(), StatementFailure> {
    let project = project.as_str();
    let values = [(&project as _, Type::TEXT)];
    // Both are sent at once. The database runs them one after another.
    let (made, locked) =
        tokio::join!(client.execute_typed(MAKE_HELD, &values), client.query_typed(LOCK_HELD, &values));
    made?;
    locked?;
    Ok(())
}

/// Stores a response and makes room for it.
pub(super) async fn put(
    client: &Client,
    limits: &ObjectLimits,
    owner: Option<&[u8]>,
    response: &ResponseRecord,
) -> Result<(), StatementFailure> {
    let ResponseRecord { id, project, created, expires, status, previous, conversation, .. } = response;
    let (id, project) = (id_text(id), project.as_str());
    let (created, expires) = (integer(created.get()), integer(expires.get()));
    let state = if *status == ResponseStatus::InProgress { IN_PROGRESS } else { ENDED };
    let [previous, conversation] = [previous, conversation].map(|id| id.as_deref().map(id_text));
    let bytes = integer(response.bytes());
    let [input, output, body] =
        [&response.input, &response.output, &response.body].map(|text| text.as_bytes());
    let events = response.events.as_deref().map(str::as_bytes);
    let owner = owner.filter(|_| state == IN_PROGRESS);
    let values = [
        (&project as _, Type::TEXT),
        (&id as _, Type::TEXT),
        (&bytes as _, Type::INT8),
        (&created as _, Type::INT8),
        (&expires as _, Type::INT8),
        (&state as _, Type::INT4),
        (&previous as _, Type::TEXT),
        (&conversation as _, Type::TEXT),
        (&input as _, Type::BYTEA),
        (&output as _, Type::BYTEA),
        (&body as _, Type::BYTEA),
        (&events as _, Type::BYTEA),
        (&owner as _, Type::BYTEA),
    ];
    let (held, total) =
        tokio::join!(client.query_typed_one(PUT, &values), client.query_typed_one(TOTAL, &[]));
    let (held, total) = (held?, total?);
    make_room(client, limits, (project, id), (held.get(0), held.get(1)), total.get(0)).await
}

/// Removes the oldest responses of the project until it is within its limits. `held` is the number and bytes of its
/// responses, `total` the bytes of all objects.
async fn make_room(
    client: &Client,
    limits: &ObjectLimits,
    (project, newest): (&str, &str),
    mut held: (i64, i64),
    mut total: i64,
) -> Result<(), StatementFailure> {
    let most = (integer(limits.max_responses_per_project), integer(limits.max_response_bytes_per_project));
    let remove = format!(
        "DELETE FROM headrace.response WHERE seq = (SELECT seq FROM headrace.response WHERE project = $1 AND id <> $2 \
         AND state <> {DELETED} ORDER BY seq LIMIT 1) RETURNING bytes"
    );
    while held.0 > most.0 || held.1 > most.1 {
        let values = [(&project as _, Type::TEXT), (&newest as _, Type::TEXT)];
        let Some(gone) = client.query_typed_opt(&remove, &values).await? else { break };
        let bytes: i64 = gone.get(0);
        count(client, project, -1, -bytes).await?;
        held = (held.0 - 1, held.1 - bytes);
        total -= bytes;
    }
    Ok(fits("max_total", limits.max_total_bytes, total.unsigned_abs())?)
}

/// Adds to the totals of a project's responses.
async fn count(client: &Client, project: &str, responses: i64, bytes: i64) -> Result<(), StatementFailure> {
    let add =
        "UPDATE headrace.held_objects SET responses = responses + $2, bytes = bytes + $3 WHERE project = $1";
    let values = [(&project as _, Type::TEXT), (&responses as _, Type::INT8), (&bytes as _, Type::INT8)];
    client.execute_typed(add, &values).await?;
    Ok(())
}

pub(super) fn record(row: &Row) -> Result<ResponseRecord, StatementFailure> {
    let state: i32 = row.get(4);
    let events: Option<&[u8]> = row.get(10);
    Ok(ResponseRecord {
        id: row.get(0),
        project: project_at(row, 1)?,
        created: nanos(row.get(2)),
        expires: nanos(row.get(3)),
        status: if state == IN_PROGRESS { ResponseStatus::InProgress } else { ResponseStatus::Ended },
        previous: row.get(5),
        conversation: row.get(6),
        input: text_at(row, 7)?,
        output: text_at(row, 8)?,
        body: text_at(row, 9)?,
        events: events.map(|_| text_at(row, 10)).transpose()?,
    })
}

pub(super) async fn response(
    client: &Client,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<Option<ResponseRecord>, StatementFailure> {
    let query = format!(
        "SELECT {COLUMNS} FROM headrace.response WHERE id = $1 AND project = $2 AND expires > $3 AND state <> {DELETED}"
    );
    let (id, project, now) = (id_text(id), project.as_str(), integer(now.get()));
    let values = [(&id as _, Type::TEXT), (&project as _, Type::TEXT), (&now as _, Type::INT8)];
    client.query_typed_opt(&query, &values).await?.as_ref().map(record).transpose()
}

/// Removes a response. One in progress stays as an empty row, so that the gateway that works on it does not store it
/// again.
pub(super) async fn delete(
    client: &Client,
    project: &ProjectId,
    id: &str,
    now: UnixNanos,
) -> Result<bool, StatementFailure> {
    lock(client, project).await?;
    let find = format!(
        "SELECT seq, state, bytes FROM headrace.response WHERE id = $1 AND project = $2 AND expires > $3 \
         AND state <> {DELETED} FOR UPDATE"
    );
    let (id, project, now) = (id_text(id), project.as_str(), integer(now.get()));
    let values = [(&id as _, Type::TEXT), (&project as _, Type::TEXT), (&now as _, Type::INT8)];
    let Some(found) = client.query_typed_opt(&find, &values).await? else { return Ok(false) };
    let (seq, state, bytes): (i64, i32, i64) = (found.get(0), found.get(1), found.get(2));
    let remove = if state == IN_PROGRESS {
        "UPDATE headrace.response SET state = 2, bytes = 0, input = '', output = '', body = '', events = NULL WHERE seq = $1"
    } else {
        "DELETE FROM headrace.response WHERE seq = $1"
    };
    client.execute_typed(remove, &[(&seq, Type::INT8)]).await?;
    count(client, project, -1, -bytes).await?;
    Ok(true)
}

/// Responses in progress on which no live gateway works.
pub(super) async fn unfinished(
    client: &Client,
    now: UnixNanos,
) -> Result<Vec<(ProjectId, String)>, StatementFailure> {
    let query = "SELECT project, id FROM headrace.response WHERE state = 0 AND expires > $1 AND NOT EXISTS \
        (SELECT FROM headrace.gateway WHERE owner = response.gateway AND gateway.state = 'live') ORDER BY seq";
    let rows = client.query_typed(query, &[(&integer(now.get()), Type::INT8)]).await?;
    rows.iter().map(|row| Ok((project_at(row, 0)?, row.get(1)))).collect()
}

/// Some of the expired responses, by project.
pub(super) async fn expired(
    client: &Client,
    now: UnixNanos,
) -> Result<Vec<(ProjectId, Vec<i64>)>, StatementFailure> {
    let query = "SELECT project, array_agg(seq) FROM (SELECT project, seq FROM headrace.response WHERE expires <= $1 \
        LIMIT $2) AS expired GROUP BY project ORDER BY project";
    let values = [(&integer(now.get()) as _, Type::INT8), (&SWEPT_AT_ONCE as _, Type::INT8)];
    let rows = client.query_typed(query, &values).await?;
    rows.iter().map(|row| Ok((project_at(row, 0)?, row.get(1)))).collect()
}

/// Removes expired responses of a project. Returns how many.
pub(super) async fn sweep(
    client: &Client,
    project: &ProjectId,
    expired: &[i64],
    now: UnixNanos,
) -> Result<u64, StatementFailure> {
    let remove = "WITH gone AS (DELETE FROM headrace.response WHERE seq = ANY($1) AND expires <= $2 RETURNING state, bytes) \
        SELECT count(*) FILTER (WHERE state <> 2), coalesce(sum(bytes), 0)::bigint FROM gone";
    let values = [(&expired as _, Type::INT8_ARRAY), (&integer(now.get()) as _, Type::INT8)];
    let gone = client.query_typed_one(remove, &values).await?;
    // Those that clients deleted before their end count no more.
    let (responses, bytes): (i64, i64) = (gone.get(0), gone.get(1));
    count(client, project.as_str(), -responses, -bytes).await?;
    Ok(responses.unsigned_abs())
}
