//! The statements that remove batches. Each runs within the caller's transaction. Knows no connections.

use std::time::Duration;

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::FileLimits;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::rows::count;
use crate::pool::StatementFailure;
use crate::values::{id_text, integer};

/// Overhead that counts for each batch and each request, in bytes.
pub(super) const ROW_BYTES: u64 = 256;
/// How long a change of all requests of a batch may take.
pub(super) const LINES_LIMIT: Duration = Duration::from_secs(30);

/// Batches whose retention is over.
pub(super) async fn expired(
    client: &Client,
    now: UnixNanos,
    most: i64,
) -> Result<Vec<String>, StatementFailure> {
    let query = "SELECT id FROM headrace.batch WHERE gone <= $1 LIMIT $2";
    let values = [(&integer(now.get()) as _, Type::INT8), (&most as _, Type::INT8)];
    Ok(client.query_typed(query, &values).await?.iter().map(|row| row.get(0)).collect())
}

/// Removes a batch with its requests, if it may be removed at `now`. With a project, the batch must be the project's own.
/// Returns whether it was removed.
pub(super) async fn remove(
    client: &Client,
    id: &str,
    project: Option<&ProjectId>,
    now: UnixNanos,
) -> Result<bool, StatementFailure> {
    let remove = "DELETE FROM headrace.batch WHERE id = $1 AND gone <= $2 AND ($3::text IS NULL OR project = $3) \
        RETURNING project, octet_length(state) + bytes + reserved";
    let project = project.map(ProjectId::as_str);
    let values = [
        (&id_text(id) as _, Type::TEXT),
        (&integer(now.get()) as _, Type::INT8),
        (&project as _, Type::TEXT),
    ];
    let Some(gone) = client.query_typed_opt(remove, &values).await? else { return Ok(false) };
    clear(client, id).await?;
    let bytes = gone.get::<_, i64>(1).saturating_add(integer(ROW_BYTES));
    count(client, &FileLimits::default(), gone.get(0), false, (0, -bytes)).await?;
    Ok(true)
}

/// Deletes all requests of a batch.
pub(super) async fn clear(client: &Client, batch: &str) -> Result<(), StatementFailure> {
    let clear = "DELETE FROM headrace.line WHERE batch = $1";
    client.execute_typed(clear, &[(&id_text(batch), Type::TEXT)]).await?;
    Ok(())
}
