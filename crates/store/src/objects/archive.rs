//! Reads everything in the store of objects, for copies. Knows no other store.

use headrace_objects::{ConversationRecord, ItemRecord, ObjectArchive, ObjectError, ResponseRecord};

use super::SqliteObjects;
use super::rows;

/// Rows that are read at a time. A response may have many bytes.
const RESPONSES: i64 = 8;
const ROWS: i64 = 64;

impl ObjectArchive for SqliteObjects {
    fn archived_responses(&self, after: i64) -> Result<Vec<(i64, ResponseRecord)>, ObjectError> {
        self.kept.pair.read(async |connection| rows::responses_after(connection, after, RESPONSES).await)
    }

    fn archived_conversations(&self, after: &str) -> Result<Vec<ConversationRecord>, ObjectError> {
        self.kept.pair.read(async |connection| rows::conversations_after(connection, after, ROWS).await)
    }

    fn archived_items(&self, conversation: &str, after: i64) -> Result<Vec<(i64, ItemRecord)>, ObjectError> {
        self.kept.pair.read(async |connection| {
            let rows: Vec<(i64, String, String)> = sqlx::query_as(
                "SELECT seq, id, json FROM item WHERE conversation = ? AND seq > ? ORDER BY seq LIMIT ?",
            )
            .bind(conversation)
            .bind(after)
            .bind(ROWS)
            .fetch_all(&mut *connection)
            .await?;
            Ok(rows.into_iter().map(|(seq, id, json)| (seq, ItemRecord { id, json })).collect())
        })
    }
}
