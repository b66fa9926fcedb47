//! Removes the name of a user from stored traces. The rest of a trace stays. Works on the file beside its writer, whose
//! numbers of records do not change.

use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};
use headrace_trace::decode_record;
use serde_json::Value;

use super::table::FORMAT;
use crate::sqlite::{CommitDurability, FormatError, SqliteFile};

/// Traces that one transaction changes, so that others can write in between.
const CHANGED_AT_ONCE: i64 = 256;

/// Removes the name, and writes the file anew, so that no byte of it is left. Returns the number of changed traces.
///
/// # Errors
/// An error if the file cannot be read or written.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<u64, FormatError> {
    let mut database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let (mut changed, mut after) = (0, i64::MIN);
    loop {
        let rows: Vec<(i64, String)> = database.write(async |connection| {
            let rows: Vec<(i64, String)> = sqlx::query_as(
                "SELECT seq, record FROM trace WHERE seq > ?1 AND (?2 IS NULL OR project = ?2) ORDER BY seq LIMIT ?3",
            )
            .bind(after)
            .bind(project.map(ProjectId::as_str))
            .bind(CHANGED_AT_ONCE)
            .fetch_all(&mut *connection)
            .await?;
            for (seq, record) in rows.iter().filter(|(_, record)| user.is_in(record.as_bytes())) {
                match without(user, record) {
                    Some(record) => {
                        let set = sqlx::query("UPDATE trace SET record = ? WHERE seq = ?");
                        set.bind(record).bind(seq).execute(&mut *connection).await?;
                    }
                    // What is left is no trace.
                    None => {
                        let gone = sqlx::query("DELETE FROM trace WHERE seq = ?").bind(seq);
                        gone.execute(&mut *connection).await?;
                    }
                }
                let said = "UPDATE call SET said = '' WHERE seq = ? AND said IS NOT NULL";
                sqlx::query(said).bind(seq).execute(&mut *connection).await?;
                let model: Option<(Option<String>,)> =
                    sqlx::query_as("SELECT model FROM call WHERE seq = ?")
                        .bind(seq)
                        .fetch_optional(&mut *connection)
                        .await?;
                // A caller may have sent the name as that of a model.
                if let Some(model) = model.and_then(|(model,)| user.replaced_in(&model?)) {
                    let set = sqlx::query("UPDATE call SET model = ? WHERE seq = ?");
                    set.bind(model).bind(seq).execute(&mut *connection).await?;
                }
                changed += 1;
            }
            Ok::<_, FormatError>(rows)
        })?;
        let Some((last, _)) = rows.last() else { break };
        after = *last;
    }
    database.rewrite()?;
    Ok(changed)
}

/// A record without the name. `None` if the rest cannot be read as a record.
fn without(user: &ForgottenName, record: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(record).ok()?;
    if let Value::Object(fields) = &mut value
        && fields.get("user").and_then(Value::as_str) == Some(user.label())
    {
        fields.remove("user");
    }
    user.remove_from(&mut value);
    let record = value.to_string();
    (decode_record(&record).is_ok() && !user.is_in(record.as_bytes())).then_some(record)
}
