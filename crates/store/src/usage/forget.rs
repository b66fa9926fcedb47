//! Removes the name of a user from usage. The sums stay, under a name that all forgotten users have.

use std::path::Path;

use headrace_domain::{FORGOTTEN, ForgottenName, ProjectId};
use sqlx::AssertSqlSafe;

use super::FORMAT;
use super::rows::SUMS;
use crate::sqlite::{CommitDurability, FormatError, SqliteFile};

/// Removes the name, and writes the file anew, so that no byte of it is left. Returns the number of changed rows.
///
/// # Errors
/// An error if the file cannot be read or written.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
) -> Result<u64, FormatError> {
    let mut database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let project = project.map(ProjectId::as_str);
    let mut changed = 0;
    for (columns, column) in [("?1, tag", "user"), ("user, ?1", "tag")] {
        let added: Vec<String> =
            SUMS.split(", ").map(|name| format!("{name} = {name} + excluded.{name}")).collect();
        // No part of the statements comes from outside.
        let merge = format!(
            "INSERT INTO hours SELECT hour, org, project, key, model, upstream, {columns}, {SUMS} FROM hours \
             WHERE {column} = ?2 AND (?3 IS NULL OR project = ?3) ON CONFLICT DO UPDATE SET {}",
            added.join(", ")
        );
        let remove = format!("DELETE FROM hours WHERE {column} = ?1 AND (?2 IS NULL OR project = ?2)");
        changed += database.write(async |connection| {
            let merged = sqlx::query(AssertSqlSafe(merge)).bind(FORGOTTEN).bind(user.label()).bind(project);
            merged.execute(&mut *connection).await?;
            let gone =
                sqlx::query(AssertSqlSafe(remove)).bind(user.label()).bind(project).execute(connection);
            Ok::<_, FormatError>(gone.await?.rows_affected())
        })?;
    }
    database.rewrite()?;
    Ok(changed)
}
