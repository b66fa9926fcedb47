//! Removes batches that have the name of a user. Must not know their files, and not how a batch runs.

use headrace_objects::{BatchStore as _, ObjectError};
use tokio_postgres::types::Type;

use super::NameSearch;
use crate::values::project_at;

/// Batches. Their requests are searched one batch after another.
const BATCHES: &str = "
    SELECT seq AS place, project, id, state, octet_length(state)::bigint AS size FROM headrace.batch
    WHERE seq > $1 AND ($2::text IS NULL OR project = $2)";
/// Requests of a batch, with their answers.
const LINES: &str = "
    SELECT at AS place, custom_id, body, answer, octet_length(custom_id)::bigint + octet_length(body)
        + octet_length(answer) AS size
    FROM headrace.line WHERE batch = $4 AND at > $1 AND EXISTS
        (SELECT FROM unnest($3::bytea[]) AS hints (hint) WHERE position(hint IN custom_id) > 0
            OR position(hint IN body) > 0 OR position(hint IN answer) > 0)";

/// What was found among the batches.
pub(super) struct ForgottenBatches {
    /// Batches that were removed.
    pub(super) removed: u64,
    /// Batches that have the name and still run. They are left as they are.
    pub(super) running: u64,
}

impl NameSearch<'_> {
    /// Removes batches that have ended, with their requests.
    pub(super) fn forget_batches(&self) -> Result<ForgottenBatches, ObjectError> {
        let mut found = ForgottenBatches { removed: 0, running: 0 };
        let mut after = i64::MIN;
        loop {
            let rows = self.page(BATCHES, (&after, Type::INT8), None)?;
            let Some(last) = rows.last() else { return Ok(found) };
            after = last.get(0);
            for row in &rows {
                let id: &str = row.get(2);
                if !self.is_in_columns(row, &[3]) && !self.is_in_lines(id)? {
                    continue;
                }
                // It may have ended since its row was read. One that ends after this question counts as running.
                if self.is_running(id)? {
                    found.running += 1;
                } else {
                    found.removed += u64::from(self.files.delete_batch(&project_at(row, 1)?, id)?);
                }
            }
        }
    }

    /// Whether a request of a batch has the name, or its answer.
    fn is_in_lines(&self, batch: &str) -> Result<bool, ObjectError> {
        let mut after = i64::MIN;
        loop {
            let rows = self.page(LINES, (&after, Type::INT8), Some(batch))?;
            let Some(last) = rows.last() else { return Ok(false) };
            after = last.get(0);
            if rows.iter().any(|row| self.is_in_texts(row, &[1]) || self.is_in_columns(row, &[2, 3])) {
                return Ok(true);
            }
        }
    }

    fn is_running(&self, batch: &str) -> Result<bool, ObjectError> {
        let query = "SELECT FROM headrace.batch WHERE id = $1 AND gone IS NULL";
        Ok(!self.read(query, &[(&batch, Type::TEXT)])?.is_empty())
    }
}
