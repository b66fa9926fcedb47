//! Reads everything in the store of objects, for copies. Knows no other store.

use headrace_objects::{ConversationRecord, ItemRecord, ObjectArchive, ObjectError, ResponseRecord};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresObjects;
use super::responses::{COLUMNS, record};
use crate::pool::StatementFailure;
use crate::values::{id_text, nanos, project_at, text_at};

/// Rows that are read at a time. A response may have many bytes.
const RESPONSES: i64 = 8;
const ROWS: i64 = 64;

fn conversation(row: &Row) -> Result<ConversationRecord, StatementFailure> {
    Ok(ConversationRecord {
        id: row.get(0),
        project: project_at(row, 1)?,
        created: nanos(row.get(2)),
        expires: nanos(row.get(3)),
        metadata: text_at(row, 4)?,
    })
}

impl ObjectArchive for PostgresObjects {
    fn archived_responses(&self, after: i64) -> Result<Vec<(i64, ResponseRecord)>, ObjectError> {
        self.read_long(async |client| {
            let query = format!(
                "SELECT {COLUMNS}, seq FROM headrace.response WHERE seq > $1 AND state <> 2 ORDER BY seq LIMIT $2"
            );
            let values = [(&after as _, Type::INT8), (&RESPONSES as _, Type::INT8)];
            let rows = client.query_typed(&query, &values).await?;
            rows.iter().map(|row| Ok((row.get(11), record(row)?))).collect()
        })
    }

    fn archived_conversations(&self, after: &str) -> Result<Vec<ConversationRecord>, ObjectError> {
        self.read(async |client| {
            let query = "SELECT id, project, created, expires, metadata FROM headrace.conversation \
                WHERE id > $1 ORDER BY id LIMIT $2";
            let values = [(&after as _, Type::TEXT), (&ROWS as _, Type::INT8)];
            client.query_typed(query, &values).await?.iter().map(conversation).collect()
        })
    }

    fn archived_items(&self, conversation: &str, after: i64) -> Result<Vec<(i64, ItemRecord)>, ObjectError> {
        self.read_long(async |client| {
            let query = "SELECT seq, id, json FROM headrace.item WHERE conversation = $1 AND seq > $2 ORDER BY seq LIMIT $3";
            let values = [
                (&id_text(conversation) as _, Type::TEXT),
                (&after as _, Type::INT8),
                (&ROWS as _, Type::INT8),
            ];
            let item = |row: &Row| {
                Ok((row.get(0), ItemRecord { id: text_at(row, 1)?, json: text_at(row, 2)? }))
            };
            client.query_typed(query, &values).await?.iter().map(item).collect()
        })
    }
}
