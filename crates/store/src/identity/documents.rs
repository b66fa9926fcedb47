//! Numbered documents behind their seam. Their table is beside format 1; programs that do not know it ignore it.

use headrace_domain::{OrgId, UnixNanos};
use headrace_identity::{DocumentStore, DocumentWriter, NewDocument, NumberedDocument, StoreError};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::rows::{RowFailure, bytes, constraint, corrupt, nanos, number, parsed};
use super::{SqliteKeyStore, log};

/// Stores a document that has a number, within the caller's transaction.
pub(super) async fn put_document(
    connection: &mut SqliteConnection,
    document: &NumberedDocument,
) -> Result<(), RowFailure> {
    let insert = sqlx::query(
        "INSERT INTO documents (series, number, kind, org, period, about, created, hash, text) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&document.series)
    .bind(i64::try_from(document.number).map_err(|error| corrupt("a document's number", error))?)
    .bind(&document.kind)
    .bind(document.org.as_str())
    .bind(&document.period)
    .bind(&document.about)
    .bind(nanos(document.created)?)
    .bind(document.hash.as_slice())
    .bind(&document.text);
    let inserted = insert.execute(connection).await;
    inserted.map(drop).map_err(|error| constraint(error, "document", "organisation"))
}

fn document(row: &SqliteRow) -> Result<NumberedDocument, RowFailure> {
    let document = NumberedDocument {
        series: row.try_get("series")?,
        number: number(row, "number")?,
        kind: row.try_get("kind")?,
        org: parsed(row, "org", OrgId::new)?,
        period: row.try_get("period")?,
        about: row.try_get("about")?,
        created: UnixNanos::new(number(row, "created")?),
        hash: bytes(row, "hash")?,
        text: row.try_get("text")?,
    };
    document.check().map_err(RowFailure::Store)
}

impl DocumentStore for SqliteKeyStore {
    fn number_document(
        &self,
        new: &NewDocument,
        write: DocumentWriter<'_>,
    ) -> Result<NumberedDocument, StoreError> {
        self.write("numbering a document", async |connection| {
            let known = "SELECT 1 FROM documents WHERE kind = ? AND org = ? AND period = ? AND about = ?";
            let known = sqlx::query(known).bind(&new.kind).bind(new.org.as_str());
            let known = known.bind(&new.period).bind(&new.about);
            if known.fetch_optional(&mut *connection).await?.is_some() {
                return Err(RowFailure::Store(StoreError::Duplicate { what: "document" }));
            }
            let last = "SELECT coalesce(max(number), 0) AS number FROM documents WHERE series = ?";
            let last = sqlx::query(last).bind(&new.series).fetch_one(&mut *connection).await?;
            let next = number(&last, "number")?.saturating_add(1);
            let (document, audit) = new.numbered(next, write(next));
            put_document(&mut *connection, &document).await?;
            log(connection, audit).await?;
            Ok(document)
        })
    }

    fn documents(&self) -> Result<Vec<NumberedDocument>, StoreError> {
        self.read("reading documents", async |connection| {
            let all = sqlx::query("SELECT * FROM documents ORDER BY series, number");
            all.fetch_all(connection).await?.iter().map(document).collect()
        })
    }

    fn document(&self, series: &str, number: u64) -> Result<Option<NumberedDocument>, StoreError> {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.read("reading a document", async |connection| {
            let one = sqlx::query("SELECT * FROM documents WHERE series = ? AND number = ?");
            let one = one.bind(series).bind(number).fetch_optional(connection).await?;
            one.as_ref().map(document).transpose()
        })
    }
}
