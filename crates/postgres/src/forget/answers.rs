//! Removes stored answers that have the name of a user. A repeated request whose answer was removed gets the error
//! `idempotency_answer_gone`. Must not know calls and their keys.

use std::collections::BTreeMap;

use headrace_objects::ObjectError;
use tokio_postgres::types::Type;

use super::NameSearch;

/// Answers. No hint selects them: a part may have a piece of the name alone.
const ANSWERS: &str = "
    SELECT seq AS place, hold, bytes AS size FROM headrace.answer WHERE seq > $1 AND ($2::text IS NULL OR project = $2)";
const PARTS: &str = "SELECT hold, data FROM headrace.answer_part WHERE hold = ANY($1) ORDER BY hold, at";
/// Removes answers with their parts.
const REMOVE: &str = "DELETE FROM headrace.answer WHERE hold = ANY($1)";

impl NameSearch<'_> {
    /// Removes answers. Returns their number.
    pub(super) fn forget_answers(&self) -> Result<u64, ObjectError> {
        let (mut removed, mut after) = (0, i64::MIN);
        loop {
            let answers = self.page(ANSWERS, (&after, Type::INT8), None)?;
            let Some(last) = answers.last() else { return Ok(removed) };
            after = last.get(0);
            let holds: Vec<&[u8]> = answers.iter().map(|row| row.get(1)).collect();
            let mut bodies: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for part in self.read(PARTS, &[(&holds, Type::BYTEA_ARRAY)])? {
                bodies.entry(part.get(0)).or_default().extend_from_slice(part.get(1));
            }
            // A streamed answer carries its texts in pieces.
            bodies.retain(|_, body| self.user.is_in(body) || self.user.is_in_events(body));
            let named: Vec<&[u8]> = bodies.keys().map(Vec::as_slice).collect();
            if !named.is_empty() {
                removed += self.write(async |client| {
                    Ok(client.execute_typed(REMOVE, &[(&named, Type::BYTEA_ARRAY)]).await?)
                })?;
            }
        }
    }
}
