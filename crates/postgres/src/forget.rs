//! Removes what clients stored that has the name of a user, for all gateways at once. Searches whole tables, so it takes
//! long.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{ForgottenName, ProjectId};
use headrace_objects::ObjectError;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use crate::object_schema;
use crate::session::DatabaseSession;
use crate::url::PostgresUrl;

/// How long the search for one form of the name may take.
const LIMIT: Duration = Duration::from_secs(1_800);
/// Bytes that a batch counts in addition to its state and its requests.
const BATCH_BYTES: i64 = 256;

/// Responses. `$1` is the name and `$2` the project, or null.
const RESPONSES: &str = "
    WITH gone AS (DELETE FROM headrace.response WHERE ($2::text IS NULL OR project = $2) AND (position($1 IN input) > 0
        OR position($1 IN output) > 0 OR position($1 IN body) > 0 OR position($1 IN coalesce(events, '')) > 0)
        RETURNING project, state, bytes),
    less AS (UPDATE headrace.held_objects held SET responses = held.responses - sums.responses, bytes = held.bytes - sums.bytes
        FROM (SELECT project, count(*) FILTER (WHERE state <> 2) AS responses, sum(bytes)::bigint AS bytes FROM gone GROUP BY project) sums
        WHERE held.project = sums.project)
    SELECT count(*) FROM gone";
const CONVERSATIONS: &str = "
    SELECT id FROM headrace.conversation WHERE ($2::text IS NULL OR project = $2) AND (position($1 IN metadata) > 0
        OR EXISTS (SELECT FROM headrace.item WHERE conversation = conversation.id AND position($1 IN json) > 0)) FOR UPDATE";
const ITEMS: &str = "
    WITH gone AS (DELETE FROM headrace.item USING headrace.conversation WHERE item.conversation = ANY($1)
        AND conversation.id = item.conversation RETURNING project, octet_length(json) AS bytes)
    UPDATE headrace.held_objects held SET item_bytes = held.item_bytes - sums.bytes
        FROM (SELECT project, sum(bytes)::bigint AS bytes FROM gone GROUP BY project) sums WHERE held.project = sums.project";
/// Files. A name may be divided between chunks, so each chunk is searched with the beginning of the next one.
const FILES: &str = "
    SELECT id FROM headrace.file WHERE ($2::text IS NULL OR project = $2) AND state IN (1, 2) AND (position($1 IN name) > 0
        OR id IN (SELECT file FROM (SELECT file, data || coalesce(substring(lead(data) OVER (PARTITION BY file ORDER BY at)
            FROM 1 FOR length($1)), '') AS data FROM headrace.file_chunk) pieces WHERE position($1 IN data) > 0)) FOR UPDATE";
const FILE_ROWS: &str = "
    WITH gone AS (DELETE FROM headrace.file WHERE id = ANY($1) RETURNING project, bytes)
    UPDATE headrace.held_files held SET files = held.files - sums.files, bytes = held.bytes - sums.bytes
        FROM (SELECT project, count(*) AS files, sum(bytes)::bigint AS bytes FROM gone GROUP BY project) sums
        WHERE held.project = sums.project";
const BATCHES: &str = "
    SELECT id, gone IS NOT NULL FROM headrace.batch WHERE ($2::text IS NULL OR project = $2) AND (position($1 IN state) > 0
        OR EXISTS (SELECT FROM headrace.line WHERE batch = batch.id AND (position($1 IN custom_id) > 0
            OR position($1 IN body) > 0 OR position($1 IN answer) > 0))) FOR UPDATE";
const BATCH_ROWS: &str = "
    WITH gone AS (DELETE FROM headrace.batch WHERE id = ANY($1) RETURNING project,
        octet_length(state) + bytes + reserved + $2 AS bytes)
    UPDATE headrace.held_files held SET bytes = held.bytes - sums.bytes
        FROM (SELECT project, sum(bytes)::bigint AS bytes FROM gone GROUP BY project) sums WHERE held.project = sums.project";
