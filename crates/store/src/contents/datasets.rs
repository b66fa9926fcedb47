//! Rows of datasets and their items.

use headrace_domain::RequestId;
use headrace_trace::{CallDataset, MAX_DATASET_ITEMS, MAX_DATASETS, RecordName, StoredContent, TraceError};

use super::content_file::SqliteContents;
use super::rows::ContentRow;

/// The columns of an item: those of a content, with its number.
const ITEM_COLUMNS: &str =
    "number AS seq, id, started, expires, org, project, key, user, model, facts, request, answer";

/// Copies the contents of `calls` into a new dataset. Returns the number of items, which is smaller if contents are
/// gone. `None` if there is a dataset of this name.
pub(super) fn create(
    store: &SqliteContents,
    dataset: &CallDataset,
    calls: &[RequestId],
) -> Result<Option<u64>, TraceError> {
    if calls.len() as u64 > MAX_DATASET_ITEMS {
        let what =
            format!("a dataset may have {MAX_DATASET_ITEMS} items, and this one would have {}", calls.len());
        return Err(TraceError::TooMuch { what });
    }
    let record = serde_json::to_string(dataset)
        .map_err(|error| TraceError::Corrupt { what: dataset.name.to_string(), why: error.to_string() })?;
    let created = store.write("write a dataset to", async |connection| {
        let (known,): (i64,) = sqlx::query_as("SELECT count(*) FROM dataset").fetch_one(&mut *connection).await?;
        if known.unsigned_abs() >= MAX_DATASETS {
            return Ok(None);
        }
        let insert = sqlx::query("INSERT OR IGNORE INTO dataset (name, record) VALUES (?, ?)");
        let insert = insert.bind(dataset.name.as_str()).bind(&record).execute(&mut *connection).await?;
        if insert.rows_affected() == 0 {
            return Ok(Some(None));
        }
        let mut items = 0_u64;
        for call in calls {
            let insert = sqlx::query(
                "INSERT INTO item (dataset, number, id, started, expires, org, project, key, user, model, facts, request, \
                 answer) SELECT ?, ?, id, started, expires, org, project, key, user, model, facts, request, answer \
                 FROM content WHERE id = ?",
            );
            let number = i64::try_from(items.saturating_add(1)).unwrap_or(i64::MAX);
            let insert = insert.bind(dataset.name.as_str()).bind(number).bind(call.bits().to_be_bytes().to_vec());
            items = items.saturating_add(insert.execute(&mut *connection).await?.rows_affected());
        }
        Ok(Some(Some(items)))
    })?;
    created.ok_or_else(|| TraceError::TooMuch {
        what: format!("there may be {MAX_DATASETS} datasets: delete one (headrace datasets delete NAME)"),
    })
}

pub(super) fn list(store: &SqliteContents) -> Result<Vec<CallDataset>, TraceError> {
    let rows: Vec<(String, i64)> = store.read(async |connection| {
        let query =
            "SELECT record, (SELECT count(*) FROM item WHERE dataset = name) FROM dataset ORDER BY name";
        Ok(sqlx::query_as(query).fetch_all(connection).await?)
    })?;
    let dataset = |(record, items): (String, i64)| {
        let dataset = serde_json::from_str::<CallDataset>(&record);
        let dataset = dataset
            .map_err(|error| TraceError::Corrupt { what: "a dataset".to_owned(), why: error.to_string() })?;
        Ok(CallDataset { items: items.unsigned_abs(), ..dataset })
    };
    rows.into_iter().map(dataset).collect()
}

pub(super) fn items(
    store: &SqliteContents,
    name: &RecordName,
    after: u64,
    limit: usize,
) -> Result<Option<Vec<(u64, StoredContent)>>, TraceError> {
    let rows = store.read(async |connection| {
        let known = sqlx::query("SELECT 1 FROM dataset WHERE name = ?").bind(name.as_str());
        if known.fetch_optional(&mut *connection).await?.is_none() {
            return Ok(None);
        }
        // No part of the statement comes from outside.
        let query = sqlx::AssertSqlSafe(format!(
            "SELECT {ITEM_COLUMNS} FROM item WHERE dataset = ? AND number > ? ORDER BY number LIMIT ?"
        ));
        let query = sqlx::query(query).bind(name.as_str());
        let query = query
            .bind(i64::try_from(after).unwrap_or(i64::MAX))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = query.fetch_all(connection).await?;
        Ok(Some(rows.iter().map(ContentRow::of).collect::<Result<Vec<_>, _>>()?))
    })?;
    let item = |row: ContentRow| Ok((row.seq.unsigned_abs(), row.content()?));
    rows.map(|rows| rows.into_iter().map(item).collect()).transpose()
}

pub(super) fn remove(store: &SqliteContents, name: &RecordName) -> Result<bool, TraceError> {
    store.write("remove a dataset from", async |connection| {
        let items = sqlx::query("DELETE FROM item WHERE dataset = ?").bind(name.as_str());
        items.execute(&mut *connection).await?;
        let gone = sqlx::query("DELETE FROM dataset WHERE name = ?").bind(name.as_str()).execute(connection);
        Ok(gone.await?.rows_affected() > 0)
    })
}
