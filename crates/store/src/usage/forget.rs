//! Removes the name of a user from usage. The sums stay, under a name that all forgotten users have.

use std::path::Path;

use headrace_domain::{FORGOTTEN, ForgottenName, ProjectId};
use sqlx::AssertSqlSafe;

use super::FORMAT;
use super::rows::SUMS;
use crate::disk::DiskGuard;
use crate::sqlite::{CommitDurability, FormatError, SqliteFile};

/// Removes the name from users and tags, also where it is a part of them. Then writes the file anew, so that no byte of it
/// is left. Returns the number of changed rows.
///
/// # Errors
/// An error if the file cannot be read or written, or not be written anew.
pub(crate) fn forget(
    path: &Path,
    user: &ForgottenName,
    project: Option<&ProjectId>,
    guard: &DiskGuard,
) -> Result<u64, FormatError> {
    let mut database = SqliteFile::open(path, CommitDurability::Full, FORMAT)?;
    let project = project.map(ProjectId::as_str);
    let added: Vec<String> =
        SUMS.split(", ").map(|name| format!("{name} = {name} + excluded.{name}")).collect();
    let added = added.join(", ");
    let mut changed = 0;
    for (columns, column) in [("?1, tag", "user"), ("user, ?1", "tag")] {
        // No part of the statements comes from outside.
        let all = format!("SELECT DISTINCT {column} FROM hours WHERE ?1 IS NULL OR project = ?1");
        let merge = format!(
            "INSERT INTO hours SELECT hour, org, project, key, model, upstream, {columns}, {SUMS} FROM hours \
             WHERE {column} = ?2 AND (?3 IS NULL OR project = ?3) ON CONFLICT DO UPDATE SET {added}"
        );
        let remove = format!("DELETE FROM hours WHERE {column} = ?1 AND (?2 IS NULL OR project = ?2)");
        let names: Vec<(String,)> = database.read(async |connection| {
            let names = sqlx::query_as(AssertSqlSafe(all)).bind(project);
            Ok::<_, FormatError>(names.fetch_all(connection).await?)
        })?;
        for (name,) in names.iter().filter(|(name,)| user.is_in_text(name)) {
            changed += database.write(async |connection| {
                let merged = sqlx::query(AssertSqlSafe(merge.as_str()));
                let merged = merged.bind(FORGOTTEN).bind(name.as_str()).bind(project);
                merged.execute(&mut *connection).await?;
                let gone = sqlx::query(AssertSqlSafe(remove.as_str())).bind(name.as_str()).bind(project);
                Ok::<_, FormatError>(gone.execute(connection).await?.rows_affected())
            })?;
        }
    }
    database.rewrite(Some(guard))?;
    Ok(changed)
}
