//! Removes responses and conversations that have the name of a user. Must not know files and batches.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{ObjectError, ObjectStore as _};
use tokio_postgres::types::Type;

use super::NameSearch;
use crate::values::project_at;

/// Responses. The events carry texts in pieces, so that no hint selects them.
const RESPONSES: &str = "
    SELECT seq AS place, project, id, input, output, body, events, octet_length(input)::bigint + octet_length(output)
        + octet_length(body) + coalesce(octet_length(events), 0) AS size
    FROM headrace.response WHERE seq > $1 AND ($2::text IS NULL OR project = $2) AND (events IS NOT NULL OR EXISTS
        (SELECT FROM unnest($3::bytea[]) AS hints (hint) WHERE position(hint IN input) > 0
            OR position(hint IN output) > 0 OR position(hint IN body) > 0))";
const CONVERSATIONS: &str = "
    SELECT id AS place, project, metadata, octet_length(metadata)::bigint AS size FROM headrace.conversation
    WHERE id > $1 AND ($2::text IS NULL OR project = $2) AND EXISTS
        (SELECT FROM unnest($3::bytea[]) AS hints (hint) WHERE position(hint IN metadata) > 0)";
const ITEMS: &str = "
    SELECT item.seq AS place, project, json, conversation.id, octet_length(json)::bigint AS size
    FROM headrace.item JOIN headrace.conversation ON conversation.id = item.conversation
    WHERE item.seq > $1 AND ($2::text IS NULL OR project = $2) AND EXISTS
        (SELECT FROM unnest($3::bytea[]) AS hints (hint) WHERE position(hint IN json) > 0)";
/// A time at which no object has expired.
const ALWAYS: UnixNanos = UnixNanos::new(0);

impl NameSearch<'_> {
    /// Removes responses. Returns their number. The gateway of one in progress cannot store it again.
    pub(super) fn forget_responses(&self) -> Result<u64, ObjectError> {
        let (mut removed, mut after) = (0, i64::MIN);
        loop {
            let rows = self.page(RESPONSES, (&after, Type::INT8), None)?;
            let Some(last) = rows.last() else { return Ok(removed) };
            after = last.get(0);
            for row in &rows {
                let events: Option<&[u8]> = row.get(6);
                if self.is_in_columns(row, &[3, 4, 5, 6])
                    || events.is_some_and(|events| self.user.is_in_events(events))
                {
                    removed +=
                        u64::from(self.objects.delete_response(&project_at(row, 1)?, row.get(2), ALWAYS)?);
                }
            }
        }
    }

    /// Removes conversations that have the name in their metadata or in an item. Returns their number.
    pub(super) fn forget_conversations(&self) -> Result<u64, ObjectError> {
        let (mut removed, mut after) = (0, String::new());
        loop {
            let rows = self.page(CONVERSATIONS, (&after, Type::TEXT), None)?;
            let Some(last) = rows.last() else { break };
            after = last.get(0);
            for row in &rows {
                if self.is_in_columns(row, &[2]) {
                    removed += self.remove_conversation(&project_at(row, 1)?, row.get(0))?;
                }
            }
        }
        let mut after = i64::MIN;
        loop {
            let rows = self.page(ITEMS, (&after, Type::INT8), None)?;
            let Some(last) = rows.last() else { return Ok(removed) };
            after = last.get(0);
            for row in &rows {
                if self.is_in_columns(row, &[2]) {
                    removed += self.remove_conversation(&project_at(row, 1)?, row.get(3))?;
                }
            }
        }
    }

    /// Returns how many were removed: none if another caller has removed it.
    fn remove_conversation(&self, project: &ProjectId, id: &str) -> Result<u64, ObjectError> {
        Ok(u64::from(self.objects.delete_conversation(project, id, ALWAYS)?))
    }
}
