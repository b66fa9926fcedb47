//! Rows of recorded requests and answers: how they are written and decoded. Knows no search.

use headrace_domain::{EndUser, Endpoint, RecordLevel, RequestId, UnixNanos};
use headrace_trace::{StoredContent, TraceError};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Row, Sqlite};

use crate::sqlite::FormatError;
use crate::trace::integer;

/// The columns of [`ContentRow`].
pub(super) const COLUMNS: &str =
    "seq, id, started, expires, org, project, key, user, model, facts, request, answer";

/// What searches do not select by.
#[derive(Serialize, Deserialize)]
struct ContentFacts {
    endpoint: Endpoint,
    level: RecordLevel,
    #[serde(default)]
    request_cut: bool,
    #[serde(default)]
    answer_cut: bool,
}

/// A row as it is read.
pub(super) struct ContentRow {
    pub(super) seq: i64,
    id: Vec<u8>,
    pub(super) started: i64,
    expires: i64,
    org: Option<String>,
    project: String,
    key: Option<String>,
    user: Option<String>,
    model: Option<String>,
    facts: String,
    request: String,
    answer: String,
}

impl ContentRow {
    /// Reads the columns.
    pub(super) fn of(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            seq: row.try_get("seq")?,
            id: row.try_get("id")?,
            started: row.try_get("started")?,
            expires: row.try_get("expires")?,
            org: row.try_get("org")?,
            project: row.try_get("project")?,
            key: row.try_get("key")?,
            user: row.try_get("user")?,
            model: row.try_get("model")?,
            facts: row.try_get("facts")?,
            request: row.try_get("request")?,
            answer: row.try_get("answer")?,
        })
    }

    /// Decodes the row.
    ///
    /// # Errors
    /// [`TraceError::Corrupt`] if a column does not parse.
    pub(super) fn content(self) -> Result<StoredContent, TraceError> {
        let bits: Result<[u8; 16], _> = self.id.as_slice().try_into();
        let id = RequestId::from_bits(bits.map_or(0, u128::from_be_bytes));
        let corrupt = |why: String| TraceError::Corrupt { what: format!("the content of {id}"), why };
        let facts: ContentFacts =
            serde_json::from_str(&self.facts).map_err(|error| corrupt(error.to_string()))?;
        Ok(StoredContent {
            id,
            started: time(self.started),
            expires: time(self.expires),
            org: self.org.map(|org| org.parse().map_err(|error| corrupt(format!("{error}")))).transpose()?,
            project: self.project.parse().map_err(|error| corrupt(format!("{error}")))?,
            key: self.key.map(|key| key.parse().map_err(|error| corrupt(format!("{error}")))).transpose()?,
            user: self.user.as_deref().and_then(EndUser::named),
            model: self.model,
            endpoint: facts.endpoint,
            level: facts.level,
            request: self.request,
            request_cut: facts.request_cut,
            answer: serde_json::from_str(&self.answer).map_err(|error| corrupt(error.to_string()))?,
            answer_cut: facts.answer_cut,
        })
    }
}

fn time(nanos: i64) -> UnixNanos {
    UnixNanos::new(u64::try_from(nanos).unwrap_or(0))
}

/// Inserts a content. If its id is stored already, the first one stays.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    content: &StoredContent,
) -> Result<(), FormatError> {
    let insert = sqlx::query(
        "INSERT OR IGNORE INTO content (id, started, expires, org, project, key, user, model, facts, request, answer) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    );
    bind_content(insert, content)?.execute(connection).await?;
    Ok(())
}

/// A statement with values that it owns or borrows.
pub(super) type ContentInsert<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

/// Binds the columns of a content from `id` on.
///
/// # Errors
/// An error if a part of the content cannot be written as JSON.
pub(super) fn bind_content<'q>(
    insert: ContentInsert<'q>,
    content: &'q StoredContent,
) -> Result<ContentInsert<'q>, FormatError> {
    let facts = ContentFacts {
        endpoint: content.endpoint,
        level: content.level,
        request_cut: content.request_cut,
        answer_cut: content.answer_cut,
    };
    let json = |error: serde_json::Error| FormatError::Sqlite(sqlx::Error::Encode(error.into()));
    let insert = insert
        .bind(content.id.bits().to_be_bytes().to_vec())
        .bind(integer(content.started.get()))
        .bind(integer(content.expires.get()))
        .bind(content.org.as_ref().map(|org| org.as_str()))
        .bind(content.project.as_str())
        .bind(content.key.as_ref().map(|key| key.as_str()))
        .bind(content.user.as_ref().map(EndUser::as_str))
        .bind(content.model.as_deref())
        .bind(serde_json::to_string(&facts).map_err(json)?)
        .bind(content.request.as_str())
        .bind(serde_json::to_string(&content.answer).map_err(json)?);
    Ok(insert)
}
