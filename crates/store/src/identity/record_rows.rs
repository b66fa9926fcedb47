//! Statements about record policies of projects, within the caller's transaction. Their table is beside format 1. A
//! program that does not know it records labels, and never requests or answers.

use headrace_domain::{ProjectId, RecordRules};
use headrace_identity::StoredDirectory;
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::rows::{RowFailure, from_json, json};

/// The table that is added to files of every format.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS project_records (
    project TEXT NOT NULL PRIMARY KEY REFERENCES projects (id),
    rules   TEXT NOT NULL
) STRICT;
";

/// Writes what a project sets, within the caller's transaction.
pub(super) async fn put_records(
    connection: &mut SqliteConnection,
    project: &ProjectId,
    rules: RecordRules,
) -> Result<(), RowFailure> {
    if rules.is_default() {
        let gone = sqlx::query("DELETE FROM project_records WHERE project = ?").bind(project.as_str());
        gone.execute(connection).await?;
        return Ok(());
    }
    let put = sqlx::query("INSERT OR REPLACE INTO project_records (project, rules) VALUES (?, ?)");
    put.bind(project.as_str()).bind(json(&rules)?).execute(connection).await?;
    Ok(())
}

/// Reads what projects set.
pub(super) async fn load(
    connection: &mut SqliteConnection,
    all: &mut StoredDirectory,
) -> Result<(), RowFailure> {
    for row in sqlx::query("SELECT project, rules FROM project_records").fetch_all(connection).await? {
        let id: &str = row.try_get("project")?;
        if let Some(project) = all.projects.iter_mut().find(|project| project.id.as_str() == id) {
            project.records = from_json(&row, "rules")?;
        }
    }
    Ok(())
}
