//! Removes the contents of a user.

use headrace_domain::{ForgottenName, ProjectId};
use headrace_trace::TraceError;

use super::content_file::SqliteContents;

/// Removes contents, items of datasets and scores that have the name. Then writes the file anew, so that no byte of them
/// is left.
pub(super) fn forget(
    store: &SqliteContents,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<u64, TraceError> {
    let project = project.map(ProjectId::as_str);
    let removed = store.write("forget a user in", async |connection| {
        let mut removed = 0;
        for statement in [
            "DELETE FROM content WHERE (?2 IS NULL OR project = ?2) AND user = ?1",
            "DELETE FROM item WHERE (?2 IS NULL OR project = ?2) AND user = ?1",
        ] {
            let gone = sqlx::query(statement).bind(user.label()).bind(project).execute(&mut *connection);
            removed += gone.await?.rows_affected();
        }
        for term in user.terms() {
            for statement in [
                "DELETE FROM content WHERE (?2 IS NULL OR project = ?2) AND (instr(request, ?1) OR instr(answer, ?1))",
                "DELETE FROM item WHERE (?2 IS NULL OR project = ?2) AND (instr(request, ?1) OR instr(answer, ?1))",
                "DELETE FROM score WHERE ?2 IS NULL AND (instr(comment, ?1) OR instr(actor, ?1))",
            ] {
                let gone = sqlx::query(statement).bind(term.as_str()).bind(project).execute(&mut *connection);
                removed += gone.await?.rows_affected();
            }
        }
        Ok(removed)
    })?;
    store.rewrite()?;
    Ok(removed)
}