const ANSWERS: &str = "
    WITH gone AS (DELETE FROM headrace.answer WHERE ($2::text IS NULL OR project = $2) AND hold IN
        (SELECT hold FROM headrace.answer_part GROUP BY hold HAVING position($1 IN string_agg(data, '' ORDER BY at)) > 0)
        RETURNING hold)
    SELECT count(*) FROM gone";
/// Frees the space of removed rows for others. Outside of a transaction.
const VACUUM: &str = "VACUUM headrace.response, headrace.conversation, headrace.item, headrace.file, headrace.file_chunk, \
    headrace.batch, headrace.line, headrace.answer, headrace.answer_part";

/// Removes stored responses, conversations, files, batches and answers that have the name of a user: of one project, or
/// everywhere. Returns their number.
///
/// # Errors
/// [`ObjectError::Unavailable`] if the database cannot be reached, or running batches have the name.
pub fn forget(
    url: &Arc<PostgresUrl>,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<u64, ObjectError> {
    let mut session = DatabaseSession::new(Arc::clone(url));
    object_schema::ensure(&mut session)?;
    let unavailable = |why: String| ObjectError::Unavailable { why };
    let (mut removed, mut running) = (0, 0);
    for term in user.terms() {
        let found = session.run(LIMIT, async |client| {
            client.batch_execute("BEGIN").await?;
            let found = forget_term(client, term.as_bytes(), project).await?;
            client.batch_execute("COMMIT").await?;
            Ok(found)
        });
        let found = found.map_err(|fault| unavailable(fault.why()))?;
        (removed, running) = (removed + found.0, running + found.1);
    }
    let vacuumed = session.run(LIMIT, async |client| client.batch_execute(VACUUM).await);
    vacuumed.map_err(|fault| unavailable(fault.why()))?;
    match running {
        0 => Ok(removed),
        _ => Err(unavailable(format!(
            "{removed} records were removed; {running} running batches have the name: cancel them or wait, then try again"
        ))),
    }
}

/// Removes what has a form of the name, within the caller's transaction. Returns the number of removed records, and of
/// running batches, which stay.
async fn forget_term(client: &Client, term: &[u8], project: Option<&ProjectId>) -> Result<(u64, u64), Error> {
    let project = project.map(ProjectId::as_str);
    let values = [(&term as _, Type::BYTEA), (&project as _, Type::TEXT)];
    let mut removed = 0;
    for statement in [RESPONSES, ANSWERS] {
        let count: i64 = client.query_typed_one(statement, &values).await?.get(0);
        removed += count.unsigned_abs();
    }
    let ids = async |query: &str| -> Result<Vec<String>, Error> {
        let rows = client.query_typed(query, &values).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    };
    let conversations = ids(CONVERSATIONS).await?;
    client.execute_typed(ITEMS, &[(&conversations as _, Type::TEXT_ARRAY)]).await?;
    let gone = "DELETE FROM headrace.conversation WHERE id = ANY($1)";
    client.execute_typed(gone, &[(&conversations as _, Type::TEXT_ARRAY)]).await?;
    let files = ids(FILES).await?;
    let chunks = "DELETE FROM headrace.file_chunk WHERE file = ANY($1)";
    client.execute_typed(chunks, &[(&files as _, Type::TEXT_ARRAY)]).await?;
    client.execute_typed(FILE_ROWS, &[(&files as _, Type::TEXT_ARRAY)]).await?;
    let batches = client.query_typed(BATCHES, &values).await?;
    let (ended, running): (Vec<_>, Vec<_>) = batches.iter().partition(|row| row.get::<_, bool>(1));
    let ended: Vec<String> = ended.into_iter().map(|row| row.get(0)).collect();
    let lines = "DELETE FROM headrace.line WHERE batch = ANY($1)";
    client.execute_typed(lines, &[(&ended as _, Type::TEXT_ARRAY)]).await?;
    let rows = [(&ended as _, Type::TEXT_ARRAY), (&BATCH_BYTES as _, Type::INT8)];
    client.execute_typed(BATCH_ROWS, &rows).await?;
    removed += (conversations.len() + files.len() + ended.len()) as u64;
    Ok((removed, running.len() as u64))
}
