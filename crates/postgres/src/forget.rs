//! Removes what clients stored that has the name of a user, for all gateways at once. Reads whole tables, so it takes long.
//! Must not know how a name is found in bytes, and not how the totals of a project are counted.

mod answers;
mod batches;
mod files;
mod objects;

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{ForgottenName, ProjectId};
use headrace_objects::{FileLimits, ObjectError, ObjectLimits};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::files::PostgresFiles;
use crate::objects::{OwnerSource, PostgresObjects};
use crate::pool::{SessionPool, StatementFailure};
use crate::url::PostgresUrl;

/// How long one query may take. It may read a whole table before it finds a row.
const READ_LIMIT: Duration = Duration::from_secs(1_800);
/// How long one removal may take. It removes few rows.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Rows that are read at once.
const PAGE_ROWS: i64 = 64;
/// Bytes that are read at once, unless the first row alone has more.
const PAGE_BYTES: i64 = 8 << 20;
/// Frees the space of removed rows for others. Outside of a transaction.
const VACUUM: &str = "VACUUM headrace.response, headrace.conversation, headrace.item, headrace.file, headrace.file_chunk, \
    headrace.upload, headrace.batch, headrace.line, headrace.answer, headrace.answer_part";

/// A value of a query, and its type.
type QueryValue<'v> = (&'v (dyn ToSql + Sync), Type);

/// Removes stored responses, conversations, files, uploads, batches and answers that have the name of a user: of one
/// project, or everywhere. Returns their number.
///
/// # Errors
/// [`ObjectError::Unavailable`] if the database cannot be reached, or running batches have the name. What was removed until
/// then stays removed.
pub fn forget(
    url: &Arc<PostgresUrl>,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<u64, ObjectError> {
    // The stores remove objects as for their clients, so that the totals of the projects stay right. No gateway owns them.
    let owner: OwnerSource = Arc::new(|| None);
    let search = NameSearch {
        objects: PostgresObjects::open(Arc::clone(url), ObjectLimits::default(), Arc::clone(&owner))?,
        files: PostgresFiles::open(Arc::clone(url), FileLimits::default(), owner)?,
        pool: SessionPool::new(Arc::clone(url)),
        user,
        hints: user.search_hints().into_iter().map(str::as_bytes).collect(),
        project: project.map(ProjectId::as_str),
    };
    let mut removed =
        search.forget_responses()? + search.forget_conversations()? + search.forget_answers()?;
    // A batch that ends has stored its result files. So a batch that has ended now leaves none that is not searched.
    let batches = search.forget_batches()?;
    removed += batches.removed + search.forget_files()? + search.forget_uploads()?;
    search.pool.read(READ_LIMIT, async |client| Ok(client.batch_execute(VACUUM).await?))?;
    match batches.running {
        0 => Ok(removed),
        running => Err(ObjectError::Unavailable {
            why: format!(
                "{removed} records were removed; {running} running batches have the name: cancel them or wait, then try again"
            ),
        }),
    }
}

/// The search for a name in one database.
struct NameSearch<'a> {
    objects: PostgresObjects,
    files: PostgresFiles,
    pool: SessionPool,
    user: &'a ForgottenName,
    /// Bytes with the name contain at least one of these.
    hints: Vec<&'a [u8]>,
    /// `None` for all projects.
    project: Option<&'a str>,
}

impl NameSearch<'_> {
    /// Reads the first of the rows that `rows` selects, in the order of their column `place`. Their column `size` is their
    /// bytes. `rows` has as `$1` the place `after`, as `$2` the project or null, as `$3` the hints, and as `$4` the id
    /// `within`. Empty if there is no row.
    fn page(&self, rows: &str, after: QueryValue<'_>, within: Option<&str>) -> Result<Vec<Row>, ObjectError> {
        let query = format!(
            "SELECT * FROM (SELECT *, sum(size) OVER (ORDER BY place) - size AS earlier FROM \
             ({rows} ORDER BY place LIMIT {PAGE_ROWS}) page) pages WHERE earlier < {PAGE_BYTES} ORDER BY place"
        );
        let values = [
            after,
            (&self.project as _, Type::TEXT),
            (&self.hints as _, Type::BYTEA_ARRAY),
            (&within as _, Type::TEXT),
        ];
        self.read(&query, &values)
    }

    fn read(&self, query: &str, values: &[QueryValue<'_>]) -> Result<Vec<Row>, ObjectError> {
        self.pool.read(READ_LIMIT, async |client| Ok(client.query_typed(query, values).await?))
    }

    /// Runs a change as one transaction.
    fn write<T: Send>(
        &self,
        change: impl AsyncFnOnce(&Client) -> Result<T, StatementFailure> + Send,
    ) -> Result<T, ObjectError> {
        self.pool.write(WRITE_LIMIT, change)
    }

    /// Whether one of the columns of a row is bytes with the name.
    fn is_in_columns(&self, row: &Row, columns: &[usize]) -> bool {
        columns
            .iter()
            .any(|column| row.get::<_, Option<&[u8]>>(*column).is_some_and(|bytes| self.user.is_in(bytes)))
    }

    /// Whether one of the columns of a row is a text that is the name or contains it.
    fn is_in_texts(&self, row: &Row, columns: &[usize]) -> bool {
        columns.iter().any(|column| self.user.is_in_text(&String::from_utf8_lossy(row.get(*column))))
    }
}
