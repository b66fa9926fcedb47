//! Numbered documents behind their seam. A change locks the head of the journal first, so that two gateways never give the
//! same number.

use headrace_domain::OrgId;
use headrace_identity::{DocumentStore, DocumentWriter, NewDocument, NumberedDocument, StoreError};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::rows::{RowFailure, corrupt, hash, nanos, number, parsed, time};
use super::{LIMIT, LOAD_LIMIT, PostgresKeyStore, exists, log};

/// Stores a document that has a number, within the caller's transaction.
pub(super) async fn put_document(client: &Client, document: &NumberedDocument) -> Result<(), RowFailure> {
    let NumberedDocument { series, number, kind, org, period, about, created, hash, text } = document;
    let number = i64::try_from(*number).map_err(|error| corrupt("a document's number", error))?;
    let (org, created, hash) = (org.as_str(), nanos(*created)?, hash.as_slice());
    let values = [
        (series as _, Type::TEXT),
        (&number as _, Type::INT8),
        (kind as _, Type::TEXT),
        (&org as _, Type::TEXT),
        (period as _, Type::TEXT),
        (about as _, Type::TEXT),
        (&created as _, Type::INT8),
        (&hash as _, Type::BYTEA),
        (text as _, Type::TEXT),
    ];
    let put = "INSERT INTO headrace.document VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    client.execute_typed(put, &values).await?;
    Ok(())
}

fn document(row: &Row) -> Result<NumberedDocument, RowFailure> {
    let document = NumberedDocument {
        series: row.try_get("series")?,
        number: number(row, "number")?,
        kind: row.try_get("kind")?,
        org: parsed(row, "org", OrgId::new)?,
        period: row.try_get("period")?,
        about: row.try_get("about")?,
        created: time(row, "created")?,
        hash: hash(row, "hash")?,
        text: row.try_get("text")?,
    };
    Ok(document.check()?)
}

impl DocumentStore for PostgresKeyStore {
    fn number_document(
        &self,
        new: &NewDocument,
        write: DocumentWriter<'_>,
    ) -> Result<NumberedDocument, StoreError> {
        self.write("numbering a document", async |client| {
            let NewDocument { series, kind, org, period, about, .. } = new;
            let org = org.as_str();
            let known =
                "SELECT FROM headrace.document WHERE kind = $1 AND org = $2 AND period = $3 AND about = $4";
            let values = [
                (kind as _, Type::TEXT),
                (&org as _, Type::TEXT),
                (period as _, Type::TEXT),
                (about as _, Type::TEXT),
            ];
            if exists(client, known, &values).await? {
                return Err(StoreError::Duplicate { what: "document" }.into());
            }
            let last = "SELECT coalesce(max(number), 0) AS number FROM headrace.document WHERE series = $1";
            let last = client.query_typed_one(last, &[(series, Type::TEXT)]).await?;
            let next = number(&last, "number")?.saturating_add(1);
            let (document, audit) = new.numbered(next, write(next));
            put_document(client, &document).await?;
            log(client, &audit).await?;
            Ok(document)
        })
    }

    fn documents(&self) -> Result<Vec<NumberedDocument>, StoreError> {
        self.read("reading documents", LOAD_LIMIT, async |client| {
            let all = "SELECT * FROM headrace.document ORDER BY series COLLATE \"C\", number";
            client.query_typed(all, &[]).await?.iter().map(document).collect()
        })
    }

    fn document(&self, series: &str, number: u64) -> Result<Option<NumberedDocument>, StoreError> {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        self.read("reading a document", LIMIT, async |client| {
            let one = "SELECT * FROM headrace.document WHERE series = $1 AND number = $2";
            let rows = client.query_typed(one, &[(&series, Type::TEXT), (&number, Type::INT8)]).await?;
            rows.first().map(document).transpose()
        })
    }
}
